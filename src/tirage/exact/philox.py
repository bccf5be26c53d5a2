"""The uniform: 64 bits of Philox4x32-10 keyed by seed, step, sample and domain (S-W7).

There is no generator state: the same request at the same step draws the same bits, wherever it runs.
Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


class Domain(IntEnum):
    """What a block of random bits is for; the numbers are SPEC.md's, and two domains never share a block."""

    DRAW = 0
    XTC = 1
    RESAMPLE = 4
    SEED = 5
    MARK = 6
    MARK_CONTEXT = 7


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Four 32-bit words of Philox4x32-10.

    Words of the counter may be uint64 arrays of one shape, and then the results are arrays of that shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform64(seed: int, step: int, sample_index: int = 0, domain: int = Domain.DRAW) -> int:
    """U in [0, 2^64): word 0 * 2^32 + word 1 of the block (step, sample_index, domain, 0). Rule S-W7.

    `seed` is any int64, read as its two's complement bits; `step` and `sample_index` are in [0, 2^32).
    """
    key = (seed & _MASK, (seed >> 32) & _MASK)
    words = philox4x32((step, sample_index, domain, 0), key)
    return (words[0] << 32) | words[1]
