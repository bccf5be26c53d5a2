"""Between which places a search looks for its token, and about how many tokens a range has, by a row's histogram.

The first pass counts the logits of a row in lanes, so that neither takes a reading: a token of a lane weighs no less
than one at its last key, and no more than one at its first. What is known of the set stands in the row's words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import POS_INF, exponent_of, target_of, value_of, weight_of
from tirage.backends.torch.kernels.histogram.lanes import lowest_in, stored_knots
from tirage.backends.torch.kernels.layout import FIRST_C, LANES, MASS_FROM, MASS_TO
from tirage.backends.torch.kernels.sets.tokens import is_whole, put_number, scales_of
from tirage.backends.torch.kernels.sets.words import (
    AHEAD,
    ALL_TOP,
    BASIS,
    BETWEEN,
    CONSTANT,
    FIRST_KEY,
    GOAL,
    HAS_LANES,
    IS_SCANNED,
    IS_WEIGHED,
    LANES_AT,
    LAST_KEY,
    LEVEL,
    LOW_KEY,
    MASS_CONSTANT,
    MASS_LEAST,
    MASS_MOST,
    MEAN,
    ONLY_TIED,
    PLACE_END,
    PLACE_LOW,
    REACHED,
    SCAN_END,
    SCAN_LOW,
    STAYS_WHOLE,
    SUMS_AT,
    TOP_KEY,
    TRIMMED,
    put,
    word,
)

_KEY, _COUNT = tl.constexpr(32), tl.constexpr(0xFFFFFFFF)
_TURNS = tl.constexpr(32)
FEWER = tl.constexpr(16)
"""Those that are still looked at are listed once they are fewer than one in so many of the vocabulary."""
_FEW_FIRST, _FEWER_FIRST = tl.constexpr(8), tl.constexpr(32)
"""All from the first one on are listed, so that what is not listed is gone, where they are fewer than one in so many if
nothing else can be done, else where a list of them is nothing."""


# fmt: off
@triton.jit(noinline=True)
def keep_lanes(bins_ptr, sums_ptr, state_ptr, row_ptr, meta_ptr, high):
    """Writes the lanes of a row's histogram, and clears it: the next draw counts from 0.

    There is none of a row that was not counted.
    """
    lanes = tl.arange(0, LANES)
    counts = tl.load(bins_ptr + lanes)
    edge = lowest_in(lanes, stored_knots(row_ptr), high)
    tl.debug_barrier()
    tl.store(bins_ptr + lanes, lanes * 0)
    tl.store(state_ptr + LANES_AT + lanes, (edge.to(tl.int64) << _KEY) | counts)
    put(state_ptr, HAS_LANES, tl.max((counts > 0).to(tl.int32), 0))
    put(state_ptr, MASS_LEAST, tl.load(sums_ptr + MASS_FROM))
    put(state_ptr, MASS_MOST, tl.load(sums_ptr + MASS_TO))
    put(state_ptr, MASS_CONSTANT, tl.load(meta_ptr + FIRST_C).to(tl.int32))
    tl.debug_barrier()


@triton.jit
def lanes_of(state_ptr):
    """(tokens that may be in each lane, those that surely are, first and last keys), [LANES] each, of the set."""
    lanes, top, low = tl.arange(0, LANES), word(state_ptr, TOP_KEY).to(tl.int32), word(state_ptr, LOW_KEY).to(tl.int32)
    packed = tl.load(state_ptr + LANES_AT + lanes)
    before = tl.load(state_ptr + LANES_AT + lanes - 1, mask=lanes > 0, other=0) >> _KEY
    near = tl.where(lanes > 0, before, word(state_ptr, ALL_TOP) + 1).to(tl.int32) - 1
    far, counts = (packed >> _KEY).to(tl.int32), (packed & _COUNT).to(tl.int32)
    is_sure = (far > word(state_ptr, LAST_KEY)) & (near < word(state_ptr, FIRST_KEY))
    # Only what stands between the first and the last key of the set may be in it.
    counts = tl.where((near >= low) & (far <= top), counts, 0)
    return counts, tl.where(is_sure, counts, 0), tl.minimum(near, top), tl.maximum(far, low)


@triton.jit
def number_from(state_ptr, key):
    """The most tokens of the set that may have at least this key, int32."""
    counts, _, near, _ = lanes_of(state_ptr)
    return tl.sum(tl.where(near >= key, counts, 0), 0)


@triton.jit(noinline=True)
def enclose_by_key(state_ptr, goal, most_goal, total, most_total, size):
    """Brings the places of a search by key nearer to each other; its goal, and the mass of its set, lie between two
    numbers."""
    m, c, _, _ = scales_of(state_ptr)
    low, end = word(state_ptr, PLACE_LOW), word(state_ptr, PLACE_END)
    is_weighed = word(state_ptr, IS_WEIGHED) != 0
    counts, sure, near, far = lanes_of(state_ptr)
    if is_weighed == 0:
        # Numbers are of a set from which nothing was removed: how many tokens it has is known then.
        total = tl.sum(counts, 0).to(tl.int64)
        put_number(state_ptr, total, size)
        goal, most_total = tl.minimum(goal, total), total
        most_goal = goal
    light = tl.where(is_weighed, weight_of(exponent_of(value_of(far), m, c)), 1) * sure
    heavy = tl.where(is_weighed, weight_of(exponent_of(value_of(near), m, c)), 1) * counts
    all_light, all_heavy, least, most = tl.sum(light, 0), tl.sum(heavy, 0), tl.cumsum(light, 0), tl.cumsum(heavy, 0)
    # What comes after a lane bounds what comes before.
    least, most = tl.maximum(least, total - all_heavy + most), tl.minimum(most, most_total - all_light + least)
    first, last = -near.to(tl.int64) + POS_INF, -far.to(tl.int64) + POS_INF
    is_there = counts > 0
    new_low = tl.max(tl.where(is_there & (most < goal), last, low), 0)
    new_end = tl.min(tl.where(is_there & (least >= most_goal), last, end), 0)
    # No token is at the places before the next lane that has some.
    new_low = tl.maximum(new_low, tl.min(tl.where(is_there & (last > new_low), first, new_end), 0) - 1)  # pyright: ignore[reportOperatorIssue]
    new_low = tl.minimum(new_low, new_end - 1)  # pyright: ignore[reportOperatorIssue]
    ahead = tl.sum(tl.where(last <= new_low, counts, 0), 0)
    number = tl.sum(tl.where((last > new_low) & (first <= new_end), counts, 0), 0)
    tl.debug_barrier()
    put(state_ptr, GOAL, goal)
    put(state_ptr, PLACE_LOW, new_low)
    put(state_ptr, PLACE_END, new_end)
    put(state_ptr, BETWEEN, number)
    put(state_ptr, AHEAD, ahead)
    put(state_ptr, REACHED, ahead)
    tl.debug_barrier()


@triton.jit(noinline=True)
def enclose_by_level(state_ptr):
    """Brings the places of a search by level nearer to each other: what is within a level of the mean exponent is in
    lanes on both sides of it."""
    m, c, _, _ = scales_of(state_ptr)
    goal, total, mean = word(state_ptr, GOAL), word(state_ptr, SUMS_AT + 1), word(state_ptr, MEAN).to(tl.int32)
    counts, sure, near, far = lanes_of(state_ptr)
    near, far = exponent_of(value_of(near), m, c), exponent_of(value_of(far), m, c)
    light, heavy = weight_of(far) * sure, weight_of(near) * counts
    least_level = tl.maximum(tl.maximum(near - mean, mean - far), 0)
    most_level = tl.maximum(tl.abs(near - mean), tl.abs(far - mean))
    low, end = word(state_ptr, PLACE_LOW).to(tl.int32), word(state_ptr, PLACE_END).to(tl.int32)
    # Up to `low` the tokens surely do not reach the goal; up to `reached` they surely do.
    unknown, reached, short = end, end, low
    for _ in range(_TURNS):
        level = low + ((unknown - low) >> 1)
        is_in = least_level <= level
        most = tl.minimum(tl.sum(tl.where(is_in, heavy, 0), 0), total - tl.sum(tl.where(is_in, 0, light), 0))
        low, unknown = tl.where(most < goal, level, low), tl.where(most < goal, unknown, level)
        level = short + ((reached - short) >> 1)
        is_in = most_level <= level
        least = tl.maximum(tl.sum(tl.where(is_in, light, 0), 0), total - tl.sum(tl.where(is_in, 0, heavy), 0))
        short, reached = tl.where(least < goal, level, short), tl.where(least < goal, reached, level)
    # No token is at the levels before the next lane that has some.
    low = tl.maximum(low, tl.min(tl.where((counts > 0) & (most_level > low), least_level, reached), 0) - 1)  # pyright: ignore[reportOperatorIssue]
    low = tl.minimum(low, reached - 1)
    number = tl.sum(tl.where((most_level > low) & (least_level <= reached), counts, 0), 0)
    ahead = tl.sum(tl.where(most_level <= low, counts, 0), 0)
    tl.debug_barrier()
    put(state_ptr, PLACE_LOW, low)
    put(state_ptr, PLACE_END, reached)
    put(state_ptr, BETWEEN, number)
    put(state_ptr, AHEAD, ahead)
    tl.debug_barrier()


@triton.jit
def are_listed(state_ptr, ahead, number, size):
    """Whether tokens between the places of a search are listed with all before them, as what a step keeps."""
    # A range of the row that is weighed in the same reading takes no other; a list of many tokens takes some parts of
    # one.
    can_be_range = (number <= size // FEWER) & (word(state_ptr, STAYS_WHOLE) == 0) & (word(state_ptr, TRIMMED) < 0)
    return ahead + number <= size // tl.where(can_be_range, _FEWER_FIRST, _FEW_FIRST)


@triton.jit(noinline=True)
def look_ahead(state_ptr, step_ptr, size):
    """Writes between which places a top-p likely cuts a set that is not summed yet, where few tokens are between them,
    or one key; else that nothing is listed before it is."""
    m, c, _, _ = scales_of(state_ptr)
    top, low = word(state_ptr, TOP_KEY), word(state_ptr, LOW_KEY)
    counts, sure, near, far = lanes_of(state_ptr)
    total = tl.sum(weight_of(exponent_of(value_of(far), m, c)) * sure, 0)
    most_total = tl.sum(weight_of(exponent_of(value_of(near), m, c)) * counts, 0)
    # The first pass weighs the row under its first temperature.
    is_known = is_whole(state_ptr) & (word(state_ptr, BASIS) == word(state_ptr, ALL_TOP))
    is_known &= word(state_ptr, CONSTANT).to(tl.int32) == word(state_ptr, MASS_CONSTANT).to(tl.int32)
    total = tl.maximum(total, tl.where(is_known, word(state_ptr, MASS_LEAST), 0))
    most_total = tl.minimum(most_total, tl.where(is_known, word(state_ptr, MASS_MOST), most_total))
    share, rule = tl.load(step_ptr + 1), tl.load(step_ptr + 2)
    goal, most_goal = target_of(share, total, rule), target_of(share, most_total, rule)
    tl.debug_barrier()
    put(state_ptr, PLACE_LOW, -top + POS_INF - 1)
    put(state_ptr, PLACE_END, -low + POS_INF)
    put(state_ptr, IS_WEIGHED, top * 0 + 1)
    # So many are looked at in any order.
    put(state_ptr, LEVEL, top * 0 - 1)
    tl.debug_barrier()
    enclose_by_key(state_ptr, goal, most_goal, total, most_total, size)
    low, end = word(state_ptr, PLACE_LOW), word(state_ptr, PLACE_END)
    number, ahead = word(state_ptr, BETWEEN), word(state_ptr, AHEAD)
    tl.debug_barrier()
    put(state_ptr, SCAN_LOW, low)
    put(state_ptr, SCAN_END, end)
    is_prefix = are_listed(state_ptr, ahead, number, size)
    is_few = tl.where(number <= size // FEWER, 1, tl.where(low + 1 == end, ONLY_TIED, 0))
    put(state_ptr, IS_SCANNED, tl.where(is_prefix, 2, is_few))
    tl.debug_barrier()
# fmt: on
