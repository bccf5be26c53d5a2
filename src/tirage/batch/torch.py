"""`Batch` like a CUDA tensor: its rows lie on the device, and a step there asks the host for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends import find, known, type_name
from tirage.backends.torch.arrays import as_given, check_device
from tirage.backends.torch.device.carry import states_of
from tirage.backends.torch.device.mixed import as_tensors, mixed
from tirage.backends.torch.device.row_form import RowForm, form_of
from tirage.backends.torch.device.rows import DeviceRows, uploaded
from tirage.batch.host import Batch, bounded, spread
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.history import MAX_HISTORY
from tirage.sampling import draw_batch
from tirage.sampling_batch import SamplingBatch, SamplingRow, needs_mask

_TAIL = 1024
"""Tokens that a row says before the room for them doubles, unless `history_capacity` is given."""


class TorchBatch(Batch):
    """Requests whose programs, keys, masks and counts lie in tensors on a device; each draws what it draws anywhere.

    A change of requests is one upload at the next step. `sample` and `advance` with tensors of the device read nothing
    back: a token that cannot be one is found when the host asks for a history. A request that needs the host (see
    docs/pytorch.md) is drawn as in any other batch, and its token is read back at each step; the others stay there.
    """

    __slots__ = (
        "_ahead",
        "_at",
        "_bounds",
        "_carrying",
        "_dirty",
        "_forms",
        "_here",
        "_hosted",
        "_limit",
        "_listed",
        "_masks",
        "_needs",
        "_there",
        "_used",
        "_which",
    )

    def __init__(
        self, vocab_size: int, capacity: int, *, like: Any = None, history_capacity: int | None = None
    ) -> None:
        super().__init__(vocab_size, capacity, like=like, history_capacity=history_capacity)
        room = MAX_HISTORY if history_capacity is None else history_capacity
        room = bounded(room, "history_capacity", 1, MAX_HISTORY)
        self._limit = history_capacity
        self._there = DeviceRows(self.capacity, self.vocab_size, like.device, room)
        self._forms: list[RowForm | None] = [None] * self.capacity
        # The slots whose requests need the host, and those requests as they are drawn.
        self._hosted: set[int] = set()
        self._here: SamplingBatch | None = None
        self._dirty: set[int] = set()
        self._used: tuple[int, ...] | None = ()
        self._at: Tensor | None = None
        # Whether some request checks a mask after its draw, and whether some needs one.
        self._masks: tuple[bool, bool] | None = None
        # The slots whose requests carry a state from token to token on the device.
        self._carrying: set[int] = set()
        # The slots that report logprobs, and by the number of rows of a draw what `_viewed` gives.
        self._listed: tuple[int, ...] | None = None
        self._which: dict[int, tuple[int, int, Tensor | None]] = {}
        self._ahead = False
        # By slot: how many tokens it may have said since they were read, how many distinct ones it may count, and how
        # many it may have; of the latter two, how many it needs.
        self._bounds = np.zeros((3, self.capacity), np.int64)
        self._needs = np.zeros((2, self.capacity), np.int64)

    @property
    def slots(self) -> tuple[int, ...]:
        if self._used is None:
            self._used = super().slots
        return self._used

    def reorder(self, order: Sequence[int]) -> None:
        self._upload()
        super().reorder(order)
        places = np.full(self.capacity, -1, np.int64)
        places[: len(order)] = order
        held = self._forms
        self._forms = [held[old] if old >= 0 else None for old in places.tolist()]
        self._hosted = {slot for slot in range(self.capacity) if self._slots[slot] and self._forms[slot] is None}
        self._carrying = {slot for slot, form in enumerate(self._forms) if _carries(form)}
        self._used = self._at = self._masks = self._listed = self._here = None
        self._there.reorder(places)
        self._bounds, self._needs = (each[:, np.maximum(places, 0)] for each in (self._bounds, self._needs))

    def sample(self, logits: Any, mask: Any = None) -> Draw:
        backend = find(logits)
        matrix = as_given(logits) if isinstance(logits, Tensor) else backend.as_logits(logits)
        slots, words = self._fitted(backend, logits, matrix, mask)
        if not self._is_drawn_there(matrix, words):
            self._read_back()
            drawn = super().sample(logits, mask)
            # The token after which their states move is one that the device does not know.
            self._dirty |= self._carrying
            return as_tensors(drawn, matrix.device)
        check_device(words, matrix)
        rows = self._rows_here(slots)
        here = self._sampled_here(matrix, words, rows) if rows else None
        there = self._sampled_there(matrix, words, slots)
        if here is None:
            return there
        return mixed(there, spread(here, rows, len(slots), backend, matrix), self._marked(rows, len(slots)))

    def _rows_here(self, slots: Sequence[int]) -> list[int]:
        """The rows, of those at `slots` [B], whose requests need the host."""
        return [row for row, slot in enumerate(slots) if slot in self._hosted] if self._hosted else []

    def _sampled_here(self, matrix: Tensor, words: Any, rows: Sequence[int]) -> Draw:
        """The draw of the `rows` [n] of logits [B, V] that need the host: n rows."""
        if self._here is None:
            held = [row for slot, row in enumerate(self._slots) if row is not None and slot in self._hosted]
            self._here = SamplingBatch.of(held, self.vocab_size)
        backend, at = find(matrix), np.asarray(rows, np.intp)
        own = None if words is None else words[at]
        return draw_batch(backend, backend.as_logits(matrix[at]), self._here, own)

    def _marked(self, rows: Sequence[int], count: int) -> Tensor:
        """bool [count] on the device: which rows these are."""
        marks = np.zeros(count, np.bool_)
        marks[[*rows]] = True
        return uploaded({"rows": marks}, self._there.device)["rows"]

    def _sampled_there(self, matrix: Tensor, words: Any, slots: Sequence[int]) -> Draw:
        """The draw of the rows that lie on the device, of logits [B, V]; those of the host are empty slots in it."""
        self._upload()
        if isinstance(words, np.ndarray):
            words = uploaded({"words": words}, matrix.device)["words"]
        at = None if len(slots) == self.capacity else self._places()
        if not self._reporting():
            (drawn, seeds, states), views = self._there.draw(matrix, words, at), {}
        else:
            most, asked, which = self._viewed(slots)
            drawn, seeds, states, told = self._there.draw_reported(
                matrix, words, at, most=most, asked=asked, which=which
            )
            views = {
                "logprobs": told.logprobs,
                "ranks": told.ranks,
                "top_token_ids": told.top_ids,
                "top_logprobs": told.top_logprobs,
                "given_logprobs": told.asked_logprobs,
            }
        token, logprob, support, status = drawn
        return Draw(
            token_ids=token,
            sampled_logprobs=logprob,
            support_sizes=support,
            status=status,
            seeds=seeds,
            states=states if self._carrying else None,
            **views,
        )

    def advance(self, drawn: Draw | Sequence[int] | NDArray) -> None:
        tokens: Any = drawn.token_ids if isinstance(drawn, Draw) else drawn
        if not isinstance(tokens, Tensor) or tokens.device != self._there.device:
            tokens = uploaded({"tokens": self._given(tokens, drawn)}, self._there.device)["tokens"]
        if tokens.ndim != 1 or tokens.dtype not in (torch.int32, torch.int64):
            raise ParamsError(f"tokens must be integers [B], got {tokens.dtype} of shape {list(tokens.shape)}")
        slots = self._rows(len(tokens))
        if not slots:
            return
        rows = self._rows_here(slots)
        said = self._said_here(tokens, slots, rows) if rows else []
        if not self._is_all_here():
            there = tokens.masked_fill(self._marked(rows, len(slots)), -1) if rows else tokens
            self._append_there(there, slots)
        for row, token in said:
            row.append(token)

    def _said_here(self, tokens: Tensor, slots: Sequence[int], rows: Sequence[int]) -> list[tuple[SamplingRow, int]]:
        """The requests at `rows` [n] of tokens [B], each with its token, if it has one. Raises as `advance`."""
        at = uploaded({"rows": np.asarray(rows, np.int64)}, self._there.device)["rows"]
        given = zip(rows, tokens.index_select(0, at).tolist(), strict=True)
        said = [(self._row(slots[row]), bounded(token, "token", -1, self.vocab_size - 1)) for row, token in given]
        said = [(row, token) for row, token in said if token >= 0]
        for row, _ in said:
            row.history.check_room()
        return said

    def _append_there(self, tokens: Tensor, slots: Sequence[int]) -> None:
        """Appends tokens [B] to the requests that lie on the device; -1 leaves one as it is."""
        at = None if len(slots) == self.capacity else self._places()
        self._upload()
        self._make_room()
        self._there.append(tokens, at)
        self._bounds[:, [slot for slot in self.slots if slot not in self._hosted]] += 1
        self._ahead = True

    def history(self, slot: int) -> tuple[list[int], list[int]]:
        self._row(slot)
        if slot not in self._hosted:
            self._read_back()
        return super().history(slot)

    def device_rows(self) -> DeviceRows:
        """The rows themselves, up to date: their `step` may be compiled whole, or captured into a CUDA graph.

        Requests that come and go after that are written into the same tensors, by this method or the next `sample`,
        as long as `layout` stays what it is; what was captured under another one draws nothing, and says `empty_slot`.
        Raises ParamsError unless the batch has a `history_capacity`, and where a request needs the host.
        """
        if self._limit is None:
            raise ParamsError("history_capacity must be given for rows of fixed size, got None; pass it to Batch")
        if self._hosted:
            raise ParamsError(
                f"requests must all be drawn on the device, got one that needs the host in slot {min(self._hosted)}; "
                "docs/pytorch.md lists what does"
            )
        self._there.is_shared = True
        self._upload()
        return self._there

    # --- what lies where ------------------------------------------------------------------------------------------

    def _is_all_here(self) -> bool:
        """Whether there are requests, and all of them need the host."""
        return bool(self._hosted) and len(self._hosted) == len(self)

    def _is_drawn_there(self, matrix: Tensor, words: Any) -> bool:
        """Whether logits [B, V] with this mask lie where some request does, and those there can be drawn from there."""
        if self._is_all_here() or matrix.device != self._there.device or not matrix.shape[0]:
            return False
        if self._masks is None:
            late = any(form is not None and form.resamples for form in self._forms)
            self._masks = late, any(row is not None and bool(needs_mask(row.params)) for row in self._slots)
        late, needed = self._masks
        return not needed if words is None else not late

    def _reporting(self) -> tuple[int, ...]:
        """The slots whose requests report logprobs, ascending."""
        if self._listed is None:
            self._listed = tuple(slot for slot, form in enumerate(self._forms) if form is not None and form.view)
            self._which.clear()
        return self._listed

    def _viewed(self, slots: Sequence[int]) -> tuple[int, int, Tensor | None]:
        """(how many first candidates some request wants to see, how many tokens one names at most, the rows that
        report int64 [n]; None for all)."""
        asking = self._reporting()
        if len(slots) not in self._which:
            forms = [form for form in (self._forms[slot] for slot in asking) if form is not None]
            most = max(min(form.top_n, self.vocab_size) for form in forms)
            asked = max(form.asked_ids.size for form in forms)
            rows = np.array([row for row, slot in enumerate(slots) if slot in asking], np.int64)
            there = None if rows.size == len(slots) else uploaded({"rows": rows}, self._there.device)["rows"]
            self._which[len(slots)] = most, asked, there
        return self._which[len(slots)]

    def _put(self, slot: int, row: SamplingRow | None) -> None:
        if row is not None and row.history.length > self._there.room:
            raise ParamsError(
                f"history must hold at most {self._there.room} tokens in this batch, got {row.history.length}; "
                "truncate it or raise history_capacity"
            )
        super()._put(slot, row)
        self._forms[slot] = None if row is None else form_of(row)
        self._hosted.discard(slot)
        self._carrying.discard(slot)
        if row is not None and self._forms[slot] is None:
            self._hosted.add(slot)
        if _carries(self._forms[slot]):
            self._carrying.add(slot)
        self._dirty.add(slot)
        self._used = self._at = self._masks = self._listed = self._here = None

    def _places(self) -> Tensor:
        """The slots that hold a request, int64 [n] on the device."""
        if self._at is None:
            self._at = uploaded({"slots": np.array(self.slots, np.int64)}, self._there.device)["slots"]
        return self._at

    def _upload(self) -> None:
        """Brings the device up to date with the requests that came, went or were moved on by the host."""
        if not self._dirty:
            return
        layout = replace(self._there.layout, tail=max(self._there.layout.tail, self._limit or _TAIL))
        rows: dict[int, tuple[SamplingRow, RowForm] | None] = {}
        for slot in sorted(self._dirty):
            row, form = self._slots[slot], self._forms[slot]
            rows[slot], self._bounds[:, slot], self._needs[:, slot] = None, 0, 0
            if row is not None and form is not None:
                rows[slot] = row, form
                counts = row.compiled.counts(row.history)
                counted, length = 0 if counts is None else counts.ids.size, row.history.length
                layout = layout.joined(form, counted=counted, length=length, room=self._limit)
                self._bounds[1:, slot], self._needs[:, slot] = (counted, length), (form.counted, form.past.reach)
        self._there.grow(layout)
        self._there.put(rows)
        self._dirty.clear()

    def _make_room(self) -> None:
        """Doubles the tables that the next token may not fit into."""
        if self._limit is not None:
            return
        layout = self._there.layout
        said, counted, length = self._bounds[0].max(), *np.minimum(self._bounds[1:] + 1, self._needs).max(1)
        if said >= layout.tail:
            layout = replace(layout, tail=2 * layout.tail)
        if counted > layout.counts:
            layout = replace(layout, counts=2 * layout.counts)
        if length > layout.past.ring:
            layout = replace(layout, past=replace(layout.past, ring=2 * layout.past.ring))
        self._there.grow(layout)

    def _read_back(self) -> None:
        """Brings the requests on the host up to date; raises ParamsError for a token that could not be appended."""
        if not (self._ahead or self._there.is_shared):
            return
        said, faults, carried = self._there.read_back()
        self._ahead, self._bounds[0] = False, 0
        for slot in set(self.slots) - self._dirty:
            for token in said[slot]:
                self._row(slot).append(token)
        if carried.size:
            states = states_of(carried)
            for slot in self._carrying - self._dirty:
                self._row(slot).state, self._row(slot).drawn = states[slot]
        for slot, token in enumerate(faults):
            if token != -1 and slot not in self._dirty:
                bounded(token, f"token in slot {slot}", -1, self.vocab_size - 1)
                self._row(slot)

    def _given(self, tokens: Any, drawn: Any) -> NDArray[np.int64]:
        """Tokens from the host as int64 [B], checked."""
        try:
            each = list(find(tokens).to_numpy(tokens) if known(tokens) else tokens)
        except (TypeError, RuntimeError):
            raise ParamsError(f"tokens must be a Draw or a sequence of ids, got {type_name(drawn)}") from None
        given = [bounded(token, "token", -1, self.vocab_size - 1) for token in each]
        for slot, token in zip(self._rows(len(given)), given, strict=True):
            if token >= 0:
                self._row(slot)
        return np.array(given, np.int64)


def _carries(form: RowForm | None) -> bool:
    return form is not None and form.carry is not None
