"""Logarithms from integer squarings: the same on every machine, no libm (numeric rules S-L1 ... S-L4)."""

from __future__ import annotations

from functools import cache
from math import isqrt

import numpy as np

LN2_31 = 1488522236
"""ln 2 in units of 2^-31."""

OCTAVE = 1 << 23


def ilog2(n: int) -> int:
    """log2(n) in units of 2^-23 for an integer n >= 1, truncated as written: normative for every device.

    A 32-bit mantissa is squared 23 times; the error stays below 1.2e-7 octaves.
    """
    e = n.bit_length() - 1
    z = (n << 31) >> e if e <= 31 else n >> (e - 31)
    out = 0
    for _ in range(23):
        z = z * z >> 31
        carry = z >> 32
        z >>= carry
        out = (out << 1) | carry
    return (e << 23) | out


def neglog2_floor(a: float, frac: int = 23, guard: int = 256) -> int:
    """floor(-log2(a) * 2^frac) for 0 < a <= 1, exact for every float64."""
    n, d = a.as_integer_ratio()
    e = n.bit_length() - 1
    k = d.bit_length() - 1 - e
    if n == 1 << e:
        return k << frac
    z, out = n << (guard - e), 0
    for _ in range(frac):
        z = z * z >> guard
        out <<= 1
        if z >> (guard + 1):
            z >>= 1
            out |= 1
    return (k << frac) - out - 1


def exp2(a: int) -> int:
    """2^(a * 2^-23) in units of 2^-62 for an integer a >= 0: a product of square roots of 2, each truncated (S-L1)."""
    whole, fraction = divmod(a, OCTAVE)
    power = 1 << 62
    for bit, root in enumerate(_roots_of_2(), 1):
        if fraction >> (23 - bit) & 1:
            power = power * root >> 62
    return power << whole


@cache
def _roots_of_2() -> tuple[int, ...]:
    """2^(1/2), 2^(1/4), ... 2^(2^-23) in units of 2^-62."""
    roots = [isqrt(1 << 125)]
    while len(roots) < 23:
        roots.append(isqrt(roots[-1] << 62))
    return tuple(roots)


def ln_fixed(log2: int) -> np.float32:
    """Natural logarithm, float32, of a number whose base-2 logarithm is `log2` * 2^-23: one rounding (S-L1)."""
    return np.float32(np.float32((log2 * LN2_31) >> 31) * np.float32(2.0**-23))


def log_mass(mass: int) -> np.float32:
    """ln of an integer mass counted in units of 2^-40 of the maximum's weight, float32 (S-L1)."""
    return ln_fixed(ilog2(mass) - 40 * OCTAVE)
