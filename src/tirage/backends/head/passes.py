"""Reading the blocks of a head for some rows: the edited logits of each, and what the first reading learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tirage.backends.groups import Ids, taken
from tirage.backends.head.blocks import Head
from tirage.backends.sharded.local_ids import localised
from tirage.backends.torch.communicator import WHOLE
from tirage.backends.torch.edits import edited, not_finite
from tirage.backends.torch.rule import integers, keys
from tirage.backends.torch.sort_keys import ABSENT, highest, sort_keys
from tirage.exact.keys import LOWEST_KEY
from tirage.sampling_metadata import SamplingMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The tokens start ... start + n - 1 of G rows: edited logits `x` float32 and their `key` int32, [G, n].

    `at` is its place among the blocks, `bad` bool [G] tells the rows that are not finite.
    """

    at: int
    start: int
    x: Tensor
    key: Tensor
    bad: Tensor

    @property
    def ids(self) -> Tensor:
        """Token ids int64 [n]."""
        return torch.arange(self.start, self.start + self.x.shape[1], device=self.x.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReading:
    """What one reading of all blocks says of G rows.

    `first` int32 [G] are the largest keys, `bad` bool [G] the rows that are not finite, `tops` int32 [blocks, G] the
    largest keys of each block, `highest` int64 [G, most] the highest sort keys of all.
    """

    first: Tensor
    bad: Tensor
    tops: Tensor
    highest: Tensor

    def of(self, rows: Tensor) -> FirstReading:
        """That of some of the rows."""
        return FirstReading(
            first=self.first[rows], bad=self.bad[rows], tops=self.tops[:, rows], highest=self.highest[rows]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """Some rows of a head, `which` int64 [G], with their tables for each block."""

    head: Head
    rows: SamplingMetadata
    which: Tensor

    @classmethod
    def of(cls, head: Head, rows: SamplingMetadata, which: Ids) -> RowBlocks:
        """The rows `which` [G] of packed `rows` [B]."""
        return cls(head=head, rows=taken(rows, which), which=integers(which, head.hidden))

    def __iter__(self) -> Iterator[Block]:
        return (self.block(at) for at in range(len(self.head.bounds)))

    def block(self, at: int) -> Block:
        """One block, computed now; always for all rows of the head, so that each row has the same bits every time."""
        start, stop = self.head.bounds[at]
        logits = self.head.logits(start, stop)[self.which]
        done = edited(logits, localised(self.rows, start, stop))
        key = keys(done.x)
        bad = done.bad | not_finite(key.amax(1)) | not_finite(key.amin(1))
        return Block(at=at, start=start, x=done.x, key=key, bad=bad)

    def read(self, most: int) -> FirstReading:
        """The first reading, with the `most` highest tokens of each row."""
        count, device = len(self.which), self.which.device
        bad = torch.zeros(count, dtype=torch.bool, device=device)
        best = torch.full((count, most), ABSENT, dtype=torch.int64, device=device)
        tops = torch.full((len(self.head.bounds), count), LOWEST_KEY, dtype=torch.int32, device=device)
        for block in self:
            bad |= block.bad
            tops[block.at] = block.key.amax(1)
            if most:
                mine = highest(WHOLE.comm, sort_keys(block.key, block.ids), most)
                best = highest(WHOLE.comm, torch.cat([best, mine], 1), most)
        return FirstReading(first=tops.amax(0), bad=bad, tops=tops, highest=best)
