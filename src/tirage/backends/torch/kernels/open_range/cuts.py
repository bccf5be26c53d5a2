"""Where a top-k and a top-p cut the open range of a row, looked for in the list of its tokens."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    key_of,
    target_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.exact.thresholds import least_number
from tirage.backends.torch.kernels.layout import (
    ABOVE,
    ABOVE_FIRST,
    ABOVE_LAST,
    ABOVE_WEIGHTY,
    LEFT,
    MASS_FROM,
    MASS_TO,
    WEIGHTY,
)  # fmt: skip
from tirage.backends.torch.kernels.open_range.lists import (
    BY_NUMBER,
    BY_WEIGHT,
    nth_tie,
    open_mass,
)
from tirage.backends.torch.kernels.open_range.narrowing import reached_key


# fmt: off
@triton.jit
def cut_top_k(
    x_ptr, count_ptr, list_ptr, n, ties, number, k, all_ties, lowest, top, cut_key, cut_id, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties) after top-k of a set of at least k tokens, `number` of them above the range."""
    last, wanted, n = reached_key(
        x_ptr, list_ptr, n, k - number.to(tl.int64), lowest, top, cut_key, cut_id, 0.0, 0.0, TILE, BY_NUMBER
    )
    if all_ties > 0:
        cut_id = tl.where(last == cut_key, cut_id, NO_ID)
    else:
        cut_id = nth_tie(
            x_ptr, count_ptr, list_ptr, n, ties, last, wanted, size, blocks, BLOCK, PADDED, TILE
        )
        ties = tl.where(ties >= 0, wanted.to(tl.int32), ties)
    return last, cut_id, ties


@triton.jit
def reopened(
    x_ptr, mass_ptr, count_ptr, list_ptr, n, ties, above, target, op, step_ptr, lowest, top, cut_key, cut_id, m, c,
    size, blocks, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(length of the list, ties, mass above, lowest key, key above) of an open range in which a top-p with this target
    ends.

    The histogram told where it would likely end; where it does not, all candidates are listed. Where it leaves at
    least some number of tokens, the range may begin further on.
    """
    reached = above + open_mass(x_ptr, list_ptr, n, ties, lowest, lowest, cut_key, cut_id, m, c, TILE)
    if (reached < target) | ((above >= target) & (least_number(op, step_ptr) <= 1)):
        n, ties, above, lowest, top = opened(x_ptr, mass_ptr, count_ptr, list_ptr, size, blocks, PADDED, TILE)
    return n, ties, above, lowest, top


@triton.jit
def opened(
    x_ptr, mass_ptr, count_ptr, list_ptr, size, blocks, PADDED: tl.constexpr, TILE: tl.constexpr
):
    """The same of an open range that holds all candidates, which are listed."""
    n = list_all(x_ptr, list_ptr, size, TILE)
    at = tl.arange(0, PADDED)
    for column in tl.static_range(ABOVE_FIRST, ABOVE_LAST + 1):  # pyright: ignore[reportGeneralTypeIssues]
        tl.store(mass_ptr + at * 4 + column, (at * 0).to(tl.int64), mask=at < blocks)
    for column in tl.static_range(ABOVE, ABOVE_WEIGHTY + 1):  # pyright: ignore[reportGeneralTypeIssues]
        tl.store(count_ptr + at * 4 + column, at * 0, mask=at < blocks)
    # What has a weight under the last temperature no longer counts: shards, which cannot list all, see it there.
    tl.store(count_ptr + WEIGHTY, tl.full((), -1, tl.int32))
    tl.debug_barrier()
    lowest, top = tl.full((), NEG_INF + 1, tl.int32), tl.full((), POS_INF, tl.int32)
    return n, tl.full((), -1, tl.int32), tl.full((), 0, tl.int64), lowest, top


@triton.jit
def list_all(x_ptr, list_ptr, size, TILE: tl.constexpr):
    """The length of the list once all candidates are there."""
    n = tl.full((), 0, tl.int32)
    for start in range(0, size, TILE):
        for part in range(0, TILE, TILE // 4):
            ids = start + part + tl.arange(0, TILE // 4)
            key = key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf")))
            kept = (key > NEG_INF).to(tl.int32)
            tl.store(list_ptr + n + tl.cumsum(kept, 0) - kept, ids, mask=kept > 0)
            n += tl.sum(kept, 0)
    tl.debug_barrier()
    return n


@triton.jit
def cut_top_p(
    x_ptr, count_ptr, sums_ptr, list_ptr, n, ties, goal, doubt, step_ptr, lowest, top, cut_key, cut_id, m, c, size,
    blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties, trimmed id, whose weight is written) after top-p of a set that reaches its target, the
    `goal` of which is what the open range adds.

    In `doubt` that is the greatest of several. Where they do not all cut behind the same token, the row is weighed, and
    the cut looked for again.
    """
    last, rest, each, needed = lowest, goal, goal, goal
    # The goal lies where what is left of a weight is written in the end: it would take registers until it is read.
    tl.store(sums_ptr + LEFT, goal)
    tl.debug_barrier()
    number = n
    is_open = tl.full((), True, tl.int1)
    while is_open:
        goal = tl.load(sums_ptr + LEFT, cache_modifier=".cg")
        last, rest, number = reached_key(
            x_ptr, list_ptr, n, goal, lowest, top, cut_key, cut_id, m, c, TILE, BY_WEIGHT
        )
        each = weight_of(exponent_of(value_of(last), m, c))
        needed = (rest + each - 1) // tl.maximum(each, 1)
        is_open = tl.full((), False, tl.int1)
        if doubt:
            most = tl.minimum(tl.load(sums_ptr + MASS_TO), tl.load(sums_ptr + 1))
            least = tl.maximum(tl.load(sums_ptr + MASS_FROM), tl.load(sums_ptr))
            share, rounds = tl.load(step_ptr + 1), tl.load(step_ptr + 2)
            target = target_of(share, most, rounds)
            is_open = target_of(share, least, rounds) - target + rest <= (needed - 1) * each
            if is_open:
                goal = tl.load(sums_ptr + LEFT, cache_modifier=".cg") - target
                goal += target_of(share, row_mass(x_ptr, m, c, size, TILE), rounds)
                tl.debug_barrier()
                tl.store(sums_ptr + LEFT, goal)
                tl.debug_barrier()
            doubt = tl.full((), False, tl.int1)
    tl.debug_barrier()
    tl.store(sums_ptr + LEFT, rest - (needed - 1) * each)
    tl.debug_barrier()
    nth = nth_tie(
        x_ptr, count_ptr, list_ptr, number, ties, last, needed, size, blocks, BLOCK, PADDED, TILE
    )
    rule, all_ties = tl.load(step_ptr + 2), tl.load(step_ptr + 3)
    old_id = tl.where(last == cut_key, cut_id, NO_ID)
    # Where the range was left open by a least number of tokens, those above it may be enough.
    keeps_all = (all_ties > 0) & (needed > 0)
    ties = tl.where((ties >= 0) & (keeps_all == 0), tl.maximum(needed, 0).to(tl.int32), ties)
    trimmed = tl.where((rule == 2) & (needed > 0), nth, -1)
    return last, tl.where(keeps_all, old_id, nth), ties, trimmed


@triton.jit
def row_mass(x_ptr, m, c, size, TILE: tl.constexpr):
    """The mass of a whole row."""
    PART: tl.constexpr = TILE // 4
    mass = tl.full((), 0, tl.int64)
    for start in range(0, size, TILE):
        # A few of a tile at a time, as `sum_terms` does.
        for part in range(0, TILE, PART):
            ids = start + part + tl.arange(0, PART)
            x = tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))
            mass += tl.sum(weight_of(exponent_of(x, m, c)), 0)
    return mass
# fmt: on
