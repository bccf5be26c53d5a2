"""The least key that a threshold keeps: of weights, exponents or distances, each an integer that follows from the set.

Quotients and squares of masses are 128-bit integers here, (high, low) words uint64. SPEC.md rules S-O3, S-O5, S-O6,
S-O10, S-O12.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    LARGEST,
    LIMIT,
    NEG_INF,
    clamped,
    cleaned,
    exponent_of,
    key_of,
    lowest_key,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.layout import PROGRAM, constant
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.p_less import HALF, P_LESS
from tirage.operators.top_a import TOP_A
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import XTC, XTC_TIES_KEPT

_EPSILON, _ETA, _TOP_A, _P_LESS, _SIGMA = (
    tl.constexpr(int(op)) for op in (EPSILON, ETA, TOP_A, P_LESS, TOP_N_SIGMA)
)  # fmt: skip
_XTC, _XTC_TIES_KEPT = tl.constexpr(int(XTC)), tl.constexpr(int(XTC_TIES_KEPT))
_MIN_P, _MIN_P_LOGIT, _TOP_P = (tl.constexpr(int(op)) for op in (MIN_P, MIN_P_LOGIT, TOP_P))
_FLOORED_MIN_P, _FLOORED_LOGIT, _FLOORED_TOP_P = (
    tl.constexpr(int(FLOORED[op])) for op in (MIN_P, MIN_P_LOGIT, TOP_P)
)  # fmt: skip
_HALF = tl.constexpr(HALF)
_LOW = tl.constexpr((1 << HALF) - 1)
_WORD = tl.constexpr(0xFFFFFFFF)
_WORD_BITS = tl.constexpr(32)
NEVER = tl.constexpr(1 << 62)
"""A weight that no token has."""
_ALL_ONES = tl.constexpr(0x7FFFFFFF)
_BITS = tl.constexpr(60)


# --- what the steps are ------------------------------------------------------------------------------------------


@triton.jit
def is_min_p(op, step_ptr):
    """Whether a step is a min-p that can remove something."""
    return ((op == _MIN_P) | (op == _FLOORED_MIN_P)) & (tl.load(step_ptr + 1) < LIMIT)


@triton.jit
def is_by_logit(op):
    """Whether a step compares logits with a part of the largest one."""
    return (op == _MIN_P_LOGIT) | (op == _FLOORED_LOGIT)


@triton.jit
def is_top_p(op):
    """Whether a step is a top-p."""
    return (op == _TOP_P) | (op == _FLOORED_TOP_P)


@triton.jit
def is_xtc(op):
    """Whether a step removes the likeliest tokens, by a coin."""
    return (op == _XTC) | (op == _XTC_TIES_KEPT)


@triton.jit
def reads_sums(op):
    """Whether a step's threshold follows from more than the mass of the set: from the sums of `term`."""
    return (op == _ETA) | (op == _P_LESS) | (op == _SIGMA)


@triton.jit
def number_of_sums(op):
    """How many sums a threshold, or a dynamic temperature, follows from."""
    return tl.where((op == _P_LESS) | (op == _SIGMA), 5, 4)


@triton.jit
def reads_mass(op):
    """Whether a step's threshold follows from the mass of the set alone."""
    return (op == _EPSILON) | (op == _TOP_A)


@triton.jit
def least_number(op, step_ptr):
    """How many tokens a step leaves at least, 0 where that is not asked for (S-O11)."""
    number = tl.full((), 0, tl.int64)
    if (op == _FLOORED_MIN_P) | (op == _FLOORED_LOGIT):
        number = tl.load(step_ptr + 2)
    if op == _FLOORED_TOP_P:
        number = tl.load(step_ptr + 5)
    return number


@triton.jit
def is_by_key(op, step_ptr):
    """Whether a step keeps all tokens from a key on, which neither masses nor numbers of tokens decide."""
    return (is_min_p(op, step_ptr) | is_by_logit(op)) & (least_number(op, step_ptr) <= 1)


# --- integers of 128 bits ----------------------------------------------------------------------------------------


@triton.jit
def sum_128(a_high, a_low, b_high, b_low):
    """a + b."""
    low = a_low + b_low
    return a_high + b_high + (low < a_low).to(tl.uint64), low


@triton.jit
def difference_128(a_high, a_low, b_high, b_low):
    """a - b, for a >= b."""
    return a_high - b_high - (a_low < b_low).to(tl.uint64), a_low - b_low


@triton.jit
def raised(high, low, shift: tl.constexpr):
    """high * 2^shift + low of two uint64."""
    return sum_128(high >> (64 - shift), high << shift, low * 0, low)


@triton.jit
def quotient(n_high, n_low, d_high, d_low):
    """(floor(n / d), the rest is not 0), for a quotient below 2^60 and d below 2^126."""
    rest_high, rest_low = n_high >> _BITS, (n_high << (64 - _BITS)) | (n_low >> _BITS)
    bits, found = n_low << (64 - _BITS), tl.full((), 0, tl.uint64)
    for _ in range(60):
        rest_high, rest_low = (rest_high << 1) | (rest_low >> 63), (rest_low << 1) | (bits >> 63)
        bits = bits << 1
        fits = (rest_high > d_high) | ((rest_high == d_high) & (rest_low >= d_low))
        less_high, less_low = difference_128(rest_high, rest_low, d_high, d_low)
        rest_high, rest_low = tl.where(fits, less_high, rest_high), tl.where(fits, less_low, rest_low)
        found = (found << 1) | fits.to(tl.uint64)
    return found.to(tl.int64), (rest_high | rest_low) > 0


@triton.jit
def root_of(n):
    """floor(sqrt(n)) of a uint64 below 2^62."""
    root, bit = tl.full((), 0, tl.uint64), tl.full((), 1 << 30, tl.uint64)
    for _ in range(31):
        more = root | bit
        root = tl.where(more * more <= n, more, root)
        bit = bit >> 1
    return root


@triton.jit
def share_of(op, step_ptr, total):
    """ceil(E * W / 2^s) of a step's operands, s >= 31: int64; of XTC at least 1, and a strict one the floor plus 1."""
    at = step_ptr + is_xtc(op).to(tl.int32)
    e, s = tl.load(at + 1), tl.load(at + 2)
    part, w = e.to(tl.uint64), total.to(tl.uint64)
    high, low = tl.umulhi(part, w), part * w
    # The product is below 2^92, so that a longer shift gives 1 as well.
    by = tl.minimum(s, 95).to(tl.uint64)
    short = by < 64
    near, far = tl.minimum(by, 63), tl.maximum(by, 64) - 64
    whole = tl.where(short, (high << (64 - near)) | (low >> near), high >> far)
    rest = tl.where(short, low & ((tl.full((), 1, tl.uint64) << near) - 1), low | (high - ((high >> far) << far)))
    more = rest > 0
    if is_xtc(op):
        more = more | (tl.load(step_ptr + 4) > 0) | (whole == 0)
    return (whole + more.to(tl.uint64)).to(tl.int64)


# --- sums of a set -----------------------------------------------------------------------------------------------


@triton.jit
def exponent_bits(x, m):
    """(the bits of the distances of float32 logits from m, their binary exponents), int32, any shape."""
    bits = cleaned(tl.minimum(m - x, LARGEST)).to(tl.int32, bitcast=True)
    return bits, bits >> 23


@triton.jit
def distance_of(x, m, widest):
    """int32 distances of float32 logits, any shape, from m, in units of 2^(widest - 29): 30 bits for the widest.

    Greater than all of them beyond the binary exponent `widest`.
    """
    bits, exponent = exponent_bits(x, m)
    digits = ((bits & 0x7FFFFF) | 0x800000) << 6
    v = tl.where(bits == 0, 0, digits >> tl.minimum(tl.maximum(widest - exponent, 0), 31))
    return tl.where(exponent > widest, _ALL_ONES, v)


@triton.jit
def term(op, j, x, m, c, widest):
    """int64: what each of some logits, any shape, adds to the sum j = 0 ... 4 of its set for a step's threshold.

    The first are their number and their mass. A product w * q or v * v is split into halves of 32 bits, w * w into the
    products of its upper part and its `HALF` lower bits.
    """
    q = exponent_of(x, m, c)
    w = weight_of(q)
    found = tl.where(j == 0, 1, w)
    if j > 1:
        if op == _P_LESS:
            upper, lower = w >> _HALF, w & _LOW
            found = tl.where(j == 4, lower, upper) * tl.where(j == 2, upper, lower)
        else:
            factor, other = w, q.to(tl.int64)
            if op == _SIGMA:
                factor = distance_of(x, m, widest).to(tl.int64)
                other = factor
            found = factor * other
            found = tl.where(j == 2, found >> 32, found & _WORD)
            if (op == _SIGMA) & (j == 4):
                found = factor
    return found


@triton.jit
def summed(sums_ptr, j):
    """One of the sums, uint64: other threads of the block may have written it."""
    return tl.load(sums_ptr + j, cache_modifier=".cg").to(tl.uint64)


@triton.jit
def mean_of(sums_ptr):
    """floor(sum(w * q) / sum(w)), the mean exponent of a set with these sums: int64."""
    high, low = raised(summed(sums_ptr, 2), summed(sums_ptr, 3), _WORD_BITS)
    found, _ = quotient(high, low, high * 0, summed(sums_ptr, 1))
    return found


# --- thresholds --------------------------------------------------------------------------------------------------


@triton.jit
def squared(a, b):
    """(high, low) of E * M^2 / 2^s for a top-a's E and s, where the largest weight M is 2^40.

    The mass that this is divided by is no less than M: beyond s = 72 the quotient is below 1.
    """
    shift = (80 - tl.minimum(b, 72)).to(tl.uint64)
    return a.to(tl.uint64) >> (64 - shift), a.to(tl.uint64) << shift


@triton.jit
def judged(op, step_ptr, total, sums_ptr):
    """(limit, least), int64: what is kept has an exponent, or a distance, up to `limit`, or at least the weight.

    Of a set with the mass `total` and the sums of `term`, which not every step needs.
    """
    a, b, zero = tl.load(step_ptr + 1), tl.load(step_ptr + 2), tl.full((), 0, tl.uint64)
    w, n = total.to(tl.uint64), summed(sums_ptr, 0)
    one, two, three = summed(sums_ptr, 2), summed(sums_ptr, 3), summed(sums_ptr, 4)
    high, low, by_high, by_low = zero, zero, zero, w
    if op == _TOP_A:
        high, low = squared(a, b)
    if op == _ETA:
        high, low = raised(one, two, _WORD_BITS)
    if op == _P_LESS:
        high, low = raised(two, three, _HALF + 1)
        high, low = sum_128(high, low, one >> (64 - 2 * _HALF), one << (2 * _HALF))
        if a > 0:
            high, low = n * high + tl.umulhi(n, low), n * low
            high, low = difference_128(high, low, tl.umulhi(w, w), w * w)
            by_high, by_low = tl.umulhi(w, n - 1), w * (n - 1)
    if op == _SIGMA:
        high, low = raised(one, two, _WORD_BITS)
        high, low = n * high + tl.umulhi(n, low), n * low
        high, low = difference_128(high, low, tl.umulhi(three, three), three * three)
        by_low = n * n
    # A set of one token has nothing to divide by, and is kept whole.
    by_low = tl.where((by_high | by_low) == 0, 1, by_low)
    found, limit, least = zero.to(tl.int64), tl.full((), -1, tl.int64), zero.to(tl.int64)
    if op != _EPSILON:
        found, rest = quotient(high, low, by_high, by_low)
        least = found + rest.to(tl.int64)
    if op == _ETA:
        limit = found + tl.load(step_ptr + 3)
    if (op == _EPSILON) | (op == _ETA) | is_xtc(op):
        least = share_of(op, step_ptr, total)
    if op == _SIGMA:
        deviation = root_of((found << 2).to(tl.uint64))
        limit = ((a.to(tl.uint64) * deviation) >> tl.minimum(b + 1, 63).to(tl.uint64)).to(tl.int64)
        least = tl.full((), NEVER, tl.int64)
    return limit, least


@triton.jit
def judged_by_mass(op, step_ptr, total):
    """The least weight, int64, that a step keeps whose threshold follows from the mass of its set alone, as `judged`
    gives it: in fewer registers."""
    least = tl.full((), 0, tl.int64)
    if op == _TOP_A:
        high, low = squared(tl.load(step_ptr + 1), tl.load(step_ptr + 2))
        found, rest = quotient(high, low, high * 0, total.to(tl.uint64))
        least = found + rest.to(tl.int64)
    else:
        least = share_of(op, step_ptr, total)
    return least


@triton.jit
def least_kept(op, limit, least, m, c, high, widest):
    """The least key with an exponent, or for top-n-sigma a distance, up to `limit`, or a weight from `least` on.

    Both are int64; the largest key is always one.
    """
    low, top = tl.full((), NEG_INF, tl.int64), high.to(tl.int64)
    for _ in range(32):
        middle = (low + top) >> 1
        x = value_of(middle.to(tl.int32))
        q = exponent_of(x, m, c)
        measure = tl.where(op == _SIGMA, distance_of(x, m, widest), q)
        inside = ((measure <= limit) | (weight_of(q) >= least)) & (middle > NEG_INF)
        top = tl.where(inside, middle, top)
        low = tl.where(inside, low, middle)
    return top.to(tl.int32)


@triton.jit
def least_by_logit(step_ptr, high):
    """The least key that reaches a step's part of the largest logit; the largest key always does."""
    return tl.minimum(key_of(clamped(constant(step_ptr, 1) * value_of(high))), high)


@triton.jit
def least_by_key(op, step_ptr, m, c, high):
    """The least key that a min-p or a part of the largest logit keeps."""
    key = high
    if is_min_p(op, step_ptr):
        key = lowest_key(tl.load(step_ptr + 1).to(tl.int32) + exponent_of(value_of(high), m, c), m, c, high)
    elif is_by_logit(op):
        key = least_by_logit(step_ptr, high)
    return key


@triton.jit
def least_entering(meta_ptr, summed_op, m, c, high, steps):
    """The least key that the thresholds by keys leave which stand before a row's dynamic temperature `summed_op`."""
    key, is_before = tl.full((), NEG_INF + 1, tl.int32), tl.full((), True, tl.int1)
    for s in range(steps):
        # What stands behind it is not read: all blocks of the row ask.
        if is_before:
            step_ptr = meta_ptr + PROGRAM + s * 6
            op = tl.load(step_ptr)
            is_before = op != summed_op
            if is_before:
                least = tl.where(is_by_key(op, step_ptr), least_by_key(op, step_ptr, m, c, high), key)
                key = tl.maximum(key, least)
    return key


@triton.jit
def widest_of(least_key, m):
    """The binary exponent of the distance of a set's least key from its largest logit."""
    _, exponent = exponent_bits(value_of(least_key), m)
    return exponent
