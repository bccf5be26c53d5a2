"""A set of tokens that need not be a prefix: its ids ascending in a list, and what else is known of the row in words.

The general kernel runs one row in one thread block, by passes over this list; until something is removed, it is the
whole vocabulary and not written. What one pass finds is kept in the row's words between two barriers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.layout import LANES, NOT_COUNTED, first_lane
from tirage.backends.torch.kernels.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    is_in,
    key_of,
    log2_fixed,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.thresholds import distance_of, widest_of
from tirage.exact import numbers
from tirage.operators.p_less import HALF, P_LESS
from tirage.operators.top_n_sigma import TOP_N_SIGMA

WORDS = 96
"""Numbers of a row, int64: how many tokens its set holds and whether they are listed, the largest and the least key,
the key that weights count from, c and 1 / T of the temperature as bits, the token whose weight was cut and the weight
left, the tokens at -inf that are listed by llama.cpp, the mass of the set that the temperature saw, whether the draw is
greedy, the target of adaptive-p in 2^-32 or -1, the mass and the least exponent under it, whether a top-p judges the
set that the temperature saw, and whether that is still to be weighed, five sums, the largest weight, and the mass
without what was cut of a weight; then all of them again, of the row without XTC; then those of the step that runs: by
what `keep` lists tokens, what `find` looks for, and what became of both, and whether XTC spares tokens. Registers are
left to the tokens."""
WORDS_OF_ROW = tl.constexpr(WORDS)
(
    NUMBER, IS_LISTED, TOP_KEY, LOW_KEY, BASIS, CONSTANT, SCALE, TRIMMED, LEFT, REMOVED, BASE, IS_ONE, TARGET, WHOLE,
    NEAREST, JOINT, IS_STALE,
) = (tl.constexpr(at) for at in range(17))  # fmt: skip
SUMS_AT, LARGEST, UNCUT = (tl.constexpr(at) for at in (17, 22, 23))
WITHOUT = tl.constexpr(32)
"""Where the words of the row without XTC begin."""
(
    LEAST, LIMIT, LEVEL, CUT_KEY, CUT_ID, MEAN, IS_SIGMA, IS_REMOVED, GOAL, IS_WEIGHED, IS_LEVELED, STAGES,
    LEAST_WEIGHT, REACHING, FLOOR, CUT_TOKEN, CUT_LEFT, KEPT, KEPT_TOP, KEPT_LOW, TOTAL, TOTAL_WITHOUT,
    SUPPORT, SHARE, TOKEN, SPARES,
) = (tl.constexpr(64 + at) for at in range(26))  # fmt: skip
_SAVED = tl.constexpr(32)
SPARED = tl.constexpr(1)
"""The bit in the second plane of tokens that XTC never removes; the one before is that of tokens drawn without it."""
FEW = 128
"""Ids that a row has room for beside its planes: the first tokens, of which some rules look at 100."""
ALL = tl.constexpr((1 << 31) - 1)
NEVER = tl.constexpr(1 << 62)
_UNIT = tl.constexpr(float(numbers.temperature_constant(1.0)))
_P_LESS, _SIGMA = tl.constexpr(int(P_LESS)), tl.constexpr(int(TOP_N_SIGMA))
_PART_BITS, _LAST_PART = tl.constexpr(6), tl.constexpr(126)
"""Parts of a range of levels that are counted: 2^6 to 127, each below the mean exponent and above it."""
_TURNS = tl.constexpr(2)
_HALF, _LOW, _WORD = tl.constexpr(HALF), tl.constexpr((1 << HALF) - 1), tl.constexpr(0xFFFFFFFF)


@triton.jit
def word(state_ptr, at: tl.constexpr):
    """One number of a row, int64."""
    return tl.load(state_ptr + at)


@triton.jit
def bits_in(state_ptr, at: tl.constexpr):
    """A float32 of a row, from its bits."""
    return tl.load(state_ptr + at).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def put(state_ptr, at: tl.constexpr, value):
    """Changes one number of a row. A barrier stands before and behind all that are changed together."""
    tl.store(state_ptr + at, value.to(tl.int64))


@triton.jit
def save(state_ptr, from_at: tl.constexpr, to_at: tl.constexpr):
    """Copies the numbers of a row."""
    at = tl.arange(0, _SAVED)
    tl.debug_barrier()
    tl.store(state_ptr + to_at + at, tl.load(state_ptr + from_at + at))
    tl.debug_barrier()


# --- reading ---------------------------------------------------------------------------------------------------------


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
def enter(x_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes the numbers of a row whose set is all tokens above -inf, at T = 1."""
    PART: tl.constexpr = TILE // 4
    lanes = tl.arange(0, PART)
    number, top, low = lanes * 0, lanes * 0 + NEG_INF, lanes * 0 + POS_INF
    for start in range(0, size, TILE):
        for part in range(0, TILE, PART):
            at = start + part + lanes
            key = key_of(tl.load(x_ptr + at, mask=at < size, other=float("-inf")))
            number += (key > NEG_INF).to(tl.int32)
            top, low = tl.maximum(top, key), tl.minimum(low, tl.where(key > NEG_INF, key, POS_INF))
    count, high = tl.sum(number, 0), tl.max(top, 0)
    tl.debug_barrier()
    put(state_ptr, IS_LISTED, count * 0)
    put(state_ptr, NUMBER, count)
    put(state_ptr, TOP_KEY, high)
    put(state_ptr, LOW_KEY, tl.min(low, 0))
    put(state_ptr, BASIS, high)
    put(state_ptr, TRIMMED, count * 0 - 1)  # pyright: ignore[reportOperatorIssue]
    put(state_ptr, LEFT, count * 0)
    put(state_ptr, REMOVED, size - count)
    put(state_ptr, IS_ONE, count * 0)
    put(state_ptr, TARGET, count * 0 - 1)  # pyright: ignore[reportOperatorIssue]
    put(state_ptr, CONSTANT, tl.full((), _UNIT, tl.float32).to(tl.int32, bitcast=True))
    put(state_ptr, SCALE, tl.full((), 1.0, tl.float32).to(tl.int32, bitcast=True))
    put(state_ptr, IS_STALE, count * 0 + 1)
    tl.debug_barrier()


@triton.jit
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
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            v = tl.where(key > NEG_INF, spread_at(state_ptr, x), 0).to(tl.int64)
            first = tl.where(is_square, w >> _HALF, tl.where(is_sigma, v, w))
            second = tl.where(is_square, w & _LOW, tl.where(is_sigma, v, q.to(tl.int64)))
            product = first * second
            mass, largest = mass + w, tl.maximum(largest, w)
            uncut += tl.where(key > NEG_INF, weight_of(q), 0)
            one += tl.where(is_square, first * first, product >> 32)
            two += tl.where(is_square, product, product & _WORD)
            three += tl.where(is_square, second * second, v)
    found, at_one, at_two, at_three, most = (
        tl.sum(mass, 0), tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0), tl.max(largest, 0)
    )  # fmt: skip
    number, whole = word(state_ptr, NUMBER), tl.sum(uncut, 0)
    tl.debug_barrier()
    put(state_ptr, SUMS_AT, number)
    put(state_ptr, SUMS_AT + 1, found)
    put(state_ptr, SUMS_AT + 2, at_one)
    put(state_ptr, SUMS_AT + 3, at_two)
    put(state_ptr, SUMS_AT + 4, at_three)
    put(state_ptr, LARGEST, most)
    put(state_ptr, UNCUT, whole)
    tl.debug_barrier()


# --- removing ---------------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def keep(x_ptr, list_ptr, into_at, state_ptr, writes, size, TILE: tl.constexpr):
    """Lists what stays of the set where `writes` is 1; its number and its largest and least key are written.

    A token stays whose weight is at least `LEAST`, or whose measure is at most `LIMIT`, or at most `LEVEL` where it
    stands before or at the cut. What is measured is its exponent, how far that is from the `MEAN` one, or the distance
    of top-n-sigma. Where `IS_REMOVED`, tokens go that have the weight and stand before the cut, unless they are spared;
    all others stay.
    """
    PART: tl.constexpr = TILE // 4
    m, c, trimmed, left = scales_of(state_ptr)
    least, limit, level = word(state_ptr, LEAST), word(state_ptr, LIMIT), word(state_ptr, LEVEL)
    cut_key, cut_id = word(state_ptr, CUT_KEY).to(tl.int32), word(state_ptr, CUT_ID).to(tl.int32)
    mean, is_removed = word(state_ptr, MEAN).to(tl.int32), word(state_ptr, IS_REMOVED) != 0
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    spares = tl.where(is_removed, word(state_ptr, SPARES), 0)
    high, low = tl.arange(0, PART) * 0 + NEG_INF, tl.arange(0, PART) * 0 + POS_INF
    number = tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            measure = tl.abs(q - mean)
            if word(state_ptr, IS_SIGMA) != 0:
                measure = spread_at(state_ptr, x)
            before = is_in(key, ids, cut_key, cut_id)
            stays = (w >= least) | (measure <= limit) | ((measure <= level) & before)
            is_asked = key > tl.where(spares > 0, NEG_INF, POS_INF)
            spared = tl.load(list_ptr + size + ids, mask=is_asked, other=0) >> SPARED
            stays = tl.where(is_removed, ((w >= least) & before & (spared == 0)) == 0, stays) & (key > NEG_INF)
            one = stays.to(tl.int32)
            # The list is written where it was read: all have read this part before any writes.
            tl.debug_barrier()
            tl.store(list_ptr + into_at + number + tl.cumsum(one, 0) - one, ids, mask=one > 1 - writes)
            number += tl.sum(one, 0)
            high = tl.maximum(high, tl.where(stays, key, NEG_INF))
            low = tl.minimum(low, tl.where(stays, key, POS_INF))
    top, bottom = tl.max(high, 0), tl.min(low, 0)
    tl.debug_barrier()
    put(state_ptr, KEPT, number)
    put(state_ptr, KEPT_TOP, top)
    put(state_ptr, KEPT_LOW, bottom)
    tl.debug_barrier()


@triton.jit
def spread_at(state_ptr, x):
    """int32 distances of top-n-sigma of logits, any shape, from the largest one of the set."""
    top = value_of(word(state_ptr, TOP_KEY).to(tl.int32))
    return distance_of(x, top, widest_of(word(state_ptr, LOW_KEY).to(tl.int32), top))
# fmt: on


# --- searching --------------------------------------------------------------------------------------------------------

BY_LEVEL, BY_KEY, BY_ID = (tl.constexpr(kind) for kind in range(3))
"""What a search orders tokens by: how far exponents are from the mean one, keys from the largest down, ids."""


@triton.jit
def place_of(state_ptr, kind, ids, q, key):
    """(whether tokens are looked at, their places in the order of a search, int64).

    From level 0 on, only those at that distance from the mean exponent are, and by id only those of one key.
    """
    level, only_key = word(state_ptr, LEVEL), word(state_ptr, CUT_KEY).to(tl.int32)
    distance = tl.abs(q - word(state_ptr, MEAN).to(tl.int32))
    place = tl.where(kind == BY_LEVEL, distance, ids).to(tl.int64)
    place = tl.where(kind == BY_KEY, -key.to(tl.int64) + POS_INF, place)
    looked = (key > NEG_INF) & ((level < 0) | (distance == level)) & ((kind != BY_ID) | (key == only_key))
    return looked, place


# fmt: off
@triton.jit
def level_counts(x_ptr, list_ptr, state_ptr, low, end, shift, size, TILE: tl.constexpr):
    """How many tokens have distances from the mean exponent in each part of ]low, end]: those below it and above it by
    turns, int32 [LANES]. The last part has what is left."""
    PART: tl.constexpr = TILE // 4
    m, c, _, _ = scales_of(state_ptr)
    mean = word(state_ptr, MEAN).to(tl.int32)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    found = tl.arange(0, LANES) * 0
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            _ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            q = exponent_of(x, m, c)
            distance = tl.abs(q - mean)
            inside = (key > NEG_INF) & (distance > low) & (distance <= end)
            lane = 2 * tl.minimum((distance - low - 1) >> shift, _LAST_PART) + (q > mean).to(tl.int32)
            found += tl.histogram(tl.where(inside, lane, NOT_COUNTED), LANES)
    return tl.where(tl.arange(0, LANES) < NOT_COUNTED, found, 0)


@triton.jit
def level_bounds(counts, mean, goal, low, end, shift):
    """(low, end) int32, closer to each other: the tokens up to `low` do not reach the goal, and those up to `end` do.

    What a token weighs is known but for the width of its part.
    """
    lanes = tl.arange(0, LANES)
    part, is_above = lanes >> 1, (lanes & 1) > 0
    near = low + 1 + (tl.minimum(part, _LAST_PART) << shift)
    far = tl.where(part < _LAST_PART, tl.minimum(near + (1 << shift) - 1, end), end)
    lightest = weight_of(tl.where(is_above, mean + far, tl.maximum(mean - near, 0)))
    heaviest = weight_of(tl.where(is_above, mean + near, tl.maximum(mean - far, 0)))
    least, most = tl.cumsum(counts * lightest, 0), tl.cumsum(counts * heaviest, 0)
    # Behind an even lane, the tokens above the mean of the same part are still to come.
    low = tl.max(tl.where(is_above & (most < goal), far, low), 0)
    return low, tl.min(tl.where(least >= goal, far, end), 0)


@triton.jit
def list_levels(x_ptr, list_ptr, state_ptr, low, end, size, TILE: tl.constexpr):
    """(number, mass of those before them) of the tokens whose distances are in ]low, end], which it lists."""
    PART: tl.constexpr = TILE // 4
    m, c, trimmed, left = scales_of(state_ptr)
    mean = word(state_ptr, MEAN).to(tl.int32)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    mass, number = (tl.arange(0, PART) * 0).to(tl.int64), tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            distance = tl.abs(q - mean)
            mass += tl.where(distance <= low, w, 0)
            one = ((key > NEG_INF) & (distance > low) & (distance <= end)).to(tl.int32)
            # The list is written where it was read: all have read this part before any writes.
            tl.debug_barrier()
            tl.store(list_ptr + number + tl.cumsum(one, 0) - one, ids, mask=one > 0)
            number += tl.sum(one, 0)
    return number, tl.sum(mass, 0)


@triton.jit
def narrow(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Puts a list of fewer tokens in the place of a set that is not listed, for a search by level: the token at which
    the `GOAL` is reached and all of its level are in it, and the goal is then without those before them.

    The weights follow from how many tokens have which exponents, in two readings of the set instead of one for each
    two bits of the level. A second turn reads the list of the first.
    """
    m, c, _, _ = scales_of(state_ptr)
    mean = word(state_ptr, MEAN).to(tl.int32)
    first = exponent_of(value_of(word(state_ptr, TOP_KEY).to(tl.int32)), m, c)
    last = exponent_of(value_of(word(state_ptr, LOW_KEY).to(tl.int32)), m, c)
    low, end = tl.full((), -1, tl.int32), tl.maximum(tl.abs(first - mean), tl.abs(last - mean))
    for _turn in range(_TURNS):
        if low + 1 < end:  # pyright: ignore[reportOperatorIssue]
            shift = tl.maximum((log2_fixed((end - low).to(tl.uint64)) >> 23) - _PART_BITS, 0).to(tl.int32)
            counts = level_counts(x_ptr, list_ptr, state_ptr, low, end, shift, size, TILE)
            goal = word(state_ptr, GOAL)
            low, end = level_bounds(counts, mean, goal, low, end, shift)
            number, before = list_levels(x_ptr, list_ptr, state_ptr, low, end, size, TILE)
            tl.debug_barrier()
            put(state_ptr, GOAL, goal - before)
            put(state_ptr, IS_LISTED, number * 0 + 1)
            put(state_ptr, NUMBER, number)
            tl.debug_barrier()


@triton.jit
def ends_of(x_ptr, list_ptr, state_ptr, kind, size, TILE: tl.constexpr):
    """(number, least, greatest place) of the tokens that a search looks at and that have at least `LEAST_WEIGHT`."""
    PART: tl.constexpr = TILE // 8
    m, c, trimmed, left = scales_of(state_ptr)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    least_weight = word(state_ptr, LEAST_WEIGHT)
    lanes = (tl.arange(0, PART) * 0).to(tl.int64)
    number, least, greatest = tl.arange(0, PART) * 0, lanes + NEVER, lanes - 1
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            looked, place = place_of(state_ptr, kind, ids, q, key)
            looked &= w >= least_weight
            number += looked.to(tl.int32)
            least = tl.minimum(least, tl.where(looked, place, NEVER))
            greatest = tl.maximum(greatest, tl.where(looked, place, -1))
    return tl.sum(number, 0), tl.min(least, 0), tl.max(greatest, 0)


@triton.jit
def masses_to(x_ptr, list_ptr, state_ptr, kind, low, step, size, TILE: tl.constexpr):
    """The masses of the tokens that are looked at up to the places `low` + 1, 2 and 3 times `step`, int64."""
    PART: tl.constexpr = TILE // 8
    m, c, trimmed, left = scales_of(state_ptr)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    one = (tl.arange(0, PART) * 0).to(tl.int64)
    two, three = one, one
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            looked, place = place_of(state_ptr, kind, ids, q, key)
            w = tl.where(looked, w, 0)
            one += tl.where(place <= low + step, w, 0)
            two += tl.where(place <= low + 2 * step, w, 0)
            three += tl.where(place <= low + 3 * step, w, 0)
    return tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0)


@triton.jit
def numbers_in(x_ptr, list_ptr, state_ptr, kind, low, end, shift, size, TILE: tl.constexpr):
    """How many tokens that are looked at have places in each of 256 parts of ]low, end], int32 [LANES]."""
    PART: tl.constexpr = TILE // 4
    m, c, _, _ = scales_of(state_ptr)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    found = tl.arange(0, LANES) * 0
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            looked, place = place_of(state_ptr, kind, ids, exponent_of(x, m, c), key)
            inside = looked & (place > low) & (place <= end)
            found += tl.histogram(tl.where(inside, (place - low - 1) >> shift, NOT_COUNTED).to(tl.int32), LANES)
    return tl.where(tl.arange(0, LANES) < NOT_COUNTED, found, 0)


@triton.jit
def find(x_ptr, list_ptr, state_ptr, kind, size, TILE: tl.constexpr):
    """(first place up to which the tokens reach the `GOAL`, what those before it sum up to, how many tokens there are).

    They are summed by weight or by number. The goal `NEVER` is reached at the last of those that have at least some
    weight.
    """
    number, low, end = ends_of(x_ptr, list_ptr, state_ptr, kind, size, TILE)
    low = tl.where(word(state_ptr, GOAL) == NEVER, end, low) - 1
    before = tl.full((), 0, tl.int64)
    while low + 1 < end:
        goal = word(state_ptr, GOAL)
        if word(state_ptr, IS_WEIGHED) != 0:
            step = (end - low + 3) // 4
            one, two, three = masses_to(x_ptr, list_ptr, state_ptr, kind, low, step, size, TILE)
            passed = (one < goal).to(tl.int64) + (two < goal).to(tl.int64) + (three < goal).to(tl.int64)
            before = tl.where(passed == 3, three, tl.where(passed == 2, two, tl.where(passed == 1, one, before)))
            low += passed * step
        else:
            shift = tl.maximum((log2_fixed((end - low).to(tl.uint64)) >> 23) - 7, 0)
            found = numbers_in(x_ptr, list_ptr, state_ptr, kind, low, end, shift, size, TILE)
            reached = before + tl.cumsum(found, 0).to(tl.int64)
            before = tl.max(tl.where(reached < goal, reached, before), 0)
            low += first_lane(reached >= goal).to(tl.int64) << shift  # pyright: ignore[reportAttributeAccessIssue]
            step = tl.full((), 1, tl.int64) << shift
        end = tl.minimum(low + step, end)
    return end, before, number


@triton.jit
def cut_at(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes level, key and id of the token at which the first tokens reach the `GOAL`, which is then what that token
    must add, and how many tokens there are.

    They are in the order of rank, or by how far their exponents are from the mean one, at one level by rank. Level, key
    and id are looked for in so many `STAGES`; the level is -1 by rank alone.
    """
    tl.debug_barrier()
    put(state_ptr, LEVEL, tl.full((), -1, tl.int64))
    put(state_ptr, CUT_KEY, tl.full((), POS_INF, tl.int64))
    put(state_ptr, CUT_ID, tl.full((), NO_ID, tl.int64))
    tl.debug_barrier()
    set_number, is_listed = word(state_ptr, NUMBER), word(state_ptr, IS_LISTED)
    if (word(state_ptr, IS_LEVELED) != 0) & (word(state_ptr, IS_WEIGHED) != 0) & (is_listed == 0):
        narrow(x_ptr, list_ptr, state_ptr, size, TILE)
    for stage in range(word(state_ptr, STAGES).to(tl.int32)):
        if (stage > 0) | (word(state_ptr, IS_LEVELED) != 0):
            goal, each = word(state_ptr, GOAL), count_ties(state_ptr, stage)
            place, before, number = find(x_ptr, list_ptr, state_ptr, stage, size, TILE)
            tl.debug_barrier()
            put(state_ptr, GOAL, tl.where(goal == NEVER, goal, goal - before * each))
            if stage == BY_LEVEL:
                put(state_ptr, LEVEL, place)
            elif stage == BY_KEY:
                put(state_ptr, CUT_KEY, -place + POS_INF)  # pyright: ignore[reportOperatorIssue]
                put(state_ptr, REACHING, number)
            else:
                put(state_ptr, CUT_ID, place)
            tl.debug_barrier()
    put(state_ptr, NUMBER, set_number)
    put(state_ptr, IS_LISTED, is_listed)
    tl.debug_barrier()


@triton.jit
def count_ties(state_ptr, stage):
    """What each of the tokens weighs that a search looks at, int64, where it looks at one key: from then on the goal is
    a number of tokens, of which one reading tells eight bits. Otherwise nothing changes, and that is 1."""
    m, c, trimmed, _ = scales_of(state_ptr)
    goal, each = word(state_ptr, GOAL), tl.full((), 1, tl.int64)
    # A token whose weight was cut may be among them.
    if (stage == BY_ID) & (word(state_ptr, IS_WEIGHED) != 0) & (goal != NEVER) & (trimmed < 0):
        each = weight_of(exponent_of(value_of(word(state_ptr, CUT_KEY).to(tl.int32)), m, c))
        tl.debug_barrier()
        put(state_ptr, GOAL, (goal + each - 1) // each)
        put(state_ptr, IS_WEIGHED, each * 0)
        tl.debug_barrier()
    return each
# fmt: on
