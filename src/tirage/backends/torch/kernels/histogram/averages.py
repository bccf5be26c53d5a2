"""Bounds of the averages of a row that thresholds follow from, told by its histogram before any sum is exact.

Lanes tell how many tokens have logits between two ends; the greatest and the least logit of the row are known. So each
token's exponent, weight or distance is known but for the width of its lane, and the average but for the average width.
All is counted from about the average itself, as otherwise what is not known of weights would count for its distance
from 0. Sums of up to `BINS` numbers in float64 are off by less than 2^-43 of the sum of their magnitudes, which is
added to the bounds as 2^-40.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import exponent_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import NEVER, distance_of, root_of, share_of
from tirage.backends.torch.kernels.layout import LANES, NOT_COUNTED
from tirage.operators.eta import ETA
from tirage.operators.top_n_sigma import TOP_N_SIGMA

_ETA, _SIGMA = tl.constexpr(int(ETA)), tl.constexpr(int(TOP_N_SIGMA))
_UNIT = tl.constexpr(2.0**40)
_ROUNDED = tl.constexpr(2.0**-40)
_THIRD = tl.constexpr(1 / 3)
_EVEN = tl.constexpr(3)
"""A deviation is likely off by an eighth of what it can be."""


@triton.jit
def edges_of(edge_ptr, high):
    """(last keys of the lanes, last keys of the lanes before them), int32 [BINS] each: one above `high` for none."""
    lanes = tl.arange(0, LANES)
    before = tl.load(edge_ptr + lanes - 1, mask=lanes > 0, other=high + 1, cache_modifier=".cg")
    return tl.load(edge_ptr + lanes, cache_modifier=".cg"), before


@triton.jit
def between(counts, edge_ptr, low, high):
    """(number, least logit, greatest logit) of the tokens of each lane, [BINS] each, but one of the row's least logit
    and one of its greatest, which are those of the keys `low` and `high`."""
    lanes = tl.arange(0, LANES)
    first = tl.min(tl.where(counts > 0, lanes, LANES), 0)
    last = tl.max(tl.where(counts > 0, lanes, 0), 0)
    known = (lanes == first).to(tl.int32) + ((lanes == last) & (low < high)).to(tl.int32)
    edge, before = edges_of(edge_ptr, high)
    least = value_of(tl.minimum(tl.maximum(edge, low), high))
    return (counts - known).to(tl.float64), least, value_of(tl.minimum(tl.maximum(before - 1, low), high))


@triton.jit
def weighed_by(op, x, m, c):
    """(weights, numbers that a threshold follows from the average of) of logits, any shape, float64 each: their
    exponents, or for p-less their weights."""
    q = exponent_of(x, m, c)
    w = weight_of(q).to(tl.float64)
    return w, tl.where(op == _ETA, q.to(tl.float64), w)


@triton.jit
def mean_bound(op, side, counts, edge_ptr, low, high, c, least_mass, most_mass):
    """The least average over a row, by weight, of what `weighed_by` gives, or on the `side` 1 the greatest: float64.

    It is off by 2 at most. The row's mass lies between two numbers.
    """
    m = value_of(high)
    n, least, greatest = between(counts, edge_ptr, low, high)
    light, one = weighed_by(op, least, m, c)
    heavy, other = weighed_by(op, greatest, m, c)
    first = tl.where(op == _ETA, 0.0, _UNIT).to(tl.float64)
    # Any number would do to count from: this one is close to the average.
    middle = n * (light + heavy) * 0.5
    about = (tl.sum(middle * (one + other) * 0.5, 0) + first * _UNIT) / (tl.sum(middle, 0) + _UNIT)
    distance = tl.where(side == 0, tl.minimum(one, other), tl.maximum(one, other)) - about
    parts = n * tl.where((distance >= 0) == (side == 0), light, heavy) * distance
    last_w, last = weighed_by(op, value_of(low), m, c)
    ends = _UNIT * (first - about) + tl.where(low < high, last_w, 0.0) * (last - about)
    sign = tl.where(side == 0, -1.0, 1.0).to(tl.float64)
    doubt = (tl.sum(tl.abs(parts), 0) + _UNIT * about + tl.abs(ends)) * _ROUNDED
    total = tl.sum(parts, 0) + ends + sign * doubt
    mass = tl.where((total >= 0) == (side == 0), most_mass, least_mass).to(tl.float64)
    return about + total / mass + sign * 2.0


@triton.jit
def likely_half(n, half):
    """How far the tokens of each lane, so many of them, likely are from its greatest logit: half of its width.

    The last lane has no end of its own: what is there likely falls off as evenly as the lane before it tells.
    """
    lanes = tl.arange(0, LANES)
    last, before = lanes == NOT_COUNTED - 1, lanes == NOT_COUNTED - 2
    number, each = tl.sum(tl.where(last, n, 0.0), 0), tl.maximum(tl.sum(tl.where(before, n, 0.0), 0), 1.0)
    falling = number * tl.sum(tl.where(before, half, 0.0), 0) * 2.0 / each
    return tl.where(last, tl.minimum(half, falling), half)


@triton.jit
def deviation_bound(side, counts, edge_ptr, low, high, widest, is_likely):
    """The least floor(2 * deviation) of a row's distances from its greatest logit, as `judged` has it, or the greatest:
    uint64. Where that `is_likely` enough, they are those of a row whose logits are spread about evenly in their lanes.

    Of the middles of lanes instead it is off by no more than the root of the average square of half their widths. Where
    logits are spread evenly, a third of that is what their squares are off by, and the rest makes up for each other.
    """
    m = value_of(high)
    n, least, greatest = between(counts, edge_ptr, low, high)
    near = distance_of(greatest, m, widest).to(tl.float64)
    far = distance_of(least, m, widest).to(tl.float64)
    last, there = distance_of(value_of(low), m, widest).to(tl.float64), (low < high).to(tl.float64)
    number = tl.sum(n, 0) + 1.0 + there
    half = (far - near) * 0.5
    width = root_of((tl.sum(n * half * half, 0) / number * 4.0).to(tl.uint64)).to(tl.int64)
    width = tl.where(is_likely, width >> _EVEN, width)
    half = tl.where(is_likely, likely_half(n, half), half)
    middle = near + half
    mean = (tl.sum(n * middle, 0) + last * there) / number
    off, end = middle - mean, last - mean
    square = (tl.sum(n * off * off, 0) + mean * mean + end * end * there) / number
    square += tl.where(is_likely, tl.sum(n * half * half, 0) / number * _THIRD, 0.0)
    root = root_of((square * 4.0).to(tl.uint64)).to(tl.int64)
    # Roots are rounded down, and so is the square that `judged` takes one of: that makes less than 8 in all.
    return tl.where(side == 0, tl.maximum(root - width - 8, 0), root + width + 8).to(tl.uint64)


@triton.jit
def threshold_bound(op, step_ptr, side, counts, edge_ptr, low, high, c, least_mass, most_mass, widest, is_likely):
    """(limit, least weight), int64, of a step by sums over a whole row, as `judged` gives them: on the `side` 0 one
    that keeps no more than the true ones, on the other one that keeps no less. A top-n-sigma's may be only likely."""
    a, b = tl.load(step_ptr + 1), tl.load(step_ptr + 2)
    limit, least = tl.full((), -1, tl.int64), tl.full((), NEVER, tl.int64)
    if op == _SIGMA:
        deviation = deviation_bound(side, counts, edge_ptr, low, high, widest, is_likely)
        limit = ((a.to(tl.uint64) * deviation) >> tl.minimum(b + 1, 63).to(tl.uint64)).to(tl.int64)
    else:
        # The greater the average weight is that p-less compares with, the less it keeps.
        mean = mean_bound(
            op, tl.where(op == _ETA, side, 1 - side), counts, edge_ptr, low, high, c, least_mass, most_mass
        )
        if op == _ETA:
            limit = mean.to(tl.int64) + tl.load(step_ptr + 3)
            least = share_of(op, step_ptr, tl.where(side == 0, most_mass, least_mass))
        else:
            if a > 0:
                # (n * sum(w * w) - W * W) / (W * (n - 1)) is the average, and a part of how far it is from the mass.
                n, _, _ = between(counts, edge_ptr, low, high)
                others = tl.maximum(tl.sum(n, 0) + (low < high).to(tl.float64), 1.0)
                mass = tl.where(side == 0, least_mass, most_mass).to(tl.float64)
                mean += (mean - mass) / others + tl.where(side == 0, 2.0, -2.0)
            least = tl.maximum(mean, 0.0).to(tl.int64) + tl.where(side == 0, 1, 0)
    return limit, least
