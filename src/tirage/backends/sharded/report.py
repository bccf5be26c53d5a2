"""What a row reports beside its token, over shards: logprobs, ranks, top lists and asked ids of one view (S-L5).

A logprob needs the token's logit and a few numbers of the row, so shards exchange places, never logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tirage.backends import View
from tirage.backends.sharded.communicate import Communicator
from tirage.backends.sharded.part import ShardState, largest
from tirage.backends.sharded.places import NOWHERE, best, id_of, key_of, place_of
from tirage.backends.torch.edits import not_finite
from tirage.backends.torch.report import logprobs
from tirage.backends.torch.rule import exponents, floats, keys, values, weights
from tirage.exact import numbers
from tirage.exact.keys import LOWEST_KEY, NEG_INF_KEY
from tirage.exact.logs import ilog2, ln_fixed


@dataclass(frozen=True, slots=True)
class ShardLaw:
    """What turns the places of a view into logprobs: m and 1 / T float32 [G], the mass of each row.

    `trimmed` and `left` as in Part; `greedy` rows put everything on one token.
    """

    m: Tensor
    inverse_t: Tensor
    totals: list[int]
    trimmed: Tensor
    left: Tensor
    greedy: bool = False

    @classmethod
    def drawn(cls, part: ShardState, totals: list[int]) -> ShardLaw:
        """The law of one branch whose mass is known."""
        return cls(part.m, part.inverse_t, totals, part.trimmed, part.left, part.greedy)

    def logprobs(self, place: Tensor) -> Tensor:
        """Logprobs of tokens [G, n]; -inf for NOWHERE."""
        if self.greedy:
            return torch.where(place == NOWHERE, -torch.inf, 0.0)
        x = values(torch.where(place == NOWHERE, NEG_INF_KEY, key_of(place)))
        lp = logprobs(x, self.m, self.inverse_t, self.totals)
        cut = (place == self.trimmed[:, None]) & (place != NOWHERE)
        return torch.where(cut, self._share()[:, None], lp)

    def rows(self, row: Tensor) -> ShardLaw:
        """The law of the rows `row` [n], of which one may come several times."""
        totals = [self.totals[r] for r in row.tolist()]
        return ShardLaw(self.m[row], self.inverse_t[row], totals, self.trimmed[row], self.left[row], self.greedy)

    def _share(self) -> Tensor:
        """ln(w / W) of the weight that top-p truncated (S-L3)."""
        pairs = zip(self.left.tolist(), self.totals, strict=True)
        return floats([ln_fixed(ilog2(max(w, 1)) - ilog2(total)) + np.float32(0) for w, total in pairs], self.m)


@dataclass(frozen=True, slots=True)
class Ranked:
    """The law of a mixture, whose places are made of logprobs: they need nothing else to be read."""

    def logprobs(self, place: Tensor) -> Tensor:
        """Logprobs of tokens [G, n]; -inf for NOWHERE."""
        return values(torch.where(place == NOWHERE, NEG_INF_KEY, key_of(place)))

    def rows(self, row: Tensor) -> Ranked:
        """The law of the rows `row`."""
        return self


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One view of G rows: the places [G, N] of this shard's tokens in it, NOWHERE for the others, and its law."""

    comm: Communicator
    start: int
    place: Tensor
    law: ShardLaw | Ranked

    @classmethod
    def ranked(cls, comm: Communicator, start: int, logprobs: Tensor) -> ShardReport:
        """The report of a mixture, from the logprobs [G, N] of this shard's tokens."""
        ids = start + torch.arange(logprobs.shape[1], device=logprobs.device)
        place = torch.where(logprobs == -torch.inf, NOWHERE, place_of(keys(logprobs), ids))
        return cls(comm, start, place, Ranked())

    @classmethod
    def of(cls, view: View, logits: Tensor, start: int, part: ShardState, totals: list[int]) -> ShardReport:
        """The report of `view`: this shard's `logits` as they came, `part` as it ended with mass `totals`.

        `sampled` needs no round, `processed` one, `raw` two.
        """
        if view == View.SAMPLED:
            return cls(part.comm, start, torch.where(part.kept, part.place, NOWHERE), ShardLaw.drawn(part, totals))
        x, first = part.x, part.first
        if view == View.RAW:
            x = torch.where(not_finite(logits), -torch.inf, logits)
            first = part.comm.max(keys(x).amax(1).to(torch.int64))
        plain = view == View.RAW or part.greedy
        c = torch.full_like(part.c, float(numbers.temperature_constant(1.0))) if plain else part.c
        m = largest(first)
        (mass,) = part.mass(weights(exponents(x, m, c)))
        nowhere = torch.full_like(part.trimmed, NOWHERE)
        law = ShardLaw(m, torch.ones_like(part.c) if plain else part.inverse_t, mass, nowhere, nowhere)
        inside = keys(x) > NEG_INF_KEY
        ids = start + torch.arange(x.shape[1], device=x.device)
        return cls(part.comm, start, torch.where(inside, place_of(keys(x), ids), NOWHERE), law)

    def of_tokens(self, row: Tensor, ids: Tensor) -> Tensor:
        """Places in this view of tokens `ids` of the rows `row`, [n]; NOWHERE for those that it lacks. One round."""
        at = ids - self.start
        mine = (at >= 0) & (at < self.place.shape[1])
        found = self.place[row, at.clamp(0, self.place.shape[1] - 1)]
        return self.comm.max(torch.where(mine, found, NOWHERE))

    def ranks(self, place: Tensor) -> Tensor:
        """1 + the number of tokens with a larger key than that at `place` [G]; equal logits share a rank. One round."""
        own = torch.where(self.place == NOWHERE, LOWEST_KEY, key_of(self.place))
        return 1 + self.comm.sum((own > key_of(place)[:, None]).sum(1))

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """(ids, logprobs) [G, n] of the first candidates in order; -1 and -inf past the last. One round."""
        place = best(self.comm, self.place, n)
        return torch.where(place == NOWHERE, -1, id_of(place)), self.law.logprobs(place)
