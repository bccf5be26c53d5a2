"""How adaptive-p and watermarks weigh the kept tokens anew, in float64, and how the new shares move with the old ones.

Each rule is that of its operator in real numbers. Which tokens are green, or win a match, follows from history, key and
kept ids alone, so it has no slope. SPEC.md S-R5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.exact.numbers import LOG2E_23
from tirage.operators import Operation, Step
from tirage.operators.adaptive_p import ADAPTIVE_P, INVERSE_WIDTH
from tirage.operators.row import RowState
from tirage.operators.watermark import GREEN_LEFT, GREEN_SELF, TOURNAMENT, green_ids, layers_of, red_factor

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]
Pull = Callable[[Doubles], Doubles]
"""Slopes by the old shares float64 [n] of something with these slopes float64 [n] by the new ones."""
_OCTAVE = float(1 << 23)
_TARGET = 2.0**32
_STEEP = 10.0 * LOG2E_23 / _OCTAVE * float(np.log(2.0))
"""The exponent of adaptive-p is this times d^2 / (1 + d), for weights e^-exponent."""


@dataclass(frozen=True, slots=True)
class Reweighted:
    """Shares float64 [n] after all steps that weigh tokens anew, and the slopes by the shares before them."""

    shares: Doubles
    pulls: tuple[Pull, ...]

    def pull(self, slopes: Doubles) -> Doubles:
        """Slopes by the shares before all steps of something with these `slopes` by the new ones, float64 [n]."""
        for pull in reversed(self.pulls):
            slopes = pull(slopes)
        return slopes


def reweighted(row: RowState, steps: Sequence[Step], ids: Ids, shares: Doubles) -> Reweighted:
    """The `shares` float64 [n] of the tokens `ids` [n] of a finished row, weighed anew by those `steps` that do so."""
    pulls: list[Pull] = []
    for step in steps:
        if step.op in RULES:
            shares, pull = RULES[step.op](row, step, ids, shares)
            pulls.append(pull)
    return Reweighted(shares, tuple(pulls))


def _adaptive(row: RowState, step: Step, ids: Ids, p: Doubles) -> tuple[Doubles, Pull]:
    away = p - step.a / _TARGET
    d = np.abs(away) * INVERSE_WIDTH
    exponent = _STEEP * d * d / (1.0 + d)
    by_p = _STEEP * d * (2.0 + d) / (1.0 + d) ** 2 * INVERSE_WIDTH * np.sign(away)
    w = np.exp(exponent.min() - exponent)
    new = w / w.sum()
    return new, lambda slopes: -by_p * new * (slopes - slopes @ new)


def _green(row: RowState, step: Step, ids: Ids, p: Doubles) -> tuple[Doubles, Pull]:
    factors = np.where(green_ids(row, step, ids), 1.0, red_factor(step))
    total = float(factors @ p)
    new = factors * p / total
    return new, lambda slopes: factors * (slopes - slopes @ new) / total


def _tournament(row: RowState, step: Step, ids: Ids, p: Doubles) -> tuple[Doubles, Pull]:
    rounds: list[tuple[NDArray[np.bool_], Doubles, Doubles]] = []
    for g in layers_of(row, step, ids):
        factors = g + (1.0 - p[g].sum())
        rounds.append((g, p, factors))
        p = p * factors

    def pull(slopes: Doubles) -> Doubles:
        for g, before, factors in reversed(rounds):
            slopes = slopes * factors - g * (slopes @ before)
        return slopes

    return p, pull


RULES: dict[Operation, Callable[[RowState, Step, Ids, Doubles], tuple[Doubles, Pull]]] = {
    ADAPTIVE_P: _adaptive,
    GREEN_LEFT: _green,
    GREEN_SELF: _green,
    TOURNAMENT: _tournament,
}
"""What gives the kept tokens new weights: from their shares to new ones, and back from slopes to slopes."""
