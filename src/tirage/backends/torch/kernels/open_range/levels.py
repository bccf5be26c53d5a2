"""Typical on the open tokens of a row: the level up to which it keeps tokens, exactly, and what that leaves (S-O4).

The level of a token is the distance of its exponent from the mean one. What is kept lies between two ends: a head that
is removed, and a cut. Of tokens at the last level those above the mean may all come first, in their order; where they
end within them, there is a hole between these and the core.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    is_in,
    lowest_key,
    target_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.exact.thresholds import mean_of
from tirage.backends.torch.kernels.histogram.level_ranges import has_levels, is_leveled
from tirage.backends.torch.kernels.layout import (
    ABOVE_LAST,
    ADDED,
    CORE,
    CORE_TOP,
    HEAD_ID,
    HEAD_KEY,
    HIGH,
    HOLE_END,
    HOLE_ID,
    HOLE_KEY,
    LOW,
    LOWEST,
    SUMMED,
    TOP,
    sum_of,
)
from tirage.backends.torch.kernels.open_range.cuts import cut_top_k, opened
from tirage.backends.torch.kernels.open_range.lists import WAYS, open_count, open_keys, sum_terms
from tirage.backends.torch.kernels.open_range.narrowing import put_first, put_levels_first
from tirage.operators.typical import TYPICAL_BY_RANK

__all__ = ["has_levels", "is_leveled", "is_removed", "keep_levels", "largest_left"]
_BY_RANK = tl.constexpr(int(TYPICAL_BY_RANK))
_NO_HEAD = tl.constexpr(-1)
"""The id of a head that a typical left: before it there is none."""


@triton.jit
def is_removed(key, ids, row_ptr):
    """Whether tokens of these keys and ids, any shape, are in the hole that a typical left."""
    end = tl.load(row_ptr + HOLE_END, cache_modifier=".cg")
    hole_key = tl.load(row_ptr + HOLE_KEY, cache_modifier=".cg")
    return (key > end) & (is_in(key, ids, hole_key, tl.load(row_ptr + HOLE_ID, cache_modifier=".cg")) == 0)


@triton.jit
def largest_left(row_ptr):
    """The logit from which weights count behind a temperature: the largest one that no typical removed."""
    return value_of(tl.minimum(tl.load(row_ptr + HIGH), tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")))


@triton.jit
def level_at(key, mean, m, c):
    """The level of a key."""
    return tl.abs(exponent_of(value_of(key), m, c) - mean)


# fmt: off
@triton.jit
def level_masses(
    x_ptr, list_ptr, n, ties, lowest, mean, low, step, cut_key, cut_id, m, c, TILE: tl.constexpr
):
    """What the open tokens of the set weigh up to the levels `low` + j * `step`: int64 [WAYS]."""
    at = tl.arange(0, WAYS)
    sums = (at * 0).to(tl.int64)
    if ties >= 0:
        mass = ties.to(tl.int64) * weight_of(exponent_of(value_of(lowest), m, c))
        sums += tl.where(level_at(lowest, mean, m, c) <= low + at * step, mass, 0)
    else:
        for start in range(0, n, TILE):
            for part in range(0, TILE, TILE // 4):
                key, ids, x = open_keys(x_ptr, list_ptr, start + part, n, TILE // 4)
                q = exponent_of(x, m, c)
                w = tl.where(is_in(key, ids, cut_key, cut_id), weight_of(q), 0)
                level = tl.abs(q - mean)
                for j in range(WAYS):
                    sums += tl.where(at == j, tl.sum(tl.where(level <= low + j * step, w, 0), 0), 0)
    return sums


@triton.jit
def level_reaching(
    x_ptr, list_ptr, goal_ptr, n, ties, lowest, mean, above, low, end, cut_key, cut_id, m, c, TILE: tl.constexpr
):
    """(the least level in ]low, end] up to which the set weighs at least the goal that lies there, what it weighs up to
    the level before, what it weighs up to that level); `end` if there is none. So much weighs what is `above`.

    Of a long list, those at the levels that are left are put first each time, and no others are read from then on.
    """
    FEW: tl.constexpr = TILE // 8
    at = tl.arange(0, WAYS)
    while low + 1 < end:
        step = tl.cdiv(end - low, WAYS)
        sums = above + level_masses(x_ptr, list_ptr, n, ties, lowest, mean, low, step, cut_key, cut_id, m, c, TILE)
        # What is read each time would take registers if it were held in some.
        passed = tl.sum(((sums < tl.load(goal_ptr, cache_modifier=".cg")) & (at > 0)).to(tl.int32), 0)
        low += passed * step
        end = tl.minimum(low + step, end)
        if (ties < 0) & (n > FEW):
            above = tl.sum(tl.where(at == passed, sums, 0), 0)
            n = put_levels_first(x_ptr, list_ptr, n, low, end, mean, m, c, TILE)
    sums = above + level_masses(x_ptr, list_ptr, n, ties, lowest, mean, end - 1, 1, cut_key, cut_id, m, c, TILE)
    return end, tl.sum(tl.where(at == 0, sums, 0), 0), tl.sum(tl.where(at == 1, sums, 0), 0)


@triton.jit
def sure_levels(row_ptr, mean, m, c):
    """(the greatest level of the core, the greatest below those of tokens that are not open): at least these are open.

    Levels rise from a key near the mean on to either side.
    """
    core, core_top = tl.load(row_ptr + CORE), tl.load(row_ptr + CORE_TOP)
    widest = tl.maximum(level_at(core, mean, m, c), level_at(core_top - 1, mean, m, c))
    top, below = tl.load(row_ptr + TOP), tl.load(row_ptr + LOWEST) - 1
    above = tl.maximum(mean - exponent_of(value_of(tl.minimum(top, POS_INF - 1)), m, c), 0)
    under = tl.maximum(exponent_of(value_of(tl.maximum(below, NEG_INF + 1)), m, c) - mean, 0)
    first = tl.where(top > tl.load(row_ptr + HIGH), NO_ID, above)
    first = tl.minimum(first, tl.where(below < tl.load(row_ptr + LOW), NO_ID, under))
    return tl.where(core < core_top, widest, -1), tl.minimum(first - 1, last_level(row_ptr, mean, m, c))


@triton.jit
def last_level(row_ptr, mean, m, c):
    """The greatest level of a row."""
    high, low = tl.load(row_ptr + HIGH), tl.load(row_ptr + LOW)
    return tl.maximum(level_at(high, mean, m, c), level_at(low, mean, m, c))


@triton.jit
def lowest_at(q, m, c, high):
    """The least key with an exponent of at most `q`; one above `high` where none has."""
    return tl.where(q < 0, high + 1, lowest_key(tl.maximum(q, 0), m, c, high))


@triton.jit
def keep_levels(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, ties, step_ptr, meta_ptr, row_ptr, lowest, top, cut_key,
    cut_id, m, c, size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(length of the list, ties, lowest key, key above, cut_key, cut_id) after a typical; head and hole are written.

    Unless it is that of a row, the set is open as a whole. What is not kept is taken from the list. Where the histogram
    left the wrong ranges of a row open, all of it is listed.
    """
    op = tl.load(step_ptr)
    is_row = (tl.load(meta_ptr + SUMMED) == op) & (tl.load(row_ptr + ADDED) != 0)
    if (is_row == 0) & (ties < 0):  # pyright: ignore[reportOperatorIssue]
        sum_terms(x_ptr, list_ptr, sums_ptr, n, op, lowest, cut_key, cut_id, m, c, 0, TILE)
    mean, above = exponent_of(value_of(lowest), m, c), tl.full((), 0, tl.int64)
    total = tl.maximum(ties, 0).to(tl.int64) * weight_of(mean)
    if is_row | (ties < 0):
        mean, total = mean_of(sums_ptr).to(tl.int32), tl.load(sums_ptr + 1, cache_modifier=".cg")
    # The goal takes the place of a sum that the mean level followed from.
    goal_ptr = sums_ptr + 2
    tl.debug_barrier()
    tl.store(goal_ptr, target_of(tl.load(step_ptr + 1), total, tl.load(step_ptr + 2)))
    tl.debug_barrier()
    low, end = tl.full((), -1, tl.int32), last_level(row_ptr, mean, m, c)
    if is_row:
        low, end = sure_levels(row_ptr, mean, m, c)
        above = sum_of(mass_ptr, ABOVE_LAST, blocks, PADDED)
    level, ahead, is_open = end, total, tl.full((), True, tl.int1)
    has_core = above > 0  # pyright: ignore[reportOperatorIssue]
    while is_open:
        level, ahead, reached = level_reaching(
            x_ptr, list_ptr, goal_ptr, n, ties, lowest, mean, above, low, end, cut_key, cut_id, m, c, TILE
        )
        goal = tl.load(goal_ptr, cache_modifier=".cg")
        is_open = is_row & ((level <= low) | (ahead >= goal) | (reached < goal))
        if is_open:
            n, ties, above, lowest, top = opened(x_ptr, mass_ptr, count_ptr, list_ptr, size, blocks, PADDED, TILE)
            low, end = tl.full((), -1, tl.int32), last_level(row_ptr, mean, m, c)
            has_core = tl.full((), False, tl.int1)
        above, is_row = tl.full((), 0, tl.int64), tl.full((), False, tl.int1)
    return keep_up_to(
        x_ptr, count_ptr, list_ptr, n, ties, op, row_ptr, has_core, lowest, top, cut_key, cut_id, mean, level,
        tl.load(goal_ptr, cache_modifier=".cg") - ahead, m, c, size, blocks, BLOCK, PADDED, TILE,
    )


@triton.jit
def keep_up_to(
    x_ptr, count_ptr, list_ptr, n, ties, op, row_ptr, has_core, lowest, top, cut_key, cut_id, mean, level, rest, m, c,
    size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """The same where tokens up to a level stay, or by rank as many of the last level as weigh the `rest`."""
    high = tl.load(row_ptr + HIGH)
    head, last_key = lowest_at(mean - level - 1, m, c, high) - 1, lowest_at(mean + level, m, c, high)
    last_id, needed = tl.full((), NO_ID, tl.int32), tl.full((), NO_ID, tl.int64)
    tl.store(row_ptr + HEAD_KEY, head)
    tl.store(row_ptr + HEAD_ID, _NO_HEAD)
    tl.debug_barrier()
    if op == _BY_RANK:
        needed, last_key, last_id = ranked(
            x_ptr, count_ptr, list_ptr, n, ties, row_ptr, lowest, last_key, cut_key, cut_id, mean, level, rest, m, c,
            size, blocks, BLOCK, PADDED, TILE,
        )
    cut_id = tl.where(last_key == cut_key, tl.minimum(last_id, cut_id), tl.where(last_key > cut_key, last_id, cut_id))
    cut_key = tl.maximum(cut_key, last_key)
    greatest = lowest
    if ties >= 0:
        own = level_at(lowest, mean, m, c)
        ties = tl.where(own < level, ties, tl.where(own == level, tl.minimum(ties, needed).to(tl.int32), 0))
    else:
        n, greatest = keep_listed(x_ptr, list_ptr, n, row_ptr, cut_key, cut_id, TILE)
    # Without a core, what is left is in the list: its largest logit counts behind a temperature.
    tl.store(row_ptr + HEAD_KEY, greatest, mask=has_core == 0)
    tl.debug_barrier()
    return n, ties, lowest, top, cut_key, cut_id


@triton.jit
def ranked(
    x_ptr, count_ptr, list_ptr, n, ties, row_ptr, lowest, last_key, cut_key, cut_id, mean, level, rest, m, c, size,
    blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(how many tokens of one side of the last level stay, key and id of the cut) where so many of that level stay as
    weigh the `rest`, those above the mean first; the hole is written."""
    # The keys of the last level above the mean are from `upper` to the head, and those below it up to `end`.
    head, high = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg"), tl.load(row_ptr + HIGH)
    upper = lowest_at(mean - level, m, c, high)
    number = tl.where((lowest >= upper) & (lowest <= head), tl.maximum(ties, 0), 0)
    if ties < 0:
        number = open_count(x_ptr, list_ptr, n, ties, upper, cut_key, cut_id, TILE)
        number -= open_count(x_ptr, list_ptr, n, ties, head + 1, cut_key, cut_id, TILE)
    w = weight_of(mean - level)
    mass = tl.where(upper <= high, number.to(tl.int64) * w, 0)
    is_upper = mass >= rest
    each = tl.maximum(tl.where(is_upper, w, weight_of(mean + level)), 1)
    needed = (tl.where(is_upper, rest, rest - mass) + each - 1) // each
    end = tl.where(is_upper, head + 1, lowest_at(mean + level - 1, m, c, high))
    start = tl.where(is_upper, upper, last_key)
    # What is below the last level above the mean stays.
    tl.store(row_ptr + HOLE_END, tl.where(is_upper & (level > 0), upper - 1, POS_INF))
    if ties < 0:
        n = put_first(x_ptr, list_ptr, n, start, end, TILE)
    else:
        start, end = lowest, lowest + 1
    key, ids, _ = cut_top_k(
        x_ptr, count_ptr, list_ptr, n, ties, n * 0, needed, 0, start, end, cut_key, cut_id, size, blocks, BLOCK,
        PADDED, TILE,
    )
    tl.store(row_ptr + HOLE_KEY, key)
    tl.store(row_ptr + HOLE_ID, ids)
    tl.debug_barrier()
    if tl.load(row_ptr + HOLE_END, cache_modifier=".cg") < POS_INF:
        key, ids = lowest_at(mean + level - 1, m, c, tl.load(row_ptr + HIGH)), tl.full((), NO_ID, tl.int32)
    return needed, key, ids


@triton.jit
def keep_listed(x_ptr, list_ptr, n, row_ptr, cut_key, cut_id, TILE: tl.constexpr):
    """(length of the list, greatest key in it) once what the head, the cut and the hole remove is taken from it."""
    PART: tl.constexpr = TILE // 4
    number, greatest = tl.full((), 0, tl.int32), tl.full((), NEG_INF, tl.int32)
    head = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")
    for start in range(0, n, TILE):
        for part in range(0, TILE, PART):
            key, ids, _ = open_keys(x_ptr, list_ptr, start + part, n, PART)
            kept = is_in(key, ids, cut_key, cut_id) & (key <= head) & (is_removed(key, ids, row_ptr) == 0)
            one = (kept & (key > NEG_INF)).to(tl.int32)
            greatest = tl.maximum(greatest, tl.max(tl.where(one > 0, key, NEG_INF), 0))
            # All threads have read the part before its place is written to.
            tl.debug_barrier()
            tl.store(list_ptr + number + tl.cumsum(one, 0) - one, ids, mask=one > 0)
            number += tl.sum(one, 0)
    tl.debug_barrier()
    return number, greatest
# fmt: on
