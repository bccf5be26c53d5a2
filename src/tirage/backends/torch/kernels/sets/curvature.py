"""Where tail-free sampling cuts: sums over the weights of a set in order, which is found without comparing its tokens.

Weights are dealt out to buckets (`buckets`), as many of which as fit are then sorted in registers. SPEC.md rule S-O13.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.sets.buckets import (
    PIECES,
    begin_buckets,
    buckets_at,
    deal,
    in_order,
    lay_buckets,
    lightest,
    list_marked,
    mark,
    order_at,
    without_copies,
)
from tirage.backends.torch.kernels.sets.heads import keep_head, room_of
from tirage.backends.torch.kernels.sets.tokens import length_of, members_at, scales_of
from tirage.backends.torch.kernels.sets.words import (
    CURVED,
    CUT_ID,
    CUT_KEY,
    CUT_WEIGHT,
    DEALING,
    DEALT,
    FIRST,
    HEAD,
    HEAD_LEAST,
    HEADED,
    INSIDE,
    IS_FOUND,
    IS_FRESH,
    IS_LISTED,
    IS_TIED,
    LARGE,
    LARGE_HIGH,
    LARGE_LOW,
    LAST,
    LEAST,
    MASSES,
    NEVER,
    NEXT_TO_LAST,
    NUMBER,
    OF_CURVATURE,
    OF_CURVATURE_SHIFT,
    ORDER_AT,
    PASSED,
    PLACES,
    SEGMENTS,
    SORTED,
    SPREAD,
    TILED,
    TOP_KEY,
    TOTAL_CURVED,
    WINDOW_HIGH,
    WINDOW_LOW,
    count_on,
    put,
    word,
)

_NONE = tl.constexpr(0x7FFFFFFF)
_WINDOW = tl.constexpr(64)
"""Buckets whose ends are looked at together."""


@triton.jit
def bend(one, two, three):
    """How much weights bend, int64, any shape; 0 where there is no first one."""
    return tl.where(one >= 0, tl.abs(one - 2 * two + three), 0)


# fmt: off
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
def add_tile(list_ptr, state_ptr, number, PART: tl.constexpr):
    """Puts so many of the first exponents that are not in order behind those that are, and adds their curvature."""
    lanes = tl.arange(0, PART)
    begin_tile(state_ptr, word(state_ptr, SORTED), word(state_ptr, CURVED))
    from_ptr = order_at(list_ptr, state_ptr) + word(state_ptr, FIRST)
    q = in_order(tl.load(from_ptr + lanes, mask=lanes < number, other=_NONE), PART)
    last, next_to_last = word(state_ptr, LAST), word(state_ptr, NEXT_TO_LAST)
    one = weight_of(tl.gather(q, tl.maximum(lanes - 2, 0), 0))
    two = weight_of(tl.gather(q, tl.maximum(lanes - 1, 0), 0))
    three = weight_of(q)
    one = tl.where(lanes > 1, one, tl.where(lanes > 0, last, next_to_last))
    two = tl.where(lanes > 0, two, last)
    more = tl.sum(tl.where(lanes < number, bend(one, two, three), 0), 0)
    two, three = tl.sum(tl.where(lanes == number - 1, two, 0), 0), tl.sum(tl.where(lanes == number - 1, three, 0), 0)
    place, curved = word(state_ptr, SORTED), word(state_ptr, CURVED)
    tl.debug_barrier()
    tl.store(order_at(list_ptr, state_ptr) + place + lanes, q, mask=lanes < number)
    put(state_ptr, SORTED, place + number)
    put(state_ptr, CURVED, curved + more)
    put(state_ptr, NEXT_TO_LAST, two)
    put(state_ptr, LAST, three)
    tl.debug_barrier()


@triton.jit
def end_of_turn(state_ptr):
    """Up to where a turn puts in order what is dealt out: the head, or a piece of what is behind it."""
    turn, dealt, is_headed = word(state_ptr, DEALING), word(state_ptr, DEALT), word(state_ptr, HEAD) > 0
    end = tl.where(is_headed & (turn <= PIECES), dealt // PIECES * (turn - 1), dealt)
    return tl.where(turn == 1, word(state_ptr, HEADED), end)


@triton.jit(noinline=True)
def add_buckets(list_ptr, state_ptr, TILE: tl.constexpr):
    """Puts in order what is dealt out up to the end of a turn, or to a bucket that has too many: that is written then.
    """
    PART: tl.constexpr = TILE // 4
    LOOKED: tl.constexpr = _WINDOW if PART > _WINDOW else PART
    bucket = tl.full((), 0, tl.int32)
    while (word(state_ptr, FIRST) < end_of_turn(state_ptr)) & (word(state_ptr, LARGE) == 0):
        first, until = word(state_ptr, FIRST), tl.where(word(state_ptr, DEALING) == 1, word(state_ptr, HEAD), TILE)
        at = bucket + tl.arange(0, LOOKED)
        ends = tl.load(buckets_at(list_ptr, state_ptr) + at, mask=at < until, other=_NONE)
        fits = ends <= first + PART
        # Those that are in order already lie before the first.
        buckets, end = tl.sum(fits.to(tl.int32), 0), tl.max(tl.where(fits & (ends > first), ends, first), 0)
        number = (end - first).to(tl.int32)  # pyright: ignore[reportOperatorIssue, reportAttributeAccessIssue]
        if buckets == 0:
            end, buckets = tl.min(ends.to(tl.int64), 0), buckets + 1  # pyright: ignore[reportOperatorIssue]
            number = without_copies(list_ptr, state_ptr, (end - first).to(tl.int32), TILE)
        if (number > 0) & (number <= PART):
            add_tile(list_ptr, state_ptr, number, PART)
        tl.debug_barrier()
        put(state_ptr, LARGE, tl.where(number > PART, number, 0))
        put(state_ptr, FIRST, tl.where(number > PART, first, end))
        tl.debug_barrier()
        bucket += buckets


@triton.jit(noinline=True)
def begin_order(state_ptr, step_ptr):
    """Writes what is known of a set of which nothing is in order, and the share of the step."""
    m, c, _, _ = scales_of(state_ptr)
    low, high = exponent_of(value_of(word(state_ptr, TOP_KEY).to(tl.int32)), m, c), lightest(state_ptr)
    zero = tl.full((), 0, tl.int64)
    tl.debug_barrier()
    put(state_ptr, OF_CURVATURE, tl.load(step_ptr + 1))
    put(state_ptr, OF_CURVATURE_SHIFT, tl.minimum(tl.load(step_ptr + 2), 127))
    put(state_ptr, SORTED, zero)
    put(state_ptr, LAST, zero - 1)
    put(state_ptr, NEXT_TO_LAST, zero - 1)
    put(state_ptr, CURVED, zero)
    put(state_ptr, TILED, zero)
    put(state_ptr, SPREAD, zero)
    put(state_ptr, INSIDE, zero - 1)
    put(state_ptr, WINDOW_LOW, low)
    put(state_ptr, WINDOW_HIGH, high)
    put(state_ptr, FIRST, zero)
    put(state_ptr, LARGE, zero)
    put(state_ptr, IS_FOUND, zero)
    # The segments are now those of the order.
    put(state_ptr, IS_FRESH, zero)
    put(state_ptr, HEAD_LEAST, zero + NEVER)
    tl.debug_barrier()


@triton.jit(noinline=True)
def does_turn(state_ptr):
    """Whether a turn of dealing does something, int32: the second one does where there is a head, and from then on they
    go on until it is known where the set is cut, or a bucket has too many."""
    turn, is_open = word(state_ptr, DEALING), (word(state_ptr, LARGE) == 0) & (word(state_ptr, IS_FOUND) == 0)
    goes_on = is_open & ((turn == 2) | (word(state_ptr, FIRST) < word(state_ptr, DEALT)))
    return tl.where(turn > 1, goes_on, (turn == 0) | (word(state_ptr, HEAD) > 0)).to(tl.int32)


@triton.jit(noinline=True)
def begin_window(state_ptr):
    """Writes what is dealt out next: a bucket that has too many, or what is behind the last window."""
    is_large, high, most = word(state_ptr, LARGE) > 0, word(state_ptr, WINDOW_HIGH), lightest(state_ptr)
    large_low, large_high = word(state_ptr, LARGE_LOW), word(state_ptr, LARGE_HIGH)
    tl.debug_barrier()
    put(state_ptr, WINDOW_LOW, tl.where(is_large, large_low, high + 1))
    put(state_ptr, WINDOW_HIGH, tl.where(is_large, large_high, most))
    tl.debug_barrier()


@triton.jit(noinline=True)
def release_head(state_ptr, size):
    """Lists the head no longer if that is where tokens are dealt out to next."""
    end, least = word(state_ptr, ORDER_AT) + word(state_ptr, DEALT), word(state_ptr, HEAD_LEAST)
    tl.debug_barrier()
    put(state_ptr, HEAD_LEAST, tl.where(end > size - room_of(size), NEVER, least))
    tl.debug_barrier()


@triton.jit
def add_set(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Puts tokens of a set that weigh something in order, the heaviest first, until it is known where it is cut.

    Behind a head, that may be before all others are in order: they come in four parts.
    """
    while word(state_ptr, IS_FOUND) == 0:
        lay_buckets(x_ptr, list_ptr, state_ptr, size, TILE)
        while word(state_ptr, DEALING) < 2 + PIECES:
            if does_turn(state_ptr) != 0:
                if word(state_ptr, DEALING) == 2:
                    release_head(state_ptr, size)
                if word(state_ptr, DEALING) < 3:
                    deal(x_ptr, list_ptr, state_ptr, size, TILE)
                if word(state_ptr, DEALING) == 0:
                    begin_buckets(list_ptr, state_ptr, size, TILE)
                else:
                    add_buckets(list_ptr, state_ptr, TILE)
                    judge(list_ptr, state_ptr, TILE)
            count_on(state_ptr, DEALING)
        begin_window(state_ptr)


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


@triton.jit(noinline=True)
def find_passing(list_ptr, state_ptr, TILE: tl.constexpr):
    """Writes the same of the tokens in order that weigh something, for the limit that is in the place of what is
    reached, and the curvature that is reached with the last of them."""
    PART: tl.constexpr = TILE // 4
    lanes, tiles, limit = tl.arange(0, SEGMENTS), word(state_ptr, TILED), word(state_ptr, PASSED)
    segments = ((tiles - 1) >> word(state_ptr, SPREAD)) + 1
    sums = tl.load(state_ptr + MASSES + lanes, mask=lanes < segments, other=NEVER)
    segment = tl.sum((sums <= limit).to(tl.int32), 0) - 1  # pyright: ignore[reportOperatorIssue]
    place, number = tl.load(state_ptr + PLACES + segment, mask=segment >= 0, other=0), word(state_ptr, SORTED)
    end = tl.load(state_ptr + PLACES + segment + 1, mask=(segment >= 0) & (segment + 1 < segments), other=number)
    curved, at_first = tl.max(tl.where(sums <= limit, sums, 0), 0), number
    length, reached = (end - place).to(tl.int32), tl.full((), NEVER, tl.int64)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            at, order_ptr = place + start + part + tl.arange(0, PART), order_at(list_ptr, state_ptr)
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
    is_found, order_ptr = at_first < number, order_at(list_ptr, state_ptr)
    one = weight_of(tl.load(order_ptr + at_first - 2, mask=is_found, other=0))
    two = weight_of(tl.load(order_ptr + at_first - 1, mask=is_found, other=0))
    tl.debug_barrier()
    put(state_ptr, CUT_WEIGHT, tl.where(is_found, one, -1))
    put(state_ptr, IS_TIED, one == two)
    put(state_ptr, PASSED, reached)
    tl.debug_barrier()


@triton.jit(noinline=True)
def judge(list_ptr, state_ptr, TILE: tl.constexpr):
    """Writes whether it is known where the curvature is cut, as it is once the whole set is in order, and what
    `weightless` gives. Before, tokens that are not in order leave a part of the curvature open."""
    total, is_whole = word(state_ptr, CURVED), word(state_ptr, FIRST) >= word(state_ptr, INSIDE)
    if is_whole:
        total, _one, _two = weightless(state_ptr, tl.full((), NEVER, tl.int64), total)
    limit = share_of(state_ptr, total)
    tl.debug_barrier()
    put(state_ptr, TOTAL_CURVED, total)
    put(state_ptr, PASSED, limit)
    tl.debug_barrier()
    find_passing(list_ptr, state_ptr, TILE)
    total, weight, is_same = word(state_ptr, CURVED), word(state_ptr, CUT_WEIGHT), word(state_ptr, IS_TIED).to(tl.int32)
    last, is_whole = word(state_ptr, LAST), word(state_ptr, FIRST) >= word(state_ptr, INSIDE)
    rest = tl.maximum(last + word(state_ptr, NEXT_TO_LAST), 0)
    is_found = (weight >= 0) & (word(state_ptr, PASSED) > share_of(state_ptr, total + rest))
    if is_whole & (weight < 0):
        limit = share_of(state_ptr, word(state_ptr, TOTAL_CURVED))
        _curved, weight, is_same = weightless(state_ptr, limit, total)
    tl.debug_barrier()
    put(state_ptr, CUT_WEIGHT, weight)
    put(state_ptr, IS_TIED, is_same)
    put(state_ptr, IS_FOUND, is_whole | is_found)
    if (word(state_ptr, DEALING) == 1) & (last >= 0):
        put(state_ptr, HEAD_LEAST, last)
    tl.debug_barrier()


@triton.jit(noinline=True)
def put_key(state_ptr):
    """Writes the lowest key whose weight is at least that of the cut, as that of the largest one of the set is."""
    m, c, _, _ = scales_of(state_ptr)
    least, total = word(state_ptr, CUT_WEIGHT), word(state_ptr, TOTAL_CURVED)
    low, top = tl.full((), NEG_INF, tl.int64), word(state_ptr, TOP_KEY)
    for _ in range(32):
        middle = (low + top) >> 1
        inside = (weight_of(exponent_of(value_of(middle.to(tl.int32)), m, c)) >= least) & (middle > NEG_INF)
        top, low = tl.where(inside, middle, top), tl.where(inside, low, middle)
    tl.debug_barrier()
    put(state_ptr, LEAST, tl.where(total > 0, NEVER, 0))
    put(state_ptr, CUT_KEY, top)
    put(state_ptr, CUT_ID, top * 0 + NO_ID)
    tl.debug_barrier()


@triton.jit(noinline=True)
def put_last(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes the cut before the last token in order that has at least its key: all of that weight stay but this."""
    PART: tl.constexpr = TILE // 4
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    last = (tl.arange(0, PART) * 0).to(tl.int64)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, _x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, is_listed, PART)
            inside = (key > NEG_INF) & (key >= word(state_ptr, CUT_KEY))
            last = tl.maximum(last, tl.where(inside, ((-key.to(tl.int64) + POS_INF) << 31) + ids, 0))
    found = tl.max(last, 0)
    tl.debug_barrier()
    put(state_ptr, CUT_KEY, -(found >> 31) + POS_INF)  # pyright: ignore[reportOperatorIssue]
    put(state_ptr, CUT_ID, (found & NO_ID) - 1)  # pyright: ignore[reportOperatorIssue]
    tl.debug_barrier()


@triton.jit
def cut_tail(x_ptr, list_ptr, state_ptr, step_ptr, size, TILE: tl.constexpr):
    """Writes by what tail-free keeps tokens: up to where more than E / 2^s of the curvature is passed."""
    mark(list_ptr, state_ptr, size, TILE)
    begin_order(state_ptr, step_ptr)
    add_set(x_ptr, list_ptr, state_ptr, size, TILE)
    put_key(state_ptr)
    if word(state_ptr, CUT_WEIGHT) > word(state_ptr, HEAD_LEAST):
        keep_head(x_ptr, list_ptr, state_ptr, size, TILE)
    list_marked(list_ptr, state_ptr, size, TILE)
    if word(state_ptr, IS_TIED) != 0:
        put_last(x_ptr, list_ptr, state_ptr, size, TILE)


@triton.jit
def share_of(state_ptr, total):
    """floor(E * W / 2^s) of a W < 2^60, with the E < 2^32 and s of the step: int64."""
    part, w = word(state_ptr, OF_CURVATURE).to(tl.uint64), total.to(tl.uint64)
    by = word(state_ptr, OF_CURVATURE_SHIFT).to(tl.uint64)
    high, low = tl.umulhi(part, w), part * w
    near, far = tl.maximum(tl.minimum(by, 63), 1), tl.maximum(by, 64) - 64
    return tl.where(by < 64, (high << (64 - near)) | (low >> near), high >> far).to(tl.int64)
# fmt: on
