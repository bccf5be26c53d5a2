"""A set of tokens that need not be a prefix: its ids ascending in a list, and what else is known of the row in words.

The general kernel runs one row in one thread block, by passes over this list. Until something is removed, the set is
the whole vocabulary and not listed, nor is it while it is a large range in the order of rank (`ranges`). What one pass
finds is kept in the row's words between two barriers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.rule import (
    NEG_INF,
    POS_INF,
    exponent_of,
    is_in,
    key_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.thresholds import distance_of, widest_of
from tirage.exact import numbers
from tirage.operators.p_less import HALF, P_LESS
from tirage.operators.top_n_sigma import TOP_N_SIGMA

SEGMENTS = tl.constexpr(64)
"""Parts of what is drawn from, each with the mass before it."""
WORDS = 936
"""Numbers of a row, int64: how many tokens its set holds and whether they are listed, the largest and the least key,
the key that weights count from, c and 1 / T of the temperature as bits, the token whose weight was cut and the weight
left, the tokens at -inf that are listed by llama.cpp, the mass of the set that the temperature saw, whether the draw is
greedy, the target of adaptive-p in 2^-32 or -1, the mass and the least exponent under it, whether a top-p judges the
set that the temperature saw, and whether that is still to be weighed, five sums, the largest weight, and the mass
without what was cut of a weight; then all of them again, of the row without XTC; then those of the step that runs: by
what `keep` lists tokens, what `find` looks for, and what became of both, and whether XTC spares tokens, with what is
known of all tokens before the first step, -1 for a number that is not; then the mass before each segment of what is
drawn from and where it begins; those of the set that XTC is given; at last where the loops are that call functions of
their own: in which turn of how many, at which step, what that is and what is read for it, in which turn of its cut and
of how many, where `keep` lists tokens and whether it does, in which stage of a search, how many tokens the set had
before it and whether they were listed, the goal of a stage, what each of its tokens weighs, between which places it is,
how many tokens are between these and before them, what is reached, how often it still counts by parts, and whether what
is reached is told; where in the row's planes tail-free puts its order, and the few ids lie; the bits of the logit of
the token; whether there is a histogram of the row, and which sets have to be listed. Registers are left to the
tokens: what lives across a call would take some from all that is called.
"""
WORDS_OF_ROW = tl.constexpr(WORDS)
(
    NUMBER, IS_LISTED, TOP_KEY, LOW_KEY, BASIS, CONSTANT, SCALE, TRIMMED, LEFT, REMOVED, BASE, IS_ONE, TARGET, WHOLE,
    NEAREST, JOINT, IS_STALE,
) = (tl.constexpr(at) for at in range(17))  # fmt: skip
SUMS_AT, LARGEST, UNCUT = (tl.constexpr(at) for at in (17, 22, 23))
LAST_KEY, LAST_ID, FIRST_KEY, FIRST_ID = (tl.constexpr(at) for at in range(25, 29))
"""What is not listed ends with the one token and begins with the other, in the order of rank: what stands between them
is the set. They are where `told` has them."""
WITHOUT = tl.constexpr(32)
"""Where the words of the row without XTC begin."""
(
    LEAST, LIMIT, LEVEL, CUT_KEY, CUT_ID, MEAN, IS_SIGMA, IS_REMOVED, GOAL, IS_WEIGHED, IS_LEVELED, STAGES,
    LEAST_WEIGHT, REACHING, FLOOR, CUT_TOKEN, CUT_LEFT, KEPT, KEPT_TOP, KEPT_LOW, TOTAL, TOTAL_WITHOUT,
    SUPPORT, SHARE, TOKEN, SPARES, IS_PREFIX, LOOKED, ALL_TOP, ALL_LOW, ALL_NUMBER, IS_FRESH, KEPT_MASS, KEPT_WEIGHTY,
    SEGMENTED, RESUMED, IS_SAME, ARE_KEPT, UNLISTED, CUTS_AFTER,
) = (tl.constexpr(64 + at) for at in range(40))  # fmt: skip
MASSES, PLACES, BEFORE_XTC = (tl.constexpr(at) for at in (128, 192, 256))
(
    TURN, TURNS, STEP, OP, READS, CUT_TURN, CUT_TURNS, INTO_AT, WRITES, STAGE, SET_NUMBER, WAS_LISTED, STAGE_GOAL, EACH,
    PLACE_LOW, PLACE_END, BETWEEN, AHEAD, REACHED, COUNTINGS, IS_TOLD, ORDER_AT, FEW_AT, LOGIT, HAS_LANES, STAYS_WHOLE,
) = (tl.constexpr(288 + at) for at in range(26))  # fmt: skip
LANES_AT = tl.constexpr(320)
"""Where the lanes of the row's histogram stand: of each its last key, times 2^32, and how many tokens it has."""
(
    HAS_LISTED, LISTED_NUMBER, SET_MASS, PLACED_MASS, IS_SCANNED, ARE_SUMMED, IS_WEIGHED_OUT, IS_PARTED,
    MASS_LEAST, MASS_MOST, MASS_CONSTANT, SCAN_LOW, SCAN_END, SURE_AT,
) = (tl.constexpr(832 + at) for at in range(14))  # fmt: skip
TIED = tl.constexpr(852)
"""Whether a search lists some tokens of a set that is not listed, in one reading, how many, the mass of the set, and
that up to the last place of the search; whether that is done before the search, whether the sums of the set are known
from it, whether what stays is, and whether that has a hole; between which numbers the mass of the row lies under the
temperature with this constant, as bits; between which places a top-p likely cuts; then what is known of the tokens that
are sure to stay (`listing`); how many tokens are at the last place of the search."""
PARTS_AT = tl.constexpr(872)
"""Where the masses of those that are listed stand, by segments, or how many tokens at the last place are before each.
"""
ONLY_TIED = tl.constexpr(3)
"""What `IS_SCANNED` is, and `HAS_LISTED`, where tokens between the places of a search are not listed, as all have one
key: their ids are counted by segments."""
_SAVED = tl.constexpr(32)
SPARED = tl.constexpr(1)
"""The bit in the second plane of tokens that XTC never removes; the one before is that of tokens drawn without it."""
FEW = 128
"""Ids that a row has room for beside its planes: the first tokens, of which some rules look at 100."""
ALL = tl.constexpr((1 << 31) - 1)
NEVER = tl.constexpr(1 << 62)
_UNIT = tl.constexpr(float(numbers.temperature_constant(1.0)))
_P_LESS, _SIGMA = tl.constexpr(int(P_LESS)), tl.constexpr(int(TOP_N_SIGMA))
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


@triton.jit(noinline=True)
def count_on(state_ptr, at: tl.constexpr):
    """Adds 1 to a number of a row by which a loop goes on."""
    number = word(state_ptr, at)
    tl.debug_barrier()
    put(state_ptr, at, number + 1)
    tl.debug_barrier()


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


# --- removing ---------------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit(noinline=True)
def keep(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Lists what stays of the set from the place `INTO_AT` on where `WRITES` is 1; its number and its largest and least
    key are written.

    A token stays whose weight is at least `LEAST`, or whose measure is at most `LIMIT`, or at most `LEVEL` where it
    stands before or at the cut. What is measured is its exponent, how far that is from the `MEAN` one, or the distance
    of top-n-sigma. Where `IS_REMOVED`, tokens go that have the weight and stand before the cut, unless they are spared;
    all others stay. Their mass is written too, by segments, and how many have a weight.
    """
    PART: tl.constexpr = TILE // 4
    cut_key, cut_id = word(state_ptr, CUT_KEY).to(tl.int32), word(state_ptr, CUT_ID).to(tl.int32)
    length = length_of(state_ptr, size)
    high, low = tl.arange(0, PART) * 0 + NEG_INF, tl.arange(0, PART) * 0 + POS_INF
    number, mass, weighty = tl.full((), 0, tl.int32), tl.full((), 0, tl.int64), tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        # What is read each time would leave too few registers if it were held in some.
        shift = shift_of(length_of(state_ptr, size), TILE)
        begin_segment(state_ptr, start // TILE, shift, mass, number)
        for part in range(0, TILE, PART):
            is_listed = word(state_ptr, IS_LISTED)
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, is_listed, PART)
            m, c, trimmed, left = scales_of(state_ptr)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            least, limit, level = word(state_ptr, LEAST), word(state_ptr, LIMIT), word(state_ptr, LEVEL)
            is_removed, writes = word(state_ptr, IS_REMOVED) != 0, word(state_ptr, WRITES).to(tl.int32)
            measure = tl.abs(q - word(state_ptr, MEAN).to(tl.int32))
            if word(state_ptr, IS_SIGMA) != 0:
                measure = spread_at(state_ptr, x)
            before = is_in(key, ids, cut_key, cut_id)
            stays = (w >= least) | (measure <= limit) | ((measure <= level) & before)
            is_asked = key > tl.where(is_removed & (word(state_ptr, SPARES) > 0), NEG_INF, POS_INF)
            spared = tl.load(list_ptr + size + ids, mask=is_asked, other=0) >> SPARED
            stays = tl.where(is_removed, ((w >= least) & before & (spared == 0)) == 0, stays) & (key > NEG_INF)
            one = stays.to(tl.int32)
            # The list is written where it was read: all have read this part before any writes.
            tl.debug_barrier()
            into_ptr = list_ptr + word(state_ptr, INTO_AT)
            tl.store(into_ptr + number + tl.cumsum(one, 0) - one, ids, mask=one > 1 - writes)
            number += tl.sum(one, 0)
            high = tl.maximum(high, tl.where(stays, key, NEG_INF))
            low = tl.minimum(low, tl.where(stays, key, POS_INF))
            mass += tl.sum(tl.where(stays, w, 0), 0)
            weighty += tl.sum((stays & (w > 0)).to(tl.int32), 0)
    top, bottom = tl.max(high, 0), tl.min(low, 0)
    tl.debug_barrier()
    put(state_ptr, KEPT, number)
    put(state_ptr, KEPT_TOP, top)
    put(state_ptr, KEPT_LOW, bottom)
    put(state_ptr, ARE_KEPT, number * 0)
    put(state_ptr, KEPT_MASS, mass)
    put(state_ptr, KEPT_WEIGHTY, weighty)
    put(state_ptr, SEGMENTED, segments_of(length, TILE))
    tl.debug_barrier()


@triton.jit
def shift_of(length, TILE: tl.constexpr):
    """A segment is made of 2 to this power of tiles, where a set is read from so many places."""
    shift = length * 0
    for octave in tl.static_range(20):  # pyright: ignore[reportGeneralTypeIssues]
        shift += ((length - 1) // TILE >= SEGMENTS << octave).to(tl.int32)
    return shift


@triton.jit
def segments_of(length, TILE: tl.constexpr):
    """How many segments there are."""
    return (((length + TILE - 1) // TILE - 1) >> shift_of(length, TILE)) + 1


@triton.jit
def begin_segment(state_ptr, tile, shift, mass, place):
    """Writes the mass before a segment, and where it begins in the list, if it begins with this tile."""
    begins = ((tile >> shift) << shift) == tile
    tl.store(state_ptr + MASSES + (tile >> shift), mass, mask=begins)
    tl.store(state_ptr + PLACES + (tile >> shift), mass * 0 + place, mask=begins)


@triton.jit
def all_stay(state_ptr):
    """Whether `keep` would remove nothing, by the largest and the least logit of the set."""
    m, c, trimmed, _ = scales_of(state_ptr)
    mean, least, limit = word(state_ptr, MEAN).to(tl.int32), word(state_ptr, LEAST), word(state_ptr, LIMIT)
    first = exponent_of(value_of(word(state_ptr, TOP_KEY).to(tl.int32)), m, c)
    last = exponent_of(value_of(word(state_ptr, LOW_KEY).to(tl.int32)), m, c)
    near = (tl.maximum(tl.abs(first - mean), tl.abs(last - mean)) <= limit) & (word(state_ptr, IS_SIGMA) == 0)
    heavy = (weight_of(last) >= least) & ((trimmed < 0) | (least <= 0))
    return (near | heavy) & (word(state_ptr, IS_REMOVED) == 0)


@triton.jit
def spread_at(state_ptr, x):
    """int32 distances of top-n-sigma of logits, any shape, from the largest one of the set."""
    top = value_of(word(state_ptr, TOP_KEY).to(tl.int32))
    return distance_of(x, top, widest_of(word(state_ptr, LOW_KEY).to(tl.int32), top))
# fmt: on
