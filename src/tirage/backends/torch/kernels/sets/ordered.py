"""The first tokens of a set in the order of every cut (S-W3), by comparing them with each other.

What a rule of ranks says follows here: the prefix of top-h and of Mirostat 1. SPEC.md rules S-O7, S-O14.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.probability import point_of
from tirage.backends.torch.kernels.exact.rule import NO_ID, key_of, log2_fixed
from tirage.backends.torch.kernels.exact.thresholds import quotient, raised
from tirage.backends.torch.kernels.sets.tokens import scales_of, weights_at
from tirage.backends.torch.kernels.sets.words import FEW, SET_NUMBER, word
from tirage.exact.logs import OCTAVE, exp2

_FEW = tl.constexpr(FEW)
_OCTAVE, _BITS = tl.constexpr(OCTAVE), tl.constexpr(23)
_PART_BITS, _PART_MASK = tl.constexpr(20), tl.constexpr((1 << 20) - 1)
_COUNT_BITS, _COUNT = tl.constexpr(16), tl.constexpr(0xFFFF)
_UNIT = tl.constexpr(1 << 62)
_ROOTS = tl.constexpr(tuple(exp2(OCTAVE >> bit) for bit in range(1, 24)))
"""2^(1/2), 2^(1/4), ... 2^(2^-23) in units of 2^-62."""


# --- the first tokens ------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def rank_first(x_ptr, few_ptr, number):
    """Puts the ids of the first tokens, so many, in order."""
    lanes = tl.arange(0, _FEW)
    ids = tl.load(few_ptr + lanes, mask=lanes < number, other=0)
    key = key_of(tl.load(x_ptr + ids, mask=lanes < number, other=float("-inf")))
    rank = lanes * 0
    for start in range(0, number, 2):
        for ahead in range(2):
            at = start + ahead
            other_id = tl.load(few_ptr + at, mask=at < number, other=NO_ID)
            other = key_of(tl.load(x_ptr + other_id, mask=at < number, other=float("-inf")))
            rank += ((other > key) | ((other == key) & (other_id < ids))).to(tl.int32)
    tl.debug_barrier()
    tl.store(few_ptr + rank, ids, mask=lanes < number)
    tl.debug_barrier()


@triton.jit
def first_weights(x_ptr, few_ptr, state_ptr, number, ahead: tl.constexpr):
    """(exponents int32, weights int64) [FEW] of the first tokens from the `ahead`-th on; 0 weights beyond."""
    at = tl.arange(0, _FEW) + ahead
    m, c, trimmed, left = scales_of(state_ptr)
    ids = tl.load(few_ptr + at, mask=at < number, other=NO_ID)
    x = tl.load(x_ptr + ids, mask=at < number, other=float("-inf"))
    return weights_at(ids, x, key_of(x), m, c, trimmed, left)


@triton.jit
def words_of(upper, lower):
    """(high int64, low uint64) of upper * 2^20 + lower, any shape."""
    upper, lower = upper + (lower >> _PART_BITS), lower & _PART_MASK
    return upper >> (64 - _PART_BITS), (upper.to(tl.uint64) << _PART_BITS) | lower.to(tl.uint64)


@triton.jit
def entropy_prefix(x_ptr, few_ptr, state_ptr, number, share):
    """How many of the first tokens hold the share, in 2^-32, of their entropy."""
    q, w = first_weights(x_ptr, few_ptr, state_ptr, number, 0)  # pyright: ignore[reportArgumentType]
    lanes = tl.arange(0, _FEW)
    log_mass = log2_fixed(tl.maximum(tl.sum(w, 0), 1).to(tl.uint64)) - 40 * _OCTAVE
    surprise = tl.where(lanes < number, q.to(tl.int64) + log_mass, 0)
    upper, lower = (w >> _PART_BITS) * surprise, (w & _PART_MASK) * surprise
    high, low = words_of(tl.cumsum(upper, 0), tl.cumsum(lower, 0))
    all_high, all_low = words_of(tl.sum(upper, 0), tl.sum(lower, 0))
    part = share.to(tl.uint64)
    goal_high = (tl.umulhi(all_low, part) + all_high.to(tl.uint64) * part).to(tl.int64)
    goal_low = all_low * part
    reached_high, reached_low = (high << 32) | (low >> 32).to(tl.int64), low << 32
    passes = (reached_high > goal_high) | ((reached_high == goal_high) & (reached_low > goal_low))
    first = tl.min(tl.where(passes & (lanes < number), lanes, number), 0)
    return tl.maximum(first, 1)


# --- Mirostat 1 -------------------------------------------------------------------------------------------------------


@triton.jit
def mantissa_of(power):
    """2^fraction in units of 2^-62, of a power of 2 in 2^-23 octaves: uint64."""
    found = tl.full((), _UNIT, tl.uint64)
    for bit in tl.static_range(23):  # pyright: ignore[reportGeneralTypeIssues]
        root = tl.full((), _ROOTS[bit], tl.uint64)
        times = (tl.umulhi(found, root) << 2) | ((found * root) >> 62)
        found = tl.where(((power >> (22 - bit)) & 1) > 0, times, found)
    return found


@triton.jit
def slope_of(x_ptr, few_ptr, state_ptr, number):
    """The slope of the first exponents over ln(rank), by least squares through the differences, in 2^-23: int64."""
    q, _ = first_weights(x_ptr, few_ptr, state_ptr, number, 0)  # pyright: ignore[reportArgumentType]
    after, _ = first_weights(x_ptr, few_ptr, state_ptr, number, 1)  # pyright: ignore[reportArgumentType]
    lanes = tl.arange(0, _FEW)
    there = lanes + 1 < number
    t = log2_fixed((lanes + 2).to(tl.uint64)) - log2_fixed((lanes + 1).to(tl.uint64))
    products = tl.sum(tl.where(there, t * (after - q), 0), 0)
    squares = tl.sum(tl.where(there, t * t, 0), 0)
    zero = tl.full((), 0, tl.uint64)
    high, low = raised(products.to(tl.uint64), zero, 23)  # pyright: ignore[reportArgumentType]
    slope, _ = quotient(high, low, zero, tl.maximum(squares, 1).to(tl.uint64))
    return slope


@triton.jit
def log2_of_rest(slope, power):
    """log2 of |V^(1 - s) - 1| in units of 2^-62, in 2^-23: int64; -1 where it is less than a unit."""
    mantissa, whole = mantissa_of(power), (power >> 23).to(tl.uint64)
    near = tl.minimum(whole, 31)
    # Above 1 it may have 83 bits: the lowest 20 of so many say nothing.
    high = (mantissa >> (63 - near)) >> 1
    low, less = mantissa << near, tl.full((), _UNIT, tl.uint64)
    high, low = high - (low < less).to(tl.uint64), low - less
    is_long = high > 0
    above = tl.where(is_long, (high << 44) | (low >> 20), low)
    below = less - (point_of(less.to(tl.int64) >> 1, mantissa.to(tl.int64)) >> tl.minimum(whole, 63))
    rest = tl.where(slope < _OCTAVE, above, below)
    found = log2_fixed(tl.maximum(rest, 1)) + tl.where((slope < _OCTAVE) & is_long, 20 * _OCTAVE, 0)
    return tl.where(rest == 0, -1, found)


@triton.jit
def zipf_prefix(x_ptr, few_ptr, state_ptr, number, mu, size):
    """How many tokens of the set have a surprise of about `mu`, if all fall off as the first ones."""
    count = word(state_ptr, SET_NUMBER)
    slope = slope_of(x_ptr, few_ptr, state_ptr, number)
    away = tl.maximum(tl.abs(slope - _OCTAVE), 1)
    log2_size = log2_fixed((tl.full((), 0, tl.int64) + size).to(tl.uint64))
    rest = log2_of_rest(slope, (away * log2_size) >> 23)
    times = (log2_fixed(away.to(tl.uint64)) + 39 * _OCTAVE + mu - rest) * _OCTAVE
    log2_k = tl.maximum(times, 0) // tl.maximum(slope, 1)
    whole = tl.minimum(log2_k >> 23, 21)
    found = tl.minimum((mantissa_of(log2_k) >> (62 - whole).to(tl.uint64)).to(tl.int64), count)
    found = tl.where(log2_k >= 21 * _OCTAVE, count, found)
    found = tl.where((rest < 0) | (times < 0), 1, found)
    return tl.where(slope <= 0, count, found)
# fmt: on
