"""The range of keys that holds every cut of a row, from the histogram of its exponents: no logit is read."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.entropy import factor_of, is_dynamic, is_temperature, scaled
from tirage.backends.torch.kernels.layout import (
    ALL_FIRST,
    FACTOR,
    FAR,
    FIRST_C,
    HEAD_KEY,
    HIGH,
    IS_GREEDY,
    KEPT,
    LANES,
    LAST,
    LAST_C,
    LOW,
    LOWEST,
    NEAR,
    NOT_COUNTED,
    PROGRAM,
    SUMMANDS,
    SUMMED,
    TOP,
    VARYING,
    WIDTH,
    constant,
    first_lane,
    lane_of,
    last_exponent,
    sum_of,
)  # fmt: skip
from tirage.backends.torch.kernels.rule import NEG_INF, POS_INF, exponent_of, lowest_key, target_of, value_of, weight_of
from tirage.backends.torch.kernels.thresholds import (
    is_by_logit,
    is_min_p,
    is_top_p,
    is_xtc,
    judged,
    least_by_logit,
    least_kept,
    least_number,
    reads_mass,
    reads_sums,
    widest_of,
)
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K

_TEMPERATURE, _TOP_K = tl.constexpr(int(TEMPERATURE)), tl.constexpr(int(TOP_K))
_UNIT = tl.constexpr(1 << 40)


@triton.jit
def at_lane(values, lane):
    """One of the values [BINS]."""
    return tl.sum(tl.where(tl.arange(0, LANES) == lane, values, 0), 0)


@triton.jit
def masses(counts, edge, before, m, c):
    """(least, greatest) mass of bins 0 ... i under c, int64 [BINS]: a token weighs what an end of its bin does, or less
    than one and more than the other."""
    n = counts.to(tl.int64)
    least = n * weight_of(exponent_of(value_of(edge), m, c))
    most = n * weight_of(exponent_of(value_of(before), m, c))
    return tl.cumsum(least, 0), tl.cumsum(most, 0)


@triton.jit
def sharpened(least, most, whole):
    """The same bounds where the mass of the row is known: what the rest weighs bounds them too."""
    rest_least, rest_most = at_lane(least, NOT_COUNTED) - least, at_lane(most, NOT_COUNTED) - most
    return tl.maximum(least, whole - rest_most), tl.minimum(most, whole - rest_least)


@triton.jit
def total_of(least, most, first, last):
    """(least, greatest) mass of a set that holds the bins before `first`, none after `last` and may cut between."""
    low = tl.where(first > 0, at_lane(least, first - 1), 0)
    return low, at_lane(most, tl.minimum(last, NOT_COUNTED))


@triton.jit
def lane_of_key(key, m, meta_ptr, row_ptr):
    """The lane of a threshold; the last one where it lets every token pass."""
    q = exponent_of(value_of(key), m, constant(meta_ptr, FIRST_C))
    return tl.where(key > NEG_INF + 1, lane_of(q, tl.load(row_ptr + NEAR), tl.load(row_ptr + FAR)), NOT_COUNTED)


@triton.jit
def known_lanes(op, step_ptr, numbers, m, c, high, is_cut, meta_ptr, row_ptr):
    """(first lane, last lane) of the cut of a step that no mass decides, all lanes where sums do; else BINS."""
    begin = tl.full((), LANES, tl.int32)
    if is_min_p(op, step_ptr):
        begin = lane_of_key(lowest_key(tl.load(step_ptr + 1).to(tl.int32), m, c, high), m, meta_ptr, row_ptr)
    if is_by_logit(op):
        begin = lane_of_key(least_by_logit(step_ptr, high), m, meta_ptr, row_ptr)
    if op == _TOP_K:
        begin = first_lane(numbers >= tl.load(step_ptr + 1))
    return tl.where(reads_sums(op) | (is_dynamic(op) & is_cut), 0, begin), begin


@triton.jit
def judged_lanes(op, step_ptr, low_total, high_total, sums_ptr, m, c, high, meta_ptr, row_ptr):
    """(first lane, last lane, key) of the threshold of a step by a set's mass, which lies between two totals.

    The key is that of the greater one.
    """
    begin, end = tl.full((), LANES, tl.int32), tl.full((), LANES, tl.int32)
    widest, key = widest_of(tl.load(row_ptr + LOW), m), high
    # Where the mass is known, one turn gives both ends.
    for side in range(tl.where(low_total == high_total, 1, 2)):
        # The likeliest token weighs 2^40 under every temperature.
        total = tl.where(side == 0, tl.maximum(low_total, _UNIT), high_total)
        limit, floor = judged(op, step_ptr, total, sums_ptr)
        key = least_kept(op, limit, floor, m, c, high, widest)
        # The likeliest token stays anyway, but XTC counts it only where it reaches the threshold.
        lane = tl.where(is_xtc(op) & (floor > _UNIT), -1, lane_of_key(key, m, meta_ptr, row_ptr))
        begin = tl.where(side == 0, lane, tl.minimum(begin, lane))
        end = tl.where(side == 0, lane, tl.maximum(end, lane))
    return begin, end, key


@triton.jit
def removed_lane(numbers, end):
    """The first lane of what an XTC may remove, BINS where fewer than two tokens may reach its threshold."""
    return tl.where(at_lane(numbers, tl.minimum(end, NOT_COUNTED)) < 2, LANES, 0)  # pyright: ignore[reportOperatorIssue]


@triton.jit
def goal_lanes(step_ptr, least, most, first, last, base_low, base_high, is_known):
    """(first lane, last lane) of the cut of a top-p, BINS where it cuts nothing; see `bound` for `first` and `last`.

    The last one is only likely where the mass of the row is not known, and the row uncut.
    """
    begin, end = tl.full((), LANES, tl.int32), tl.full((), LANES, tl.int32)
    low_total, high_total = total_of(least, most, first, last)
    a, b, joint = tl.load(step_ptr + 1), tl.load(step_ptr + 2), tl.load(step_ptr + 4) > 0
    low_goal = target_of(a, tl.where(joint, base_low, low_total), b)
    high_goal = target_of(a, tl.where(joint, base_high, high_total), b)
    if low_goal <= high_total:
        certain = (high_goal <= low_total) | (last == LANES)
        begin = first_lane(most >= low_goal)
        end = tl.where(certain, first_lane(least >= high_goal), last)
        if (is_known == 0) & (joint == 0) & (last == LANES):
            # Halfway between the bounds, and a quarter of the rest further on.
            middle = least + ((most - least) >> 1)
            goal = target_of(a, at_lane(middle, NOT_COUNTED), b)
            end = tl.minimum(end, first_lane(middle >= goal + ((at_lane(middle, NOT_COUNTED) - goal) >> 2)))
    return begin, end


@triton.jit
def constant_after(op, step_ptr, c, is_cut, meta_ptr, row_ptr, sums_ptr, size):
    """The constant c after a step, before it c; what a dynamic temperature makes of a set that is cut is not known."""
    if op == _TEMPERATURE:
        c = constant(step_ptr, 1)
    if is_dynamic(op) & (is_cut == 0):
        factor = factor_of(step_ptr, meta_ptr, sums_ptr, size)
        c = scaled(step_ptr, 1, factor)
        tl.store(row_ptr + LAST, c.to(tl.int32, bitcast=True))
        tl.store(row_ptr + FACTOR, factor.to(tl.int32, bitcast=True))
    return c


@triton.jit
def edges_of(row_ptr, m, c, high):
    """(last keys of the lanes, last exponents of the lanes before them, last keys of those), int32 [BINS] each."""
    near, far = tl.load(row_ptr + NEAR), tl.load(row_ptr + FAR)
    lanes = tl.arange(0, LANES)
    edge = lowest_key(last_exponent(lanes, near, far), m, c, high)
    limit = last_exponent(lanes - 1, near, far)
    return edge, limit, lowest_key(limit, m, c, high)


@triton.jit
def store_range(row_ptr, edge, above, first, widest):
    """Write the range that holds lanes `first` to `widest`, whose last keys are `edge`, below the keys `above`."""
    inside = tl.where(first < LANES, at_lane(above, tl.minimum(first, NOT_COUNTED)), NEG_INF + 1)
    outside = tl.where(widest >= NOT_COUNTED, NEG_INF + 1, at_lane(edge, tl.maximum(widest, 0)))
    tl.store(row_ptr + LOWEST, tl.where(widest < 0, inside, outside))
    tl.store(row_ptr + TOP, inside)


@triton.jit(do_not_specialize=VARYING)
def bound(
    bins_ptr, sums_ptr, meta_ptr, row_ptr, status_ptr, mass_ptr, columns, size, blocks, steps, PADDED: tl.constexpr
):
    """The open range of each row, [lowest, top): it holds every cut; keys above are in every set, keys below in none.

    Its steps are run on bins. `first` and `last` enclose the bin of the cut so far, and are BINS while nothing is cut.
    A threshold, or a temperature, that follows from sums over a set that is cut already leaves that whole set open.
    """
    row = tl.program_id(0).to(tl.int64)
    meta_ptr += row * columns
    row_ptr += row * WIDTH
    mass_ptr += row * blocks * 4
    if (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0):
        high = tl.load(row_ptr + HIGH)
        m, c = value_of(high), constant(meta_ptr, FIRST_C)
        counts = tl.load(bins_ptr + row * LANES + tl.arange(0, LANES))
        edge, limit, before = edges_of(row_ptr, m, c, high)
        numbers = tl.cumsum(counts, 0)
        whole = sum_of(mass_ptr, ALL_FIRST, blocks, PADDED)
        least, most = masses(counts, edge, before, m, c)
        least, most = sharpened(least, most, whole)
        base_low, base_high = whole, whole
        first, last = tl.full((), LANES, tl.int32), tl.full((), LANES, tl.int32)
        widest = tl.full((), -1, tl.int32)
        tl.store(row_ptr + LAST, tl.load(meta_ptr + LAST_C).to(tl.int32))
        tl.store(row_ptr + FACTOR, 0)
        tl.store(row_ptr + HEAD_KEY, POS_INF)
        for s in range(steps):
            step_ptr = meta_ptr + PROGRAM + s * 6
            op = tl.load(step_ptr)
            c = constant_after(op, step_ptr, c, first < LANES, meta_ptr, row_ptr, sums_ptr + row * SUMMANDS, size)
            if is_temperature(op):
                least, most = masses(counts, edge, before, m, c)
                if c == constant(meta_ptr, FIRST_C):
                    least, most = sharpened(least, most, whole)
                base_low, base_high = total_of(least, most, first, last)
            # The bins that enclose the cut of this step alone: BINS where it cuts nothing.
            begin, end = known_lanes(op, step_ptr, numbers, m, c, high, first < LANES, meta_ptr, row_ptr)
            is_summed = reads_sums(op) & (op == tl.load(meta_ptr + SUMMED)) & (c == constant(meta_ptr, FIRST_C))
            if reads_mass(op) | is_summed | is_xtc(op):
                low_total, high_total = total_of(least, most, first, last)
                if is_summed:
                    low_total, high_total = whole, whole
                begin, end, key = judged_lanes(
                    op, step_ptr, low_total, high_total, sums_ptr + row * SUMMANDS, m, c, high, meta_ptr, row_ptr
                )
                if is_summed:
                    tl.store(row_ptr + KEPT, key)
                    begin, end = tl.where(first < LANES, 0, begin), tl.where(first < LANES, LANES, end)
            if is_xtc(op):
                begin = removed_lane(numbers, end)
            if is_top_p(op):
                begin, end = goal_lanes(
                    step_ptr, least, most, first, last, base_low, base_high, c == constant(meta_ptr, FIRST_C)
                )
            floor = least_number(op, step_ptr)
            if floor > 1:
                lane = first_lane(numbers >= floor)
                begin, end = tl.maximum(begin, lane), tl.maximum(end, lane)
            if begin < LANES:
                first = tl.minimum(first, begin)
                last = tl.minimum(tl.minimum(last, end), NOT_COUNTED)
                widest = tl.maximum(widest, last)
        store_range(row_ptr, edge, tl.where(limit < 0, high + 1, before), first, widest)
