"""Keys: int32 images of float32 logits whose integer order is the order of the logits (S-N3).

Every comparison in tirage is a comparison of keys: floats would see -0.0, NaN and flush-to-zero.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

NEG_INF_KEY = -0x7F800000
POS_INF_KEY = 0x7F800000
LOWEST_KEY = -0x7FFFFFFF
FLT_MAX = np.float32(3.4028235e38)
_POSITION = 0x7FFFFFFF
TINY_BITS = 0x00800000
"""Bits of 2^-126: at or below it in magnitude, an operand or result of an arithmetic stage becomes +0.0 (S-N7)."""


def keys(x: NDArray[np.float32]) -> NDArray[np.int32]:
    """Keys of `x`, same shape: b if b >= 0 else -(b & 0x7fffffff), where b are the bits. Rule S-N3.

    key(-0.0) = key(+0.0) = 0; a NaN lies beyond the key of the infinity of its sign.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.int32)
    sign = bits >> 31  # 0, or -1, with which x ^ sign - sign is -x
    return ((bits & 0x7FFFFFFF) ^ sign) - sign


def values(key: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits whose keys are `key`, same shape: the inverse of `keys`, except that -0.0 comes back as +0.0."""
    key = np.asarray(key, dtype=np.int32)
    bits = np.where(key >= 0, key, np.int32(-0x80000000) | -key)
    return np.ascontiguousarray(bits, dtype=np.int32).view(np.float32)


def value(key: int | np.integer) -> np.float32:
    """The logit of one key, as a float32 scalar."""
    return values(np.array([key], np.int32))[0]


def descending(key: NDArray[np.int32]) -> NDArray[np.int64]:
    """Positions [n] of keys [n] from the largest to the smallest, equal ones by position (S-W3).

    Sorts integers that hold both, several times faster than a stable sort of the positions (benchmarks/explain.py).
    """
    return positions_of(ranked(key))


def ranked(key: NDArray[np.int32]) -> NDArray[np.int64]:
    """Ranks [n] of keys [n] in ascending order, that of the largest key first: `positions_of` gives their positions."""
    ranks = ranks_of(key, places(key.size))
    ranks.sort()
    return ranks


@lru_cache(maxsize=4)
def places(count: int) -> NDArray[np.int64]:
    """The numbers from 0 to `count` - 1 [n], not to be written: fresh memory for so many takes longer than a sum."""
    found = np.arange(count)
    found.flags.writeable = False
    return found


def ranks_of(key: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers [n] that ascend where keys [n] descend, and with the positions [n] where keys are equal."""
    ranks = key.astype(np.int64)
    np.subtract(_POSITION, ranks, out=ranks)
    np.left_shift(ranks, 31, out=ranks)
    return np.bitwise_or(ranks, positions, out=ranks)


def positions_of(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions [n] in ranks [n]."""
    return ranks & _POSITION


def largest(key: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """The positions of the `n` largest of keys [V], as `descending` has them first, without sorting the others."""
    found = places(key.size)
    if 0 < n < key.size:
        # All that equal the last of them, so that positions decide.
        found = np.flatnonzero(key >= np.partition(key, key.size - n)[key.size - n])
    return positions_of(np.sort(ranks_of(key[found], found))[:n])


def cleaned(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """`x`, same shape, with every |v| <= 2^-126 made +0.0, decided on bits so that flush-to-zero has no say (S-N7)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.int32)
    return np.where((bits & 0x7FFFFFFF) <= TINY_BITS, np.float32(0), x).astype(np.float32)


def clamped(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """`x`, same shape, held within the finite float32 range, then cleaned: the end of each arithmetic stage (S-N7)."""
    return cleaned(np.minimum(np.maximum(x, -FLT_MAX), FLT_MAX))
