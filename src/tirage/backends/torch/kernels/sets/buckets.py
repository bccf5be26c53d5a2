"""Weights of a set dealt out to buckets, so that as many as fit into registers can be put in order there.

The rule of tail-free asks only which weights there are, and which of them stand more than once. So exponents are dealt
out, to buckets between those of a sample in order: four of them lie evenly between two neighbours, and where the sample
has an exponent twice, it has a bucket of its own. Mostly each holds a few dozen tokens, whatever the logits are. One
that holds too many loses those that stand more than twice, and is else dealt out anew, between a sample of itself.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, exponent_of, key_of, value_of
from tirage.backends.torch.kernels.sets.heads import first_behind_head, ids_of_head, room_of
from tirage.backends.torch.kernels.sets.tokens import is_within, length_of, put_number, scales_of
from tirage.backends.torch.kernels.sets.words import (
    DEALING,
    DEALT,
    FEW,
    FEW_AT,
    FIRST,
    HEAD,
    HEADED,
    INSIDE,
    IS_LISTED,
    LARGE,
    LARGE_HIGH,
    LARGE_LOW,
    LOW_KEY,
    NUMBER,
    ORDER_AT,
    WINDOW_HIGH,
    WINDOW_LOW,
    put,
    word,
)
from tirage.exact.weights import Q_LIMIT, weights

MARKED = tl.constexpr(2)
"""What `IS_LISTED` is of a set whose tokens are marked by bits, while its order takes the place of its list."""
EACH = tl.constexpr(4)
"""Buckets between two neighbours of the sample."""
PIECES = tl.constexpr(4)
"""Parts in which the tokens behind a head come."""
_NONE, _ONE = tl.constexpr(0x7FFFFFFF), tl.constexpr(1)
_FEW = tl.constexpr(FEW)


def _lightest() -> int:
    """The greatest exponent that has a weight."""
    low, end = 0, int(Q_LIMIT)
    while low + 1 < end:
        middle = (low + end) >> 1
        low, end = (middle, end) if weights(np.array([middle], np.int32))[0] else (low, middle)
    return low


_LIGHTEST = tl.constexpr(_lightest())


def room(tile: int, size: int, *, marks: bool) -> int:
    """Numbers of a row beside its list: counters of buckets, a sample, and bits of a set that is listed before."""
    return 2 * tile + tile // 2 + (-(-size // 32) if marks else 0)


# --- where the numbers lie --------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def order_at(list_ptr, state_ptr):
    """Where exponents are dealt out to, and put in order."""
    return list_ptr + word(state_ptr, ORDER_AT)


@triton.jit
def buckets_at(list_ptr, state_ptr):
    """Where the buckets' counters lie; behind them are the sample, and the bits of a set."""
    return list_ptr + word(state_ptr, FEW_AT) + _FEW


@triton.jit
def marks_at(list_ptr, state_ptr, TILE: tl.constexpr):
    """Where the bits of a set lie."""
    return buckets_at(list_ptr, state_ptr) + TILE + TILE // 4


@triton.jit
def lightest(state_ptr):
    """The greatest exponent of the set that weighs something, int32."""
    m, c, _, _ = scales_of(state_ptr)
    return tl.minimum(exponent_of(value_of(word(state_ptr, LOW_KEY).to(tl.int32)), m, c), _LIGHTEST)


# --- the set ----------------------------------------------------------------------------------------------------------


@triton.jit
def places_read(state_ptr, size):
    """How many places the set is read from, int32."""
    return tl.where(word(state_ptr, IS_LISTED) == MARKED, size, length_of(state_ptr, size)).to(tl.int32)


@triton.jit
def tokens_of(x_ptr, list_ptr, marks_ptr, start, length, kind, PART: tl.constexpr):
    """(ids, logits) [PART] of some of the set: of its list, its marks, or the row; -inf where there is no token."""
    WORDS: tl.constexpr = PART // 32 if PART > 32 else _ONE
    lanes = tl.arange(0, PART)
    at = start + lanes
    ids = tl.load(list_ptr + at, mask=at < tl.where(kind == 1, length, 0), other=at)
    there = at < length
    if kind == MARKED:
        word_at = (start >> 5) + tl.arange(0, WORDS)
        words = tl.load(marks_ptr + word_at, mask=word_at << 5 < length, other=0)
        there = there & (((tl.gather(words, ((start & 31) + lanes) >> 5, 0) >> (at & 31)) & 1) != 0)
    return ids, tl.load(x_ptr + ids, mask=there, other=float("-inf"))


@triton.jit(noinline=True)
def mark(list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Marks the tokens that are listed, where the order needs the place of their list."""
    PART: tl.constexpr = TILE // 4
    lanes, number = tl.arange(0, PART), word(state_ptr, NUMBER).to(tl.int32)
    marks_ptr, is_listed = marks_at(list_ptr, state_ptr, TILE), word(state_ptr, IS_LISTED)
    # A list that takes half of its plane leaves the other half.
    is_large = (is_listed != 0) & (number > size // 2)
    for start in range(0, tl.where(is_large, (size + 31) >> 5, 0), PART):
        tl.store(marks_ptr + start + lanes, lanes * 0, mask=start + lanes < (size + 31) >> 5)
    tl.debug_barrier()
    for start in range(0, tl.where(is_large, number, 0), TILE):
        for part in range(0, TILE, PART):
            at = start + part + lanes
            ids = tl.load(list_ptr + at, mask=at < number, other=0)
            one = tl.full((PART,), 1, tl.int32) << (ids & 31)
            tl.atomic_add(marks_ptr + (ids >> 5), one, mask=at < number, sem="relaxed", scope="cta")
    tl.debug_barrier()
    put(state_ptr, ORDER_AT, tl.where((is_listed != 0) & (is_large == 0), size - size // 2, 0))
    put(state_ptr, IS_LISTED, tl.where(is_large, MARKED, is_listed))
    tl.debug_barrier()


@triton.jit(noinline=True)
def list_marked(list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Lists the tokens that are marked again, if they are."""
    PART: tl.constexpr = TILE // 4
    WORDS: tl.constexpr = PART // 32 if PART > 32 else _ONE
    lanes, listed, is_marked = tl.arange(0, PART), tl.full((), 0, tl.int32), word(state_ptr, IS_LISTED) == MARKED
    for start in range(0, tl.where(is_marked, size, 0), TILE):
        for part in range(0, TILE, PART):
            first = start + part
            word_at = (first >> 5) + tl.arange(0, WORDS)
            words = tl.load(marks_at(list_ptr, state_ptr, TILE) + word_at, mask=word_at << 5 < size, other=0)
            at = first + lanes
            one = (tl.gather(words, ((first & 31) + lanes) >> 5, 0) >> (at & 31)) & 1
            one = tl.where(at < size, one, 0)
            tl.store(list_ptr + listed + tl.cumsum(one, 0) - one, at, mask=one > 0)
            listed += tl.sum(one, 0)
    tl.debug_barrier()
    if is_marked:
        put(state_ptr, IS_LISTED, tl.full((), 1, tl.int64))
    tl.debug_barrier()


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


# --- buckets ----------------------------------------------------------------------------------------------------------


@triton.jit
def sample_of_window(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """int32 exponents [PART] of a sample of what is dealt out, `_NONE` for those that are not; the first is its least.

    It is one of the set, or of the bucket that is dealt out anew, as it stands.
    """
    PART: tl.constexpr = TILE // 4
    lanes, number = tl.arange(0, PART), word(state_ptr, LARGE)
    low, high = word(state_ptr, WINDOW_LOW).to(tl.int32), word(state_ptr, WINDOW_HIGH).to(tl.int32)
    q = lanes * 0 + _NONE
    if number > 0:
        q = tl.load(order_at(list_ptr, state_ptr) + word(state_ptr, FIRST) + lanes * number // PART)
    else:
        m, c, _, _ = scales_of(state_ptr)
        length, kind = places_read(state_ptr, size), word(state_ptr, IS_LISTED)
        place = (lanes.to(tl.int64) * length // PART).to(tl.int32)
        ids = tl.load(list_ptr + place, mask=place < tl.where(kind == 1, length, 0), other=place)
        is_marked = place < tl.where(kind == MARKED, length, 0)
        marks = tl.load(marks_at(list_ptr, state_ptr, TILE) + (place >> 5), mask=is_marked, other=-1)
        there = (place < length) & (((marks >> (place & 31)) & 1) != 0)
        x = tl.load(x_ptr + ids, mask=there, other=float("-inf"))
        there = (key_of(x) > NEG_INF) & is_within(state_ptr, key_of(x), ids)
        q = tl.where(there, exponent_of(x, m, c), _NONE)
    return tl.where(lanes == 0, low, tl.where((q >= low) & (q <= high), q, _NONE))


@triton.jit(noinline=True)
def lay_buckets(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes between which exponents the buckets lie, empties them, and settles how many of them are the head's."""
    PART: tl.constexpr = TILE // 4
    lanes = tl.arange(0, PART)
    ranked = in_order(sample_of_window(x_ptr, list_ptr, state_ptr, size, TILE), PART)
    buckets_ptr = buckets_at(list_ptr, state_ptr)
    tl.store(buckets_ptr + TILE + lanes, ranked)
    for start in range(0, TILE, PART):
        tl.store(buckets_ptr + start + lanes, lanes * 0)
    inside = tl.sum((ranked < _NONE).to(tl.int32), 0)
    first = first_behind_head(state_ptr, ranked, inside, places_read(state_ptr, size), size, PART)
    tl.debug_barrier()
    # Before anything of the set is counted.
    put(state_ptr, HEAD, tl.where(word(state_ptr, INSIDE) < 0, first * EACH, 0))
    put(state_ptr, LARGE, first * 0)
    put(state_ptr, DEALING, first * 0)
    tl.debug_barrier()


@triton.jit
def buckets_of(q, sample, high, PART: tl.constexpr):
    """int32 buckets of exponents [PART] that are dealt out: the greater one, the same bucket or a later one."""
    at, step = q * 0, tl.full((), PART // 2, tl.int32)
    # The last of the sample that is not greater.
    while step > 0:
        at = tl.where(tl.gather(sample, at + step, 0) <= q, at + step, at)
        step = step >> 1
    low, before = tl.gather(sample, at, 0), tl.gather(sample, tl.maximum(at - 1, 0), 0)
    end = tl.minimum(tl.where(at + 1 < PART, tl.gather(sample, tl.minimum(at + 1, PART - 1), 0), _NONE), high + 1)
    middle = (low + end) >> 1
    is_far = q >= middle
    quarter = (tl.where(is_far, middle, low) + tl.where(is_far, end, middle)) >> 1
    bucket = at * EACH + 2 * is_far.to(tl.int32) + (q >= quarter).to(tl.int32)
    return tl.where((at > 0) & (q == low) & (before == low), (at - 1) * EACH, bucket)


@triton.jit(noinline=True)
def deal(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Deals what is in the window out to its buckets: each is stored at what its bucket counts.

    The first turn only counts, and lists the head; the second deals out the head, the third all others. No cut weight
    is among them, as nothing stands behind a top-p that cuts one.
    """
    PART: tl.constexpr = TILE // 4
    sample = tl.load(buckets_at(list_ptr, state_ptr) + TILE + tl.arange(0, PART))
    turn = word(state_ptr, DEALING).to(tl.int32)
    length = tl.where(turn == 1, word(state_ptr, HEADED), places_read(state_ptr, size)).to(tl.int32)
    number, counted, listed = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            kind = tl.where(turn == 1, 1, word(state_ptr, IS_LISTED))
            from_ptr = list_ptr + tl.where(turn == 1, size - room_of(size), 0)
            ids, x = tokens_of(x_ptr, from_ptr, marks_at(list_ptr, state_ptr, TILE), start + part, length, kind, PART)
            m, c, _, _ = scales_of(state_ptr)
            q, there = exponent_of(x, m, c), (key_of(x) > NEG_INF) & is_within(state_ptr, key_of(x), ids)
            low, high = word(state_ptr, WINDOW_LOW).to(tl.int32), word(state_ptr, WINDOW_HIGH).to(tl.int32)
            inside, head = there & (q >= low) & (q <= high), word(state_ptr, HEAD)
            bucket = buckets_of(tl.minimum(tl.maximum(q, low), high), sample, high, PART)
            dealt = inside & (bucket >= tl.where(turn < 2, 0, head))
            at = tl.atomic_add(buckets_at(list_ptr, state_ptr) + bucket, 1, mask=dealt, sem="relaxed", scope="cta")
            tl.store(order_at(list_ptr, state_ptr) + at, q, mask=dealt & (bucket >= tl.where(turn > 0, 0, TILE)))
            one = (inside & (bucket < tl.where(turn == 0, head, 0))).to(tl.int32)
            place = listed + tl.cumsum(one, 0) - one
            tl.store(ids_of_head(list_ptr, size) + place, ids, mask=(one > 0) & (place < room_of(size)))
            listed += tl.sum(one, 0)
            number += tl.sum(there.to(tl.int32), 0)
            counted += tl.sum(inside.to(tl.int32), 0)
    if turn == 0:
        put_number(state_ptr, number, size)
        # Later ones count what is dealt out anew.
        put(state_ptr, INSIDE, tl.where(word(state_ptr, INSIDE) < 0, counted, word(state_ptr, INSIDE)))
    tl.debug_barrier()


@triton.jit(noinline=True)
def begin_buckets(list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Puts where each bucket begins in the place of how many it holds; it is known then how many the head has."""
    PART: tl.constexpr = TILE // 4
    end, head, headed = word(state_ptr, FIRST).to(tl.int32), word(state_ptr, HEAD), tl.full((), 0, tl.int32)
    before = word(state_ptr, HEADED)
    for start in range(0, TILE, PART):
        at = start + tl.arange(0, PART)
        number = tl.load(buckets_at(list_ptr, state_ptr) + at)
        tl.store(buckets_at(list_ptr, state_ptr) + at, end + tl.cumsum(number, 0) - number)
        headed += tl.sum(tl.where(at < head, number, 0), 0)
        end += tl.sum(number, 0)
    tl.debug_barrier()
    put(state_ptr, DEALT, end)
    # That of the first window stays listed while others are dealt out.
    put(state_ptr, HEADED, tl.where(head > 0, headed, before))
    put(state_ptr, HEAD, tl.where((headed > 0) & (headed <= room_of(size)), head, 0))
    tl.debug_barrier()


@triton.jit(noinline=True)
def without_copies(list_ptr, state_ptr, number, TILE: tl.constexpr):
    """How many exponents stay of the first so many that are not in order, once those that are most of them stand twice:
    they are written in the place of all, and the least and the greatest of them."""
    PART: tl.constexpr = TILE // 4
    is_less = tl.full((), 1, tl.int32)
    while is_less != 0:
        often = tl.load(order_at(list_ptr, state_ptr) + word(state_ptr, FIRST) + number // 2)
        kept, copies = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
        low, high = tl.arange(0, PART) * 0 + _NONE, tl.arange(0, PART) * 0 - 1
        for start in range(0, number, TILE):
            for part in range(0, TILE, PART):
                at, from_ptr = start + part + tl.arange(0, PART), order_at(list_ptr, state_ptr) + word(state_ptr, FIRST)
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
        put(state_ptr, LARGE_LOW, first)
        put(state_ptr, LARGE_HIGH, last)
        tl.debug_barrier()
        is_less = ((kept > PART) & (kept < number - number // 8)).to(tl.int32)
        number = kept
    return number
# fmt: on
