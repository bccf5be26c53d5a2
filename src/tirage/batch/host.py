"""`Batch`: the running requests, one per slot, each a pure function of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import Backend, find, known, tell, type_name
from tirage.draw import Draw, Status
from tirage.errors import ParamsError
from tirage.history import History
from tirage.params import SamplingParams
from tirage.sampling import draw_batch
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.sampling_metadata import MAX_VOCAB

_OWN_KIND = {
    "jax": ("tirage.batch.jax", "JaxBatch"),
    "jaxlib": ("tirage.batch.jax", "JaxBatch"),
    "torch": ("tirage.batch.torch", "TorchBatch"),
}
"""Modules and names of the batches that keep their rows in arrays of a library, by the library's name."""


class Batch:
    """The parameters, histories and seeds of up to `capacity` running requests.

    `add` puts a request into a free slot, `sample` draws a token for every request, `advance` appends the tokens to
    their histories, `remove` frees a slot. What a request draws depends neither on its slot nor on other requests and
    when they come and go. Unseeded requests get a fresh seed when they are added and keep it.
    """

    __slots__ = ("_backend", "_batch", "_slots", "capacity", "vocab_size")

    def __new__(cls, *_: Any, like: Any = None, **__: Any) -> Batch:
        """A batch of the class for the library of `like`, which is this one for all but JAX and tensors on CUDA."""
        library = type(like).__module__.partition(".")[0]
        if cls is not Batch or library not in _OWN_KIND or (library == "torch" and not _is_on_cuda(like)):
            return object.__new__(cls)
        home, name = _OWN_KIND[library]
        return object.__new__(getattr(import_module(home), name))

    def __init__(
        self, vocab_size: int, capacity: int, *, like: Any = None, history_capacity: int | None = None
    ) -> None:
        """An empty batch for logits of the library that `like`, an array [V] or [B, V], comes from; None is for any.

        With a JAX array it is a pytree of fixed size, and `history_capacity` is the largest number of tokens, prompt
        and output, of a request there (4096 by default). With a CUDA tensor its rows lie on the device, and
        `history_capacity` gives them a fixed size. Elsewhere histories grow as needed and it must be left out.
        Raises ParamsError for a number out of range, and for `like` with a dtype or shape that logits cannot have.
        """
        if history_capacity is not None and type(self) is Batch:
            raise ParamsError(
                "history_capacity must be left out unless like is a JAX array or a CUDA tensor, got "
                f"{history_capacity}; histories grow as needed"
            )
        self.vocab_size = bounded(vocab_size, "vocab_size", 1, MAX_VOCAB)
        self.capacity = bounded(capacity, "capacity", 1, 1 << 20)
        self._backend: Backend | None = None
        if like is not None:
            self._backend = find(like)
            self._backend.as_logits(like)
        self._slots: list[SamplingRow | None] = [None] * self.capacity
        self._batch: SamplingBatch | None = None

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.slots)

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that hold a request, ascending."""
        return tuple(slot for slot, row in enumerate(self._slots) if row is not None)

    def add(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        *,
        output_ids: Iterable[int] = (),
        sample_index: int = 0,
    ) -> int:
        """The lowest free slot, which now holds this request.

        `prompt_ids` and `output_ids` are integers [T] in [0, V). A slot is one sample: for `n` of them, add the request
        n times with sample_index 0 to n - 1. Raises ParamsError when the batch is full, and the errors of `insert`.
        """
        free = next((slot for slot, row in enumerate(self._slots) if row is None), None)
        if free is None:
            raise ParamsError(f"batch must have a free slot, got {self.capacity} requests in {self.capacity} slots")
        return self.insert(params, prompt_ids, slot=free, output_ids=output_ids, sample_index=sample_index)

    def insert(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        *,
        slot: int,
        output_ids: Iterable[int] = (),
        sample_index: int = 0,
    ) -> int:
        """`slot`, which now holds this request, as for `add`; one that it held before is dropped.

        Raises ParamsError for a slot, sample_index or id out of range, and for parameters that name such an id or whose
        words are not tokenised.
        """
        if not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        slot = bounded(slot, "slot", 0, self.capacity - 1)
        sample_index = bounded(sample_index, "sample_index", 0, (1 << 32) - 1)
        history = History.of(prompt_ids, output_ids, vocab_size=self.vocab_size)
        row = SamplingRow.of(params, history, sample_index=sample_index)
        row.compiled.check(self.vocab_size)
        self._put(slot, row)
        return slot

    def remove(self, slot: int) -> None:
        """Frees a slot. Raises ParamsError when it is empty."""
        self._row(slot)
        self._put(slot, None)

    def reorder(self, order: Sequence[int]) -> None:
        """Moves requests: slot i then holds what slot `order[i]` held, or nothing for -1.

        `order` are integers [n], n <= capacity. A repeated slot is copied, for beams; slots from n on become empty.
        Raises ParamsError for a slot that is empty or out of range.
        """
        check_order(order, self.capacity, np.ndarray)
        picked = [None if old == -1 else self._row(old) for old in order]
        copies = [None if row is None else _copy(row) for row in picked]
        self._slots = [*copies, *[None] * (self.capacity - len(copies))]
        self._batch = None

    def sample(self, logits: Any, mask: Any = None) -> Draw:
        """One token per row of `logits`; histories do not change until `advance`.

        `logits` are [capacity, V], row = slot, or [n, V] for the n requests in slot order. In the first form an empty
        slot gets token -1 and status `empty_slot`. `mask` is an int32 bitmask with as many rows, [B, ceil(V / 32)].
        Raises ParamsError for another shape, dtype or library.
        """
        backend = find(logits)
        matrix = backend.as_logits(logits)
        try:
            slots, words = self._fitted(backend, logits, matrix, mask)
        except Exception as error:
            tell(matrix, error)
            raise
        if self._batch is None:
            self._batch = SamplingBatch.of([row for row in self._slots if row is not None], self.vocab_size)
        if len(self._batch.states) == len(slots):
            return draw_batch(backend, matrix, self._batch, words)
        used = [row for row, slot in enumerate(slots) if self._slots[slot] is not None]
        at = np.asarray(used, np.intp)
        drawn = draw_batch(backend, matrix[at], self._batch, None if words is None else words[at])
        return spread(drawn, used, len(slots), backend, matrix)

    def advance(self, drawn: Draw | Sequence[int] | NDArray) -> None:
        """Appends each row's token to its history; rows without a token (-1) stay as they are.

        Takes the Draw of `sample`, or token ids [capacity] or [n] of any library. Raises ParamsError, and no history
        changes, for an id out of range and for a history that has its largest length (2^20 tokens).
        """
        tokens = drawn.token_ids if isinstance(drawn, Draw) else drawn
        try:
            tokens = list(find(tokens).to_numpy(tokens) if known(tokens) else tokens)
        except (TypeError, RuntimeError):
            raise ParamsError(f"tokens must be a Draw or a sequence of ids, got {type_name(drawn)}") from None
        given = [bounded(token, "token", -1, self.vocab_size - 1) for token in tokens]
        advancing = [(self._row(slot), t) for slot, t in zip(self._rows(len(given)), given, strict=True) if t >= 0]
        for row, _ in advancing:
            row.history.check_room()
        for row, token in advancing:
            row.append(token)

    def seed(self, slot: int) -> int:
        """The seed of the request in `slot`, given or fresh. Raises ParamsError for an empty slot."""
        return self._row(slot).seed

    def history(self, slot: int) -> tuple[list[int], list[int]]:
        """The (prompt_ids, output_ids) of the request in `slot`. Raises ParamsError for an empty slot."""
        history = self._row(slot).history
        return history.tokens()[: history.prompt_length].tolist(), history.output().tolist()

    def device_rows(self) -> Any:
        """The rows of a batch like a CUDA tensor, for a step that is compiled or captured. Raises ParamsError here."""
        raise ParamsError("like must be a CUDA tensor for rows on a device, got another one or None; pass it to Batch")

    def _fitted(self, backend: Backend, logits: Any, matrix: Any, mask: Any) -> tuple[Sequence[int], Any]:
        """The slot of each row and the checked mask. Raises ParamsError when logits or mask do not fit the batch."""
        if self._backend not in {None, backend}:
            raise ParamsError(f"logits must come from the library of the batch's `like`, got {type_name(logits)}")
        slots = self._rows(matrix.shape[0])
        if matrix.shape[1] != self.vocab_size:
            raise ParamsError(f"logits must have {self.vocab_size} columns, got {matrix.shape[1]}")
        return slots, backend.as_mask(mask, matrix.shape)

    def _put(self, slot: int, row: SamplingRow | None) -> None:
        self._slots[slot] = row
        self._batch = None

    def _row(self, slot: int) -> SamplingRow:
        row = self._slots[bounded(slot, "slot", 0, self.capacity - 1)]
        if row is None:
            raise ParamsError(f"slot must hold a request, got {slot}; in use: {list(self.slots)}")
        return row

    def _rows(self, count: int) -> Sequence[int]:
        """The slot of each row of an array with `count` rows."""
        if count == self.capacity:
            return range(self.capacity)
        if count == len(self):
            return self.slots
        raise ParamsError(f"rows must be {self.capacity} (one per slot) or {len(self)} (one per request), got {count}")


def check_order(order: Any, capacity: int, *arrays: type) -> None:
    """Raises ParamsError unless `order` is a sequence, or an array [n] of one of these types, with n <= `capacity`."""
    if isinstance(order, (str, bytes, dict)) or not isinstance(order, (Sequence, *arrays)):
        raise ParamsError(f"order must be a sequence of slots, got {type(order).__name__}")
    if getattr(order, "ndim", 1) != 1:
        raise ParamsError(f"order must be a sequence of slots, got an array of shape {list(np.shape(order))}")
    if len(order) > capacity:
        raise ParamsError(f"order must name at most {capacity} slots, got {len(order)}")


def bounded(value: Any, name: str, low: int, high: int) -> int:
    """The integer itself. Raises ParamsError unless it is one in [low, high]."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ParamsError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
    return int(value)


def _is_on_cuda(tensor: Any) -> bool:
    return getattr(getattr(tensor, "device", None), "type", "") == "cuda"


def _copy(row: SamplingRow) -> SamplingRow:
    return replace(row, history=row.history.copy())


def spread(drawn: Draw, used: Sequence[int], count: int, backend: Backend, like: Any) -> Draw:
    """A Draw of `count` rows: those of `drawn` at the positions `used`, the others as empty slots."""

    def wide(values: Any, fill: float) -> Any:
        if values is None:
            return None
        known_rows = backend.to_numpy(values)
        out = np.full((count, *known_rows.shape[1:]), fill, known_rows.dtype)
        out[used] = known_rows
        return backend.from_numpy(out, like)

    given = drawn.given_logprobs
    return Draw(
        token_ids=wide(drawn.token_ids, -1),
        sampled_logprobs=wide(drawn.sampled_logprobs, np.nan),
        support_sizes=wide(drawn.support_sizes, 0),
        status=wide(drawn.status, Status.empty_slot),
        seeds=wide(drawn.seeds, 0),
        logprobs=wide(drawn.logprobs, np.nan),
        ranks=wide(drawn.ranks, 0),
        top_token_ids=wide(drawn.top_token_ids, -1),
        top_logprobs=wide(drawn.top_logprobs, -np.inf),
        given_logprobs=None
        if given is None
        else tuple(given[used.index(r)] if r in used else () for r in range(count)),
        kept_ids=drawn.kept_ids,
        kept_offsets=None if drawn.kept_offsets is None else _spread_offsets(drawn.kept_offsets, used, count, backend),
        kept_logmass=wide(drawn.kept_logmass, np.nan),
        raw_logprobs=wide(drawn.raw_logprobs, np.nan),
        processed_logprobs=wide(drawn.processed_logprobs, np.nan),
        states=None if drawn.states is None else _spread_states(drawn.states, used, count),
    )


def _spread_states(states: NDArray[np.float64], used: Sequence[int], count: int) -> NDArray[np.float64]:
    """The states [count] of which the rows that are not `used` have none."""
    out = np.full(count, np.nan)
    out[used] = states
    return out


def _spread_offsets(offsets: Any, used: Sequence[int], count: int, backend: Backend) -> Any:
    """The offsets [count + 1] of records of which the rows that are not `used` have none."""
    ends = np.zeros(count + 1, np.int64)
    ends[1 + np.array(used, np.int64)] = np.diff(backend.to_numpy(offsets))
    return backend.from_numpy(np.cumsum(ends), offsets)
