"""The range of keys that holds every cut of a row, from the histogram of its exponents: no logit is read."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.layout import (
    ALL_FIRST,
    FAR,
    FIRST_C,
    HIGH,
    IS_GREEDY,
    LANES,
    LOWEST,
    NEAR,
    NOT_COUNTED,
    PROGRAM,
    TOP,
    VARYING,
    WIDTH,
    constant,
    first_lane,
    lane_of,
    last_exponent,
    sum_of,
)  # fmt: skip
from tirage.backends.torch.kernels.rule import LIMIT, NEG_INF, exponent_of, lowest_key, target_of, value_of, weight_of
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P

_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(int(op)) for op in (TEMPERATURE, TOP_K, TOP_P, MIN_P))


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


@triton.jit(do_not_specialize=VARYING)
def bound(bins_ptr, meta_ptr, row_ptr, status_ptr, mass_ptr, columns, blocks, steps, PADDED: tl.constexpr):
    """The open range of each row, [lowest, top): it holds every cut; keys above are in every set, keys below in none.

    Its steps are run on bins. `first` and `last` enclose the bin of the cut so far, and are BINS while nothing is cut.
    """
    row = tl.program_id(0).to(tl.int64)
    meta_ptr += row * columns
    if (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0):
        high = tl.load(row_ptr + row * WIDTH + HIGH)
        near, far = tl.load(row_ptr + row * WIDTH + NEAR), tl.load(row_ptr + row * WIDTH + FAR)
        m, c = value_of(high), constant(meta_ptr, FIRST_C)
        first_c = c
        lanes = tl.arange(0, LANES)
        counts = tl.load(bins_ptr + row * LANES + lanes)
        edge = lowest_key(last_exponent(lanes, near, far), m, c, high)
        limit = last_exponent(lanes - 1, near, far)
        before = lowest_key(limit, m, c, high)
        numbers = tl.cumsum(counts, 0)
        whole = sum_of(mass_ptr + row * blocks * 4, ALL_FIRST, blocks, PADDED)
        least, most = masses(counts, edge, before, m, c)
        least, most = sharpened(least, most, whole)
        base_low, base_high = whole, whole
        first, last = tl.full((), LANES, tl.int32), tl.full((), LANES, tl.int32)
        widest = tl.full((), -1, tl.int32)
        for s in range(steps):
            op = tl.load(meta_ptr + PROGRAM + s * 6)
            a, b = tl.load(meta_ptr + PROGRAM + s * 6 + 1), tl.load(meta_ptr + PROGRAM + s * 6 + 2)
            if op == _TEMPERATURE:
                c = a.to(tl.int32).to(tl.float32, bitcast=True)
                least, most = masses(counts, edge, before, m, c)
                if c == first_c:
                    least, most = sharpened(least, most, whole)
                base_low, base_high = total_of(least, most, first, last)
            if (op == _MIN_P) & (a < LIMIT):
                key = lowest_key(a.to(tl.int32), m, c, high)
                lane = lane_of(exponent_of(value_of(key), m, first_c), near, far)
                lane = tl.where(key > NEG_INF + 1, lane, NOT_COUNTED)
                first, last = tl.minimum(first, lane), tl.minimum(last, lane)
                widest = tl.maximum(widest, last)
            if op == _TOP_K:
                lane = first_lane(numbers >= a)
                if lane < LANES:
                    first, last = tl.minimum(first, lane), tl.minimum(last, lane)
                    widest = tl.maximum(widest, last)
            if op == _TOP_P:
                low_total, high_total = total_of(least, most, first, last)
                joint = tl.load(meta_ptr + PROGRAM + s * 6 + 4) > 0
                low_goal = target_of(a, tl.where(joint, base_low, low_total), b)
                high_goal = target_of(a, tl.where(joint, base_high, high_total), b)
                if low_goal <= high_total:
                    certain = (high_goal <= low_total) | (last == LANES)
                    upper = tl.where(certain, first_lane(least >= high_goal), last)
                    first = tl.minimum(first, first_lane(most >= low_goal))
                    last = tl.minimum(tl.minimum(last, upper), NOT_COUNTED)
                    widest = tl.maximum(widest, last)
        above = tl.where(limit < 0, high + 1, before)
        inside = tl.where(first < LANES, at_lane(above, tl.minimum(first, NOT_COUNTED)), NEG_INF + 1)
        outside = tl.where(widest >= NOT_COUNTED, NEG_INF + 1, at_lane(edge, tl.maximum(widest, 0)))
        tl.store(row_ptr + row * WIDTH + LOWEST, tl.where(widest < 0, inside, outside))
        tl.store(row_ptr + row * WIDTH + TOP, inside)
