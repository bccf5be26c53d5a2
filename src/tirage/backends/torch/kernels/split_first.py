"""The pass before the last over rows of which more has to be known first: each is bounded again by exact sums.

A dynamic temperature follows from sums over its row, which is read for them alone. Other rows that are summed are split
on the way, as the bounds of their sums mostly say enough. Where they leave many tokens open, or a typical ends where
its row was not left open, the range is looked for again, and `split` reads the row once more. So it does for a set that
is summed (`open_range.behind`) where other filters stand behind, or the threshold was not left open.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.bound import begin_row, bound_row
from tirage.backends.torch.kernels.exact.entropy import is_dynamic
from tirage.backends.torch.kernels.exact.rule import NEG_INF, POS_INF, exponent_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import mean_of, reads_sums, summed
from tirage.backends.torch.kernels.histogram.level_ranges import goal_of_levels, is_leveled
from tirage.backends.torch.kernels.histogram.summed_ranges import holds_threshold
from tirage.backends.torch.kernels.layout import (
    ABOVE_LAST,
    ADDED,
    ADDENDS,
    ARRIVED,
    BEHIND,
    FIRST_C,
    GAP_FIRST,
    GAP_LAST,
    GREATEST,
    HIGH,
    IDLE,
    IS_GREEDY,
    IS_SPLIT,
    LANES,
    LEAST,
    LOWER_LENGTH,
    LOWEST,
    MANY,
    OPEN,
    SUMMANDS,
    SUMMED,
    TO_BE_SUMMED,
    VARYING,
    WIDTH,
    constant,
)
from tirage.backends.torch.kernels.measure import is_last
from tirage.backends.torch.kernels.open_range.behind import settle_behind
from tirage.backends.torch.kernels.open_range.levels import sure_levels
from tirage.backends.torch.kernels.split import split_block, weigh_block

_KNOWN_SUMS, _LIKELY = tl.constexpr(True), tl.constexpr(False)


# fmt: off
@triton.jit(do_not_specialize=(*VARYING, "spares"))
def split_first(
    x_ptr, bins_ptr, meta_ptr, row_ptr, status_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr,
    length_ptr, slots_ptr, plane, columns, size, blocks, steps, spares, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """Sums a block of a row with a dynamic temperature, or splits one of a row that is summed on the way; the last
    program of the row bounds it again where that tells more."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    meta_ptr, row_ptr = meta_ptr + row * columns, row_ptr + row * WIDTH
    is_drawn = (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0)
    is_tempered = is_dynamic(tl.load(meta_ptr + SUMMED))
    added = tl.load(row_ptr + ADDED)
    if is_drawn & (is_tempered | (added == TO_BE_SUMMED) | (added == BEHIND)):
        if is_tempered:
            weigh_block(
                x_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, sums_ptr, row, block, size, blocks, steps, BLOCK
            )
        else:
            split_block(
                x_ptr, meta_ptr, row_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, slots_ptr, row,
                block, plane, size, blocks, spares, BLOCK,
            )
        if is_last(meta_ptr + ARRIVED, blocks):
            place = row.to(tl.int32) * blocks * 4
            settle_sums(
                x_ptr + row * size, bins_ptr + row * LANES, sums_ptr + row * SUMMANDS,
                meta_ptr, row_ptr, mass_ptr + place, count_ptr + place, list_ptr + row * size, length_ptr + row,
                is_tempered, size, blocks, steps, BLOCK, PADDED,
            )


@triton.jit(noinline=True)
def settle_sums(
    x_ptr, bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, list_ptr, length_ptr, is_tempered,
    size, blocks, steps, PART: tl.constexpr, PADDED: tl.constexpr,
):
    """Bounds a row again whose sums are exact now, unless few of its tokens are open once it is split, and a typical
    ends among them. A function of its own, as most programs need no registers for it."""
    is_split = is_tempered == 0
    is_behind = is_split & (tl.load(row_ptr + ADDED, cache_modifier=".cg") == BEHIND)
    if is_split:
        least = tl.load(row_ptr + LEAST, cache_modifier=".cg")
        greatest = tl.load(row_ptr + GREATEST, cache_modifier=".cg")
        # Tokens of one key are only counted.
        number = tl.where(least < greatest, tl.load(length_ptr, cache_modifier=".cg"), 0)
        both = number + tl.load(row_ptr + LOWER_LENGTH, cache_modifier=".cg")
        is_split = both <= size // MANY
        if is_behind:
            is_alone = settle_behind(
                x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, tl.load(length_ptr, cache_modifier=".cg"), meta_ptr,
                row_ptr, size, blocks, steps, PART, PADDED, 2 * PART,
            )
            is_split = is_split & (is_alone != 0)
        if is_split & reads_sums(tl.load(meta_ptr + SUMMED)) & (is_behind == 0):
            is_split = holds_threshold(sums_ptr, meta_ptr, row_ptr, steps)
        if is_split & is_leveled(tl.load(meta_ptr + SUMMED)):
            is_split = holds_end(
                x_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, list_ptr, number, least, blocks, steps, PART,
                PADDED,
            )
    if is_split:
        lanes = tl.arange(0, LANES)
        tl.store(bins_ptr + lanes, lanes * 0)
        tl.store(row_ptr + ADDED, IS_SPLIT)
    else:
        tl.store(row_ptr + IDLE, 0, mask=is_behind == 0)
        tl.debug_barrier()
        # Held until the row is bounded again, this and more would leave too few registers.
        tl.store(length_ptr, 0)
        begin_row(
            bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, 0, _KNOWN_SUMS, PADDED
        )
        bound_row(
            bins_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, size, blocks, steps, 0, _KNOWN_SUMS, _LIKELY,
            PADDED,
        )
        if is_dynamic(tl.load(meta_ptr + SUMMED)) == 0:
            unsplit(sums_ptr, row_ptr)


@triton.jit
def holds_end(
    x_ptr, sums_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, list_ptr, number, least, blocks, steps,
    PART: tl.constexpr, PADDED: tl.constexpr,
):
    """Whether a typical ends among the open tokens of its row: so many are listed, or none where all have one key.

    The set has to reach its mass behind the last level of the core, and up to the last one that is open on both sides.
    """
    m, c = value_of(tl.load(row_ptr + HIGH)), constant(meta_ptr, FIRST_C)
    mean = mean_of(sums_ptr).to(tl.int32)
    goal = goal_of_levels(meta_ptr, steps, summed(sums_ptr, 1).to(tl.int64))
    low, end = sure_levels(row_ptr, mean, m, c)
    at = tl.arange(0, PADDED)
    core = tl.sum(tl.load(mass_ptr + at * 4 + ABOVE_LAST, mask=at < blocks, other=0, cache_modifier=".cg"), 0)
    before, reached = core, core
    if number == 0:
        key = tl.where(least < POS_INF, least, tl.load(row_ptr + LOWEST))
        q = exponent_of(value_of(key), m, c)
        many = tl.sum(tl.load(count_ptr + at * 4 + OPEN, mask=at < blocks, other=0, cache_modifier=".cg"), 0)
        mass = many.to(tl.int64) * weight_of(q)
        before += tl.where(tl.abs(q - mean) <= low, mass, 0)
        reached += tl.where(tl.abs(q - mean) <= end, mass, 0)
    for start in range(0, number, PART):
        place = start + tl.arange(0, PART)
        ids = tl.load(list_ptr + place, mask=place < number, other=0, cache_modifier=".cg")
        q = exponent_of(tl.load(x_ptr + ids, mask=place < number, other=float("-inf")), m, c)
        before += tl.sum(tl.where(tl.abs(q - mean) <= low, weight_of(q), 0), 0)
        reached += tl.sum(tl.where(tl.abs(q - mean) <= end, weight_of(q), 0), 0)
    return (before < goal) & (reached >= goal)


@triton.jit
def unsplit(sums_ptr, row_ptr):
    """Forgets what was found of a row that is split once more, but for its sums where these are still asked for, and
    for the length of its list."""
    tl.debug_barrier()
    tl.store(row_ptr + LEAST, POS_INF)
    tl.store(row_ptr + GREATEST, NEG_INF)
    none = tl.full((), 0, tl.int64)
    tl.store(sums_ptr + GAP_FIRST, none)
    tl.store(sums_ptr + GAP_LAST, none)
    at = tl.arange(0, 8)
    number = tl.where(tl.load(row_ptr + ADDED, cache_modifier=".cg") == 0, ADDENDS, 0)
    tl.store(sums_ptr + at, (at * 0).to(tl.int64), mask=at < number)
# fmt: on
