"""Numbers of the reference: binary32 by rounding binary64, keys, weights, Philox, logarithms (S-N, S-W, S-L1)."""

from __future__ import annotations

import math
import struct
from decimal import Decimal, localcontext
from fractions import Fraction

FLT_MAX = float.fromhex("0x1.fffffep+127")
TINY = 2.0**-126
OCTAVE = 2**23
LIMIT = 41 * OCTAVE
POLYNOMIAL = ("0x1p+40", "-0x1.62e388p+39", "0x1.ebdf14p+37", "-0x1.c4d6a6p+35", "0x1.2d0916p+33", "-0x1.ebd7dcp+29")


def f32(v: float) -> float:
    """The binary32 number nearest to `v`, ties to even; beyond the range, infinity.

    One binary64 operation on binary32 operands, then this, is the correctly rounded binary32 operation: products are
    exact in binary64, and a sum or quotient has too few digits for the second rounding to matter.
    """
    try:
        return struct.unpack("<f", struct.pack("<f", v))[0]
    except OverflowError:
        return math.copysign(math.inf, v)


def key(v: float) -> int:
    """The integer by which logits are compared: sign and magnitude of the bits (S-N3)."""
    bits = struct.unpack("<I", struct.pack("<f", v))[0]
    magnitude = bits & 0x7FFFFFFF
    return -magnitude if bits >> 31 else magnitude


def tiny(v: float) -> float:
    """`v`, or 0.0 when |v| <= 2^-126: an operand of an arithmetic stage (S-N7)."""
    return 0.0 if abs(v) <= TINY else v


def settle(v: float) -> float:
    """`v` within the finite range, then `tiny`: the result of an arithmetic stage (S-N7)."""
    return tiny(max(-FLT_MAX, min(v, FLT_MAX)))


def constant(t: float) -> float:
    """c of a temperature that is a binary32 number (S-N2)."""
    return f32(float.fromhex("0x1.71547652b82fep+23") / t)


def reciprocal(v: float) -> float:
    """RN32(1 / v) of a binary32 number."""
    return f32(1.0 / v)


def exponent(x: float, m: float, c: float) -> int:
    """q: how far `x` lies below `m`, in 2^-23 octaves, at most 41 octaves (S-W1)."""
    return int(min(f32(f32(m - x) * c), float(LIMIT)))


def weight(q: int) -> int:
    """w in units of 2^-40 of the maximum's weight (S-W2)."""
    if q >= LIMIT:
        return 0
    octaves, part = divmod(q, OCTAVE)
    f = part / OCTAVE
    *rest, r = (float.fromhex(text) for text in POLYNOMIAL)
    for b in reversed(rest):
        r = f32(b + min(f32(r * f), FLT_MAX))
    return int(math.ldexp(r, -octaves))


def share_32(p: float) -> int:
    """RN(p32 * 2^32): P of top-p, H of top-h, the coin of XTC (S-W4)."""
    return round(Fraction(f32(p)) * 2**32)


def at_least(fraction: float, total: int) -> int:
    """ceil(v32 * total): the least weight that is at least this share of `total`."""
    return math.ceil(Fraction(f32(fraction)) * total)


def neglog2(v: float) -> int:
    """floor(-log2(v32) * 2^23), exact, for 0 < v <= 1."""
    return _floor_log(v, OCTAVE)


def half_neglog2(v: float) -> int:
    """floor(-log2(v32) / 2 * 2^23)."""
    return _floor_log(v, OCTAVE // 2)


def _floor_log(v: float, unit: int) -> int:
    mantissa, power = math.frexp(f32(v))
    if mantissa == 0.5:
        return (1 - power) * unit
    with localcontext() as context:
        context.prec = 80
        return math.floor(-Decimal(f32(v)).ln() / Decimal(2).ln() * unit)


def log2_of(n: int) -> int:
    """log2(n) in units of 2^-23 by 23 squarings of a 31-bit fraction, every step truncated: normative (S-L1)."""
    e = n.bit_length() - 1
    z = n * 2**31 // 2**e
    fraction = 0
    for _ in range(23):
        z = z * z // 2**31
        fraction *= 2
        if z >= 2**32:
            z //= 2
            fraction += 1
    return e * OCTAVE + fraction


def power_of_2(a: int) -> int:
    """2^(a * 2^-23) in units of 2^-62: the square roots of 2 that the bits of `a` name, multiplied, each truncated."""
    result, root = 2**62, 2**63
    for bit in range(22, -1, -1):
        root = math.isqrt(root * 2**62)
        if a & 2**bit:
            result = result * root // 2**62
    return result * 2 ** (a // OCTAVE)


def ln_of(log2: int) -> float:
    """Natural logarithm, binary32, of the number whose log2 is `log2` * 2^-23 (S-L1)."""
    return f32(f32(log2 * 1488522236 // 2**31) * 2.0**-23)


def uniform(seed: int, step: int, sample_index: int, domain: int) -> int:
    """U: words 0 and 1 of the Philox4x32-10 block that belongs to these four numbers (S-W7)."""
    high, low = philox((step, sample_index, domain, 0), seed)[:2]
    return high * 2**32 + low


def philox(counter: tuple[int, int, int, int], key: int) -> list[int]:
    """The four words of a Philox4x32-10 block under a key of 64 bits."""
    pair = key % 2**64
    schedule = [(pair % 2**32 + i * 0x9E3779B9, pair // 2**32 + i * 0xBB67AE85) for i in range(10)]
    block = list(counter)
    for k0, k1 in schedule:
        high0, low0 = divmod(block[0] * 0xD2511F53, 2**32)
        high1, low1 = divmod(block[2] * 0xCD9E8D57, 2**32)
        block = [high1 ^ block[1] ^ k0 % 2**32, low1, high0 ^ block[3] ^ k1 % 2**32, low0]
    return block
