"""Where the lanes of a row's histogram lie: the most likely logits have the first ones.

They follow from a sample of the row, so that the pass that finds its largest logit can count as well. Eight logits of
the sample are knots, some of them at both ends of gaps between clusters. Each has a lane of its own, as many logits may
tie with it; between two of them lanes are spread evenly, so that few different logits share one whatever the shape of
the row. Below the knots lanes are as wide as these are apart, above them as the first ones are, and far above ever
wider. Two kernels ask for the lane of a logit: it takes only IEEE operations.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import LARGEST, NEG_INF, is_spoiled, key_of, logits_at, value_of
from tirage.backends.torch.kernels.layout import KNOT, KNOTS, KNOTTED, LANES, LOW, NOT_COUNTED
from tirage.backends.torch.plan import BINS

SAMPLED = tl.constexpr(64)
"""Logits of a sample."""
_OUTER, _ABOVE, _BETWEEN = 72, 96, 42
_FAR, _NEAR, _STEPS = (tl.constexpr(n) for n in (_OUTER, _ABOVE, _BETWEEN))
_FIRST, _EACH = tl.constexpr(_OUTER + _ABOVE), tl.constexpr(_BETWEEN + 1)
_BELOW = tl.constexpr(BINS - 2 - (_OUTER + _ABOVE + (KNOTS - 1) * (_BETWEEN + 1)))
_EIGHTHS, _ONE = tl.constexpr(20), tl.constexpr(127 << 3)
_NARROWEST = tl.constexpr(2.0**-10)
_GAPS, _THIRD, _TAIL = (tl.constexpr(n) for n in (3, 3, 6))
_WIDE = tl.constexpr(0.125)
"""A gap between clusters is a larger part than this of how far the sample is spread but for wider gaps."""


@triton.jit
def sample_of(x_ptr, size, IS_BFLOAT: tl.constexpr):
    """float32 [SAMPLED]: logits of a row at even distances, -inf where it has fewer."""
    ids = tl.arange(0, SAMPLED) * tl.maximum(size // SAMPLED, 1)
    return logits_at(x_ptr, ids, ids < size, IS_BFLOAT)


@triton.jit
def knots_of(x):
    """float32 [KNOTS], the greatest first: logits at certain ranks of a sample [SAMPLED], of those that are finite."""
    at, places = tl.arange(0, KNOTTED), tl.arange(0, SAMPLED)
    key = key_of(x)
    key = tl.where(is_spoiled(key), NEG_INF, key)
    number = tl.sum((key > NEG_INF).to(tl.int32), 0)
    one, other = tl.expand_dims(key, 1), tl.expand_dims(key, 0)
    earlier = tl.expand_dims(places, 0) < tl.expand_dims(places, 1)
    before = (other > one) | ((other == one) & earlier)
    rank = tl.sum(before.to(tl.int32), 1)
    # Of 64: 0, 2, 10, 20 ... 60.
    wanted = number * tl.where(at > 1, 10 * (at - 1), 2 * at) // SAMPLED
    wanted = beside_gaps(wanted, other, rank, number)
    is_wanted = tl.expand_dims(rank, 0) == tl.expand_dims(wanted, 1)
    found = value_of(tl.max(tl.where(is_wanted, other, NEG_INF), 1))
    return tl.where(number > 0, found, 0.0)  # pyright: ignore[reportOperatorIssue]


@triton.jit
def beside_gaps(wanted, key, rank, number):
    """The ranks int32 [KNOTS], in order, but that those nearest to the widest gaps of the sample lie at their ends.

    Few tokens lie in a gap, but what is left of a cluster at either end of it would share one of the lanes there.
    """
    at, places = tl.arange(0, KNOTTED), tl.arange(0, SAMPLED)
    of_rank = tl.expand_dims(rank, 0) == tl.expand_dims(places, 1)
    behind = tl.expand_dims(rank, 0) == tl.expand_dims(places + 1, 1)
    gap = value_of(tl.max(tl.where(of_rank, key, NEG_INF), 1)) - value_of(tl.max(tl.where(behind, key, NEG_INF), 1))
    # A knot amid logits that tie stays there. One token alone is no cluster, and the least likely ones are a tail.
    equal = tl.expand_dims((gap == 0.0).to(tl.int32), 0)
    from_knot = tl.expand_dims(places, 0) - tl.expand_dims(wanted, 1)
    is_moved = (at == 0) | (tl.sum(tl.where((from_knot == 0) | (from_knot == -1), equal, 0), 1) == 2)
    gap = tl.where((places > 0) & (places + _TAIL < number), tl.minimum(gap, LARGEST), 0.0)
    spread = tl.minimum(tl.sum(gap, 0), LARGEST)
    for _ in range(_GAPS):
        widest = tl.max(gap, 0)
        place = tl.min(tl.where(gap == widest, places, SAMPLED), 0)
        is_wide = widest > spread * _WIDE
        for end in range(2):
            far = tl.where(is_moved, SAMPLED, tl.abs(wanted - place - end))
            nearest = tl.min(tl.where(far == tl.min(far, 0), at, KNOTTED), 0)
            takes = at == tl.where(is_wide, nearest, KNOTTED)
            wanted, is_moved = tl.where(takes, place + end, wanted), is_moved | takes  # pyright: ignore[reportOperatorIssue]
        gap, spread = tl.where(places == place, 0.0, gap), spread - widest
    one, other = tl.expand_dims(wanted, 1), tl.expand_dims(wanted, 0)
    earlier = (other < one) | ((other == one) & (tl.expand_dims(at, 0) < tl.expand_dims(at, 1)))
    order = tl.sum(earlier.to(tl.int32), 1)
    in_order = tl.expand_dims(order, 0) == tl.expand_dims(at, 1)
    return tl.sum(tl.where(in_order, other, 0), 1)


@triton.jit
def store_knots(row_ptr, x):
    """Writes the knots of a row that has this sample [SAMPLED]; all programs of the row write the same."""
    tl.store(row_ptr + KNOT + tl.arange(0, KNOTTED), knots_of(x).to(tl.int32, bitcast=True))
    tl.debug_barrier()


@triton.jit
def stored_knots(row_ptr):
    """The knots float32 [KNOTS] of a row."""
    return tl.load(row_ptr + KNOT + tl.arange(0, KNOTTED), cache_modifier=".cg").to(tl.float32, bitcast=True)


@triton.jit
def span_of(knots):
    """How far the knots [KNOTS] are apart, float32: at least a little."""
    apart = tl.max(knots, 0) - tl.min(knots, 0)  # pyright: ignore[reportOperatorIssue]
    return tl.maximum(tl.minimum(apart, LARGEST), _NARROWEST)


@triton.jit
def upper_span(knots):
    """How far the first knots are apart, at most as far as all: what lies far below others says nothing of these."""
    first = tl.max(knots, 0)
    above = first - tl.sum(tl.where(tl.arange(0, KNOTTED) == _THIRD, knots, 0.0), 0)  # pyright: ignore[reportOperatorIssue]
    return tl.where(above > 0.0, tl.maximum(tl.minimum(span_of(knots), above * 4.0), _NARROWEST), span_of(knots))


@triton.jit
def lane_of(x, knots):
    """int32 lanes of float32 logits [n]: the greater the logit, the same lane or an earlier one.

    What is not finite has the last one, that of what is not counted.
    """
    span = span_of(knots)
    reached = x[:, None] <= knots[None, :]
    number = tl.sum(reached.to(tl.int32), 1)
    start = tl.min(tl.where(reached, knots[None, :], LARGEST), 1)
    end = tl.max(tl.where(reached, -LARGEST, knots[None, :]), 1)
    is_above, is_below = number == 0, number == KNOTTED
    apart = tl.minimum(start - end, LARGEST)  # pyright: ignore[reportOperatorIssue]
    width = tl.where(is_below, span, apart)
    steps = tl.where(is_below, _BELOW, _STEPS)
    part = tl.minimum(tl.div_rn(tl.minimum(start - x, LARGEST), tl.where(is_above, 1.0, width)), 1.0)
    further = 1 + tl.minimum((part * steps.to(tl.float32)).to(tl.int32), steps - 1)
    group = number - 1  # pyright: ignore[reportOperatorIssue]
    within = _FIRST + _EACH * group + tl.where(x < start, further, 0)
    lane = tl.where(is_above, lane_above(tl.minimum(x - tl.max(knots, 0), LARGEST), upper_span(knots)), within)
    return tl.where(is_spoiled(key_of(x)) | (x == float("-inf")), NOT_COUNTED, lane)


@triton.jit
def lane_above(distance, span):
    """The lanes of logits, any shape, by their distance from the first knot, which they exceed."""
    share = tl.div_rn(tl.maximum(distance, 0.0), span)
    eighth = (share.to(tl.int32, bitcast=True) >> _EIGHTHS) - _ONE
    # Five octaves in eighths, and sixteen in halves.
    octave = tl.minimum(tl.where(eighth < 40, eighth, 30 + (eighth >> 2)), _FAR - 1)
    near = _FIRST - 1 - (tl.minimum(share, 1.0) * _NEAR).to(tl.int32)
    return tl.where(share < 1.0, tl.maximum(near, _FAR), _FAR - 1 - octave)


@triton.jit
def lowest_in(lanes, knots, high):
    """int32 [BINS]: the lowest keys whose lanes are at most these; one above `high` where no key up to it is."""
    low, top = lanes * 0 + NEG_INF, lanes * 0 + high + 1
    for _ in range(32):
        middle = low + ((top - low).to(tl.uint32) >> 1).to(tl.int32)
        inside = (lane_of(value_of(middle), knots) <= lanes) & (middle > NEG_INF)
        top = tl.where(inside, middle, top)
        low = tl.where(inside, low, middle)
    return top


@triton.jit
def at_lane(values, lane):
    """One of the values [BINS]."""
    return tl.sum(tl.where(tl.arange(0, LANES) == lane, values, 0), 0)


@triton.jit
def lane_of_key(key, row_ptr):
    """The lane of a threshold, BINS where it lets every token of the row pass."""
    x = tl.full((1,), value_of(key), tl.float32)
    return tl.where(key > tl.load(row_ptr + LOW), tl.max(lane_of(x, stored_knots(row_ptr)), 0), LANES)
