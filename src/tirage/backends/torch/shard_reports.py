"""Logprobs of rows in shards that the Triton kernels drew, by the reports of tensor operations (S-L2 ... S-L5).

What a row was drawn from is told by the kernels (`told`), the same on every shard: so a shard knows which of its tokens
are in, what they weigh, and the masses of whole rows, as if it had run the steps by tensor operations. The reports go
on from there, with as many rounds as there. One more finds the token whose weight a top-p cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, asked_of, taken
from tirage.backends.torch import told
from tirage.backends.torch.communicator import VocabShard
from tirage.backends.torch.eager import RowGroup, protected_from_xtc
from tirage.backends.torch.kernels import layout
from tirage.backends.torch.mixture import Mixture
from tirage.backends.torch.plan import LAW, LAWS
from tirage.backends.torch.rule import integers, keys
from tirage.backends.torch.sort_keys import ABSENT, sort_keys
from tirage.backends.torch.state import FilterState, logit_of
from tirage.operators.min_keep import FLOORED
from tirage.operators.temperature import GREEDY
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import Drawn, SamplingMetadata, View

_HIGH = layout.HIGH.value
_TOP_P = (TOP_P, FLOORED[TOP_P])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRows:
    """B rows that were drawn: logits [B, N] of this shard as they came and x [B, N] after edits, and what is told.

    `token` [B] is what was drawn, `status` int8 [B], `row` int32 [B, ROW] and `sums` int64 [B, SUMS] are what the
    kernels left; this shard's logits lie from `home` on among all blocks.
    """

    shard: VocabShard
    home: int
    logits: Tensor
    x: Tensor
    token: Tensor
    status: Tensor
    row: Tensor
    sums: Tensor

    def write_views(self, out: Drawn, rows: SamplingMetadata, own: SamplingMetadata, which: Ids) -> None:
        """Put what rows report besides their tokens into `out`; they are the rows `which` [B] of `rows`, which this
        shard sees as `own` [B]."""
        for group in _kinds(own):
            at = integers(group, self.x)
            some = ToldRows(
                shard=self.shard,
                home=self.home,
                **{name: getattr(self, name)[at] for name in ("logits", "x", "token", "status", "row", "sums")},
            )
            some.write_kind(out, taken(own, group), integers(which[group], at), asked_of(rows, which[group]))

    def write_kind(self, out: Drawn, own: SamplingMetadata, at: Tensor, asked: Ids) -> None:
        """The same of rows of one kind, at `at` [B] of `out`, whose asked ids are those at `asked` [A] there."""
        branches, law = self.law(own)
        group = RowGroup(
            shard=self.shard,
            logits=self.logits,
            rows=own,
            status=self.status.to(torch.int64),
            branches=branches,
            masked=[],
            shares=law.shares,
        )
        group.write_views(out, law, self.token, at, integers(asked, at), self.status == 0)

    def law(self, own: SamplingMetadata) -> tuple[list[FilterState], Mixture]:
        """(the sets that rows of one kind were drawn from, their law)."""
        ops = own.programs[:, :, 0]
        first, share = self.state(own, ops), self.sums[:, told.SHARE]
        if not np.isin(ops, COINS).any():
            return [first], Mixture(weights=(), masses=[self.masses(0)], shares=[0] * own.count)
        spared = protected_from_xtc(own, self.x)
        gone = self.is_before(told.FIRST_KEY, told.FIRST_ID, at=1, is_last=False)
        left = first.with_xtc()
        left.kept = first.kept & (~gone if spared is None else ~gone | spared)
        left.m = logit_of(self.word(told.BASIS, at=1))
        weights = [branch.w() for branch in (first, left)]
        return [first, left], Mixture(weights=weights, masses=[self.masses(0), self.masses(1)], shares=share.tolist())

    def state(self, own: SamplingMetadata, ops: NDArray[np.int64]) -> FilterState:
        """The set that rows of one kind were drawn from, or would be with XTC off."""
        key, ok = keys(self.x), self.status == 0
        state = FilterState.of(self.shard, self.x, key=key, first=self.row[:, _HIGH])
        state.kept = self.is_before(told.LAST_KEY, told.LAST_ID, at=0, is_last=True) & state.kept
        for name, place in (("c", told.CONSTANT), ("inverse_t", told.SCALE)):
            setattr(state, name, torch.where(ok, self.word(place).to(torch.int32).view(torch.float32), 1.0))
        state.greedy = bool((ops == GREEDY).any())
        truncates = np.isin(ops, _TOP_P) & (own.programs[:, :, 2] == RULES.index("truncated"))
        if truncates.any():
            state.trimmed, state.left = self.trimmed(), self.word(told.LEFT)
        return state

    def trimmed(self) -> Tensor:
        """Sort keys int64 [B] of the tokens whose weights were cut, ABSENT for none. One round."""
        at = self.word(told.TRIMMED) - self.home
        mine = (at >= 0) & (at < self.x.shape[1]) & (self.word(told.TRIMMED) >= 0)
        own = sort_keys(self.word(told.LAST_KEY), self.shard.start + at)
        return self.shard.comm.max(torch.where(mine, own, ABSENT))

    def is_before(self, key: int, place: int, *, at: int, is_last: bool) -> Tensor:
        """bool [B, N]: tokens that stand before the one that a law tells there, or are the last one itself."""
        own, border = keys(self.x), self.word(key, at=at)[:, None]
        behind = self.word(place, at=at)[:, None] + int(is_last)
        places = self.home + torch.arange(self.x.shape[1], device=self.x.device)
        return (own > border) | ((own == border) & (places < behind))

    def word(self, place: int, *, at: int = 0) -> Tensor:
        """One number int64 [B] of the law of each row, or of that with XTC on."""
        return self.sums[:, LAWS + at * LAW + place]

    def masses(self, at: int) -> list[int]:
        """The masses [B] of a law, at least 1."""
        return self.word(told.TOTAL, at=at).clamp(min=1).tolist()


def _kinds(rows: SamplingMetadata) -> Iterator[Ids]:
    """Rows that report something, by how: greedy ones, those with XTC, and the others."""
    ops, wants = rows.programs[:, :, 0], rows.views != View.NONE
    greedy, mixed = (ops == GREEDY).any(axis=1), np.isin(ops, COINS).any(axis=1)
    for kind in (greedy, mixed & ~greedy, ~mixed & ~greedy):
        if (wants & kind).any():
            yield np.flatnonzero(wants & kind)
