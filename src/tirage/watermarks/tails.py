"""Upper tails of the laws that texts without a watermark have: p-values, in float64, with a small relative error."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def _sum_of_exponentials(logs: Iterable[float]) -> float:
    """The sum of e^x over logarithms of terms, at most 1."""
    found = np.array(list(logs))
    if not found.size:
        return 0.0
    top = float(found.max())
    return min(1.0, math.exp(top) * float(np.exp(found - top).sum()))


def binomial_tail(hits: int, trials: int, p: float) -> float:
    """P(X >= hits) of a binomial X: so many trials with success `p` in (0, 1)."""
    if hits <= 0:
        return 1.0
    k = np.arange(hits, trials + 1)
    lg = np.array([math.lgamma(n) for n in range(1, trials + 2)])
    logs = lg[trials] - lg[k] - lg[trials - k] + k * math.log(p) + (trials - k) * math.log1p(-p)
    return _sum_of_exponentials(logs)


def gamma_tail(total: float, shape: int) -> float:
    """P(X >= total) of the sum X of `shape` independent exponentials of mean 1."""
    if total <= 0:
        return 1.0
    k = np.arange(shape)
    lg = np.array([math.lgamma(n + 1) for n in range(shape)])
    # The terms from the largest one down sum to a probability below 1, so nothing cancels.
    return _sum_of_exponentials(k * math.log(total) - total - lg)


def sum_tail(pmf: NDArray[np.float64], count: int, total: int) -> float:
    """P(X >= total) of the sum X of `count` independent integers with the law `pmf` [m] on 0 ... m - 1.

    The law is tilted until its mean is the one observed, so that the transform is exact where it matters.
    """
    values = np.arange(pmf.size, dtype=np.float64)
    if total <= count * float(values @ pmf):
        tilt = 0.0
    elif total >= count * float(values[pmf > 0].max()):
        top = float(values[pmf > 0].max())
        return float(pmf[int(top)]) ** count if total == count * top else 0.0
    else:
        tilt = _tilt(pmf, values, total / count)
    tilted = pmf * np.exp(tilt * (values - values[-1]))
    log_scale = math.log(float(tilted.sum())) + tilt * float(values[-1])
    size = count * (pmf.size - 1) + 1
    law = np.fft.irfft(np.fft.rfft(tilted / tilted.sum(), 2 * size) ** count, 2 * size)[:size].clip(0)
    sums = np.arange(size, dtype=np.float64)
    inside = np.flatnonzero((sums >= total) & (law > 0))
    return _sum_of_exponentials(np.log(law[inside]) - tilt * sums[inside] + count * log_scale)


def _tilt(pmf: NDArray[np.float64], values: NDArray[np.float64], mean: float) -> float:
    """The exponent at which the tilted law has this mean, by bisection."""
    low, high = 0.0, 64.0
    for _ in range(100):
        middle = (low + high) / 2
        law = pmf * np.exp(middle * (values - values[-1]))
        low, high = (middle, high) if values @ law < mean * law.sum() else (low, middle)
    return low
