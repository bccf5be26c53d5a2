"""Keys: int32 images of float32 logits whose integer order is the order of the logits (S-N3).

Every comparison in tirage is a comparison of keys: floats would see -0.0, NaN and flush-to-zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEG_INF_KEY = -0x7F800000
POS_INF_KEY = 0x7F800000
LOWEST_KEY = -0x7FFFFFFF
FLT_MAX = np.float32(3.4028235e38)
TINY_BITS = 0x00800000
"""Bits of 2^-126: at or below it in magnitude, an operand or result of an arithmetic stage becomes +0.0 (S-N7)."""


def keys(x: NDArray[np.float32]) -> NDArray[np.int32]:
    """Keys of `x`, same shape: b if b >= 0 else -(b & 0x7fffffff), where b are the bits. Rule S-N3.

    key(-0.0) = key(+0.0) = 0; a NaN lies beyond the key of the infinity of its sign.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.int32)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF)).astype(np.int32)


def values(key: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits whose keys are `key`, same shape: the inverse of `keys`, except that -0.0 comes back as +0.0."""
    key = np.asarray(key, dtype=np.int32)
    bits = np.where(key >= 0, key, np.int32(-0x80000000) | -key)
    return np.ascontiguousarray(bits, dtype=np.int32).view(np.float32)


def value(key: int | np.integer) -> np.float32:
    """The logit of one key, as a float32 scalar."""
    return values(np.array([key], np.int32))[0]


def cleaned(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """`x`, same shape, with every |v| <= 2^-126 made +0.0, decided on bits so that flush-to-zero has no say (S-N7)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.int32)
    return np.where((bits & 0x7FFFFFFF) <= TINY_BITS, np.float32(0), x).astype(np.float32)


def clamped(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """`x`, same shape, held within the finite float32 range, then cleaned: the end of each arithmetic stage (S-N7)."""
    return cleaned(np.minimum(np.maximum(x, -FLT_MAX), FLT_MAX))
