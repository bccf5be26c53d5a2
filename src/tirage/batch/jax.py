"""`Batch` like a JAX array: a pytree of fixed shapes, to be passed into `jax.jit` and carried through `lax.scan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tirage.backends import find, known, type_name
from tirage.backends import jax as backend
from tirage.backends.jax import slots as rows
from tirage.backends.jax import traced, unpack
from tirage.backends.jax.arrays import is_traced
from tirage.backends.jax.dispatch import draw_rows
from tirage.backends.jax.slots import SlotRequest, Slots
from tirage.backends.jax.traced_history import appended
from tirage.batch.host import Batch, bounded, check_order
from tirage.draw import Draw, Status
from tirage.errors import ParamsError
from tirage.history import MAX_HISTORY, History
from tirage.params import SamplingParams
from tirage.sampling_batch import SamplingRow, joined, packed, starts
from tirage.sampling_metadata import Drawn, SamplingMetadata

HISTORY_CAPACITY = 4096
"""Tokens, prompt and output, that a request may have unless the batch is told otherwise."""

_FILLS: dict[str, tuple[str, float]] = {
    "token_ids": ("token_ids", -1),
    "sampled_logprobs": ("sampled_logprobs", np.nan),
    "support_sizes": ("support", 0),
    "logprobs": ("logprobs", np.nan),
    "ranks": ("ranks", 0),
    "top_token_ids": ("top_ids", -1),
    "top_logprobs": ("top_logprobs", -np.inf),
}
"""Fields of a Draw: their names in Drawn, and what a slot without a request reports."""
_VIEWED = ("logprobs", "ranks", "top_token_ids", "top_logprobs")


class JaxBatch(Batch):
    """Rows in flight as arrays, one row per slot; what a request draws is what it draws anywhere else.

    A pytree: inside `jit` and `scan` the same methods act on the traced copy, which is to be returned. Parameters,
    seeds, masks and histories are values there; what is compiled in is which stages occur, and how wide the tables of
    ids are (powers of two), so only a request that needs a stage, a view or a table that no request had before makes
    a new program. Outside, rows are drawn by the host's kernels and nothing is compiled.

    Inside a trace logits have one row per slot, `slot` may be traced, `add` to a full batch returns -1 and changes
    nothing, and a request that outgrows `history_capacity` gets status `history_full`. Refused by name: what no
    program compiles, such as custom processors, Mirostat and watermarks (docs/jax.md has the list); inside a trace
    unseeded requests, and masks for requests of a preset that checks them after the draw.
    """

    __slots__ = ("_arrays",)

    def __init__(
        self, vocab_size: int, capacity: int, *, like: Any = None, history_capacity: int | None = None
    ) -> None:
        super().__init__(vocab_size, capacity, like=like, history_capacity=history_capacity)
        room = HISTORY_CAPACITY if history_capacity is None else history_capacity
        room = bounded(room, "history_capacity", 1, MAX_HISTORY)
        self._arrays = rows.empty(self.capacity, self.vocab_size, room)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._concrete("used")).tolist())

    def add(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        *,
        output_ids: Iterable[int] = (),
        sample_index: int = 0,
    ) -> Any:
        used = self._arrays.scalars["used"]
        if is_traced(used):
            slot = jnp.where(jnp.all(used), -1, jnp.argmin(used)).astype(jnp.int32)
        else:
            free = np.flatnonzero(~np.asarray(used))
            if not free.size:
                raise ParamsError(f"batch must have a free slot, got {self.capacity} requests in {self.capacity} slots")
            slot = int(free[0])
        return self.insert(params, prompt_ids, slot=slot, output_ids=output_ids, sample_index=sample_index)

    def insert(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        *,
        slot: Any,
        output_ids: Iterable[int] = (),
        sample_index: int = 0,
    ) -> Any:
        request = self._request(params, prompt_ids, output_ids, sample_index, is_traced(slot, *self._leaves()))
        slot = self._slot(slot)
        layout = self._arrays.layout.with_params(request.compiled, self.vocab_size)
        row = rows.row_of(request, layout, self.vocab_size, self._arrays.past.room)
        self._arrays = rows.placed(self._arrays, row, self._place(slot))
        return slot

    def remove(self, slot: Any) -> None:
        slot = self._slot(slot)
        if not is_traced(slot, *self._leaves()):
            self._occupied(slot)
        scalars = self._arrays.scalars
        used = rows.written(scalars["used"], self._place(slot), False)
        self._arrays = replace(self._arrays, scalars=scalars | {"used": used})

    def reorder(self, order: Any) -> None:
        check_order(order, self.capacity, np.ndarray, Array)
        if not is_traced(order, *self._leaves()):
            order = np.array([old if old == -1 else self._occupied(old) for old in _host(order)], np.int32)
        room = (0, self.capacity - len(order))
        pad: Any = jnp.pad if is_traced(order) else np.pad
        self._arrays = rows.picked(self._arrays, pad(order, room, constant_values=-1))

    def sample(self, logits: Any, mask: Any = None) -> Draw:
        if find(logits) is not backend:
            raise ParamsError(f"logits must come from the library of the batch's `like`, got {type_name(logits)}")
        matrix = backend.as_logits(logits)
        inside = is_traced(matrix, mask, *self._leaves())
        if inside and matrix.shape[0] != self.capacity:
            raise ParamsError(f"rows must be {self.capacity} (one per slot) inside jit, got {matrix.shape[0]}")
        slots = range(self.capacity) if inside else self._rows(matrix.shape[0])
        if matrix.shape[1] != self.vocab_size:
            raise ParamsError(f"logits must have {self.vocab_size} columns, got {matrix.shape[1]}")
        words = backend.as_mask(mask, matrix.shape)
        self._check_mask(words, inside)
        return self._traced(matrix, words) if inside else self._drawn(matrix, slots, words)

    def advance(self, drawn: Draw | Sequence[int] | NDArray) -> None:
        tokens: Any = drawn.token_ids if isinstance(drawn, Draw) else drawn
        if is_traced(tokens, *self._leaves()):
            tokens = jnp.asarray(tokens, jnp.int32)
            if tokens.shape != (self.capacity,):
                raise ParamsError(f"tokens must have shape [{self.capacity}] inside jit, got {list(tokens.shape)}")
            tokens = jnp.where(self._arrays.scalars["used"], tokens, -1)
        else:
            tokens = self._given(tokens, drawn)
        self._arrays = replace(self._arrays, past=appended(self._arrays.past, tokens))

    def seed(self, slot: int) -> int:
        low, high = np.asarray(self._arrays.seeds[self._occupied(slot)]).astype(np.uint64).tolist()
        return int(np.uint64(high << 32 | low).astype(np.int64))

    def history(self, slot: int) -> tuple[list[int], list[int]]:
        slot, past = self._occupied(slot), self._arrays.past
        prompt, length = int(past.prompt[slot]), int(past.length[slot])
        tokens = np.asarray(past.tokens[slot]).tolist()
        return tokens[:prompt], tokens[prompt:length]

    # --- what comes in --------------------------------------------------------------------------------------------

    def _request(
        self, params: SamplingParams, prompt: Any, output: Any, sample_index: int, inside: bool
    ) -> SlotRequest:
        if not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        if params.logits_processors:
            names = [name for name, _ in params.logits_processors]
            raise ParamsError(
                f"logits_processors must be empty in a batch like a JAX array, got {names}; "
                "change the logits before sample, or make the batch without like"
            )
        if params.sequence_bias:
            raise ParamsError(
                f"sequence_bias must be None in a batch like a JAX array, got {len(params.sequence_bias)} sequences; "
                "use logit_bias for single tokens, or make the batch without like"
            )
        if params.watermark is not None:
            raise ParamsError(
                "watermark must be None in a batch like a JAX array, whose programs have no step for it, got "
                f"{params.watermark!r}; make the batch without like, or use tirage.sample"
            )
        if params.return_kept:
            raise ParamsError(
                "return_kept must be False in a batch like a JAX array, got True; make the batch without like, or use "
                "tirage.sample"
            )
        if inside and params.seed is None:
            raise ParamsError(
                "seed must be given inside jit, got None; a fresh seed would be frozen into the compiled program"
            )
        if is_traced(prompt, output):
            raise ParamsError("prompt_ids and output_ids must be concrete, got a traced array; insert outside jit")
        sample_index = bounded(sample_index, "sample_index", 0, (1 << 32) - 1)
        history = History.of(prompt, output, vocab_size=self.vocab_size)
        self._check_room(history.length)
        state = SamplingRow.of(params, history, sample_index=sample_index)
        state.compiled.check(self.vocab_size)
        for step in state.compiled.filters:
            if step.op not in traced.operations():
                raise ParamsError(
                    f"{step.stage} must be a filter that JAX compiles in a batch like a JAX array, got one that it "
                    "does not; make the batch without like"
                )
        if state.compiled.carrier is not None:  # at temperature 0, where it is no filter of the row
            raise ParamsError(
                f"{state.carrier_name} must be off in a batch like a JAX array, got it on: its state follows each "
                "token; make the batch without like"
            )
        return SlotRequest(compiled=state.compiled, history=history, seed=state.seed, sample_index=sample_index)

    def _check_room(self, length: int) -> None:
        room = self._arrays.past.room
        if length > room:
            raise ParamsError(
                f"history must hold at most {room} tokens in this batch, got {length}; "
                "truncate it or raise history_capacity"
            )

    def _given(self, tokens: Any, drawn: Any) -> NDArray[np.int32]:
        """Concrete tokens to append, one per slot, checked; -1 where there is none."""
        try:
            each = list(_host(tokens))
        except TypeError:
            raise ParamsError(f"tokens must be a Draw or a sequence of ids, got {type_name(drawn)}") from None
        given = [bounded(token, "token", -1, self.vocab_size - 1) for token in each]
        out = np.full(self.capacity, -1, np.int32)
        for slot, token in zip(self._rows(len(given)), given, strict=True):
            if token >= 0:
                out[self._occupied(slot)] = token
        lengths = np.asarray(self._arrays.past.length) + (out >= 0)
        self._check_room(int(lengths[out >= 0].max(initial=0)))
        return out

    def _check_mask(self, mask: Any, inside: bool) -> None:
        layout = self._arrays.layout
        guided = layout.guided if inside else bool(self._concrete("guided")[list(self.slots)].any())
        if guided and mask is None:
            raise ParamsError("guided_decoding must come with the mask of its grammar, got mask None; pass mask=")
        if inside and mask is not None and layout.resamples:
            raise ParamsError(
                "mask must be None inside jit when a request's semantics checks it after the draw (mask_mode "
                "'resample'), got a mask; sample outside jit, or choose mask_mode 'first'"
            )

    def _slot(self, slot: Any) -> Any:
        return slot if is_traced(slot) else bounded(slot, "slot", 0, self.capacity - 1)

    def _place(self, slot: Any) -> Any:
        """Where to write a slot; a traced one outside the batch is written nowhere."""
        if not is_traced(slot):
            return slot
        return jnp.where((slot >= 0) & (slot < self.capacity), slot, self.capacity)

    def _occupied(self, slot: Any) -> int:
        slot = bounded(slot, "slot", 0, self.capacity - 1)
        if not self._concrete("used")[slot]:
            raise ParamsError(f"slot must hold a request, got {slot}; in use: {list(self.slots)}")
        return slot

    def _concrete(self, name: str) -> NDArray:
        array = self._arrays.scalars[name]
        if is_traced(array):
            raise ParamsError("batch must be concrete here, got one inside jit; ask for its contents outside")
        return np.asarray(array)

    def _leaves(self) -> list[Any]:
        return jax.tree.leaves(self._arrays)

    # --- what comes out -------------------------------------------------------------------------------------------

    def _traced(self, logits: Array, mask: Any) -> Draw:
        arrays, viewed = self._arrays, bool(self._arrays.layout.views)
        found = _by_group(arrays, [traced.draw(logits, program) for program in rows.programs(arrays, mask)])
        code = jnp.where(arrays.overgrown, np.int8(Status.history_full), jnp.asarray(found.status))
        code = jnp.where(arrays.scalars["used"], code, np.int8(Status.empty_slot))
        absent = code >= Status.empty_slot
        fields: dict[str, Any] = {
            name: jnp.where(_beside(absent, getattr(found, own)), fill, getattr(found, own)).astype(
                getattr(found, own).dtype
            )
            for name, (own, fill) in _FILLS.items()
            if viewed or name not in _VIEWED
        }
        given: Any = jnp.where(absent[:, None], np.float32(np.nan), jnp.asarray(found.asked_logprobs))
        return Draw(**fields, status=code, seeds=jnp.asarray(arrays.seeds), given_logprobs=given if viewed else None)

    def _drawn(self, logits: Array, slots: Sequence[int], mask: Any) -> Draw:
        """What the host's kernels draw for the requests among `slots`, the slot of each row."""
        full = np.asarray(self._arrays.overgrown)
        used = self._concrete("used")
        at = [row for row, slot in enumerate(slots) if used[slot] and not full[slot]]
        held = [slots[row] for row in at]
        packed_rows = self._host_rows(held, None if mask is None else np.asarray(mask)[at])
        drawn = draw_rows(logits if len(at) == len(slots) else logits[np.array(at, np.int32)], packed_rows)
        viewed = packed_rows.wants_logprobs
        code = [Status.empty_slot if not used[slot] else Status.history_full for slot in slots]

        def spread(values: Any, fill: Any) -> Any:
            values = np.asarray(values)
            out = np.full((len(slots), *values.shape[1:]), fill, values.dtype)
            out[at] = values
            return jax.device_put(out, logits.sharding)

        return Draw(
            **{
                name: spread(getattr(drawn, own), fill)
                for name, (own, fill) in _FILLS.items()
                if viewed or name not in _VIEWED
            },
            status=spread(drawn.status, code if code else 0),
            seeds=_seeds(self._arrays, slots, used),
            given_logprobs=_given_logprobs(drawn, packed_rows, at, len(slots)) if viewed else None,
        )

    def _host_rows(self, held: list[int], mask: NDArray | None) -> SamplingMetadata:
        arrays = jax.tree.map(np.asarray, self._arrays)
        programs = [jax.tree.map(np.asarray, program) for program in rows.programs(arrays)]
        mine = [(programs[arrays.scalars["group"][slot]], slot) for slot in held]
        steps, edit_ids, edit_values = packed([unpack.lowered(*each) for each in mine])
        counts = [unpack.counts(*each).table for each in mine]
        ids, in_prompt, in_output = np.concatenate(counts, 1).copy(order="C") if counts else np.zeros((3, 0), np.int32)
        asked = [arrays.tables["asked"][slot] for slot in held]
        asked = [ids[ids >= 0] for ids in asked]
        spared = [unpack.listed(program, "protected", slot) for program, slot in mine]
        hard, checks, resample = _masks(arrays, held, mask)
        return SamplingMetadata(
            programs=steps,
            edit_ids=edit_ids,
            edit_values=edit_values,
            count_start=starts([table.shape[1] for table in counts]),
            count_ids=ids,
            prompt_counts=in_prompt,
            output_counts=in_output,
            masks=hard,
            checks=checks,
            resample=resample,
            seeds=_seeds(arrays, held, arrays.scalars["used"]),
            steps=arrays.step[held].astype(np.int64),
            samples=arrays.scalars["sample"][held].astype(np.int64),
            views=arrays.scalars["view"][held],
            top_n=arrays.scalars["top_n"][held],
            asked_start=starts([ids.size for ids in asked]),
            asked_ids=joined(asked),
            protected_start=starts([ids.size for ids in spared]),
            protected_ids=joined(spared),
        )


def _host(values: Any) -> Any:
    return backend.to_numpy(values) if known(values) and find(values) is backend else values


def _by_group(arrays: Slots, drawn: list[Drawn]) -> Drawn:
    """Of what each order of stages draws for all rows, each row's own."""
    found = drawn[0]
    for group, other in enumerate(drawn[1:], start=1):
        mine = jnp.asarray(arrays.scalars["group"]) == group
        picked: dict[str, Any] = {
            name: jnp.where(_beside(mine, getattr(other, name)), getattr(other, name), getattr(found, name))
            for name in Drawn.__slots__
        }
        found = Drawn(**picked)
    return found


def _beside(condition: Array, values: Any) -> Array:
    return condition.reshape(-1, *[1] * (values.ndim - 1))


def _seeds(arrays: Slots, slots: Sequence[int], used: NDArray) -> NDArray[np.int64]:
    low, high = np.asarray(arrays.seeds)[list(slots)].astype(np.int64).T
    return np.where(used[list(slots)], low | high << 32, 0)


def _given_logprobs(
    drawn: Drawn, packed_rows: SamplingMetadata, at: list[int], count: int
) -> tuple[tuple[float, ...], ...]:
    flat, start = np.asarray(drawn.asked_logprobs).tolist(), packed_rows.asked_start
    out: list[tuple[float, ...]] = [()] * count
    for r, row in enumerate(at):
        out[row] = tuple(flat[start[r] : start[r + 1]])
    return tuple(out)


def _masks(arrays: Slots, held: list[int], mask: NDArray | None) -> tuple[NDArray, NDArray, NDArray]:
    """Hard masks, masks that are checked after the draw, and which rows have the latter."""
    none = np.zeros((0, 0), np.int32)
    allowed = arrays.tables["allowed"][held]
    resample = np.zeros(len(held), bool)
    if mask is None:
        return (np.ascontiguousarray(allowed) if allowed.shape[1] else none), none, resample
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), axis=1, bitorder="little")
    resample = arrays.scalars["resamples"][held] & ~bits[:, : arrays.vocab_size].all(1)
    hard = np.where(resample[:, None], np.int32(-1), mask)
    return (hard & allowed if allowed.shape[1] else hard), (mask if resample.any() else none), resample


def _flattened(batch: JaxBatch) -> tuple[tuple[Slots], tuple[int, int]]:
    return (batch._arrays,), (batch.vocab_size, batch.capacity)


def _unflattened(sizes: tuple[int, int], children: Iterable[Any]) -> JaxBatch:
    batch = object.__new__(JaxBatch)
    batch.vocab_size, batch.capacity = sizes
    (batch._arrays,) = children
    return batch


jax.tree_util.register_pytree_node(JaxBatch, _flattened, _unflattened)
