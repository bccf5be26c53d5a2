"""Lists the few tokens between the places of a search, in one reading that weighs what is sure to stay, too.

Once the cut is found among them, what a step keeps is known without another reading: its mass by segments, its ends,
and the sums that the next step may follow from.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, NO_ID, POS_INF, exponent_of, is_in, value_of, weight_of
from tirage.backends.torch.kernels.sets.places import place_of
from tirage.backends.torch.kernels.sets.segments import begin_segment, segments_of, shift_of
from tirage.backends.torch.kernels.sets.tokens import members_at, put_number, scales_of, weights_at
from tirage.backends.torch.kernels.sets.words import (
    ALL,
    ARE_SUMMED,
    CUT_ID,
    CUT_KEY,
    CUT_LEFT,
    CUT_TOKEN,
    EACH,
    IS_FRESH,
    IS_LEVELED,
    IS_PARTED,
    IS_WEIGHED_OUT,
    LEVEL,
    LIMIT,
    LISTED_NUMBER,
    MASSES,
    MEAN,
    PARTS_AT,
    PLACED_MASS,
    SEGMENTED,
    SEGMENTS,
    SET_MASS,
    STAGE_GOAL,
    SURE_AT,
    TIED,
    put,
    word,
)

_WORD, _ONE = tl.constexpr(0xFFFFFFFF), tl.constexpr(1)
NUMBER_AT, MASS_AT, UPPER_AT, LOWER_AT, WEIGHTY_AT, TOP_AT, LOW_AT = (tl.constexpr(at) for at in range(7))
"""What is known of the tokens that are sure to stay, from `SURE_AT` on: their number and mass, both halves of the sum
of w * q, how many have a weight, and their largest and least keys."""


# fmt: off
@triton.jit(noinline=True)
def list_between(x_ptr, list_ptr, state_ptr, kind, low, end, most, size, TILE: tl.constexpr):
    """Lists the tokens that are looked at in ]low, end], of a set that is not listed; writes how many they are, what is
    known of those before them, their mass by segments, that of both, and the number and the mass of the set.

    Of those at the place `end` only the first ones are listed, at `most` so many; all are counted, by segments too.
    """
    PART: tl.constexpr = TILE // 16 if TILE > 8 else _ONE
    m, c, trimmed, left = scales_of(state_ptr)
    wide = (tl.arange(0, PART) * 0).to(tl.int64)
    mass, upper, lower, inside, whole = wide, wide, wide, wide, wide
    sure, weighty, there = tl.arange(0, PART) * 0, tl.arange(0, PART) * 0, tl.arange(0, PART) * 0
    high, least, number, tied = sure + NEG_INF, sure + POS_INF, tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, size, TILE):
        tile, shift = start // TILE, shift_of(size, TILE)
        begin_segment(state_ptr, tile, shift, tl.sum(mass, 0), start)
        tl.store(state_ptr + PARTS_AT + (tile >> shift), tied, mask=((tile >> shift) << shift) == tile)
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, size, 0, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            looked, place = place_of(state_ptr, kind, ids, q, key)
            last = (looked & (place == end)).to(tl.int32)
            is_more = (last > 0) & (tied + tl.cumsum(last, 0) > most)
            tied += tl.sum(last, 0)
            one = (looked & (place > low) & (place <= end) & (is_more == 0)).to(tl.int32)
            tl.store(list_ptr + number + tl.cumsum(one, 0) - one, ids, mask=one > 0)
            number += tl.sum(one, 0)
            there += (key > NEG_INF).to(tl.int32)
            whole += w
            inside += tl.where(looked & (place <= end), w, 0)
            before = looked & (place <= low)
            w = tl.where(before, w, 0)
            mass += w
            upper += (w * q) >> 32
            lower += (w * q) & _WORD
            sure += before.to(tl.int32)
            weighty += (w > 0).to(tl.int32)
            high = tl.maximum(high, tl.where(before, key, NEG_INF))
            least = tl.minimum(least, tl.where(before, key, POS_INF))
    placed, all_mass, all_number = tl.sum(inside, 0), tl.sum(whole, 0), tl.sum(there, 0)
    found, first, second, weights = tl.sum(mass, 0), tl.sum(upper, 0), tl.sum(lower, 0), tl.sum(weighty, 0)
    count, top, bottom = tl.sum(sure, 0), tl.max(high, 0), tl.min(least, 0)
    tl.debug_barrier()
    put(state_ptr, IS_FRESH, number * 0)
    put(state_ptr, ARE_SUMMED, number * 0)
    put(state_ptr, LISTED_NUMBER, number)
    put(state_ptr, TIED, tied)
    put(state_ptr, SET_MASS, all_mass)
    put(state_ptr, PLACED_MASS, placed)
    put_number(state_ptr, all_number, size)
    put(state_ptr + SURE_AT, NUMBER_AT, count)
    put(state_ptr + SURE_AT, MASS_AT, found)
    put(state_ptr + SURE_AT, UPPER_AT, first)
    put(state_ptr + SURE_AT, LOWER_AT, second)
    put(state_ptr + SURE_AT, WEIGHTY_AT, weights)
    put(state_ptr + SURE_AT, TOP_AT, top)
    put(state_ptr + SURE_AT, LOW_AT, bottom)
    tl.debug_barrier()


@triton.jit
def stays_of(state_ptr, ids, q, key):
    """Whether tokens that a search listed stay, any shape, by where it cuts."""
    level = tl.abs(q - word(state_ptr, MEAN).to(tl.int32))
    cut_key, cut_id = word(state_ptr, CUT_KEY).to(tl.int32), word(state_ptr, CUT_ID).to(tl.int32)
    before = is_in(key, ids, cut_key, cut_id)
    is_near = (level <= word(state_ptr, LIMIT)) | ((level <= word(state_ptr, LEVEL)) & before)
    return (key > NEG_INF) & tl.where(word(state_ptr, IS_LEVELED) != 0, is_near, before)


@triton.jit(noinline=True)
def weigh_listed(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Adds those of the listed tokens that stay to what is known of the sure ones."""
    PART: tl.constexpr = TILE // 8
    m, c, trimmed, left = scales_of(state_ptr)
    length, shift = word(state_ptr, LISTED_NUMBER).to(tl.int32), shift_of(size, TILE)
    segments = tl.arange(0, SEGMENTS)
    tl.store(state_ptr + PARTS_AT + segments, (segments * 0).to(tl.int64))
    wide = (tl.arange(0, PART) * 0).to(tl.int64)
    mass, upper, lower = wide, wide, wide
    sure, weighty = tl.arange(0, PART) * 0, tl.arange(0, PART) * 0
    high, least = sure + NEG_INF, sure + POS_INF
    cut_token, cut_left = word(state_ptr, CUT_TOKEN), word(state_ptr, CUT_LEFT)
    tl.debug_barrier()
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, 1, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            stays = stays_of(state_ptr, ids, q, key)
            w = tl.where(stays, tl.where(ids == cut_token, cut_left, w), 0)
            tl.atomic_add(state_ptr + PARTS_AT + ((ids // TILE) >> shift), w, mask=stays, sem="relaxed", scope="cta")
            mass += w
            upper += (w * q) >> 32
            lower += (w * q) & _WORD
            sure += stays.to(tl.int32)
            weighty += (w > 0).to(tl.int32)
            high = tl.maximum(high, tl.where(stays, key, NEG_INF))
            least = tl.minimum(least, tl.where(stays, key, POS_INF))
    add_listed(
        state_ptr, tl.sum(sure, 0), tl.sum(mass, 0), tl.sum(upper, 0), tl.sum(lower, 0), tl.sum(weighty, 0),
        tl.max(high, 0), tl.min(least, 0), size, TILE,
    )


@triton.jit(noinline=True)
def weigh_tied(state_ptr, size, TILE: tl.constexpr):
    """Adds the first of the tokens at the key of the cut, up to its id, to what is known of those before them."""
    segments, number, tied = tl.arange(0, SEGMENTS), segments_of(size, TILE), word(state_ptr, TIED)
    stays, each = word(state_ptr, STAGE_GOAL), word(state_ptr, EACH)
    stays = tl.where(word(state_ptr, CUT_ID) >= NO_ID, tied, (stays + each - 1) // each)
    m, c, _, _ = scales_of(state_ptr)
    key, cut_token = word(state_ptr, CUT_KEY).to(tl.int32), word(state_ptr, CUT_TOKEN)
    q = exponent_of(value_of(key), m, c)
    w = weight_of(q)
    less = tl.where(cut_token >= 0, w - word(state_ptr, CUT_LEFT), 0)
    before = tl.load(state_ptr + PARTS_AT + segments, mask=segments < number, other=ALL)
    until = tl.load(state_ptr + PARTS_AT + segments + 1, mask=segments + 1 < number, other=ALL)
    before, until = tl.minimum(before, stays), tl.minimum(tl.minimum(until, tied), stays)
    cut_at = (cut_token // TILE) >> shift_of(size, TILE)
    parts = w * tl.maximum(until - before, 0) - tl.where(segments == cut_at, less, 0)
    tl.debug_barrier()
    tl.store(state_ptr + PARTS_AT + segments, parts)
    add_listed(
        state_ptr, stays, stays * w - less, stays * ((w * q) >> 32), stays * ((w * q) & _WORD),
        tl.where(w > 0, stays, 0), key, key, size, TILE,
    )


@triton.jit
def add_listed(state_ptr, number, mass, upper, lower, weighty, high, least, size, TILE: tl.constexpr):
    """Writes what stays once what is known of the listed tokens is added, with the mass before each segment."""
    tl.debug_barrier()
    segments, sure_ptr = tl.arange(0, SEGMENTS), state_ptr + SURE_AT
    parts = tl.load(state_ptr + PARTS_AT + segments, cache_modifier=".cg")
    masses = tl.load(state_ptr + MASSES + segments)
    number, mass = number + word(sure_ptr, NUMBER_AT), mass + word(sure_ptr, MASS_AT)
    upper, lower = upper + word(sure_ptr, UPPER_AT), lower + word(sure_ptr, LOWER_AT)
    weighty = weighty + word(sure_ptr, WEIGHTY_AT)
    high, least = tl.maximum(high, word(sure_ptr, TOP_AT)), tl.minimum(least, word(sure_ptr, LOW_AT))
    tl.debug_barrier()
    tl.store(state_ptr + MASSES + segments, masses + tl.cumsum(parts, 0) - parts)
    put(sure_ptr, NUMBER_AT, number)
    put(sure_ptr, MASS_AT, mass)
    put(sure_ptr, UPPER_AT, upper)
    put(sure_ptr, LOWER_AT, lower)
    put(sure_ptr, WEIGHTY_AT, weighty)
    put(sure_ptr, TOP_AT, high)
    put(sure_ptr, LOW_AT, least)
    put(state_ptr, SEGMENTED, segments_of(size, TILE))
    put(state_ptr, IS_WEIGHED_OUT, number * 0 + 1)
    put(state_ptr, IS_PARTED, number * 0)
    tl.debug_barrier()


@triton.jit(noinline=True)
def look_for_holes(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes whether some listed token that goes lies between those that stay."""
    PART: tl.constexpr = TILE // 8
    m, c, _, _ = scales_of(state_ptr)
    length, number = word(state_ptr, LISTED_NUMBER).to(tl.int32), tl.full((), 0, tl.int32)
    high = word(state_ptr + SURE_AT, TOP_AT)
    last, last_id = last_of_levels(state_ptr)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, 1, PART)
            goes = (key > NEG_INF) & (stays_of(state_ptr, ids, exponent_of(x, m, c), key) == 0)
            number += tl.sum((goes & (key <= high) & is_in(key, ids, last, last_id)).to(tl.int32), 0)
    tl.debug_barrier()
    put(state_ptr, IS_PARTED, number)
    tl.debug_barrier()


@triton.jit
def last_of_levels(state_ptr):
    """(key, id) of the last token in order that a typical keeps: by rank it may be one of several with that key."""
    least, cut_key = word(state_ptr + SURE_AT, LOW_AT).to(tl.int32), word(state_ptr, CUT_KEY).to(tl.int32)
    return least, tl.where(least == cut_key, word(state_ptr, CUT_ID).to(tl.int32), NO_ID)
# fmt: on
