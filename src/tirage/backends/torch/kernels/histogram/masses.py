"""What bins of a histogram weigh at least and at most, from the first one on, and where a top-p likely cuts."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import exponent_of, target_of, times, value_of, weight_of
from tirage.backends.torch.kernels.histogram.averages import edges_of
from tirage.backends.torch.kernels.histogram.lanes import at_lane
from tirage.backends.torch.kernels.layout import BASE, LANES, LEFT, MASS_FROM, MASS_TO, NOT_COUNTED, first_lane

_UNIT = tl.constexpr(1 << 40)
_UNEVEN = tl.constexpr(2.0**-4)
"""A mass is likely in the middle of its bounds, but for this part of what lies between them."""


@triton.jit
def masses(counts, edge_ptr, high, m, c):
    """(least, greatest) mass of bins 0 ... i under c, int64 [BINS], by the number of tokens in each and their edges."""
    edge, before = edges_of(edge_ptr, high)
    # The likeliest token weighs 2^40.
    is_top = tl.arange(0, LANES) == first_lane(counts > 0)
    n, known = (counts - is_top.to(tl.int32)).to(tl.int64), tl.where(is_top, _UNIT, 0)
    least = n * weight_of(exponent_of(value_of(edge), m, c)) + known
    most = n * weight_of(exponent_of(tl.minimum(value_of(before - 1), m), m, c)) + known
    return tl.cumsum(least, 0), tl.cumsum(most, 0)


@triton.jit
def sharpened(least, most, low, high):
    """The same bounds where the mass of the row is known to lie between two: what the rest weighs bounds them too."""
    rest_least, rest_most = at_lane(least, NOT_COUNTED) - least, at_lane(most, NOT_COUNTED) - most
    return tl.maximum(least, low - rest_most), tl.minimum(most, high - rest_least)


@triton.jit
def store_bounds(sums_ptr, least, most):
    """Write the least and the greatest mass of a row by the bounds of its bins."""
    low, high = at_lane(least, NOT_COUNTED), at_lane(most, NOT_COUNTED)
    tl.store(sums_ptr + MASS_FROM, low)
    tl.store(sums_ptr + MASS_TO, high)
    store_bases(sums_ptr, low, high)


@triton.jit
def store_bases(sums_ptr, low, high):
    """Write the least and the greatest mass of the set that the last temperature sees: `resolve` has not come yet to
    what stands there else."""
    tl.debug_barrier()
    tl.store(sums_ptr + LEFT, low)
    tl.store(sums_ptr + BASE, high)
    tl.debug_barrier()


@triton.jit
def masses_again(counts, edge_ptr, sums_ptr, high, m, c, is_first):
    """The masses of bins under a temperature; where that is the first one, the mass of the row sharpens them."""
    least, most = masses(counts, edge_ptr, high, m, c)
    if is_first:
        known = tl.load(sums_ptr + MASS_FROM, cache_modifier=".cg")
        least, most = sharpened(least, most, known, tl.load(sums_ptr + MASS_TO, cache_modifier=".cg"))
    return least, most


@triton.jit
def total_of(least, most, first, last):
    """(least, greatest) mass of a set that holds the bins before `first`, none after `last` and may cut between."""
    low = tl.where(first > 0, at_lane(least, first - 1), 0)
    return low, at_lane(most, tl.minimum(last, NOT_COUNTED))


@triton.jit
def likely_lanes(a, b, least, most):
    """(first lane, last lane) that likely hold where a top-p cuts, by the bounds of what bins 0 ... i weigh.

    Masses are likely halfway between their bounds, where logits are spread evenly in their lanes, or nearly so. What
    lanes are off by mostly makes up for each other, but where few of them weigh much it may not. As the goal is a part
    of the whole mass, what is up to a lane counts for the rest of that only, and what is behind it for the part.
    """
    lanes, width = tl.arange(0, LANES), (most - least).to(tl.float32)
    total = at_lane(least, NOT_COUNTED) + (at_lane(most - least, NOT_COUNTED) >> 1)  # pyright: ignore[reportOperatorIssue]
    goal = target_of(a, total, b)
    part = tl.div_rn(goal.to(tl.float32), total.to(tl.float32))
    rest = tl.maximum(1.0 - part, 0.0)
    even = times(times(rest, width) + times(part, at_lane(width, NOT_COUNTED) - width), _UNEVEN)
    width -= tl.where(lanes > 0, tl.gather(width, tl.maximum(lanes - 1, 0), 0), 0.0)
    square = tl.cumsum(times(width, width), 0)
    behind = tl.maximum(at_lane(square, NOT_COUNTED) - square, 0.0)
    single = tl.sqrt_rn(times(times(rest, rest), square) + times(times(part, part), behind))
    doubt, middle = tl.maximum(even, single).to(tl.int64), least + ((most - least) >> 1)
    return first_lane(middle >= goal - doubt), first_lane(middle >= goal + doubt)
