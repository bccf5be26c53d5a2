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

from tirage.backends.torch.device import ops, past
from tirage.backends.torch.device.past_form import ABSENT
from tirage.backends.torch.device.report import Reported, reported
from tirage.backends.torch.device.row_form import RowForm, RowsLayout, arrays_of
from tirage.backends.torch.draw_op import DrawnRows
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
        self._every = torch.arange(capacity, device=device)
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

    def read_back(self) -> tuple[list[list[int]], list[int], NDArray[np.int64]]:
        """(the tokens of each slot that were said since they were read last, a token of each that cannot be one, the
        table int64 [capacity, WIDTH] of what the slots carry, [capacity, 0] where none does).

        The second is -1 where there is none. This waits for the device.
        """
        tables = self.tables
        packed = torch.cat(
            [tables["said"][:, None], tables["fault"][:, None], tables["carry"], tables["tail"].to(torch.int64)], 1
        )
        host, width = packed.cpu().numpy(), tables["carry"].shape[1]
        tables["said"].zero_()
        tables["fault"].fill_(-1)
        said = [row[2 + width :][: row[0]].tolist() for row in host]
        return said, host[:, 1].tolist(), np.ascontiguousarray(host[:, 2 : 2 + width])

    # --- what the device does ---------------------------------------------------------------------------------------

    def step(self, logits: Tensor, words: Tensor | None = None) -> DrawnRows:
        """What `draw` gives for logits [capacity, V] of any float type; the tokens are appended to their rows."""
        drawn, *_ = self.draw(logits, words)
        self.append(drawn[0])
        return drawn

    def step_reported(
        self, logits: Tensor, words: Tensor | None = None, *, most: int = 0
    ) -> tuple[DrawnRows, Reported]:
        """What `step` gives for logits [capacity, V], and what the rows report: at most `most` first candidates each,
        and the logprobs of the tokens that they name, `layout.asked` columns of them.

        Some request of the rows must have asked for logprobs.
        """
        drawn, _, _, told = self.draw_reported(logits, words, most=most)
        self.append(drawn[0])
        return drawn, told

    def draw(
        self, logits: Tensor, words: Tensor | None = None, slots: Tensor | None = None
    ) -> tuple[DrawnRows, Tensor, Tensor]:
        """(one token for each row, seeds int64 [B], states) of logits [B, V] of the slots int64 [B], by default of all.

        States are float64 [B] where rows carry one, NaN for those that do not, else [0].
        `words` int32 [B, ceil(V / 32)] is a bitmask from outside. A slot without a request gives `empty_slot`, a
        request that has outgrown its room `history_full`. Two draws must not run at a time, on two CUDA streams.
        """
        found, seeds, _, states, *_ = self._drawn(readable(logits), words, self._every if slots is None else slots)
        return found, seeds, states

    def draw_reported(
        self,
        logits: Tensor,
        words: Tensor | None = None,
        slots: Tensor | None = None,
        *,
        most: int,
        asked: int | None = None,
        which: Tensor | None = None,
    ) -> tuple[DrawnRows, Tensor, Tensor, Reported]:
        """What `draw` gives for logits [B, V], and what the rows report, with at most `most` first candidates each, and
        of the first `asked` tokens that each names; by default of all, `layout.asked` columns.

        `which` int64 [n] are the rows that report something; without it long lists are made for all of them.
        """
        x, at = readable(logits), self._every if slots is None else slots
        drawn, seeds, edited, states, sets, kept = self._drawn(x, words, at)
        token, _, _, status = drawn
        asked = self.layout.asked if asked is None else asked
        wide: dict[str, Any] = {"most": most, "asked": asked, "mixes": self.layout.mixes}
        if most <= ops.MOST_LISTED:
            return drawn, seeds, states, ops.report(x, edited, sets, kept, token, status, at, self.tables, **wide)
        if which is None:
            told = reported(x.to(torch.float32), edited, sets, kept, token, status, self._views(at), **wide)
            return drawn, seeds, states, told
        parts = (x, edited, sets, kept, token, status, at)
        given, edited, sets, kept, token, own, at = (each.index_select(0, which) for each in parts)
        told = reported(given.to(torch.float32), edited, sets, kept, token, own, self._views(at), **wide)
        return drawn, seeds, states, told.spread(which, status)

    def _drawn(
        self, x: Tensor, words: Tensor | None, slots: Tensor
    ) -> tuple[DrawnRows, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(what was drawn, seeds [B], the edited logits float32 [B, V], states, sets [B, SUMS], kept [B, V or 0])."""
        layout = self.layout
        copies = layout.changes or words is not None or x.dtype is not torch.float32
        return ops.draw(
            x,
            words,
            slots,
            self.tables,
            layout.edits,
            room=self.room,
            draws=layout.draws,
            filters=layout.filters,
            sums=layout.sums,
            set_needs=layout.set_needs,
            copies=copies,
            keeps=layout.keeps,
        )

    def _views(self, slots: Tensor) -> dict[str, Tensor]:
        return {name: self.tables[name].index_select(0, slots) for name in ops.VIEWS}

    def append(self, token: Tensor, slots: Tensor | None = None) -> None:
        """Appends a token int [B] to each row, of `slots` int64 [B] or of all; -1 leaves it as it is.

        A wrong one is found by `read_back`.
        """
        at = self._every if slots is None else slots
        ops.append(token.contiguous(), at, self.tables, room=self.room, size=self.vocab_size)


def readable(logits: Tensor) -> Tensor:
    """Logits [B, V] of any float type as a draw reads them: contiguous, and float32 unless they have 16 bits."""
    is_short = logits.dtype in (torch.bfloat16, torch.float16)
    return (logits.detach() if is_short else logits.detach().to(torch.float32)).contiguous()


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
