"""What a step keeps of a set: listed in the place of the list of the set, with its number, its mass and its ends."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    POS_INF,
    exponent_of,
    is_in,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.sets.marks import bits_at, spared_marks
from tirage.backends.torch.kernels.sets.segments import begin_segment, segments_of, shift_of
from tirage.backends.torch.kernels.sets.tokens import length_of, members_at, scales_of, spread_at, weights_at
from tirage.backends.torch.kernels.sets.words import (
    ARE_KEPT,
    CUT_ID,
    CUT_KEY,
    INTO_AT,
    IS_LISTED,
    IS_REMOVED,
    IS_SIGMA,
    KEPT,
    KEPT_LOW,
    KEPT_MASS,
    KEPT_TOP,
    KEPT_WEIGHTY,
    LEAST,
    LEVEL,
    LIMIT,
    LOW_KEY,
    MEAN,
    SEGMENTED,
    SPARES,
    TOP_KEY,
    WRITES,
    put,
    word,
)


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
            spared = bits_at(spared_marks(list_ptr, size), ids, is_asked)
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
def all_stay(state_ptr):
    """Whether `keep` would remove nothing, by the largest and the least logit of the set."""
    m, c, trimmed, _ = scales_of(state_ptr)
    mean, least, limit = word(state_ptr, MEAN).to(tl.int32), word(state_ptr, LEAST), word(state_ptr, LIMIT)
    first = exponent_of(value_of(word(state_ptr, TOP_KEY).to(tl.int32)), m, c)
    last = exponent_of(value_of(word(state_ptr, LOW_KEY).to(tl.int32)), m, c)
    near = (tl.maximum(tl.abs(first - mean), tl.abs(last - mean)) <= limit) & (word(state_ptr, IS_SIGMA) == 0)
    heavy = (weight_of(last) >= least) & ((trimmed < 0) | (least <= 0))
    return (near | heavy) & (word(state_ptr, IS_REMOVED) == 0)
# fmt: on
