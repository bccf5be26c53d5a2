"""The range of keys that holds every cut of a row, from the histogram of its logits: none of them is read."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.entropy import factor_of, is_dynamic, is_temperature, scaled
from tirage.backends.torch.kernels.exact.rule import NEG_INF, POS_INF, exponent_of, target_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import (
    is_by_key,
    is_by_logit,
    is_min_p,
    is_top_p,
    is_xtc,
    judged_by_mass,
    least_by_key,
    least_kept,
    least_number,
    reads_mass,
    reads_sums,
)
from tirage.backends.torch.kernels.histogram.lanes import at_lane, lane_of_key, lowest_in, stored_knots
from tirage.backends.torch.kernels.histogram.level_ranges import is_leveled, store_levels
from tirage.backends.torch.kernels.histogram.masses import (
    likely_lanes,
    masses,
    masses_again,
    sharpened,
    store_bases,
    store_bounds,
    total_of,
)
from tirage.backends.torch.kernels.histogram.summed_ranges import store_summed, summed_lanes
from tirage.backends.torch.kernels.layout import (
    ADDED,
    ALL_FIRST,
    BASE,
    BEHIND,
    CORE,
    CORE_TOP,
    FACTOR,
    FIRST_C,
    HEAD_KEY,
    HIGH,
    HOLE_END,
    HOLE_KEY,
    IDLE,
    IS_GREEDY,
    LANES,
    LAST,
    LAST_C,
    LEFT,
    LEFT_HIGH,
    LOWER,
    LOWER_LENGTH,
    LOWER_TOP,
    LOWEST,
    MASS_FROM,
    MASS_TO,
    NOT_COUNTED,
    PARTS,
    PROGRAM,
    REACH,
    SECOND,
    SUMMANDS,
    SUMMED,
    TO_BE_SUMMED,
    TOP,
    VARYING,
    WHOLE,
    WIDEST,
    WIDTH,
    constant,
    first_lane,
)  # fmt: skip
from tirage.backends.torch.kernels.measure import DOUBT
from tirage.backends.torch.kernels.open_range.behind import is_by_average, puts_off, ranges_behind
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_h import TOKENS, TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import RULES

_TEMPERATURE, _TOP_K = tl.constexpr(int(TEMPERATURE)), tl.constexpr(int(TOP_K))
_TOP_H, _FIRST = tl.constexpr(int(TOP_H)), tl.constexpr(TOKENS)
_UNIT, _UNKNOWN = tl.constexpr(1 << 40), tl.constexpr(-(1 << 31))
_TRUNCATED = tl.constexpr(RULES.index("truncated"))
_UNKNOWN_SUMS = tl.constexpr(False)
_RARE = tl.constexpr(9)
"""A cut is looked for without the mass of its row where that is in vain once in 2^9 rows at most."""


@triton.jit
def known_lanes(op, meta_ptr, step_ptr, numbers, m, c, high, is_listed, row_ptr):
    """(first lane, last lane) of the cut of a step that no mass decides, all lanes where sums do; else BINS.

    Of a top-h they hold all the first tokens that it looks at.
    """
    begin = tl.full((), LANES, tl.int32)
    if is_min_p(op, step_ptr) | is_by_logit(op):
        begin = lane_of_key(least_by_key(op, step_ptr, m, c, high), row_ptr)
    if (op == _TOP_K) | (op == _TOP_H):
        k = tl.where(op == _TOP_H, _FIRST, tl.load(step_ptr + 1))
        begin = tl.where(at_lane(numbers, NOT_COUNTED) > k, first_lane(numbers >= k), LANES)
    opens = reads_sums(op) | (op == _TOP_H) | (is_dynamic(op) & is_listed)
    if is_leveled(op):
        opens = op != tl.load(meta_ptr + SUMMED)
    return tl.where(opens, 0, begin), begin


@triton.jit
def judged_lanes(op, step_ptr, low_total, high_total, m, c, high, row_ptr):
    """(first lane, last lane) of the threshold of a step by a set's mass, which lies between two totals."""
    begin, end = tl.full((), LANES, tl.int32), tl.full((), LANES, tl.int32)
    # Where the mass is known, one turn gives both ends.
    for side in range(tl.where(low_total == high_total, 1, 2)):
        # The likeliest token weighs 2^40 under every temperature.
        total = tl.where(side == 0, tl.maximum(low_total, _UNIT), high_total)
        floor = judged_by_mass(op, step_ptr, total)
        key = least_kept(op, tl.full((), -1, tl.int64), floor, m, c, high, 0)
        # The likeliest token stays anyway, but XTC counts it only where it reaches the threshold.
        lane = tl.where(is_xtc(op) & (floor > _UNIT), -1, lane_of_key(key, row_ptr))
        begin = tl.where(side == 0, lane, tl.minimum(begin, lane))
        end = tl.where(side == 0, lane, tl.maximum(end, lane))
    return begin, end


@triton.jit
def with_least(op, step_ptr, numbers, begin, end):
    """(first lane, last lane) of a cut that leaves at least some number of tokens, if its step asks for that."""
    floor = least_number(op, step_ptr)
    if floor > 1:
        lane = first_lane(numbers >= floor)
        begin, end = tl.maximum(begin, lane), tl.maximum(end, lane)
    return begin, end


@triton.jit
def removed_lane(numbers, end):
    """The first lane of what an XTC may remove, BINS where fewer than two tokens may reach its threshold."""
    return tl.where(at_lane(numbers, tl.minimum(end, NOT_COUNTED)) < 2, LANES, 0)  # pyright: ignore[reportOperatorIssue]


@triton.jit
def goal_lanes(
    op, step_ptr, least, most, first, last, sums_ptr, m, c, high, row_ptr, is_known, is_alone
):  # fmt: skip
    """(first lane, last lane) of the cut of a top-p, BINS where it cuts nothing; see `bound` for `first` and `last`.

    Both are only likely where the mass of the row is not known, and the row uncut: `reopened` makes sure.
    """
    begin, end = tl.full((), LANES, tl.int32), tl.full((), LANES, tl.int32)
    low_total, high_total = total_of(least, most, first, last)
    a, b, joint = tl.load(step_ptr + 1), tl.load(step_ptr + 2), tl.load(step_ptr + 4) > 0
    low_goal = target_of(a, tl.where(joint, tl.load(sums_ptr + LEFT, cache_modifier=".cg"), low_total), b)
    high_goal = target_of(a, tl.where(joint, tl.load(sums_ptr + BASE, cache_modifier=".cg"), high_total), b)
    if low_goal <= high_total:
        certain = (high_goal <= low_total) | (last == LANES)
        begin = first_lane(most >= low_goal)
        if is_alone == 0:
            begin = tl.where(is_overtaken(step_ptr, begin, m, c, high, row_ptr), LANES, begin)
        end = tl.where(certain, first_lane(least >= high_goal), last)
        if (is_known == 0) & (joint == 0) & (last == LANES) & (least_number(op, step_ptr) <= 1):
            from_lane, to_lane = likely_lanes(a, b, least, most)
            begin, end = tl.maximum(begin, from_lane), tl.minimum(end, to_lane)
    return begin, end


@triton.jit
def is_overtaken(step_ptr, begin, m, c, high, row_ptr):
    """Whether a threshold by keys stands behind a top-p that cuts from the lane `begin` on, and removes all of that."""
    op, lane = tl.load(step_ptr + 6), begin
    if is_by_key(op, step_ptr + 6):
        lane = lane_of_key(least_by_key(op, step_ptr + 6, m, c, high), row_ptr)
    return lane < begin


@triton.jit
def needs_whole(step_ptr, edge_ptr, least, most, end, m, c, is_uncut, is_first):
    """Whether a top-p that cuts up to the lane `end` needs the mass of the whole row.

    What lies below is known but for a share. Where a token at the cut weighs far more than that, the cut is most likely
    the same for all masses that are possible: `resolve` makes sure.
    """
    last = tl.minimum(end, NOT_COUNTED)
    outside = at_lane(most, NOT_COUNTED) - at_lane(least, last)  # pyright: ignore[reportOperatorIssue]
    lightest = weight_of(exponent_of(value_of(tl.load(edge_ptr + last, cache_modifier=".cg")), m, c))
    is_joint, is_truncated = tl.load(step_ptr + 4) > 0, tl.load(step_ptr + 2) == _TRUNCATED
    is_likely = (outside >> (DOUBT - 1)) <= (lightest >> _RARE)
    return is_joint | (is_uncut & (is_truncated | (is_first == 0) | (is_likely == 0)))


@triton.jit
def constant_after(op, step_ptr, c, is_listed, meta_ptr, row_ptr, sums_ptr, size):
    """The constant c after a step, before it c; a dynamic temperature of a set that has to be listed is not known.

    Nor are weights behind that: the highest bit of those of steps that remove no token says so.
    """
    if op == _TEMPERATURE:
        c = constant(step_ptr, 1)
    if is_dynamic(op) & (is_listed == 0):
        factor = factor_of(step_ptr, meta_ptr, sums_ptr, size)
        c = scaled(step_ptr, 1, factor)
        tl.store(row_ptr + LAST, c.to(tl.int32, bitcast=True))
        tl.store(row_ptr + FACTOR, factor.to(tl.int32, bitcast=True))
    elif is_dynamic(op):
        tl.store(row_ptr + IDLE, tl.load(row_ptr + IDLE, cache_modifier=".cg") | _UNKNOWN)
        tl.debug_barrier()
    return c


@triton.jit
def range_of_lanes(edge_ptr, high, first, last):
    """(lowest key, key above) of the lanes `first` to `last`, whose last keys lie there; the same for none."""
    before = tl.load(edge_ptr + first - 1, mask=(first > 0) & (first < LANES), other=high + 1, cache_modifier=".cg")
    top = tl.where(first < LANES, before, NEG_INF + 1)
    is_inside = (last >= 0) & (last < NOT_COUNTED)
    lowest = tl.load(edge_ptr + last, mask=is_inside, other=NEG_INF + 1, cache_modifier=".cg")
    return tl.where(last < 0, top, lowest), top


@triton.jit
def store_ranges(row_ptr, edge_ptr, high, first, reach, second, widest):
    """Write the open range that holds lanes `first` to `reach`, and the lower one of lanes `second` to `widest`.

    Unless those of a typical are written already.
    """
    if tl.load(row_ptr + CORE_TOP, cache_modifier=".cg") == POS_INF:
        lowest, inside = range_of_lanes(edge_ptr, high, first, reach)
        lower, lower_top = range_of_lanes(edge_ptr, high, second, widest)
        # Without a lower range, or where the upper one has no key, there is one for all.
        is_one = (second == LANES) | (lowest >= inside) | (lower >= lower_top)
        lowest = tl.where(is_one & (second < LANES), lower, lowest)
        tl.store(row_ptr + LOWER, tl.where(is_one, NEG_INF, lower))
        tl.store(row_ptr + LOWER_TOP, tl.where(is_one, NEG_INF, lower_top))
        tl.store(row_ptr + LOWEST, lowest)
        tl.store(row_ptr + TOP, inside)
        tl.store(row_ptr + CORE, inside)
        # Nothing is cut, or a threshold lets all tokens pass: the row is drawn from as a whole.
        tl.store(row_ptr + WHOLE, 1, mask=lowest >= inside)


@triton.jit
def running(step_ptr, row_ptr, s):
    """The operation of the step s of a row, 0 where it is left out."""
    idle = tl.load(row_ptr + IDLE, cache_modifier=".cg")
    return tl.where(((idle >> s) & 1) != 0, 0, tl.load(step_ptr))


@triton.jit
def note_idle(op, begin, is_sure, is_known, row_ptr, s):
    """Write that the step s of a row removes no token, whatever the exact sums are: `resolve` does not run it then.

    A temperature, and an XTC, does more than to remove tokens. Where weights are not known, nothing is written. A
    register for all steps would be one too many. The result is whether the bounds of masses are sure behind it: those
    of a top-p that is only likely are not.
    """
    if (begin == LANES) & ((is_temperature(op) | is_xtc(op) | is_leveled(op)) == 0) & (is_sure | (is_top_p(op) == 0)):
        tl.debug_barrier()
        idle = tl.load(row_ptr + IDLE, cache_modifier=".cg")
        tl.store(row_ptr + IDLE, idle | (tl.full((), 1, tl.int32) << s), mask=idle >= 0)
        tl.debug_barrier()
    return is_sure & ((is_top_p(op) == 0) | is_known)


@triton.jit
def nothing_cut(zero, row_ptr):
    """(first, last), int32 lanes of `bound_row` while nothing is cut; `zero` is an int32 0.

    The last lanes of both ranges, and the first one of the lower, are words of the row: they would be too many
    registers.
    """
    tl.debug_barrier()
    tl.store(row_ptr + REACH, zero - 1)
    tl.store(row_ptr + WIDEST, zero - 1)
    tl.store(row_ptr + SECOND, zero + LANES)
    tl.debug_barrier()
    return zero + LANES, zero + LANES


@triton.jit
def is_one(row_ptr):
    """Whether there is no lower range so far."""
    return tl.load(row_ptr + SECOND, cache_modifier=".cg") == LANES


@triton.jit
def enclosed(begin, end, first, last, row_ptr):
    """The same lanes once a step cuts within `begin` to `end`, and whose range is its own where that may be."""
    last = tl.minimum(tl.minimum(last, end), NOT_COUNTED)
    # Only thresholds leave a gap: other cuts are searched for.
    tl.debug_barrier()
    may_part = tl.load(row_ptr + PARTS, cache_modifier=".cg") != 0
    is_apart = may_part & (first < LANES) & (first > last)
    reach = tl.load(row_ptr + REACH, cache_modifier=".cg")
    widest = tl.load(row_ptr + WIDEST, cache_modifier=".cg")
    tl.debug_barrier()
    tl.store(row_ptr + REACH, tl.where(is_apart, last, tl.maximum(reach, last)))
    tl.store(row_ptr + WIDEST, tl.maximum(widest, last))
    tl.store(row_ptr + SECOND, first, mask=is_apart)
    tl.debug_barrier()
    return tl.minimum(first, begin), last


@triton.jit
def looks_within(op, end, first, is_sure):
    """Whether a step is a top-k or a top-h all of whose first tokens, up to the lane `end`, the cuts before it keep."""
    return ((op == _TOP_H) | (op == _TOP_K)) & (end < first) & (first < LANES) & is_sure


@triton.jit(noinline=True)
def leave_out(meta_ptr, row_ptr, s, steps):
    """Write that no filter before the step s of a row is run, but for its temperatures; whether they need not, int32.

    They have to where a temperature, or a top-p that is to come, goes by the mass of what they leave, or where one of
    them is put off, or cuts where it is only likely to: that may cut anywhere.
    """
    summed, idle = tl.load(meta_ptr + SUMMED), tl.load(row_ptr + IDLE, cache_modifier=".cg")
    needs = ((summed > 0) & (reads_sums(summed) == 0)) | (tl.load(row_ptr + ADDED, cache_modifier=".cg") == BEHIND)
    needs = needs | (tl.load(row_ptr + HOLE_KEY, cache_modifier=".cg") >= 0)
    for at in range(steps):
        step_ptr = meta_ptr + PROGRAM + at * 6
        op = tl.load(step_ptr)
        needs = needs | ((at > s) & is_top_p(op) & (tl.load(step_ptr + 4) > 0))
        idle |= tl.where((at < s) & (is_temperature(op) == 0), tl.full((), 1, tl.int32) << at, 0)
    tl.debug_barrier()
    if needs == 0:
        tl.store(row_ptr + IDLE, idle)
        tl.store(row_ptr + WHOLE, 0)
        tl.store(row_ptr + ADDED, 0)
    tl.debug_barrier()
    return tl.where(needs, 0, 1)


@triton.jit
def mass_lanes(op, step_ptr, numbers, least, most, first, last, m, c, high, row_ptr, is_sure):
    """(first lane, last lane) of the threshold of a step by the mass of the set, BINS where it removes nothing.

    Where the bounds of that mass are not `is_sure`, it may remove something.
    """
    low_total, high_total = total_of(least, most, first, last)
    begin, end = judged_lanes(op, step_ptr, low_total, high_total, m, c, high, row_ptr)
    begin = tl.where(is_sure, begin, tl.minimum(begin, NOT_COUNTED))
    tl.store(row_ptr + WHOLE, 1, mask=(first == LANES) & ((begin < LANES) | is_xtc(op)))
    if is_xtc(op):
        begin = removed_lane(numbers, end)
    return begin, end


@triton.jit
def top_p_lanes(
    op, step_ptr, edge_ptr, least, most, first, last, sums_ptr, m, c, high, row_ptr, is_first, is_known, is_alone
):  # fmt: skip
    """The same of a top-p; writes whether it needs the mass of the whole row."""
    begin, end = goal_lanes(
        op, step_ptr, least, most, first, last, sums_ptr, m, c, high, row_ptr, is_known, is_alone
    )  # fmt: skip
    is_needed = needs_whole(step_ptr, edge_ptr, least, most, end, m, c, first == LANES, is_first)
    tl.store(row_ptr + WHOLE, 1, mask=is_needed & (begin < LANES))
    return begin, end


@triton.jit
def counts_none(meta_ptr, steps):
    """Whether no step of a row leaves a least number of tokens: those of its set are counted."""
    none = tl.full((), True, tl.int1)
    for s in range(steps):
        step_ptr = meta_ptr + PROGRAM + s * 6
        none = none & (least_number(tl.load(step_ptr), step_ptr) <= 1)
    return none


@triton.jit
def clear_row(meta_ptr, row_ptr):
    """Clears what steps leave, but for which of them are left out."""
    high = tl.load(row_ptr + HIGH)
    tl.store(row_ptr + WHOLE, 0)
    tl.store(row_ptr + ADDED, 0)
    tl.store(row_ptr + LAST, tl.load(meta_ptr + LAST_C).to(tl.int32))
    tl.store(row_ptr + FACTOR, 0)
    tl.store(row_ptr + LOWER, NEG_INF)
    tl.store(row_ptr + LOWER_TOP, NEG_INF)
    tl.store(row_ptr + LOWER_LENGTH, 0)
    tl.store(row_ptr + HEAD_KEY, POS_INF)
    tl.store(row_ptr + HOLE_END, POS_INF)
    tl.store(row_ptr + HOLE_KEY, -1)
    tl.store(row_ptr + LEFT_HIGH, high)
    tl.store(row_ptr + CORE_TOP, POS_INF)
    tl.debug_barrier()


@triton.jit
def settled_bins(bins_ptr, row_ptr, high):
    """The numbers of tokens in the bins of a row; their edges take the place of these."""
    lanes = tl.arange(0, LANES)
    counts = tl.load(bins_ptr + lanes, cache_modifier=".cg")
    tl.store(bins_ptr + lanes, lowest_in(lanes, stored_knots(row_ptr), high))
    tl.debug_barrier()
    return counts


@triton.jit
def known_mass(meta_ptr, sums_ptr, mass_ptr, blocks, IS_KNOWN: tl.constexpr, PADDED: tl.constexpr):
    """(least, greatest) mass of a row under the first temperature; one number where the row is weighed already."""
    low, high = tl.load(sums_ptr + MASS_FROM), tl.load(sums_ptr + MASS_TO)
    if is_dynamic(tl.load(meta_ptr + SUMMED)) | tl.full((), IS_KNOWN, tl.int1):
        at = tl.arange(0, PADDED)
        each = tl.load(mass_ptr + at * 4 + ALL_FIRST, mask=at < blocks, other=0, cache_modifier=".cg")
        low = tl.sum(each, 0)
        high = low
    return low, high


@triton.jit
def knows(c, meta_ptr, CERTAIN: tl.constexpr):
    """(whether c is that of the first temperature, whether a top-p may only be looked for where all its cuts are)."""
    is_first = c == constant(meta_ptr, FIRST_C)
    return is_first, is_first | tl.full((), CERTAIN, tl.int1)


@triton.jit
def store_row(
    counts, numbers, least, most, bins_ptr, first, last, meta_ptr, row_ptr, size, steps, weighs,
    IS_KNOWN: tl.constexpr,
):  # fmt: skip
    """Write the open ranges of a row, and its histogram where it is asked for again."""
    tl.debug_barrier()
    high, reach = tl.load(row_ptr + HIGH, cache_modifier=".cg"), tl.load(row_ptr + REACH, cache_modifier=".cg")
    second, widest = tl.load(row_ptr + SECOND, cache_modifier=".cg"), tl.load(row_ptr + WIDEST, cache_modifier=".cg")
    tl.debug_barrier()
    tl.store(row_ptr + HOLE_END, POS_INF)
    tl.store(row_ptr + LOWER_LENGTH, 0)
    if not IS_KNOWN and tl.load(row_ptr + ADDED, cache_modifier=".cg") == BEHIND:
        first, reach, second = ranges_behind(
            counts, numbers, least, most, bins_ptr, first, last, reach, second, meta_ptr, row_ptr, high, size,
            steps, weighs,
        )  # fmt: skip
    store_ranges(row_ptr, bins_ptr, high, first, reach, second, widest)
    # The next draw counts from 0.
    tl.debug_barrier()
    added = tl.load(row_ptr + ADDED, cache_modifier=".cg")
    left = tl.where((added == TO_BE_SUMMED) | (added == BEHIND), weighs, 0)
    tl.store(bins_ptr + tl.arange(0, LANES), tl.where(left != 0, counts, 0))


@triton.jit(do_not_specialize=(*VARYING, "weighs"))
def bound(
    bins_ptr, sums_ptr, meta_ptr, row_ptr, status_ptr, mass_ptr, columns, size, blocks, steps, weighs,
    PADDED: tl.constexpr, CERTAIN: tl.constexpr = False,  # pyright: ignore[reportArgumentType]
):  # fmt: skip
    """The open range of each row, [lowest, top): it holds the last cut; keys above are in every set.

    Where `split_first` comes next (`weighs`), rows with a temperature that follows from their sums are left to it, and
    so are the counts of rows that are summed: their range may turn out to be too wide. Else the former are weighed.
    """
    row = tl.program_id(0).to(tl.int64)
    own_ptr = meta_ptr + row * columns
    is_drawn = (tl.load(status_ptr + row) == 0) & (tl.load(own_ptr + IS_GREEDY) == 0)
    if is_drawn & ((weighs == 0) | (is_dynamic(tl.load(own_ptr + SUMMED)) == 0)):
        # Where the row lies is found anew behind this: held in registers it would leave too few.
        row = tl.program_id(0).to(tl.int64) + begin_first(
            bins_ptr + row * LANES, sums_ptr + row * SUMMANDS, own_ptr, row_ptr + row * WIDTH,
            mass_ptr + row.to(tl.int32) * blocks * 4, size, blocks, steps, weighs, PADDED,
        )  # fmt: skip
        bound_first(
            bins_ptr + row * LANES, sums_ptr + row * SUMMANDS, meta_ptr + row * columns, row_ptr + row * WIDTH,
            mass_ptr + row.to(tl.int32) * blocks * 4, size, blocks, steps, weighs, CERTAIN, PADDED,
        )  # fmt: skip


@triton.jit(noinline=True)
def begin_first(
    bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, weighs, PADDED: tl.constexpr
):  # fmt: skip
    """What `begin_row` does of a row whose sums are not known, in a function of its own as well; the result is 0."""
    tl.store(row_ptr + IDLE, 0)
    begin_row(
        bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, weighs, _UNKNOWN_SUMS, PADDED
    )  # fmt: skip
    return steps * 0


@triton.jit(noinline=True)
def bound_first(
    bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, weighs,
    CERTAIN: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """What `bound_row` does of a row whose sums are not known: in a function of its own it spills no registers."""
    bound_row(
        bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, weighs, _UNKNOWN_SUMS, CERTAIN, PADDED
    )  # fmt: skip


@triton.jit
def begin_row(
    bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, weighs,
    IS_KNOWN: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """What comes before `bound_row`: writes in which bins a typical, or a threshold by sums, cuts the row."""
    clear_row(meta_ptr, row_ptr)
    if reads_sums(tl.load(meta_ptr + SUMMED)) | is_leveled(tl.load(meta_ptr + SUMMED)):
        high = tl.load(row_ptr + HIGH)
        counts = settled_bins(bins_ptr, row_ptr, high)
        store_levels(counts, bins_ptr, sums_ptr, meta_ptr, row_ptr, size, steps, IS_KNOWN)
        low_whole, high_whole = known_mass(meta_ptr, sums_ptr, mass_ptr, blocks, IS_KNOWN, PADDED)
        store_summed(
            counts, bins_ptr, sums_ptr, meta_ptr, row_ptr, low_whole, high_whole, value_of(high),
            constant(meta_ptr, FIRST_C), high, size, steps, weighs, IS_KNOWN,
        )  # fmt: skip
        tl.debug_barrier()
        tl.store(bins_ptr + tl.arange(0, LANES), counts)
        tl.debug_barrier()


@triton.jit
def bound_row(
    bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, weighs,
    IS_KNOWN: tl.constexpr, CERTAIN: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Write the open range of a row; its mass, and the sums that a step needs, are known already or have bounds.

    Its steps are run on bins. `first` and `last` enclose the bin of the cut so far, and are BINS while nothing is cut.
    Behind a cut, a threshold or a temperature by sums leaves the whole set open, unless it is put off
    (`open_range.behind`). Thresholds far below the last cut have a range of their own, and what stands between is only
    weighed. What stays by keys alone before a dynamic temperature is not listed. Unless `CERTAIN`, the top-p of a
    second one is likely there.
    """
    high = tl.load(row_ptr + HIGH)
    m, c = value_of(high), constant(meta_ptr, FIRST_C)
    low_whole, high_whole = known_mass(meta_ptr, sums_ptr, mass_ptr, blocks, IS_KNOWN, PADDED)
    counts = settled_bins(bins_ptr, row_ptr, high)
    numbers = tl.cumsum(counts, 0)
    least, most = masses(counts, bins_ptr, high, m, c)
    least, most = sharpened(least, most, low_whole, high_whole)
    store_bounds(sums_ptr, least, most)
    first, last = nothing_cut(tl.full((), 0, tl.int32), row_ptr)
    tl.store(row_ptr + PARTS, counts_none(meta_ptr, steps).to(tl.int32))
    is_listed, is_sure = is_dynamic(tl.load(meta_ptr + SUMMED)) == 0, tl.full((), True, tl.int1)
    for s in range(steps):
        step_ptr, high = meta_ptr + PROGRAM + s * 6, tl.load(row_ptr + HIGH, cache_modifier=".cg")
        m = value_of(high)
        op, is_uncut = running(step_ptr, row_ptr, s), first == LANES
        c = constant_after(op, step_ptr, c, is_listed, meta_ptr, row_ptr, sums_ptr, size)
        is_first, is_known = knows(c, meta_ptr, CERTAIN)
        if is_temperature(op):
            least, most = masses_again(counts, bins_ptr, sums_ptr, high, m, c, is_first)
            bottom, top = total_of(least, most, first, last)
            store_bases(sums_ptr, bottom, top)
        # The bins that enclose the cut of this step alone: BINS where it cuts nothing.
        begin, end = known_lanes(op, meta_ptr, step_ptr, numbers, m, c, high, is_listed, row_ptr)
        if reads_mass(op) | is_xtc(op):
            begin, end = mass_lanes(op, step_ptr, numbers, least, most, first, last, m, c, high, row_ptr, is_sure)
        if reads_sums(op) & is_uncut & is_first & (op == tl.load(meta_ptr + SUMMED)):
            begin, end = summed_lanes(row_ptr, IS_KNOWN)
        if not IS_KNOWN and is_by_average(op) & (is_uncut == 0) & is_first & is_sure & is_one(row_ptr):
            number = at_lane(numbers, last)
            begin = tl.where(puts_off(op, meta_ptr, row_ptr, number, first, size, s, steps, weighs), LANES, begin)
        if is_top_p(op):
            begin, end = top_p_lanes(
                op, step_ptr, bins_ptr, least, most, first, last, sums_ptr, m, c, high, row_ptr, is_first, is_known,
                (is_sure == 0) | (s + 1 == steps),
            )  # fmt: skip
        begin, end = with_least(op, step_ptr, numbers, begin, end)
        if not IS_KNOWN and looks_within(op, end, first, is_sure):  # noqa: SIM102  # both would be called with `and`
            if leave_out(meta_ptr, row_ptr, s, steps) != 0:
                first, last = nothing_cut(end * 0, row_ptr)
        # Of what follows from masses, a top-p alone knows what a set weighs that a lower range cuts.
        tl.store(row_ptr + PARTS, 0, mask=(is_uncut == 0) & (reads_mass(op) | is_xtc(op) | is_temperature(op)))
        is_sure = note_idle(op, begin, is_sure, is_known, row_ptr, s) & (is_leveled(op) == 0)
        if begin < LANES:
            first, last = enclosed(begin, end, first, last, row_ptr)
            is_listed = is_listed | (is_by_key(op, step_ptr) == 0)
            tl.store(row_ptr + PARTS, 0, mask=is_top_p(op) | (op == _TOP_K) | (op == _TOP_H))
    store_row(
        counts, numbers, least, most, bins_ptr, first, last, meta_ptr, row_ptr, size, steps, weighs, IS_KNOWN,
    )  # fmt: skip
