"""Weights: integer probability mass of a logit, in units of 2^-40 of the row's maximum (S-W1, S-W2).

One subtraction and one multiplication in float32, each rounded, give q = -log2(weight) with 23 fraction bits.
A degree-5 polynomial of its fraction, again with every product and sum rounded, gives the weight. Sums of weights
are integer sums, so no order of summation, thread count or shard can change a result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact.keys import FLT_MAX

OCTAVES = 41
Q_LIMIT = OCTAVES << 23
"""Exponents stop here; a weight at the limit is 0 (S-W2)."""

COEFFICIENTS = tuple(
    np.float32(float.fromhex(text))
    for text in (
        "0x1p+40",
        "-0x1.62e388p+39",
        "0x1.ebdf14p+37",
        "-0x1.c4d6a6p+35",
        "0x1.2d0916p+33",
        "-0x1.ebd7dcp+29",
    )
)
"""b0..b5 of 2^(40-f) on f in [0, 1): maximum relative error 2^-21.4, monotone, exact at f = 0."""

_BLOCK = 8192
"""Weights that are computed at once: what is in between stays in the cache, which takes a third of the time."""
_FRACTION = np.int32(0x7FFFFF)
_ONE_BITS = np.int32(0x3F800000)
_EXPONENT = np.int32(-0x800000)


def exponents(x: NDArray[np.float32], m: np.float32, c: np.float32) -> NDArray[np.int32]:
    """q = trunc(min((m - x) * c, 41 * 2^23)), int32, same shape as `x`. Rule S-W1.

    `m` is the largest logit (finite), `c` = log2(e) / T * 2^23. -inf gives the limit, hence weight 0.
    """
    with np.errstate(over="ignore"):
        scaled = np.minimum((m - x) * c, np.float32(Q_LIMIT))
    return scaled.astype(np.int32)


def weights(q: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Integer weights of the exponents `q`, uint64, same shape; w(0) = 2^40, w(41 * 2^23) = 0. Rule S-W2."""
    q = np.asarray(q, dtype=np.int32)
    if q.size <= _BLOCK:
        return _weights(q)
    flat, found = q.ravel(), np.empty(q.size, np.uint64)
    for start in range(0, flat.size, _BLOCK):
        found[start : start + _BLOCK] = _weights(flat[start : start + _BLOCK])
    return found.reshape(q.shape)


def _weights(q: NDArray[np.int32]) -> NDArray[np.uint64]:
    f = ((q & _FRACTION) | _ONE_BITS).view(np.float32) - np.float32(1)
    r = COEFFICIENTS[5]
    for b in COEFFICIENTS[4::-1]:
        r = b + np.minimum(r * f, FLT_MAX)
    scaled = (np.asarray(r, dtype=np.float32).view(np.int32) - (q & _EXPONENT)).view(np.float32)
    return np.where(q < Q_LIMIT, scaled.astype(np.int64), 0).astype(np.uint64)
