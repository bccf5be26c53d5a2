"""The numeric rule of one token: keys, exponents, weights, logarithms, the goal of a top-p and the uniform."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.exact.keys import FLT_MAX, TINY_BITS
from tirage.exact.logs import LN2_31, OCTAVE
from tirage.exact.weights import COEFFICIENTS, Q_LIMIT

NEG_INF = tl.constexpr(-0x7F800000)
POS_INF = tl.constexpr(0x7F800000)
NO_ID = tl.constexpr(0x7FFFFFFF)
LIMIT = tl.constexpr(int(Q_LIMIT))
LARGEST = tl.constexpr(float(FLT_MAX))
_TINY = tl.constexpr(int(TINY_BITS))
_B0, _B1, _B2, _B3, _B4, _B5 = (tl.constexpr(float(b)) for b in COEFFICIENTS)
_LN2 = tl.constexpr(LN2_31)
_UNIT_LOG = tl.constexpr(40 * OCTAVE)


@triton.jit
def key_of(x):
    """int32 keys of float32 logits, any shape (S-N3)."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


@triton.jit
def value_of(key):
    """float32 logits of int32 keys, any shape."""
    return tl.where(key >= 0, key, (-key) | -2147483648).to(tl.float32, bitcast=True)


@triton.jit
def logits_at(x_ptr, ids, there, IS_BFLOAT: tl.constexpr):
    """float32 logits of `ids`, any shape, -inf where they are not `there`; bfloat16 ones are given as their bits."""
    if IS_BFLOAT:
        # Widened as integers: no conversion could make zeros of the smallest ones.
        bits = tl.load(x_ptr + ids, mask=there, other=-128)  # -inf
        x = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        x = tl.load(x_ptr + ids, mask=there, other=float("-inf")).to(tl.float32)
    return x


@triton.jit
def is_spoiled(key):
    """Whether keys, any shape, are those of +inf or NaN."""
    return (key >= POS_INF) | (key < NEG_INF)


@triton.jit
def cleaned(x):
    """float32 `x`, any shape, with every |v| <= 2^-126 made +0.0 (S-N7)."""
    return tl.where((x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) <= _TINY, 0.0, x)


@triton.jit
def clamped(x):
    """float32 `x`, any shape, held within the finite range, then cleaned (S-N7)."""
    return cleaned(tl.maximum(tl.minimum(x, LARGEST), -LARGEST))


@triton.jit
def exponent_of(x, m, c):
    """int32 exponents of float32 logits, any shape (S-W1)."""
    return tl.minimum((m - x) * c, 343932928.0).to(tl.int32)


@triton.jit
def times(a, b):
    """The product of two float32, with which no addition is fused."""
    return tl.minimum(a * b, LARGEST)


@triton.jit
def power_of(q):
    """float32 2^40 times 2^-(q / 2^23) of int32 exponents, any shape, from -80 octaves to 100."""
    f = ((q & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    r = _B4 + tl.minimum(f * _B5, LARGEST)
    r = _B3 + tl.minimum(r * f, LARGEST)
    r = _B2 + tl.minimum(r * f, LARGEST)
    r = _B1 + tl.minimum(r * f, LARGEST)
    r = _B0 + tl.minimum(r * f, LARGEST)
    return (r.to(tl.int32, bitcast=True) - (q & -8388608)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(q):
    """int64 weights of int32 exponents, any shape (S-W2)."""
    return tl.where(q < LIMIT, power_of(q), 0.0).to(tl.int64)


@triton.jit
def log2_fixed(n):
    """log2 of integers n >= 1 (uint64, any shape) in 2^-23, int64: 23 squarings of a 32-bit mantissa."""
    e = tl.full((), 0, tl.uint64)
    rest = n
    for shift in tl.static_range(5, -1, -1):  # pyright: ignore[reportGeneralTypeIssues]
        size = tl.full((), 1 << shift, tl.uint64)
        big = (rest >> size) > 0
        e = tl.where(big, e + size, e)
        rest = tl.where(big, rest >> size, rest)
    whole = tl.full((), 31, tl.uint64)
    z = tl.where(e <= whole, n << (whole - tl.minimum(e, whole)), n >> (tl.maximum(e, whole) - whole))
    out = n * 0
    for _ in range(23):
        z = (z * z) >> 31
        carry = z >> 32
        z = z >> carry
        out = (out << 1) | carry
    return ((e << 23) | out).to(tl.int64)


@triton.jit
def ln_of(log2):
    """Natural logarithm, float32, of a fixed-point base-2 logarithm (int64)."""
    return tl.minimum(((log2 * _LN2) >> 31).to(tl.float32) * 1.1920928955078125e-07, LARGEST)


@triton.jit
def is_in(key, ids, cut_key, cut_id):
    """Whether tokens of these keys and ids, any shape, stand before or at the cut."""
    return (key > cut_key) | ((key == cut_key) & (ids <= cut_id))


@triton.jit
def lowest_key(limit, m, c, high):
    """The least keys whose exponents are at most `limit`, any shape: exponents fall as keys rise."""
    low = limit.to(tl.int64) * 0 + NEG_INF
    top = limit.to(tl.int64) * 0 + high
    for _ in range(32):
        middle = (low + top) >> 1
        inside = (exponent_of(value_of(middle.to(tl.int32)), m, c) <= limit) & (middle > NEG_INF)
        top = tl.where(inside, middle, top)
        low = tl.where(inside, low, middle)
    return top.to(tl.int32)


@triton.jit
def target_of(share, total, rule):
    """The mass that a top-p prefix must reach: max(1, ceil(P * W / 2^32)); for `le` floor(P * W / 2^32) + 1."""
    p, w = share.to(tl.uint64), total.to(tl.uint64)
    low = p * w
    floor = ((tl.umulhi(p, w) << 32) | (low >> 32)).to(tl.int64)
    part = (low & 0xFFFFFFFF) > 0
    ceiling = tl.maximum(tl.where(part, floor + 1, floor), 1)
    return tl.where(rule == 1, floor + 1, ceiling)


@triton.jit
def uniform(seed, step, sample, domain: tl.constexpr):
    """64 random bits of the Philox block of a domain, as uint64."""
    zero = tl.full((), 0, tl.uint32)
    a, b, _, _ = tl.philox(seed, step.to(tl.uint32), sample.to(tl.uint32), zero + domain, zero)
    return (a.to(tl.uint64) << 32) | b.to(tl.uint64)


@triton.jit
def logprob_of(x, m, inverse_t, total):
    """ln of a token's probability when the set weighs `total`."""
    distance = tl.minimum((m - x) * inverse_t, LARGEST)
    return 0.0 - (distance + ln_of(log2_fixed(total.to(tl.uint64)) - _UNIT_LOG))


@triton.jit
def log_masses(mass_ptr, log_ptr):
    """ln of the mass of each row, in units of 2^-40 of the largest weight (S-L1)."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(log_ptr + row, ln_of(log2_fixed(tl.load(mass_ptr + row).to(tl.uint64)) - _UNIT_LOG))


@triton.jit
def smoothed(x, top, square, cube):
    """Logits, any shape, at a distance that is squared, and cubed, from the largest one `top`, cleaned (S-N8)."""
    d = clamped(top - cleaned(x))
    growth = clamped(square + clamped(cube * d))
    return clamped(top - clamped(growth * clamped(d * d)))
