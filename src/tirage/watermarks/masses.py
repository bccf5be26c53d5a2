"""Integer weights with room for factors: SPEC.md S-M1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BITS = 60
_POINT = np.uint64(30)
_LOW = np.uint64(0xFFFFFFFF)


def widened(w: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Weights uint64 [n] times the power of two that takes their sum, at least 1, to [2^59, 2^60)."""
    return w << np.uint64(_BITS - int(w.sum(dtype=np.uint64)).bit_length())


def scaled(w: NDArray[np.uint64], factor: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """floor(w * factor / 2^30) of weights below 2^60 and factors up to 2^31, uint64 [n]: exact in 64 bits."""
    found = w.copy()
    scale(found, factor, np.empty_like(w))
    return found


def scale(w: NDArray[np.uint64], factor: NDArray[np.uint64], spare: NDArray[np.uint64]) -> None:
    """`scaled` in place; `spare` uint64 [n] is overwritten."""
    np.bitwise_and(w, _LOW, out=spare)
    spare *= factor
    spare >>= _POINT
    w >>= np.uint64(32)
    w *= factor
    w <<= np.uint64(2)
    w += spare
