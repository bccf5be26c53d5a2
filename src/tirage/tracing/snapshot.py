"""The candidates of a row at one moment, with their integer weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.keys import keys, value
from tirage.exact.weights import exponents, weights
from tirage.operators import FIRST_FILTER, Step
from tirage.operators.row import RowState, mass

_UNIT = numbers.temperature_constant(1.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Logits `x` [V], the candidates `ids` among them (ascending), their weights `w`, and the sum of those.

    Before the filters begin, weights are those at temperature 1, and tokens with NaN or +inf logits weigh nothing.
    """

    x: NDArray[np.float32]
    ids: NDArray[np.int64]
    w: NDArray[np.uint64]
    total: int

    @classmethod
    def of_logits(cls, x: NDArray[np.float32]) -> Snapshot:
        """The Snapshot of logits that no filter has seen."""
        ids = np.flatnonzero(x != -np.inf)
        finite = np.where(np.isfinite(x), x, np.float32(-np.inf)).astype(np.float32)
        top = value(keys(finite).max())
        w = np.zeros(ids.size, np.uint64) if top == -np.inf else weights(exponents(finite[ids], top, _UNIT))
        return cls(x.copy(), ids, w, mass(w))

    @classmethod
    def of_vocabulary(cls, x: NDArray[np.float32]) -> Snapshot:
        """The Snapshot before anything was decided: every token of the vocabulary, those at -inf without weight."""
        some = cls.of_logits(x)
        w = np.zeros(x.size, np.uint64)
        w[some.ids] = some.w
        return cls(some.x, np.arange(x.size), w, some.total)

    @classmethod
    def after(cls, step: Step, row: RowState) -> Snapshot:
        """The Snapshot of a row that has just run `step`."""
        if step.op < FIRST_FILTER:
            return cls.of_logits(row.x)
        w = row.w()
        return cls(row.x, row.ids, w, mass(w))

    def holds(self) -> NDArray[np.bool_]:
        """Which tokens of the vocabulary are candidates, bool [V]."""
        inside = np.zeros(self.x.size, bool)
        inside[self.ids] = True
        return inside

    def ranked(self) -> NDArray[np.int64]:
        """Positions into `ids`, (key descending, id ascending) (S-W3)."""
        return np.argsort(-keys(self.x[self.ids]).astype(np.int64), kind="stable")

    def share(self, part: NDArray[np.uint64]) -> float:
        """The fraction of the total that some of the weights hold."""
        return float(np.float64(mass(part)) / np.float64(self.total)) if self.total else 0.0

    def probabilities(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """w / W of each token, 0 outside the set, NaN where the logit is not finite."""
        return self._spread(tokens, self.w)

    def cumulative(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The share of each token and all that rank above it; 0 and NaN as for probabilities."""
        order = self.ranked()
        reached = np.empty(self.ids.size, np.uint64)
        reached[order] = np.cumsum(self.w[order])
        return self._spread(tokens, reached)

    def _spread(self, tokens: NDArray[np.int64], amounts: NDArray[np.uint64]) -> NDArray[np.float64]:
        dense = np.zeros(self.x.size)
        if self.total:
            dense[self.ids] = amounts.astype(np.float64) / np.float64(self.total)
        x = self.x[tokens]
        return np.where(np.isfinite(x) | (x == -np.inf), dense[tokens], np.nan)
