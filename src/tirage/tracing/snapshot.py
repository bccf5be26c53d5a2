"""The candidates of a row at one moment, with their integer weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.keys import keys, largest, places, positions_of, ranked, ranks_of, value
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

    def widened(self) -> Snapshot:
        """The Snapshot with every token of the vocabulary as a candidate; the added ones have no weight."""
        w = np.zeros(self.x.size, np.uint64)
        w[self.ids] = self.w
        return Snapshot(self.x, places(self.x.size), w, self.total)

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
        """The ranks of `ids`, by key descending and id ascending (S-W3)."""
        return ranked(keys(self.x[self.ids]))

    def likeliest(self, n: int) -> NDArray[np.int64]:
        """The first `n` tokens of `ranked`."""
        return self.ids[largest(keys(self.x[self.ids]), n)]

    def share(self, part: NDArray[np.uint64]) -> float:
        """The fraction of the total that some of the weights hold."""
        return float(np.float64(mass(part)) / np.float64(self.total)) if self.total else 0.0

    def probabilities(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """w / W of each token, 0 outside the set, NaN where the logit is not finite."""
        at = self._positions(tokens)
        return self._spread(tokens, at, self.w, at)

    def ranks_like(self, other: Snapshot) -> bool:
        """Whether `ranked` gives the same for both."""
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.x.view(np.int32), other.x.view(np.int32))

    def cumulative(self, tokens: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float64]:
        """The share of each token and all that rank above it; 0 and NaN as for probabilities. `order` is `ranked`."""
        at = self._positions(tokens)
        ranks = np.searchsorted(order, ranks_of(keys(self.x[self.ids[at]]), at)) if self.ids.size else at
        reached = np.cumsum(self.w[positions_of(order[: ranks.max(initial=-1) + 1])])
        return self._spread(tokens, at, reached, ranks)

    def _positions(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in `ids` each token is; another place for one that is not there."""
        return np.minimum(np.searchsorted(self.ids, tokens), max(self.ids.size - 1, 0))

    def _spread(
        self,
        tokens: NDArray[np.int64],
        at: NDArray[np.int64],
        amounts: NDArray[np.uint64],
        indices: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        shares = np.zeros(tokens.size)
        if self.total:
            inside = self.ids[at] == tokens
            shares[inside] = amounts[indices[inside]].astype(np.float64) / np.float64(self.total)
        x = self.x[tokens]
        return np.where(np.isfinite(x) | (x == -np.inf), shares, np.nan)
