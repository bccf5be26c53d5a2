"""Where tail-free sampling cuts: sums over the weights of a set in order, which is found without comparing its tokens.

The rule asks only which weights there are, and which of them stand more than once. So exponents are dealt out to
buckets, whose bounds follow from a sample; as many buckets as fit are then sorted in registers. A bucket with more
tokens loses those that stand more than twice, and is else dealt out anew. SPEC.md rule S-O13.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from tirage.backends.torch.kernels.heads import (
    HEAD,
    HEAD_LEAST,
    HEADED,
    REACH,
    keep_head,
    put_reach,
    room_of,
    settle_head,
)
from tirage.backends.torch.kernels.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    key_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.sets import (
    CUT_ID,
    CUT_KEY,
    IS_FRESH,
    IS_LISTED,
    LEAST,
    LOW_KEY,
    MASSES,
    NEVER,
    NUMBER,
    PLACES,
    SEGMENTS,
    TOP_KEY,
    length_of,
    put,
    put_number,
    scales_of,
    tokens_at,
    word,
)
from tirage.exact.weights import Q_LIMIT, weights

(
    SORTED, LAST, NEXT_TO_LAST, CURVED, TILED, SPREAD, WINDOW_LOW, WINDOW_HIGH, INSIDE, PARTED,
) = (tl.constexpr(104 + at) for at in range(10))  # fmt: skip
"""Words of a row: how many exponents are in order, the weights of the last two, -1 for none, the curvature up to there,
how many tiles it is made of and by how many octaves more than one make a segment, the least and the greatest exponent
of what is dealt out next, how many tokens weigh something, and between how many knots the buckets lie."""
CUT_WEIGHT, IS_TIED, TOTAL_CURVED = (tl.constexpr(118 + at) for at in range(3))
"""What `judge` finds: the weight down to which tokens stay, whether the next one weighs the same, and all curvature."""
KNOTS = 16
"""Exponents of a sample between which the buckets lie evenly."""
ROOM = 3 * KNOTS
"""What is known of them, beside the counters of the buckets."""
_KNOTS, _ROOM = tl.constexpr(KNOTS), tl.constexpr(ROOM)
_NONE = tl.constexpr(0x7FFFFFFF)
_WINDOW = tl.constexpr(64)
"""Buckets whose ends are looked at together."""
_PARTS = tl.constexpr(16)
_PIECES = tl.constexpr(4)
"""Parts in which the tokens behind a head come."""


def _lightest() -> int:
    """The greatest exponent that has a weight."""
    low, end = 0, int(Q_LIMIT)
    while low + 1 < end:
        middle = (low + end) >> 1
        low, end = (middle, end) if weights(np.array([middle], np.int32))[0] else (low, middle)
    return low


_LIGHTEST = tl.constexpr(_lightest())


# --- registers --------------------------------------------------------------------------------------------------------


@triton.jit
def in_order(values, N: tl.constexpr):
    """int32 values [N], the least first: by bitonic sorting."""
    lanes, run = tl.arange(0, N), tl.full((), 2, tl.int32)
    while run <= N:
        step = run >> 1
        while step > 0:
            other = tl.gather(values, lanes ^ step, 0)
            is_greater = ((lanes & step) > 0) != ((lanes & run) > 0)
            values = tl.where(is_greater, tl.maximum(values, other), tl.minimum(values, other))
            step = step >> 1
        run = run << 1
    return values


@triton.jit
def bend(one, two, three):
    """How much weights bend, int64, any shape; 0 where there is no first one."""
    return tl.where(one >= 0, tl.abs(one - 2 * two + three), 0)


# --- buckets ----------------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def knots_in(x_ptr, list_ptr, state_ptr, low, high, size, PART: tl.constexpr, KNOTTED: tl.constexpr):
    """int32 exponents [KNOTTED] of [low, high], the least first: `low`, ranks of a sample, and its widest gaps."""
    GAPS: tl.constexpr = KNOTTED * 3 // 16
    RANKS: tl.constexpr = KNOTTED - 2 - 2 * GAPS
    m, c, _, _ = scales_of(state_ptr)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    lanes, at = tl.arange(0, PART), tl.arange(0, KNOTTED)
    place = (lanes.to(tl.int64) * length // PART).to(tl.int32)
    ids = tl.load(list_ptr + place, mask=place < tl.where(is_listed != 0, length, 0), other=place)
    x = tl.load(x_ptr + ids, mask=place < length, other=float("-inf"))
    q = exponent_of(x, m, c)
    inside = (key_of(x) > NEG_INF) & (q >= low) & (q <= high)
    number = tl.sum(inside.to(tl.int32), 0)
    ranked = in_order(tl.where(inside, q, _NONE), PART)
    put_reach(state_ptr, ranked, number, low, length, size, PART)
    rank = tl.minimum(tl.maximum(at - 1, 0), RANKS) * tl.maximum(number - 1, 0) // tl.maximum(at * 0 + RANKS, 1)  # pyright: ignore[reportOperatorIssue]
    knots = tl.where((at > 0) & (number > 0), tl.gather(ranked, rank, 0), low)  # pyright: ignore[reportOperatorIssue]
    gap = tl.where(lanes + 1 < number, tl.gather(ranked, tl.minimum(lanes + 1, PART - 1), 0) - ranked, 0)
    for turn in range(GAPS):
        widest = tl.max(gap, 0)
        before = tl.min(tl.where(gap == widest, lanes, PART - 1), 0)
        at_it = tl.max(tl.where(lanes == before, ranked, 0), 0)
        second = tl.where(widest > 0, at_it + widest, low)  # pyright: ignore[reportOperatorIssue]
        first = tl.where(widest > 0, at_it, low)  # pyright: ignore[reportOperatorIssue]
        knots = tl.where(at == KNOTTED - 1 - 2 * turn, first, tl.where(at == KNOTTED - 2 - 2 * turn, second, knots))
        gap = tl.where(lanes == before, 0, gap)
    return in_order(knots, KNOTTED)


@triton.jit(noinline=True)
def lay_buckets(x_ptr, list_ptr, buckets_ptr, state_ptr, low, high, size, TILE: tl.constexpr):
    """Writes where the buckets of exponents in [low, high] lie, evenly between knots, and empties them.

    A set that fits into a tile has one bucket.
    """
    PART: tl.constexpr = TILE // 4
    KNOTTED: tl.constexpr = _KNOTS if PART > _KNOTS else PART
    lanes, at = tl.arange(0, PART), tl.arange(0, KNOTTED)
    knots = knots_in(x_ptr, list_ptr, state_ptr, low, high, size, PART, KNOTTED)
    after = tl.gather(knots, tl.minimum(at + 1, KNOTTED - 1), 0)
    last = tl.maximum(tl.where(at < KNOTTED - 1, after - 1, high) - knots, 0)
    shift = at * 0
    for octave in tl.static_range(13):  # pyright: ignore[reportGeneralTypeIssues]
        shift += ((last >> (octave + _PARTS)) > 0).to(tl.int32)
    is_few = (word(state_ptr, NUMBER) >= 0) & (word(state_ptr, NUMBER) <= PART)
    tl.store(buckets_ptr + TILE + at, tl.where(is_few & (at > 0), _NONE, knots))
    tl.store(buckets_ptr + TILE + _KNOTS + at, shift)
    put(state_ptr, PARTED, tl.full((), KNOTTED, tl.int64))
    each = tl.where(is_few, 0, at * 0 + TILE // KNOTTED) << _PARTS
    tl.store(buckets_ptr + TILE + 2 * _KNOTS + at, each // ((last >> shift) + 1))
    for start in range(0, TILE, PART):
        tl.store(buckets_ptr + start + lanes, lanes * 0)
    tl.debug_barrier()


@triton.jit
def bucket_of(q, buckets_ptr, state_ptr, TILE: tl.constexpr):
    """int32 buckets of exponents, any shape: the greater one, the same bucket or a later one."""
    PART: tl.constexpr = TILE // 4
    KNOTTED: tl.constexpr = _KNOTS if PART > _KNOTS else PART
    first, begin, shift, rate = q * 0, q * 0, q * 0, q * 0
    # No constant: a loop that is unrolled would hold all of them in registers.
    for at in range(word(state_ptr, PARTED).to(tl.int32)):
        knot = tl.load(buckets_ptr + TILE + at)
        reached = q >= knot
        first = tl.where(reached, at * (TILE // KNOTTED), first)
        begin = tl.where(reached, knot, begin)
        shift = tl.where(reached, tl.load(buckets_ptr + TILE + _KNOTS + at), shift)
        rate = tl.where(reached, tl.load(buckets_ptr + TILE + 2 * _KNOTS + at), rate)
    return first + ((((q - begin) >> shift) * rate) >> _PARTS)


@triton.jit
def begin_head(buckets_ptr, state_ptr, is_begun, TILE: tl.constexpr):
    """Writes how many buckets the head has, which a set only has before anything of it `is_begun`."""
    reach = word(state_ptr, REACH)
    head = bucket_of(tl.maximum(reach, 0).to(tl.int32), buckets_ptr, state_ptr, TILE)
    put(state_ptr, HEAD, tl.where((reach >= 0) & (is_begun == 0), head, 0))
    tl.debug_barrier()


@triton.jit(noinline=True)
def deal(x_ptr, list_ptr, into_ptr, buckets_ptr, state_ptr, low, high, turn, size, TILE: tl.constexpr):
    """Deals exponents in [low, high] out to their buckets: each is stored at what its bucket counts.

    The first turn only counts, and lists the head; the second deals out the head, the third all others. No cut weight
    is among them, as nothing stands behind a top-p that cuts one.
    """
    PART: tl.constexpr = TILE // 4
    m, c, _, _ = scales_of(state_ptr)
    from_ptr, length, is_listed = list_ptr, length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    head, head_ptr, room = word(state_ptr, HEAD), buckets_ptr + TILE + _ROOM, room_of(size)
    if turn == 1:
        from_ptr, length, is_listed = head_ptr, word(state_ptr, HEADED).to(tl.int32), is_listed * 0 + 1
    number, counted, listed = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = tokens_at(x_ptr, from_ptr, start + part, length, is_listed, PART)
            q, there = exponent_of(x, m, c), key > NEG_INF
            inside = there & (q >= low) & (q <= high)
            bucket = bucket_of(tl.minimum(tl.maximum(q, low), high), buckets_ptr, state_ptr, TILE)
            is_first = inside & (bucket < head)
            dealt = inside & ((turn < 2) | (bucket >= head))
            at = tl.atomic_add(buckets_ptr + bucket, 1, mask=dealt, sem="relaxed", scope="cta")
            tl.store(into_ptr + at, q, mask=dealt & (turn > 0))
            one = (is_first & (turn == 0)).to(tl.int32)
            place = listed + tl.cumsum(one, 0) - one
            tl.store(head_ptr + place, ids, mask=(one > 0) & (place < room))
            listed += tl.sum(one, 0)
            number += tl.sum(there.to(tl.int32), 0)
            counted += tl.sum(inside.to(tl.int32), 0)
    put_number(state_ptr, number, size)
    # Later ones count what is dealt out anew.
    put(state_ptr, INSIDE, tl.where(word(state_ptr, INSIDE) < 0, counted, word(state_ptr, INSIDE)))
    tl.debug_barrier()


@triton.jit
def begin_buckets(buckets_ptr, first, TILE: tl.constexpr):
    """Puts where each bucket begins in the place of how many it holds, the first at `first`; gives where the last ends.
    """
    PART: tl.constexpr = TILE // 4
    for start in range(0, TILE, PART):
        at = start + tl.arange(0, PART)
        number = tl.load(buckets_ptr + at)
        tl.store(buckets_ptr + at, first + tl.cumsum(number, 0) - number)
        first += tl.sum(number, 0)
    tl.debug_barrier()
    return first


@triton.jit
def without_copies(from_ptr, state_ptr, number, TILE: tl.constexpr):
    """How many exponents stay of so many, once those that are most of them stand twice: they are written in the place
    of all, and their ends as the next to be dealt out."""
    PART: tl.constexpr = TILE // 4
    is_less = tl.full((), 1, tl.int32)
    while is_less != 0:
        often = tl.load(from_ptr + number // 2)
        kept, copies = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
        low, high = tl.arange(0, PART) * 0 + _NONE, tl.arange(0, PART) * 0 - 1
        for start in range(0, number, TILE):
            for part in range(0, TILE, PART):
                at = start + part + tl.arange(0, PART)
                q = tl.load(from_ptr + at, mask=at < number, other=-1)
                is_copy = (q == often).to(tl.int32)
                stays = (q >= 0) & ((is_copy == 0) | (copies + tl.cumsum(is_copy, 0) <= 2))
                one = stays.to(tl.int32)
                # All have read this part before any writes.
                tl.debug_barrier()
                tl.store(from_ptr + kept + tl.cumsum(one, 0) - one, q, mask=stays)
                kept += tl.sum(one, 0)
                copies += tl.sum(is_copy, 0)
                low, high = tl.minimum(low, tl.where(stays, q, _NONE)), tl.maximum(high, q)
        first, last = tl.min(low, 0), tl.max(high, 0)
        tl.debug_barrier()
        put(state_ptr, WINDOW_LOW, first)
        put(state_ptr, WINDOW_HIGH, last)
        tl.debug_barrier()
        is_less = ((kept > PART) & (kept < number - number // 8)).to(tl.int32)
        number = kept
    return number


# --- what is in order -------------------------------------------------------------------------------------------------


@triton.jit
def begin_tile(state_ptr, place, curved):
    """Writes where a tile begins, and the curvature before it, if a segment does; there are twice as long ones before
    there are too many."""
    tile, shift = word(state_ptr, TILED), word(state_ptr, SPREAD)
    lanes = tl.arange(0, SEGMENTS)
    if (tile >> shift) >= SEGMENTS:
        from_at = tl.minimum(2 * lanes, SEGMENTS - 1)
        masses, places = tl.load(state_ptr + MASSES + from_at), tl.load(state_ptr + PLACES + from_at)
        tl.debug_barrier()
        tl.store(state_ptr + MASSES + lanes, masses)
        tl.store(state_ptr + PLACES + lanes, places)
        shift += 1
    begins = ((tile >> shift) << shift) == tile
    tl.debug_barrier()
    tl.store(state_ptr + MASSES + (tile >> shift), curved, mask=begins)
    tl.store(state_ptr + PLACES + (tile >> shift), place, mask=begins)
    put(state_ptr, TILED, tile + 1)
    put(state_ptr, SPREAD, shift)
    tl.debug_barrier()


@triton.jit(noinline=True)
def add_tile(from_ptr, order_ptr, state_ptr, number, PART: tl.constexpr):
    """Puts so many exponents in order behind those that are, and adds their curvature."""
    lanes = tl.arange(0, PART)
    place, curved = word(state_ptr, SORTED), word(state_ptr, CURVED)
    last, next_to_last = word(state_ptr, LAST), word(state_ptr, NEXT_TO_LAST)
    begin_tile(state_ptr, place, curved)
    q = in_order(tl.load(from_ptr + lanes, mask=lanes < number, other=_NONE), PART)
    one = weight_of(tl.gather(q, tl.maximum(lanes - 2, 0), 0))
    two = weight_of(tl.gather(q, tl.maximum(lanes - 1, 0), 0))
    three = weight_of(q)
    one = tl.where(lanes > 1, one, tl.where(lanes > 0, last, next_to_last))
    two = tl.where(lanes > 0, two, last)
    more = tl.sum(tl.where(lanes < number, bend(one, two, three), 0), 0)
    two, three = tl.sum(tl.where(lanes == number - 1, two, 0), 0), tl.sum(tl.where(lanes == number - 1, three, 0), 0)
    tl.debug_barrier()
    tl.store(order_ptr + place + lanes, q, mask=lanes < number)
    put(state_ptr, SORTED, place + number)
    put(state_ptr, CURVED, curved + more)
    put(state_ptr, NEXT_TO_LAST, two)
    put(state_ptr, LAST, three)
    tl.debug_barrier()


@triton.jit(noinline=True)
def add_buckets(order_ptr, buckets_ptr, state_ptr, first, last, until, TILE: tl.constexpr):
    """Puts in order what was dealt out from `first` to `last`, to buckets before `until`, or to one that has too many.

    Gives where that is, and whether such a bucket stands there: then its ends are what is to be dealt out next.
    """
    PART: tl.constexpr = TILE // 4
    LOOKED: tl.constexpr = _WINDOW if PART > _WINDOW else PART
    bucket, is_large = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    while (first < last) & (is_large == 0):
        at = bucket + tl.arange(0, LOOKED)
        ends = tl.load(buckets_ptr + at, mask=at < until, other=_NONE)
        fits = ends <= first + PART
        # Those that are in order already lie before the first.
        buckets, end = tl.sum(fits.to(tl.int32), 0), tl.max(tl.where(fits & (ends > first), ends, first), 0)
        number = end - first  # pyright: ignore[reportOperatorIssue]
        if buckets == 0:
            end = tl.load(buckets_ptr + bucket)
            number = without_copies(order_ptr + first, state_ptr, end - first, TILE)
            buckets += 1
        if number > PART:
            is_large += 1
        else:
            if number > 0:
                add_tile(order_ptr + first, order_ptr, state_ptr, number, PART)
            first = end
            bucket += buckets
    return first, is_large


@triton.jit
def add_set(x_ptr, list_ptr, order_ptr, buckets_ptr, state_ptr, step_ptr, size, TILE: tl.constexpr):
    """Puts tokens of a set that weigh something in order, the heaviest first, until it is known where it is cut.

    Behind a head, that may be before all others are in order: they come in four parts.
    """
    m, c, _, _ = scales_of(state_ptr)
    low = exponent_of(value_of(word(state_ptr, TOP_KEY).to(tl.int32)), m, c)
    least = tl.minimum(exponent_of(value_of(word(state_ptr, LOW_KEY).to(tl.int32)), m, c), _LIGHTEST)
    high, first, last, number = least, tl.full((), 0, tl.int32), tl.full((), 0, tl.int32), size
    is_large, is_found, is_begun = first, first, first
    while (first < number) & (is_found == 0):
        lay_buckets(x_ptr, list_ptr, buckets_ptr, state_ptr, low, high, size, TILE)
        begin_head(buckets_ptr, state_ptr, is_begun, TILE)
        is_begun, is_large = tl.full((), 1, tl.int32), tl.full((), 0, tl.int32)
        for turn in range(2 + _PIECES):  # pyright: ignore[reportArgumentType]
            head = word(state_ptr, HEAD).to(tl.int32)
            goes_on = ((first < last) | (turn == 2)) & (is_large == 0) & (is_found == 0)
            if tl.where(turn > 1, goes_on, (turn == 0) | (head > 0)):
                if turn < 3:
                    deal(x_ptr, list_ptr, order_ptr, buckets_ptr, state_ptr, low, high, turn, size, TILE)
                if turn == 0:
                    last = begin_buckets(buckets_ptr, first, TILE)
                    settle_head(buckets_ptr, state_ptr, size)
                    number = word(state_ptr, INSIDE).to(tl.int32)
                else:
                    end = tl.where(head > 0, last // _PIECES * (turn - 1), last)
                    end = tl.where(turn == 1, word(state_ptr, HEADED).to(tl.int32), end)
                    end = tl.where(turn == 1 + _PIECES, last, end)
                    buckets = tl.where(turn == 1, head, TILE)
                    first, is_large = add_buckets(order_ptr, buckets_ptr, state_ptr, first, end, buckets, TILE)
                    is_found = judge(order_ptr, state_ptr, step_ptr, turn == 1, first >= number, TILE)
        low = tl.where(is_large != 0, word(state_ptr, WINDOW_LOW).to(tl.int32), high + 1)
        high = tl.where(is_large != 0, word(state_ptr, WINDOW_HIGH).to(tl.int32), least)


# --- the cut ----------------------------------------------------------------------------------------------------------


@triton.jit
def weightless(state_ptr, limit, curved):
    """(the curvature up to the last token, the first weight of the three with which it exceeds `limit`, -1 if none do;
    whether the next one weighs the same): of the tokens that weigh nothing, behind those in order."""
    one, two, number = word(state_ptr, NEXT_TO_LAST), word(state_ptr, LAST), word(state_ptr, NUMBER)
    found, is_same, three = tl.full((), -1, tl.int64), tl.full((), 0, tl.int32), tl.full((), 0, tl.int64)
    for at in range(2):
        if word(state_ptr, INSIDE) + at < number:
            curved += bend(one, two, three)
            passes = (found < 0) & (curved > limit)
            is_same = tl.where(passes, (one == two).to(tl.int32), is_same)
            found = tl.where(passes, one, found)
            one, two = two, three
    return curved, found, is_same


@triton.jit
def first_passing(order_ptr, state_ptr, limit, TILE: tl.constexpr):
    """The same of the tokens in order that weigh something, and the curvature that is reached with the last of them."""
    PART: tl.constexpr = TILE // 4
    lanes, tiles = tl.arange(0, SEGMENTS), word(state_ptr, TILED)
    segments = ((tiles - 1) >> word(state_ptr, SPREAD)) + 1
    sums = tl.load(state_ptr + MASSES + lanes, mask=lanes < segments, other=NEVER)
    segment = tl.sum((sums <= limit).to(tl.int32), 0) - 1  # pyright: ignore[reportOperatorIssue]
    place, number = tl.load(state_ptr + PLACES + segment, mask=segment >= 0, other=0), word(state_ptr, SORTED)
    end = tl.load(state_ptr + PLACES + segment + 1, mask=(segment >= 0) & (segment + 1 < segments), other=number)
    curved, at_first = tl.max(tl.where(sums <= limit, sums, 0), 0), number
    length, reached = (end - place).to(tl.int32), tl.full((), NEVER, tl.int64)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            at = place + start + part + tl.arange(0, PART)
            there = (at < end) & (at > 1)
            one = weight_of(tl.load(order_ptr + at - 2, mask=there, other=0))
            two = weight_of(tl.load(order_ptr + at - 1, mask=there, other=0))
            three = weight_of(tl.load(order_ptr + at, mask=there, other=0))
            more = tl.where(there, bend(one, two, three), 0)
            after = curved + tl.cumsum(more, 0)
            passes = there & (after > limit)
            reached = tl.minimum(reached, tl.min(tl.where(passes, after, NEVER), 0))
            at_first = tl.minimum(at_first, tl.min(tl.where(passes, at, number), 0))
            curved += tl.sum(more, 0)  # pyright: ignore[reportOperatorIssue]
    is_found = at_first < number
    one = weight_of(tl.load(order_ptr + at_first - 2, mask=is_found, other=0))
    two = weight_of(tl.load(order_ptr + at_first - 1, mask=is_found, other=0))
    return tl.where(is_found, one, -1), (one == two).to(tl.int32), reached


@triton.jit(noinline=True)
def judge(order_ptr, state_ptr, step_ptr, is_head, is_whole, TILE: tl.constexpr):
    """Whether it is known where the curvature is cut, int32, as it is once the set `is_whole`; what `weightless` gives
    is written then. Before, tokens that are not in order leave a part of the curvature open."""
    total, last = word(state_ptr, CURVED), word(state_ptr, LAST)
    rest, curved = last + word(state_ptr, NEXT_TO_LAST), total
    if is_whole:
        total, _one, _two = weightless(state_ptr, tl.full((), NEVER, tl.int64), curved)
    e, s = tl.load(step_ptr + 1), tl.load(step_ptr + 2)
    limit = floor_of_share(e, s, total)
    weight, is_same, reached = first_passing(order_ptr, state_ptr, limit, TILE)
    is_found = (weight >= 0) & (reached > floor_of_share(e, s, curved + tl.maximum(rest, 0)))
    if is_whole & (weight < 0):
        _curved, weight, is_same = weightless(state_ptr, limit, curved)
    tl.debug_barrier()
    put(state_ptr, CUT_WEIGHT, weight)
    put(state_ptr, IS_TIED, is_same)
    put(state_ptr, TOTAL_CURVED, total)
    if is_head & (last >= 0):
        put(state_ptr, HEAD_LEAST, last)
    tl.debug_barrier()
    return (is_whole | is_found).to(tl.int32)


@triton.jit
def lowest_weighing(state_ptr, least):
    """The lowest key whose weight is at least this, int32; the weight of the largest one of the set is."""
    m, c, _, _ = scales_of(state_ptr)
    low, top = tl.full((), NEG_INF, tl.int64), word(state_ptr, TOP_KEY)
    for _ in range(32):
        middle = (low + top) >> 1
        inside = (weight_of(exponent_of(value_of(middle.to(tl.int32)), m, c)) >= least) & (middle > NEG_INF)
        top, low = tl.where(inside, middle, top), tl.where(inside, low, middle)
    return top.to(tl.int32)


@triton.jit(noinline=True)
def last_down_to(x_ptr, list_ptr, state_ptr, least_key, size, TILE: tl.constexpr):
    """(key, id) of the last token in order that has at least this key."""
    PART: tl.constexpr = TILE // 4
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    last = (tl.arange(0, PART) * 0).to(tl.int64)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, _x, key = tokens_at(x_ptr, list_ptr, start + part, length, is_listed, PART)
            inside = (key > NEG_INF) & (key >= least_key)
            last = tl.maximum(last, tl.where(inside, ((-key.to(tl.int64) + POS_INF) << 31) + ids, 0))
    found = tl.max(last, 0)
    return (-(found >> 31) + POS_INF).to(tl.int32), (found & NO_ID).to(tl.int32)  # pyright: ignore[reportOperatorIssue]


# A function of its own: registers of the kernel that calls it are not spilled for what it needs.
@triton.jit(noinline=True)
def cut_tail(x_ptr, list_ptr, order_ptr, buckets_ptr, state_ptr, step_ptr, size, TILE: tl.constexpr):
    """Writes by what tail-free keeps tokens: up to where more than E / 2^s of the curvature is passed."""
    zero = tl.full((), 0, tl.int64)
    tl.debug_barrier()
    put(state_ptr, SORTED, zero)
    put(state_ptr, LAST, zero - 1)
    put(state_ptr, NEXT_TO_LAST, zero - 1)
    put(state_ptr, CURVED, zero)
    put(state_ptr, TILED, zero)
    put(state_ptr, SPREAD, zero)
    put(state_ptr, INSIDE, zero - 1)
    # The segments are now those of the order.
    put(state_ptr, IS_FRESH, zero)
    put(state_ptr, HEAD_LEAST, zero + NEVER)
    tl.debug_barrier()
    add_set(x_ptr, list_ptr, order_ptr, buckets_ptr, state_ptr, step_ptr, size, TILE)
    total, weight, is_same = word(state_ptr, TOTAL_CURVED), word(state_ptr, CUT_WEIGHT), word(state_ptr, IS_TIED)
    key, last_id = lowest_weighing(state_ptr, weight), tl.full((), NO_ID, tl.int32)
    if weight > word(state_ptr, HEAD_LEAST):
        keep_head(x_ptr, list_ptr, buckets_ptr + TILE + _ROOM, state_ptr, key, TILE)
    if is_same != 0:
        # All of that weight stay but the last one.
        key, last_id = last_down_to(x_ptr, list_ptr, state_ptr, key, size, TILE)
        last_id -= 1
    tl.debug_barrier()
    put(state_ptr, LEAST, tl.where(total > 0, NEVER, zero))
    put(state_ptr, CUT_KEY, key)
    put(state_ptr, CUT_ID, last_id)
    tl.debug_barrier()


@triton.jit
def floor_of_share(e, s, total):
    """floor(E * W / 2^s) of integers E < 2^32 and W < 2^60: int64."""
    part, w, by = e.to(tl.uint64), total.to(tl.uint64), tl.minimum(s, 127).to(tl.uint64)
    high, low = tl.umulhi(part, w), part * w
    near, far = tl.maximum(tl.minimum(by, 63), 1), tl.maximum(by, 64) - 64
    return tl.where(by < 64, (high << (64 - near)) | (low >> near), high >> far).to(tl.int64)
# fmt: on
