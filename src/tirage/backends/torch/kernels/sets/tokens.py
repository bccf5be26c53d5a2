"""A set of tokens that need not be a prefix: its ids ascending in a list, or a range of the row in the order of rank.

The general kernel runs one row in one thread block, by readings of this set. Until something is removed, it is the
whole vocabulary and not listed, nor is it while it is a large range (`ranges`). What is known of it is in `words`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    POS_INF,
    exponent_of,
    is_in,
    key_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.exact.thresholds import distance_of, widest_of
from tirage.backends.torch.kernels.sets.words import (
    ALL_LOW,
    ALL_NUMBER,
    ALL_TOP,
    ARE_SUMMED,
    BASIS,
    CONSTANT,
    FIRST_ID,
    FIRST_KEY,
    IS_FRESH,
    IS_LISTED,
    IS_ONE,
    IS_STALE,
    LARGEST,
    LAST_ID,
    LAST_KEY,
    LEFT,
    LOW_KEY,
    NUMBER,
    REMOVED,
    SCALE,
    SET_NUMBER,
    SUMS_AT,
    TARGET,
    TOP_KEY,
    TRIMMED,
    UNCUT,
    bits_in,
    put,
    word,
)
from tirage.exact import numbers
from tirage.operators.p_less import HALF, P_LESS
from tirage.operators.top_n_sigma import TOP_N_SIGMA

_UNIT = tl.constexpr(float(numbers.temperature_constant(1.0)))
_P_LESS = tl.constexpr(int(P_LESS))
_SIGMA = tl.constexpr(int(TOP_N_SIGMA))
_HALF = tl.constexpr(HALF)
_LOW = tl.constexpr((1 << HALF) - 1)
_WORD = tl.constexpr(0xFFFFFFFF)


@triton.jit
def length_of(state_ptr, size):
    """How many places the set is read from."""
    return tl.where(word(state_ptr, IS_LISTED) != 0, word(state_ptr, NUMBER), size).to(tl.int32)


@triton.jit
def tokens_at(x_ptr, list_ptr, start, length, is_listed, PART: tl.constexpr):
    """(ids, logits, keys) [PART] of some of the set; a key is that of -inf where there is no token."""
    at = start + tl.arange(0, PART)
    ids = tl.load(list_ptr + at, mask=at < tl.where(is_listed != 0, length, 0), other=at)
    x = tl.load(x_ptr + ids, mask=at < length, other=float("-inf"))
    return ids, x, key_of(x)


@triton.jit
def members_at(x_ptr, list_ptr, state_ptr, start, length, is_listed, PART: tl.constexpr):
    """The same of a set that may begin and end somewhere in the order of rank: what is outside of it is no token."""
    ids, x, key = tokens_at(x_ptr, list_ptr, start, length, is_listed, PART)
    return ids, x, tl.where(is_within(state_ptr, key, ids), key, NEG_INF)


@triton.jit
def is_within(state_ptr, key, ids):
    """Whether tokens of these keys and ids, any shape, stand between the first and the last one of the set."""
    first, first_id = word(state_ptr, FIRST_KEY).to(tl.int32), word(state_ptr, FIRST_ID).to(tl.int32)
    last, last_id = word(state_ptr, LAST_KEY).to(tl.int32), word(state_ptr, LAST_ID).to(tl.int32)
    return is_in(key, ids, last, last_id) & (is_in(key, ids, first, first_id - 1) == 0)


@triton.jit
def is_whole(state_ptr):
    """Whether a set that is not listed is the row."""
    return (word(state_ptr, LAST_KEY) <= NEG_INF) & (word(state_ptr, FIRST_KEY) >= POS_INF)


@triton.jit
def weights_at(ids, x, key, m, c, trimmed, left):
    """(exponents int32, weights int64) of such tokens, 0 where there is none."""
    q = exponent_of(x, m, c)
    there = key > NEG_INF
    return q, tl.where(there & (ids == trimmed), left, tl.where(there, weight_of(q), 0))


@triton.jit
def scales_of(state_ptr):
    """(m, c, trimmed id, its weight) of a row."""
    m = value_of(word(state_ptr, BASIS).to(tl.int32))
    return m, bits_in(state_ptr, CONSTANT), word(state_ptr, TRIMMED).to(tl.int32), word(state_ptr, LEFT)


@triton.jit
def enter(state_ptr, size):
    """Writes the numbers of a row whose set is all tokens above -inf, at T = 1; how many they are may not be known."""
    count, high, low = word(state_ptr, ALL_NUMBER), word(state_ptr, ALL_TOP), word(state_ptr, ALL_LOW)
    tl.debug_barrier()
    put(state_ptr, IS_LISTED, count * 0)
    put(state_ptr, NUMBER, count)
    put(state_ptr, TOP_KEY, high)
    put(state_ptr, LOW_KEY, low)
    put(state_ptr, BASIS, high)
    put(state_ptr, TRIMMED, count * 0 - 1)
    put(state_ptr, LEFT, count * 0)
    put(state_ptr, REMOVED, tl.where(count < 0, -1, size - count))
    put(state_ptr, IS_ONE, count * 0)
    put(state_ptr, TARGET, count * 0 - 1)
    put(state_ptr, CONSTANT, tl.full((), _UNIT, tl.float32).to(tl.int32, bitcast=True))
    put(state_ptr, SCALE, tl.full((), 1.0, tl.float32).to(tl.int32, bitcast=True))
    put(state_ptr, IS_STALE, count * 0 + 1)
    put(state_ptr, IS_FRESH, count * 0)
    put(state_ptr, ARE_SUMMED, count * 0)
    put(state_ptr, LAST_KEY, count * 0 + NEG_INF)
    put(state_ptr, LAST_ID, count * 0 - 1)
    put(state_ptr, FIRST_KEY, count * 0 + POS_INF)
    put(state_ptr, FIRST_ID, count * 0)
    tl.debug_barrier()


@triton.jit
def put_number(state_ptr, number, size):
    """Writes how many tokens a set has, where that was not known: as many as the row where nothing was removed."""
    known, removed, all_number = word(state_ptr, NUMBER), word(state_ptr, REMOVED), word(state_ptr, ALL_NUMBER)
    whole = is_whole(state_ptr)
    tl.debug_barrier()
    if known < 0:
        put(state_ptr, NUMBER, number)
        put(state_ptr, SET_NUMBER, number)
        put(state_ptr, ALL_NUMBER, tl.where(whole, number, all_number))
        put(state_ptr, REMOVED, tl.where(removed < 0, size - number, removed))
    tl.debug_barrier()


@triton.jit(noinline=True)
def count_set(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Counts the tokens of a set that is not listed."""
    PART: tl.constexpr = TILE // 4
    number = tl.arange(0, PART) * 0
    for start in range(0, size, TILE):
        for part in range(0, TILE, PART):
            _, _, key = members_at(x_ptr, list_ptr, state_ptr, start + part, size, 0, PART)
            number += (key > NEG_INF).to(tl.int32)
    put_number(state_ptr, tl.sum(number, 0), size)


@triton.jit(noinline=True)
def sum_set(x_ptr, list_ptr, state_ptr, op, is_flat, size, TILE: tl.constexpr):
    """Writes the sums of `thresholds.judged` for a step over the set, and the largest weight in it.

    Flat are weights at T = 1 from the largest logit of the set, whatever was cut of one.
    """
    PART: tl.constexpr = TILE // 8
    m, c, trimmed, left = scales_of(state_ptr)
    top = value_of(word(state_ptr, TOP_KEY).to(tl.int32))
    m, c, trimmed = tl.where(is_flat, top, m), tl.where(is_flat, _UNIT, c), tl.where(is_flat, -1, trimmed)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    is_square, is_sigma = op == _P_LESS, op == _SIGMA
    lanes = (tl.arange(0, PART) * 0).to(tl.int64)
    mass, one, two, three, largest, uncut = lanes, lanes, lanes, lanes, lanes, lanes
    number = tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            v = tl.where(key > NEG_INF, spread_at(state_ptr, x), 0).to(tl.int64)
            first = tl.where(is_square, w >> _HALF, tl.where(is_sigma, v, w))
            second = tl.where(is_square, w & _LOW, tl.where(is_sigma, v, q.to(tl.int64)))
            product = first * second
            mass, largest = mass + w, tl.maximum(largest, w)
            uncut += tl.where(key > NEG_INF, weight_of(q), 0)
            number += tl.sum((key > NEG_INF).to(tl.int32), 0)
            one += tl.where(is_square, first * first, product >> 32)
            two += tl.where(is_square, product, product & _WORD)
            three += tl.where(is_square, second * second, v)
    found, at_one, at_two, at_three, most = (
        tl.sum(mass, 0), tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0), tl.max(largest, 0)
    )  # fmt: skip
    whole = tl.sum(uncut, 0)
    put_number(state_ptr, number, size)
    put(state_ptr, SUMS_AT, number)
    put(state_ptr, SUMS_AT + 1, found)
    put(state_ptr, SUMS_AT + 2, at_one)
    put(state_ptr, SUMS_AT + 3, at_two)
    put(state_ptr, SUMS_AT + 4, at_three)
    put(state_ptr, LARGEST, most)
    put(state_ptr, UNCUT, whole)
    tl.debug_barrier()


@triton.jit
def spread_at(state_ptr, x):
    """int32 distances of top-n-sigma of logits, any shape, from the largest one of the set."""
    top = value_of(word(state_ptr, TOP_KEY).to(tl.int32))
    return distance_of(x, top, widest_of(word(state_ptr, LOW_KEY).to(tl.int32), top))
