"""The rows of a batch in tensors of fixed size on a device: drawn from, and moved on, without the host.

`draw` and `append` read no value on the host, and no shape in them depends on a value: they may run inside
`torch.compile(fullgraph=True)` and be captured into a CUDA graph. Tensors keep their places as long as the layout does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.torch.device import edits, past
from tirage.backends.torch.device.past_form import ABSENT
from tirage.backends.torch.device.report import Reported, reported
from tirage.backends.torch.device.row_form import RowForm, RowsLayout, arrays_of
from tirage.backends.torch.draw_op import DrawnRows, draw
from tirage.backends.torch.plan import SEED, STEP
from tirage.draw import Status
from tirage.sampling_batch import SamplingRow

_ALIGNED = 16


class DeviceRows:
    """Up to `capacity` requests in `tables`, one row each, as `row_form.arrays_of` names them.

    `room` is the largest number of tokens, prompt and output, that a request may have.
    """

    def __init__(self, capacity: int, vocab_size: int, device: torch.device, room: int) -> None:
        self.capacity, self.vocab_size, self.device, self.room = capacity, vocab_size, device, room
        self.layout = RowsLayout()
        self.tables: dict[str, Tensor] = {}
        self.is_shared = False
        self._retired: list[dict[str, Tensor]] = []
        self.grow(self.layout)

    # --- what the host does --------------------------------------------------------------------------------------

    def grow(self, layout: RowsLayout) -> None:
        """Moves all rows to tensors of a wider layout; nothing happens where it is the one they have.

        Where `is_shared` says that others know the old tensors, these stay where they are, without a request: a graph
        that was captured over them gives `empty_slot` for every row.
        """
        if self.tables and layout == self.layout:
            return
        before = self.tables
        blank = arrays_of(None, None, layout, self.vocab_size)
        # A tensor made under inference mode could not be written to outside of it.
        with torch.inference_mode(mode=False):
            self.tables = {
                name: self._widened(before.get(name), torch.from_numpy(np.asarray(row)), repeated=name in _REPEATED)
                for name, row in blank.items()
            }
            if before:
                self._move_rings(before)
        self.layout = layout
        if self.is_shared:
            before["used"].zero_()
            self._retired.append(before)

    def _move_rings(self, before: Mapping[str, Tensor]) -> None:
        for name in ("ring", "ahead"):
            old, new = before[name], self.tables[name]
            if 0 < old.shape[1] < new.shape[1]:
                blank = torch.full_like(new, ABSENT if name == "ring" else 0)
                self.tables[name] = past.widened(old, blank, before["length"])

    def _widened(self, old: Tensor | None, blank: Tensor, *, repeated: bool) -> Tensor:
        """A table with rows like `blank`, and those of `old` in their beginnings.

        The rest of a row is that of `blank`, or its first entry where entries are `repeated`.
        """
        new = blank.to(self.device).expand(self.capacity, *blank.shape).clone()
        if old is not None and old.numel():
            if repeated:
                new[:] = old[:, :1]
            new[tuple(slice(0, n) for n in old.shape)] = old
        return new

    def put(self, rows: Mapping[int, tuple[SamplingRow, RowForm] | None]) -> None:
        """Writes requests into slots, or empties them where there is None, by one upload that nothing waits for."""
        parts = [arrays_of(*(held or (None, None)), self.layout, self.vocab_size) for held in rows.values()]
        arrays = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        sent = uploaded({**arrays, "": np.array([*rows], np.int64)}, self.device)
        slots = sent.pop("")
        for name, values in sent.items():
            self.tables[name].index_copy_(0, slots, values)

    def reorder(self, order: NDArray[np.int64]) -> None:
        """Slot i then holds what slot `order` [capacity] says, or nothing for -1."""
        sent = uploaded({"from": np.maximum(order, 0), "there": order >= 0}, self.device)
        for table in self.tables.values():
            table.copy_(table.index_select(0, sent["from"]))
        self.tables["used"].logical_and_(sent["there"])

    def read_back(self) -> tuple[list[list[int]], list[int]]:
        """(the tokens of each slot that were said since they were read last, a token of each that cannot be one).

        The second is -1 where there is none. This waits for the device.
        """
        tables = self.tables
        packed = torch.cat([tables["said"][:, None], tables["fault"][:, None], tables["tail"].to(torch.int64)], 1)
        host = packed.cpu().tolist()
        tables["said"].zero_()
        tables["fault"].fill_(-1)
        return [row[2 : 2 + row[0]] for row in host], [row[1] for row in host]

    # --- what the device does ---------------------------------------------------------------------------------------

    def step(self, logits: Tensor, words: Tensor | None = None) -> DrawnRows:
        """What `draw` gives for logits [capacity, V] of any float type; the tokens are appended to their rows."""
        drawn = self.draw(logits.detach().to(torch.float32).contiguous(), words)
        self.append(drawn[0])
        return drawn

    def step_reported(
        self, logits: Tensor, words: Tensor | None = None, *, most: int = 0
    ) -> tuple[DrawnRows, Reported]:
        """What `step` gives for logits [capacity, V], and what the rows report: at most `most` first candidates each.

        Some request of the rows must have asked for logprobs.
        """
        drawn, told = self.draw_reported(logits.detach().to(torch.float32).contiguous(), words, most=most)
        self.append(drawn[0])
        return drawn, told

    def draw(self, x: Tensor, words: Tensor | None = None, slots: Tensor | None = None) -> DrawnRows:
        """One token for each row of float32 logits [B, V], of the slots int64 [B], by default of all of them.

        `words` int32 [B, ceil(V / 32)] is a bitmask from outside. A slot without a request gives `empty_slot`, a
        request that has outgrown its room `history_full`.
        """
        return self._drawn(x, words, slots)[0]

    def draw_reported(
        self,
        x: Tensor,
        words: Tensor | None = None,
        slots: Tensor | None = None,
        *,
        most: int,
        which: Tensor | None = None,
    ) -> tuple[DrawnRows, Reported]:
        """What `draw` gives for logits [B, V], and what the rows report, with at most `most` first candidates each.

        `which` int64 [n] are the rows that report something; without it the work is done for all of them.
        """
        drawn, edited, tables = self._drawn(x, words, slots)
        token, _, _, status = drawn
        if which is None:
            return drawn, reported(x, edited, token, status, tables, most=most)
        given, edited, token, own = (each.index_select(0, which) for each in (x, edited, token, status))
        views = {name: tables[name].index_select(0, which) for name in ("view", "view_scale", "top_n")}
        return drawn, reported(given, edited, token, own, views, most=most).spread(which, status)

    def _drawn(
        self, x: Tensor, words: Tensor | None, slots: Tensor | None
    ) -> tuple[DrawnRows, Tensor, dict[str, Tensor]]:
        """(what was drawn, the edited logits [B, V], the rows' tables)."""
        tables = self._of(slots)
        x, bad = edits.edited(x, tables, self.layout.edits, edits.allowed_words(tables, words))
        full, empty = tables["length"] > self.room, ~tables["used"]
        layout = self.layout
        found = draw(x, bad | full | empty, tables["meta"], draws=layout.draws, filters=layout.filters)
        token, logprob, support, status = found
        status = status.masked_fill(full, int(Status.history_full)).masked_fill(empty, int(Status.empty_slot))
        return (token, logprob, support, status), x, tables

    def seeds(self, slots: Tensor | None = None) -> Tensor:
        """The seed of each row int64 [B], 0 where there is none."""
        tables = self._of(slots)
        return tables["meta"][:, SEED].masked_fill(~tables["used"], 0)

    def _of(self, slots: Tensor | None) -> dict[str, Tensor]:
        if slots is None:
            return self.tables
        read = {name: table for name, table in self.tables.items() if name not in {"tail", "said", "fault", "distinct"}}
        # Of tables without columns only the shape is asked for.
        return {name: table.index_select(0, slots) if table.numel() else table for name, table in read.items()}

    def append(self, token: Tensor) -> None:
        """Appends a token int64 [capacity] to each row; -1 leaves it as it is. A wrong one is found by `read_back`."""
        tables = self.tables
        legal = (token >= 0) & (token < self.vocab_size) & tables["used"]
        wrong = (token != -1) & ~legal & (tables["fault"] == -1)
        tables["fault"].copy_(torch.where(wrong, token, tables["fault"]))
        new = legal & (tables["length"] < self.room)
        self._say(token, new)
        if self.layout.counts:
            self._count(token, new)
        if self.layout.past.ring:
            past.remember(tables, token, new)
        tables["said"].add_(new)
        tables["length"].add_(legal)
        tables["meta"][:, STEP].add_(new)

    def _say(self, token: Tensor, new: Tensor) -> None:
        tail = self.tables["tail"]
        at = self.tables["said"].clamp(max=self.layout.tail - 1)[:, None]
        tail.scatter_(1, at, torch.where(new[:, None], token[:, None].to(torch.int32), tail.gather(1, at)))

    def _count(self, token: Tensor, new: Tensor) -> None:
        tables = self.tables
        ids, distinct = tables["count_ids"], tables["distinct"][:, None]
        places = torch.arange(self.layout.counts, device=token.device)
        # Entries past the last repeat the first one, so what comes first in a row fills all of them.
        place, here = distinct, (places == distinct) | (distinct == 0)
        if self.layout.past.windows:
            place, here = self._freed(places, new)
        same = (ids == token[:, None]) & (distinct > 0) & new[:, None]
        first = new & ~same.any(1)
        here = here & first[:, None]
        ids.copy_(torch.where(here, token[:, None], ids))
        tables["in_output"].add_(same).masked_fill_(here, 1)
        tables["in_prompt"].masked_fill_(here, 0)
        tables["distinct"].add_(first if place is distinct else first & (place == distinct)[:, 0])

    def _freed(self, places: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """(the place [B, 1] of a token not counted before, bool [B, n]: the entries that hold what is there).

        The token that leaves a window is counted once less; the place of one that is counted no more is free.
        """
        tables = self.tables
        distinct = tables["distinct"][:, None]
        gone = (tables["count_ids"] == past.leaving(tables)) & (distinct > 0) & new[:, None]
        tables["in_output"].sub_(gone.to(torch.int32))
        is_free = (tables["in_output"] + tables["in_prompt"] == 0) & (places < distinct)
        place = torch.where(is_free, places, distinct).amin(1, keepdim=True)
        return place, (places == place) | ((place == 0) & (places >= distinct))

    def spread(self, token: Tensor, slots: Tensor | None) -> Tensor:
        """Tokens [B] of `slots`, or of all, as int64 [capacity] with -1 elsewhere."""
        token = token.to(torch.int64)
        if slots is None:
            return token
        return token.new_full((self.capacity,), -1).index_copy_(0, slots, token)


_REPEATED = frozenset({"bias_ids", "bias_values", "count_ids", "in_prompt", "in_output"})
"""Tables whose entries repeat the first one to the end."""


def uploaded(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """The arrays, of any shape, as tensors on a device: one copy from pinned memory, which nothing waits for."""
    starts = _starts([array.nbytes for array in arrays.values()])
    packed = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = packed.numpy()
    for array, at in zip(arrays.values(), starts, strict=False):
        host[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sent = packed.to(device, non_blocking=True)
    pairs = zip(arrays.items(), starts, strict=False)
    return {name: _cut(sent[at : at + array.nbytes], array) for (name, array), at in pairs}


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each of several parts begins, aligned, and where the last ends."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // _ALIGNED) * _ALIGNED)
    return found


def _cut(octets: Tensor, like: NDArray[Any]) -> Tensor:
    kind = torch.from_numpy(np.empty(0, like.dtype)).dtype
    return octets.view(kind).reshape(like.shape)
