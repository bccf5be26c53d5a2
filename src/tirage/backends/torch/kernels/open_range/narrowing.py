"""Where a running sum over the listed tokens of a set reaches a goal, searched for in ever narrower ranges of keys.

Of a long list, those in the range that is left are put first each time, and no others are read from then on; a short
one is read once, and held in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import exponent_of, is_in, key_of, weight_of
from tirage.backends.torch.kernels.open_range.lists import WAYS, key_at, open_keys, open_sums

_BY_KEYS, _BY_LEVELS = tl.constexpr(False), tl.constexpr(True)
_ONE = tl.constexpr(1)


# fmt: off
@triton.jit
def reached_key(
    x_ptr, list_ptr, n, goal, lowest, top, cut_key, cut_id, m, c, TILE: tl.constexpr, WEIGH: tl.constexpr
):
    """(the key at which a running sum over the set reaches `goal`, what is left of that behind all keys above it, how
    many tokens of the list, those with that key among them, now stand first).

    What is summed up are weights, or numbers of tokens in the range [lowest, top).
    """
    FEW: tl.constexpr = TILE // 8
    low, end = lowest, top
    while (n > FEW) & (low + 1 < end):
        step = part_of(low, end)
        sums = open_sums(x_ptr, list_ptr, n, lowest, low, step, cut_key, cut_id, m, c, TILE, WEIGH)
        low, end, more = narrowed(sums, low, end, step, goal, goal * 0)
        goal -= more
        n = put_first(x_ptr, list_ptr, n, low, end, TILE)
    more = goal * 0
    if low + 1 < end:
        key, ids, x = open_keys(x_ptr, list_ptr, 0, n, FEW)
        each = (is_in(key, ids, cut_key, cut_id) & (key >= lowest)).to(tl.int64)
        if WEIGH:
            each = tl.where(each > 0, weight_of(exponent_of(x, m, c)), 0)
        while low + 1 < end:
            step = part_of(low, end)
            low, end, more = narrowed(sums_from(key, each, low, step), low, end, step, goal, more)
    return low, goal - more, n


@triton.jit
def part_of(low, end):
    """How many keys an eighth of [low, end) has, uint32: what keys are apart fits into no int32, but into 32 bits."""
    return (end.to(tl.uint32) - low.to(tl.uint32) + (WAYS - 1)) // WAYS


@triton.jit
def sums_from(key, each, low, step):
    """The sums of what tokens add, int64 [n], whose keys are at least `low` + j * `step`: int64 [WAYS], 0 for j = 0."""
    at = tl.arange(0, WAYS)
    sums = (at * 0).to(tl.int64)
    for j in range(1, WAYS):
        least = key_at(low, j, step)
        sums += tl.where(at == j, tl.sum(tl.where(key >= least, each, 0), 0), 0)
    return sums


@triton.jit
def narrowed(sums, low, end, step, goal, more):
    """(first key, key above, sum of what stands above) of the part of a range that holds the goal."""
    at = tl.arange(0, WAYS)
    reaches = sums >= goal
    # The greatest sum that is too small is that of the part before.
    more = tl.maximum(more, tl.max(tl.where(reaches | (at == 0), more, sums), 0))
    low = key_at(low, tl.sum((reaches & (at > 0)).to(tl.int32), 0), step)
    return low, tl.minimum(key_at(low, 1, step), end), more


@triton.jit
def put_first(x_ptr, list_ptr, n, low, end, TILE: tl.constexpr):
    """How many of `n` listed tokens have keys from `low` on, below `end`: these now stand first."""
    return put_some_first(x_ptr, list_ptr, n, low, end, 0, 0.0, 0.0, TILE, _BY_KEYS)


@triton.jit
def put_levels_first(x_ptr, list_ptr, n, low, end, mean, m, c, TILE: tl.constexpr):
    """The same of tokens whose exponents are further than `low` from the mean one, but no further than `end`."""
    return put_some_first(x_ptr, list_ptr, n, low, end, mean, m, c, TILE, _BY_LEVELS)


@triton.jit
def put_some_first(
    x_ptr, list_ptr, n, low, end, mean, m, c, TILE: tl.constexpr, LEVELED: tl.constexpr
):
    """How many of `n` listed tokens are within bounds, of keys or of levels: these now stand first."""
    PART: tl.constexpr = TILE // 8 if TILE > 4 else _ONE
    lanes, number = tl.arange(0, PART), n * 0
    for start in range(0, n, TILE):
        # A few of a tile at a time, as `sum_terms` does.
        for part in range(0, TILE, PART):
            first = start + part
            _, ids, x = open_keys(x_ptr, list_ptr, first, n, PART)
            if LEVELED:
                level = tl.abs(exponent_of(x, m, c) - mean)
                kept = ((level > low) & (level <= end) & (first + lanes < n)).to(tl.int32)
            else:
                kept = ((key_of(x) >= low) & (key_of(x) < end)).to(tl.int32)
            many = tl.sum(kept, 0)
            # The last of them change places with others that stand in front of the part.
            moved = tl.minimum(many, first - number)
            others = tl.load(list_ptr + number + lanes, mask=lanes < moved, other=0)
            tl.debug_barrier()
            rank = tl.cumsum(kept, 0) - kept
            place = tl.where(kept > 0, rank, many + lanes - rank)
            is_moved = (kept > 0) & (rank >= many - moved)
            place = tl.where(is_moved, number - many + moved + rank, first + place)
            tl.store(list_ptr + place, ids, mask=first + lanes < n)
            tl.store(list_ptr + first + many - moved + lanes, others, mask=lanes < moved)
            tl.debug_barrier()
            number += many
    return number
# fmt: on
