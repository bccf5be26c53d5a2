"""`Batch`: the requests in flight, one per slot, each a pure function of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import MAX_VOCAB, Backend, find, known, tell, type_name
from tirage.draw import Draw, Status
from tirage.errors import ParamsError
from tirage.history import History
from tirage.params import SamplingParams
from tirage.sampling import draw_frame
from tirage.sampling_batch import SamplingBatch, SamplingRow

_OWN_KIND = {"jax": "tirage.batch.jax", "jaxlib": "tirage.batch.jax"}
"""Libraries whose batches keep their rows in arrays of their own."""


class Batch:
    """Rows in flight: parameters, histories and seeds of up to `capacity` requests.

    `add` puts a request into a free slot, `sample` draws a token for every request, `advance` appends the tokens to
    their histories, `remove` frees a slot. What a request draws does not depend on its slot, on its neighbours or on
    when they come and go. Unseeded requests get a fresh seed when they are added and keep it.
    """

    __slots__ = ("_backend", "_frame", "_slots", "capacity", "vocab_size")

    def __new__(cls, *_: Any, like: Any = None, **__: Any) -> Batch:
        """A batch of the kind that the library of `like` has; any other library is served by this class."""
        home = _OWN_KIND.get(type(like).__module__.partition(".")[0])
        return object.__new__(cls if home is None else import_module(home).JaxBatch)

    def __init__(
        self, vocab_size: int, capacity: int, *, like: Any = None, history_capacity: int | None = None
    ) -> None:
        """An empty batch. `like`: an array of the library that all logits will come from; None takes any.

        Like a JAX array it is a pytree of fixed size, and `history_capacity` says how many tokens, prompt and output,
        a request may have there (4096 by default); elsewhere histories grow as needed and it must be left out.
        """
        if history_capacity is not None and type(self) is Batch:
            raise ParamsError(
                f"history_capacity must be left out unless like is a JAX array, got {history_capacity}; "
                "histories grow as needed"
            )
        self.vocab_size = bounded(vocab_size, "vocab_size", 1, MAX_VOCAB)
        self.capacity = bounded(capacity, "capacity", 1, 1 << 20)
        self._backend: Backend | None = None
        if like is not None:
            self._backend = find(like)
            self._backend.as_logits(like)
        self._slots: list[SamplingRow | None] = [None] * self.capacity
        self._frame: SamplingBatch | None = None

    def __len__(self) -> int:
        """The number of requests in flight."""
        return len(self.slots)

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots that hold a request, ascending."""
        return tuple(slot for slot, state in enumerate(self._slots) if state is not None)

    def add(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        *,
        output_ids: Iterable[int] = (),
        sample_index: int = 0,
    ) -> int:
        """The slot, lowest free, that now holds this request; ParamsError when the batch is full.

        A slot is one sample: for `n` of them, add the request n times with sample_index 0 to n - 1.
        """
        free = next((slot for slot, state in enumerate(self._slots) if state is None), None)
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
        """`slot`, which now holds this request; a request that was there is dropped."""
        if not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        slot = bounded(slot, "slot", 0, self.capacity - 1)
        sample_index = bounded(sample_index, "sample_index", 0, (1 << 32) - 1)
        history = History.of(prompt_ids, output_ids, vocab_size=self.vocab_size)
        state = SamplingRow.of(params, history, sample_index=sample_index)
        state.compiled.check(self.vocab_size)
        self._put(slot, state)
        return slot

    def remove(self, slot: int) -> None:
        """Free a slot; ParamsError when it is empty."""
        self._state(slot)
        self._put(slot, None)

    def reorder(self, order: Sequence[int]) -> None:
        """Slot i now holds what slot `order[i]` held; -1 empties it, a repeated slot is copied (beams)."""
        if isinstance(order, (str, bytes, dict)) or not isinstance(order, (Sequence, np.ndarray)):
            raise ParamsError(f"order must be a sequence of slots, got {type(order).__name__}")
        if len(order) > self.capacity:
            raise ParamsError(f"order must name at most {self.capacity} slots, got {len(order)}")
        picked = [None if old == -1 else self._state(old) for old in order]
        copies = [None if state is None else _copy(state) for state in picked]
        self._slots = [*copies, *[None] * (self.capacity - len(copies))]
        self._frame = None

    def sample(self, logits: Any, mask: Any = None) -> Draw:
        """One token per row of `logits`; histories do not change until `advance`.

        `logits` is [capacity, V], row = slot, or [n, V] for the n requests in slot order. In the first form an empty
        slot gets token -1 and status `empty_slot`. `mask` has as many rows.
        """
        backend = find(logits)
        matrix = backend.as_logits(logits)
        try:
            slots, words = self._fitted(backend, logits, matrix, mask)
        except Exception as error:
            tell(matrix, error)
            raise
        if self._frame is None:
            self._frame = SamplingBatch.of([state for state in self._slots if state is not None], self.vocab_size)
        if len(self._frame.states) == len(slots):
            return draw_frame(backend, matrix, self._frame, words)
        used = [row for row, slot in enumerate(slots) if self._slots[slot] is not None]
        at = np.asarray(used, np.intp)
        drawn = draw_frame(backend, matrix[at], self._frame, None if words is None else words[at])
        return _spread(drawn, used, len(slots), backend, matrix)

    def advance(self, drawn: Draw | Sequence[int] | NDArray) -> None:
        """Append each row's token to its history; rows without a token (-1) stay as they are.

        Takes the Draw of `sample`, or token ids with as many rows as `sample` would take, of any library. ParamsError,
        and no history changes, for an id out of range or a history that is at its longest (2^20 tokens).
        """
        tokens = drawn.token_ids if isinstance(drawn, Draw) else drawn
        try:
            tokens = list(find(tokens).to_numpy(tokens) if known(tokens) else tokens)
        except (TypeError, RuntimeError):
            raise ParamsError(f"tokens must be a Draw or a sequence of ids, got {type_name(drawn)}") from None
        given = [bounded(token, "token", -1, self.vocab_size - 1) for token in tokens]
        advancing = [(self._state(slot), t) for slot, t in zip(self._rows(len(given)), given, strict=True) if t >= 0]
        for state, _ in advancing:
            state.history.check_room()
        for state, token in advancing:
            state.history.append(token)

    def seed(self, slot: int) -> int:
        """The seed of the request in `slot`, given or fresh."""
        return self._state(slot).seed

    def history(self, slot: int) -> tuple[list[int], list[int]]:
        """(prompt_ids, output_ids) of the request in `slot`."""
        history = self._state(slot).history
        return history.tokens()[: history.prompt_length].tolist(), history.output().tolist()

    def _fitted(self, backend: Backend, logits: Any, matrix: Any, mask: Any) -> tuple[Sequence[int], Any]:
        """The slot of each row and the checked mask; ParamsError when logits or mask do not fit the batch."""
        if self._backend not in {None, backend}:
            raise ParamsError(f"logits must come from the library of the batch's `like`, got {type_name(logits)}")
        slots = self._rows(matrix.shape[0])
        if matrix.shape[1] != self.vocab_size:
            raise ParamsError(f"logits must have {self.vocab_size} columns, got {matrix.shape[1]}")
        return slots, backend.as_mask(mask, matrix.shape)

    def _put(self, slot: int, state: SamplingRow | None) -> None:
        self._slots[slot] = state
        self._frame = None

    def _state(self, slot: int) -> SamplingRow:
        state = self._slots[bounded(slot, "slot", 0, self.capacity - 1)]
        if state is None:
            raise ParamsError(f"slot must hold a request, got {slot}; in use: {list(self.slots)}")
        return state

    def _rows(self, count: int) -> Sequence[int]:
        """The slot of each row of an array with `count` rows."""
        if count == self.capacity:
            return range(self.capacity)
        if count == len(self):
            return self.slots
        raise ParamsError(f"rows must be {self.capacity} (one per slot) or {len(self)} (one per request), got {count}")


def bounded(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ParamsError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
    return int(value)


def _copy(state: SamplingRow) -> SamplingRow:
    return SamplingRow(state.compiled, state.history.copy(), state.seed, state.sample_index, state.step)


def _spread(drawn: Draw, used: Sequence[int], count: int, backend: Backend, like: Any) -> Draw:
    """`drawn`, whose rows are the rows `used` of `count`, with the others marked as empty slots."""

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
    )
