"""Evidence for and against a promise, outcome by outcome: betting martingales that may be looked at any time.

For each way of breaking the promise a bettor stakes a unit on its law `q`. An outcome `x` multiplies the stake by
`q(x) / P(x)`, where `P(x)` is the largest probability that a server which keeps the promise may give to `x`. While the
promise is kept the mean stake can only fall, so the chance that it ever reaches `1 / level` is at most `level` (Ville
1939; Shafer 2021, doi:10.1111/rssa.12647), whenever one stops. The same ratio turned round says when a way of
breaking the promise is out of the question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LEAK = 1e-4
"""The probability that an outcome may have beyond its law: a token that rounding has let in."""
CLEARED = math.log(100.0)
"""How much likelier the promise must be than a way of breaking it before that is out of the question."""
ANOTHER = "another law"
"""The name of the bet that learns from the outcomes, for faults that nobody has thought of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is promised for one outcome, and what each fault would make of it, over `K` outcomes.

    `low` and `high` [K] bound the probabilities under the promise, `faults` are laws [K] by the names of the faults,
    the same names for every prediction of a test. `learn` names the counts that the learning bet uses, None for no
    such bet.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    faults: Mapping[str, NDArray[np.float64]]
    learn: str | None = None


@dataclass(slots=True)
class Evidence:
    """The stakes of all bettors of one test, as logarithms; `threshold` is that of a stake that rejects the promise."""

    threshold: float
    outcomes: int = 0
    path: list[float] = field(default_factory=list)
    _against: dict[str, float] = field(default_factory=dict)
    _for: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, prediction: Prediction, outcome: int) -> None:
        """Takes an outcome in, an index into the laws of its prediction."""
        high = min(float(prediction.high[outcome]) + LEAK, 1.0)
        for name, law in prediction.faults.items():
            share = float(law[outcome])
            self._against[name] = self._against.get(name, 0.0) + math.log(max(share, 1e-300) / high)
            kept = math.log((float(prediction.low[outcome]) + LEAK) / (share + LEAK))
            self._for[name] = self._for.get(name, 0.0) + kept
        if prediction.learn is not None:
            self._learn(prediction, prediction.learn, outcome, high)
        self.outcomes += 1
        self.path.append(self.log_value)

    def _learn(self, prediction: Prediction, name: str, outcome: int, high: float) -> None:
        """The bet on what has been seen so far, begun with ten outcomes as promised."""
        seen = self._seen.setdefault(name, {})
        middle = (prediction.low + prediction.high) / 2
        start = 10.0 * float(middle[outcome]) / float(middle.sum())
        share = (start + seen.get(outcome, 0)) / (10.0 + sum(seen.values()))
        self._against[ANOTHER] = self._against.get(ANOTHER, 0.0) + math.log(max(share, 1e-300) / high)
        seen[outcome] = seen.get(outcome, 0) + 1

    @property
    def log_value(self) -> float:
        """The logarithm of the mean stake now."""
        stakes = list(self._against.values())
        if not stakes:
            return 0.0
        most = max(stakes)
        return most + math.log(sum(math.exp(each - most) for each in stakes) / len(stakes))

    @property
    def largest(self) -> float:
        """The logarithm of the largest mean stake so far."""
        return max(self.path, default=0.0)

    @property
    def p_value(self) -> float:
        """A p-value that holds whenever one stops: the inverse of the largest mean stake."""
        return min(1.0, math.exp(-self.largest))

    @property
    def rejected(self) -> bool:
        """Whether the promise is broken, at the level of the test."""
        return self.largest >= self.threshold

    @property
    def fault(self) -> str:
        """The name of the fault with the largest stake; "" before the first outcome."""
        return max(self._against, key=lambda name: self._against[name], default="")

    def uncleared(self) -> list[str]:
        """The faults that are still possible, the learning bet apart."""
        return [name for name, kept in self._for.items() if kept < CLEARED]


def bernoulli(high: float, faults: Mapping[str, float], *, kept: float | None = None) -> Prediction:
    """A prediction of outcome 1, a broken promise, of probability `high` at most, against outcome 0.

    `faults` are its probabilities under faults, each above `high`; then the stake falls in the mean for every
    probability up to `high`. `kept` is that of a server that keeps the promise, by default `high` itself.
    """
    own = high if kept is None else kept
    return Prediction(
        low=np.array([1 - own, own]),
        high=np.array([1 - high, high]),
        faults={name: np.array([1 - share, share]) for name, share in faults.items()},
    )


def divergence(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The Kullback-Leibler divergence in nats of laws [K], the second one mixed with LEAK so that it is finite."""
    mixed = other + LEAK
    held = one > 0
    return float(np.sum(one[held] * np.log(one[held] / mixed[held])))


def separation(prediction: Prediction, names: Sequence[str] | None = None) -> float:
    """How fast outcomes tell the promise from the nearest of its faults: nats an outcome, the lower of both ways."""
    middle = (prediction.low + prediction.high) / 2
    middle = middle / middle.sum()
    laws = [law for name, law in prediction.faults.items() if names is None or name in names]
    return min(min(divergence(middle, law), divergence(law, prediction.high), 3.0) for law in laws)
