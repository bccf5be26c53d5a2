"""The tokens that the first filter of each row keeps, found without the rows' other logits.

Counts and masses by quarter octave bound what top-p keeps; they are sums of integers, so the bound and the tokens that
it leaves to be compared are the same however the vocabulary is cut into blocks (SPEC.md S-W1 ... S-W3, S-O1 ... S-O3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids
from tirage.backends.head.passes import Block, FirstReading, RowBlocks
from tirage.backends.head.plan import Plan
from tirage.backends.torch.arrays import to_numpy
from tirage.backends.torch.rule import exponents, floats, integers, weights
from tirage.backends.torch.sort_keys import ABSENT, id_of, key_of, sort_keys, with_ties
from tirage.backends.torch.state import logit_of
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.weights import Q_LIMIT
from tirage.operators import top_p
from tirage.operators.min_p import MIN_P
from tirage.operators.top_k import TOP_K

_BIN_BITS = 21
"""Exponents have 23 fraction bits: bins of a quarter octave."""
_BINS = (Q_LIMIT >> _BIN_BITS) + 1
_FEW, _PART = 1024, 16
"""More candidates than 1,024 and a sixteenth of the vocabulary take more memory than the row's logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Token `ids` int64 and their `key` int32, [G, n], ids ascending; NEG_INF_KEY behind the last of a row.

    `few` bool [G] tells the rows that have candidates here; the others have too many.
    """

    ids: Tensor
    key: Tensor
    few: NDArray[np.bool_]

    def of(self, rows: Ids) -> Candidates:
        """Those of some of the rows."""
        at = integers(rows, self.ids)
        return Candidates(ids=self.ids[at], key=self.key[at], few=self.few[rows])


def find(blocks: RowBlocks, plan: Plan, read: FirstReading) -> Candidates:
    """The candidates of rows that are not bad, after the first reading."""
    if plan.most:
        return _listed(read.highest, np.ones(len(plan.which), np.bool_))
    search = _Search.of(plan, read)
    mass, count = search.measure(blocks)
    least, size = search.bound(plan, mass, count)
    few = to_numpy(size) <= max(_FEW, blocks.head.shape[1] // _PART)
    if not few.any():
        return _listed(read.highest[:, :0], few)
    keep = search.gather(blocks, least.masked_fill(~torch.from_numpy(few).to(least.device), -1))
    return _listed(search.cut(plan, keep, mass), few)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What the second and third reading judge by: m and c float32 [G], the largest key of each block [blocks, G]."""

    m: Tensor
    c: Tensor
    tops: Tensor

    @classmethod
    def of(cls, plan: Plan, read: FirstReading) -> _Search:
        return cls(m=logit_of(read.first), c=floats(plan.c, read.first), tops=read.tops)

    def q(self, block: Block) -> Tensor:
        return exponents(block.x, self.m, self.c)

    def measure(self, blocks: RowBlocks) -> tuple[Tensor, Tensor]:
        """(mass, number of tokens) of each row and bin, int64 [G, bins]. One reading."""
        mass = torch.zeros(len(self.m), _BINS, dtype=torch.int64, device=self.m.device)
        count = torch.zeros_like(mass)
        for block in blocks:
            q = self.q(block)
            bins = (q >> _BIN_BITS).to(torch.int64)
            mass.scatter_add_(1, bins, weights(q))
            count.scatter_add_(1, bins, (block.key > NEG_INF_KEY).to(torch.int64))
        return mass, count

    def bound(self, plan: Plan, mass: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """(the last bin that the first filter may keep something of, how many tokens lie up to there), int64 [G]."""
        if plan.first == MIN_P:
            last = integers(plan.operands[:, 0] >> _BIN_BITS, mass)
        else:
            reached = (count if plan.first == TOP_K else mass).cumsum(1)
            last = torch.searchsorted(reached, self._goal(plan, mass)[:, None])[:, 0]
        last = last.clamp(max=_BINS - 1)
        return last, count.cumsum(1).gather(1, last[:, None])[:, 0]

    def gather(self, blocks: RowBlocks, last: Tensor) -> Tensor:
        """Sort keys int64 [G, n] of the tokens in bins up to `last` [G], in id order, ABSENT behind. One reading of the
        blocks that hold some."""
        best = exponents(torch.stack([logit_of(top) for top in self.tops]).T, self.m, self.c) >> _BIN_BITS
        row, found = [], []
        for at in torch.nonzero((best <= last[:, None]).any(0))[:, 0].tolist():
            block = blocks.block(at)
            wanted = (self.q(block) >> _BIN_BITS <= last[:, None]) & (block.key > NEG_INF_KEY)
            r, column = torch.nonzero(wanted, as_tuple=True)
            row.append(r)
            found.append(sort_keys(block.key, block.ids)[r, column])
        return _by_row(torch.cat(row), torch.cat(found), len(self.m))

    def cut(self, plan: Plan, found: Tensor, mass: Tensor) -> Tensor:
        """What top-p keeps of the sort keys `found` [G, n], ABSENT for the rest; other filters cut again later."""
        if plan.first != top_p.TOP_P:
            return found
        goal = self._goal(plan, mass)
        ordered = found.sort(1, descending=True).values
        w = weights(exponents(logit_of(key_of(ordered)), self.m, self.c)) * (ordered != ABSENT)
        n = torch.searchsorted(w.cumsum(1), goal[:, None]).clamp(max=ordered.shape[1] - 1)
        # Rows that lack the goal keep all that there is.
        least = ordered.gather(1, n).clamp(min=0)[:, 0]
        ties = integers(plan.operands[:, 2], least) > 0
        least = torch.where(ties, with_ties(least), least)
        return torch.where(found >= least[:, None], found, ABSENT)

    def _goal(self, plan: Plan, mass: Tensor) -> Tensor:
        """How many tokens, or what mass, the first filter's prefix must reach, int64 [G]."""
        if plan.first == TOP_K:
            return integers(plan.operands[:, 0], mass)
        totals = mass.sum(1).tolist()
        pairs = zip(plan.operands[:, 0].tolist(), plan.operands[:, 1].tolist(), totals, strict=True)
        return integers([top_p.goal(p, rule, max(total, 1)) for p, rule, total in pairs], mass)


def _by_row(row: Tensor, found: Tensor, count: int) -> Tensor:
    """The values `found` [n] of rows `row` [n] side by side, in their order, as [count, most]; ABSENT behind."""
    order = torch.sort(row, stable=True).indices
    row, found = row[order], found[order]
    sizes = torch.bincount(row, minlength=count)
    column = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
    out = torch.full((count, max(int(sizes.max()), 1)), ABSENT, dtype=torch.int64, device=row.device)
    out[row, column] = found
    return out


def _listed(found: Tensor, few: NDArray[np.bool_]) -> Candidates:
    """Sort keys [G, n], in any order, as candidates in id order."""
    ids = torch.where(found == ABSENT, 1 << 20, id_of(found))
    ids, order = ids.sort(1)
    found = found.gather(1, order)
    return Candidates(ids=ids, key=torch.where(found == ABSENT, NEG_INF_KEY, key_of(found)), few=few)
