"""In which lanes of a row's histogram the threshold of its first step by sums lies (SPEC.md S-O5, S-O6, S-O10).

Before the sums are known they are bounded. Where the bounds of a top-n-sigma enclose many tokens, narrower ones that
are only likely take their place, if the pass before the last comes: it makes the sums, and so tells whether the
threshold lies there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import exponent_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import judged, least_kept, reads_sums, widest_of
from tirage.backends.torch.kernels.histogram.averages import edges_of, threshold_bound
from tirage.backends.torch.kernels.histogram.lanes import lane_of_key
from tirage.backends.torch.kernels.layout import (
    ADDED,
    FIRST_C,
    HIGH,
    HOLE_ID,
    HOLE_KEY,
    LANES,
    LOW,
    LOWEST,
    NOT_COUNTED,
    PROGRAM,
    SUMMED,
    SUMMED_ALREADY,
    TO_BE_SUMMED,
    TOP,
    WHOLE,
    constant,
)
from tirage.operators.top_n_sigma import TOP_N_SIGMA

_SIGMA = tl.constexpr(int(TOP_N_SIGMA))
_MANY = tl.constexpr(64)
"""Of a row of which one token in so many lies where the threshold may be, it is looked for where it likely is."""
_CERTAIN, _BOTH = tl.constexpr(2), tl.constexpr(4)
"""Turns that bound a threshold, one for each end of its range: at first surely, then likely."""


@triton.jit
def summed_step(meta_ptr, steps):
    """The numbers of the first step of a row whose operation is the one that its sums are for."""
    op, step_ptr = tl.load(meta_ptr + SUMMED), meta_ptr + PROGRAM
    for _ in range(steps):
        if tl.load(step_ptr) != op:
            step_ptr += 6
    return step_ptr


@triton.jit
def known_lane(op, sums_ptr, meta_ptr, row_ptr, m, c, high, steps):
    """The lane of the threshold, by exact sums: those of a set where the steps that cut it are left out."""
    widest, total = widest_of(tl.load(row_ptr + LOW), m), tl.load(sums_ptr + 1, cache_modifier=".cg")
    limit, weight = judged(op, summed_step(meta_ptr, steps), total, sums_ptr)
    return lane_of_key(least_kept(op, limit, weight, m, c, high, widest), row_ptr)


@triton.jit
def bounded_lanes(op, counts, edge_ptr, meta_ptr, row_ptr, low_whole, high_whole, m, c, high, size, steps, weighs):
    """(first lane, last lane) that hold the threshold, for sums that are not known yet; writes them where they only
    likely do, which is said of no row unless another pass follows (`weighs`)."""
    step_ptr, low, lanes = summed_step(meta_ptr, steps), tl.load(row_ptr + LOW), tl.arange(0, LANES)
    widest, n = widest_of(low, m), counts.to(tl.int64)
    edge, before = edges_of(edge_ptr, high)
    least = tl.sum(n * weight_of(exponent_of(value_of(edge), m, c)), 0)
    most = tl.sum(n * weight_of(exponent_of(tl.minimum(value_of(before - 1), m), m, c)), 0)
    least, most = tl.maximum(least, low_whole), tl.minimum(most, high_whole)
    begin, end = tl.full((), 0, tl.int32), tl.full((), LANES, tl.int32)
    turn, turns = begin, begin + _CERTAIN
    while turn < turns:
        # What each turn reads is read again: held in registers it would leave too few.
        tl.debug_barrier()
        limit, weight = threshold_bound(
            op, step_ptr, turn & 1, counts, edge_ptr, low, high, c, least, most, widest, turn >= _CERTAIN
        )  # fmt: skip
        lane = lane_of_key(least_kept(op, limit, weight, m, c, high, widest), row_ptr)
        begin = tl.where((turn & 1) == 0, tl.maximum(begin, lane), begin)
        end = tl.where((turn & 1) == 1, tl.minimum(end, lane), end)
        turn += 1
        if (turn == _CERTAIN) & (op == _SIGMA) & (weighs != 0):
            number = tl.sum(tl.where((lanes >= begin) & (lanes <= end), counts, 0), 0)
            turns = tl.where(number > size // _MANY, turns * 0 + _BOTH, turns)
    if turns == _BOTH:
        tl.store(row_ptr + HOLE_KEY, begin)
        tl.store(row_ptr + HOLE_ID, end)
    return begin, end


@triton.jit
def store_summed(
    counts, edge_ptr, sums_ptr, meta_ptr, row_ptr, low_whole, high_whole, m, c, high, size, steps, weighs,
    IS_KNOWN: tl.constexpr,
):  # fmt: skip
    """Write the first and the last lane of the threshold of a row's first step by sums over it, were it run on all.

    If the sums are not known yet they are bounded. The lanes wait where the open range is written at last.
    """
    op = tl.load(meta_ptr + SUMMED)
    if reads_sums(op):
        if IS_KNOWN:
            begin = known_lane(op, sums_ptr, meta_ptr, row_ptr, m, c, high, steps)
            end = begin
        else:
            begin, end = bounded_lanes(
                op, counts, edge_ptr, meta_ptr, row_ptr, low_whole, high_whole, m, c, high, size, steps,
                weighs,
            )  # fmt: skip
        tl.store(row_ptr + LOWEST, begin)
        tl.store(row_ptr + TOP, end)


@triton.jit
def summed_lanes(row_ptr, IS_KNOWN: tl.constexpr):
    """(first lane, last lane) that `store_summed` wrote; the row is summed on the way, or was."""
    tl.store(row_ptr + WHOLE, 1)
    tl.store(row_ptr + ADDED, SUMMED_ALREADY if IS_KNOWN else TO_BE_SUMMED)
    begin, end = tl.load(row_ptr + LOWEST, cache_modifier=".cg"), tl.load(row_ptr + TOP, cache_modifier=".cg")
    # They are of one step alone, which counts as a cut, so that no other of its kind is read off them.
    return tl.minimum(begin, NOT_COUNTED), tl.minimum(end, NOT_COUNTED)


@triton.jit
def holds_threshold(sums_ptr, meta_ptr, row_ptr, steps):
    """Whether the threshold of a row whose sums are exact now lies where it was left open, as far as that was only
    likely."""
    op, high = tl.load(meta_ptr + SUMMED), tl.load(row_ptr + HIGH)
    begin, holds = tl.load(row_ptr + HOLE_KEY), tl.full((), True, tl.int1)
    if begin >= 0:
        lane = known_lane(
            op, sums_ptr, meta_ptr, row_ptr, value_of(high), constant(meta_ptr, FIRST_C), high, steps
        )  # fmt: skip
        holds = (lane >= begin) & (lane <= tl.load(row_ptr + HOLE_ID))
    return holds
