"""Rows whose law is a mixture: XTC's coin, and masks that count only after the draw (S-W6, S-L4).

A shard knows the weights of its own tokens and, once they are added up, the masses of the whole rows: enough for the
probability of each of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tirage.backends.torch.rule import floats, integers
from tirage.exact.logs import OCTAVE, ilog2, ln_fixed

ONE = 1 << 32
_POINT = 63
_NEVER = 1 << 62
"""More than any weight."""

Weights = Sequence[Tensor]
"""int64 [G, N] for the branch without XTC and, where there is one, the branch with it."""
Masses = list[list[int]]
"""For each of these branches the mass of each row, at least 1."""


def drawable(each: Sequence[Tensor], shares: Sequence[int]) -> Tensor:
    """bool [G, N]: tokens that some branch can draw, from those that `each` branch can, bool [G, N].

    `shares` [G] is how often XTC is on, in units of 2^-32.
    """
    if len(each) == 1:
        return each[0]
    # Rows that XTC always cuts cannot give what it removes.
    always = integers([share == ONE for share in shares], each[0])[:, None] > 0
    return each[1] | (each[0] & ~always)


@dataclass(frozen=True, slots=True)
class Redraw:
    """What a rejected draw falls back to: `weights` under the mask, their `masses`, and the mask, `legal` bool [G, N].

    `rejected`: for each branch and row the mass of what the mask forbids.
    """

    weights: Weights
    masses: Masses
    rejected: Masses
    legal: Tensor

    def probability(self, branch: int, row: int, mass: int) -> int:
        """How often the row is drawn again, in units of 2^-63."""
        return (self.rejected[branch][row] << _POINT) // mass

    def least(self, branch: int, row: int, mass: int) -> int:
        """The smallest weight with which the second draw can give a token, at that precision."""
        again = self.probability(branch, row, mass)
        if not again:
            return _NEVER
        needed = -(-(1 << _POINT) // again)
        return min(-(-needed * self.masses[branch][row] >> _POINT), _NEVER)


@dataclass(slots=True, kw_only=True)
class Mixture:
    """The law of G rows: the `weights` of one or two branches, how often XTC is on (units of 2^-32), and the redraw."""

    weights: Weights
    masses: Masses
    shares: list[int]
    redraw: Redraw | None = None
    _possible: Tensor | None = None

    @property
    def possible(self) -> Tensor:
        """bool [G, N]: this shard's tokens that can be drawn."""
        if self._possible is None:
            each = [self._possible_in(branch) for branch in range(len(self.weights))]
            self._possible = drawable(each, self.shares)
        return self._possible

    def _possible_in(self, branch: int) -> Tensor:
        w = self.weights[branch]
        if self.redraw is None:
            return w > 0
        least = [self.redraw.least(branch, row, mass) for row, mass in enumerate(self.masses[branch])]
        second = self.redraw.weights[branch] >= integers(least, w)[:, None].clamp(min=1)
        return (self.redraw.legal & (w > 0)) | second

    def terms(self, column: Tensor) -> Tensor:
        """What `logprob` needs to know of one token of each row, int64 [K, G], from its `column` [G, 1]."""
        return torch.cat([term.gather(1, column) for term in self._terms()], 1).T

    def _terms(self) -> list[Tensor]:
        if self.redraw is None:
            return list(self.weights)
        return [*self.weights, *self.redraw.weights, self.redraw.legal.to(torch.int64)]

    def logprob(self, row: int, terms: Sequence[int]) -> np.float32:
        """ln of a token's probability, at least 2^-63; for tokens that can be drawn."""
        return ln_fixed(ilog2(max(self._point(row, terms), 1)) - _POINT * OCTAVE) + np.float32(0)

    def _point(self, row: int, terms: Sequence[int]) -> int:
        """A token's probability in units of 2^-63."""
        each = [self._branch_point(branch, row, terms) for branch in range(len(self.weights))]
        share = self.shares[row]
        return each[0] if len(each) == 1 else each[0] * (ONE - share) + each[1] * share >> 32

    def _branch_point(self, branch: int, row: int, terms: Sequence[int]) -> int:
        mass = self.masses[branch][row]
        point = (terms[branch] << _POINT) // mass
        if self.redraw is None:
            return point
        masked = (terms[len(self.weights) + branch] << _POINT) // self.redraw.masses[branch][row]
        return point * terms[-1] + (self.redraw.probability(branch, row, mass) * masked >> _POINT)

    def logprobs(self, wanted: Tensor) -> Tensor:
        """Logprobs float32 [G, N] of this shard's tokens in the rows `wanted` bool [G]; -inf for the impossible."""
        out = torch.full(self.weights[0].shape, -torch.inf, device=wanted.device)
        possible = self.possible & wanted[:, None]
        row, column = torch.nonzero(possible, as_tuple=True)
        terms = torch.stack([term[row, column] for term in self._terms()]).T.tolist()
        known: dict[tuple[int, ...], np.float32] = {}
        found = [self._remembered(known, r, tuple(each)) for r, each in zip(row.tolist(), terms, strict=True)]
        out[row, column] = floats(found, out)
        return out

    def _remembered(self, known: dict[tuple[int, ...], np.float32], row: int, terms: tuple[int, ...]) -> np.float32:
        key = (row, *terms)
        if key not in known:
            known[key] = self.logprob(row, terms)
        return known[key]
