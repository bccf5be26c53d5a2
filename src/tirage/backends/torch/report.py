"""What a row reports beside its token: logprobs, ranks, top lists and asked ids of one view (S-L5).

A logprob needs the token's logit and a few numbers of the row, so shards exchange sort keys, never logprobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tirage.backends.torch.communicator import VocabShard
from tirage.backends.torch.edits import not_finite
from tirage.backends.torch.rule import FLT_MAX, exponents, floats, keys, scaled, values, weights
from tirage.backends.torch.sort_keys import ABSENT, highest, id_of, key_of, sort_keys
from tirage.backends.torch.state import FilterState, logit_of
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.logs import ilog2, ln_fixed, log_mass
from tirage.sampling_metadata import View


def logprobs(x: Tensor, m: Tensor, inverse_t: Tensor, totals: Iterable[int]) -> Tensor:
    """ln p of each logit of rows [G, n]: -(min((m - x) / T, FLT_MAX) + ln Z), float32; -inf for -inf. Rule S-L2.

    `m` and `inverse_t` float32 [G] are those of the rows' temperature stage, `totals` [G] the masses.
    """
    distance = scaled(x, m, inverse_t, limit=FLT_MAX)
    ln_z = floats([log_mass(total) for total in totals], x)
    return torch.where(keys(x) == NEG_INF_KEY, -torch.inf, 0.0 - (distance + ln_z[:, None]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitLaw:
    """Logprobs that follow from logits: m and 1 / T float32 [G], and the mass of each row.

    `trimmed` and `left` as in FilterState; `greedy` rows put everything on one token.
    """

    m: Tensor
    inverse_t: Tensor
    totals: list[int]
    trimmed: Tensor | None = None
    left: Tensor | None = None
    greedy: bool = False

    @classmethod
    def of(cls, state: FilterState, totals: list[int]) -> LogitLaw:
        """The law of one branch whose masses are known."""
        return cls(
            m=state.m,
            inverse_t=state.inverse_t,
            totals=totals,
            trimmed=state.trimmed,
            left=state.left,
            greedy=state.greedy,
        )

    def logprobs(self, sort_key: Tensor) -> Tensor:
        """Logprobs float32 of tokens, from their sort keys int64 [G, n]; -inf for ABSENT."""
        if self.greedy:
            return torch.where(sort_key == ABSENT, -torch.inf, 0.0)
        x = values(torch.where(sort_key == ABSENT, NEG_INF_KEY, key_of(sort_key)))
        lp = logprobs(x, self.m, self.inverse_t, self.totals)
        if self.trimmed is None or self.left is None:
            return lp
        cut = (sort_key == self.trimmed[:, None]) & (sort_key != ABSENT)
        return torch.where(cut, self._shares(self.left)[:, None], lp)

    def rows(self, row: Tensor) -> LogitLaw:
        """The law of the rows `row` int64 [n], of which one may come several times."""
        return LogitLaw(
            m=self.m[row],
            inverse_t=self.inverse_t[row],
            totals=[self.totals[r] for r in row.tolist()],
            trimmed=None if self.trimmed is None else self.trimmed[row],
            left=None if self.left is None else self.left[row],
            greedy=self.greedy,
        )

    def _shares(self, left: Tensor) -> Tensor:
        """ln(w / W) of the weight that top-p truncated (S-L3)."""
        pairs = zip(left.tolist(), self.totals, strict=True)
        return floats([ln_fixed(ilog2(max(w, 1)) - ilog2(total)) + np.float32(0) for w, total in pairs], self.m)


@dataclass(frozen=True, slots=True)
class MixtureLaw:
    """Logprobs of a mixture, whose sort keys are made of logprobs: they need nothing else to be read."""

    def logprobs(self, sort_key: Tensor) -> Tensor:
        """Logprobs float32 of tokens, from their sort keys int64 [G, n]; -inf for ABSENT."""
        return values(torch.where(sort_key == ABSENT, NEG_INF_KEY, key_of(sort_key)))

    def rows(self, row: Tensor) -> MixtureLaw:
        """The law of the rows `row` int64 [n]."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One view of G rows: the keys int32 [G, N] that this shard's tokens rank by, and their law.

    The key is NEG_INF_KEY for tokens that the view does not hold.
    """

    shard: VocabShard
    key: Tensor
    law: LogitLaw | MixtureLaw

    @classmethod
    def of_mixture(cls, shard: VocabShard, logprobs: Tensor) -> Report:
        """The report of a mixture, from the logprobs float32 [G, N] of this shard's tokens."""
        return cls(shard=shard, key=keys(logprobs), law=MixtureLaw())

    @classmethod
    def of(cls, view: View, logits: Tensor, state: FilterState, totals: list[int]) -> Report:
        """The report of `view`: `logits` float32 [G, N] as they came, `state` as it ended with masses `totals` [G].

        `sampled` needs no round, `processed` one, `raw` two.
        """
        if view == View.SAMPLED:
            key = torch.where(state.kept, state.key, NEG_INF_KEY)
            return cls(shard=state.shard, key=key, law=LogitLaw.of(state, totals))
        x, key, first = state.x, state.key, state.first
        if view == View.RAW:
            bad = not_finite(keys(logits))
            x = torch.where(bad, -torch.inf, logits)
            key = torch.where(bad, NEG_INF_KEY, keys(logits))
            first = state.shard.comm.max(key.amax(1).to(torch.int64))
        m, c, inverse_t = logit_of(first), state.c, state.inverse_t
        if view == View.RAW or state.greedy:
            c = torch.full_like(c, float(numbers.temperature_constant(1.0)))
            inverse_t = torch.ones_like(c)
        (masses,) = state.mass(weights(exponents(x, m, c)))
        return cls(shard=state.shard, key=key, law=LogitLaw(m=m, inverse_t=inverse_t, totals=masses))

    def of_tokens(self, row: Tensor, ids: Tensor) -> Tensor:
        """Sort keys int64 [n] in this view of tokens `ids` [n] of the rows `row` [n]; ABSENT for those that it lacks.

        One round.
        """
        column = ids - self.shard.start
        mine = (column >= 0) & (column < self.key.shape[1])
        key = self.key[row, column.clamp(0, self.key.shape[1] - 1)]
        return self.shard.comm.max(torch.where(mine & (key > NEG_INF_KEY), sort_keys(key, ids), ABSENT))

    def ranks(self, sort_key: Tensor) -> Tensor:
        """1 + how many tokens have a larger key than that of `sort_key` [G], int64 [G]; equal logits share a rank.

        One round.
        """
        return 1 + self.shard.comm.sum((self.key > key_of(sort_key)[:, None]).sum(1))

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """(ids, logprobs) [G, n] of the first candidates in order; -1 and -inf past the last. One round."""
        inside = torch.where(self.key > NEG_INF_KEY, sort_keys(self.key, self.shard.ids(self.key)), ABSENT)
        best = highest(self.shard.comm, inside, n)
        return torch.where(best == ABSENT, -1, id_of(best)), self.law.logprobs(best)
