"""The tokens of a row's open range, which `split` lists: how many there are, what they weigh, which is the n-th tie."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NO_ID, exponent_of, is_in, key_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import number_of_sums, term
from tirage.backends.torch.kernels.layout import ADDENDS, OPEN

WAYS = tl.constexpr(8)
"""Parts that a search divides its range into with each reading of the list."""
BY_WEIGHT, BY_NUMBER = tl.constexpr(True), tl.constexpr(False)


@triton.jit
def open_keys(x_ptr, list_ptr, start, n, TILE: tl.constexpr):
    """(keys, ids, logits) [TILE] of a tile of the list; the keys beyond its end are -inf's."""
    at = start + tl.arange(0, TILE)
    ids = tl.load(list_ptr + at, mask=at < n, other=NO_ID)
    x = tl.load(x_ptr + ids, mask=at < n, other=float("-inf"))
    return key_of(x), ids, x


@triton.jit
def open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE: tl.constexpr):
    """How many tokens of the set lie in the range at or above `lowest`; of a range of one key only that is known."""
    PART: tl.constexpr = TILE // 4
    total = tl.maximum(ties, 0)
    if ties < 0:
        for start in range(0, n, TILE):
            for part in range(0, TILE, PART):
                key, ids, _ = open_keys(x_ptr, list_ptr, start + part, n, PART)
                total += tl.sum((is_in(key, ids, cut_key, cut_id) & (key >= lowest)).to(tl.int32), 0)
    return total


@triton.jit
def open_mass(x_ptr, list_ptr, n, ties, single, lowest, cut_key, cut_id, m, c, TILE: tl.constexpr):
    """The weight of the same tokens."""
    PART: tl.constexpr = TILE // 4
    total = tl.maximum(ties, 0).to(tl.int64) * weight_of(exponent_of(value_of(single), m, c))
    if ties < 0:
        for start in range(0, n, TILE):
            for part in range(0, TILE, PART):
                key, ids, x = open_keys(x_ptr, list_ptr, start + part, n, PART)
                kept = is_in(key, ids, cut_key, cut_id) & (key >= lowest)
                total += tl.sum(tl.where(kept, weight_of(exponent_of(x, m, c)), 0), 0)
    return total


@triton.jit
def key_at(low, j, step):
    """The key int32 `low` + j * `step`, of a uint32 step: the sum is one, whatever the product is."""
    return (low.to(tl.uint32) + step * j).to(tl.int32)


@triton.jit
def open_sums(
    x_ptr, list_ptr, n, lowest, low, step, cut_key, cut_id, m, c, TILE: tl.constexpr, WEIGH: tl.constexpr
):  # fmt: skip
    """The weights of the same tokens, or their number, at or above `low` + j * `step`: int64 [WAYS], 0 for j = 0."""
    at = tl.arange(0, WAYS)
    sums = (at * 0).to(tl.int64)
    for start in range(0, n, TILE):
        # A few of a tile at a time: the state of the row takes most registers.
        for part in range(0, TILE, TILE // 4):
            key, ids, x = open_keys(x_ptr, list_ptr, start + part, n, TILE // 4)
            kept = is_in(key, ids, cut_key, cut_id) & (key >= lowest)
            each = kept.to(tl.int64)
            if WEIGH:
                each = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
            for j in range(1, WAYS):
                floor = key_at(low, j, step)
                sums += tl.where(at == j, tl.sum(tl.where(key >= floor, each, 0), 0), 0)
    return sums


@triton.jit
def tie_counts(x_ptr, list_ptr, n, key_wanted, low, step, TILE: tl.constexpr):
    """How many tokens with that key have ids of at most `low` + j * `step`: int64 [WAYS]."""
    at = tl.arange(0, WAYS)
    counts = (at * 0).to(tl.int64)
    for start in range(0, n, TILE):
        for part in range(0, TILE, TILE // 4):
            key, ids, _ = open_keys(x_ptr, list_ptr, start + part, n, TILE // 4)
            for j in range(1, WAYS):
                tie = (key == key_wanted) & (ids <= low + j * step)
                counts += tl.where(at == j, tl.sum(tie.to(tl.int64), 0), 0)
    return counts


@triton.jit
def nth_tie(
    x_ptr, count_ptr, list_ptr, n, ties, key_wanted, wanted, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Id of the `wanted`-th token, counted from 1 and by id, whose key is `key_wanted`."""
    if ties >= 0:
        at = tl.arange(0, PADDED)
        reached = tl.cumsum(tl.load(count_ptr + at * 4 + OPEN, mask=at < blocks, other=0), 0).to(tl.int64)
        block = tl.sum((reached < wanted).to(tl.int32), 0)
        seen = tl.max(tl.where(reached < wanted, reached, 0), 0)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        tie = (key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))) == key_wanted).to(tl.int32)
        rank = seen + tl.cumsum(tie, 0)
        # A shard that does not hold the block keeps the ties before it, and none behind it.
        other = tl.where((wanted > 0) & (block < blocks), block * BLOCK, -1)
        found = tl.maximum(tl.max(tl.where((tie > 0) & (rank == wanted), ids, -1), 0), other)
    else:
        # Mostly the first: one pass finds it.
        first = tl.full((), NO_ID, tl.int32)
        for start in range(0, n, TILE):
            for part in range(0, TILE, TILE // 4):
                key, ids, _ = open_keys(x_ptr, list_ptr, start + part, n, TILE // 4)
                first = tl.minimum(first, tl.min(tl.where(key == key_wanted, ids, NO_ID), 0))
        low, top = first - 1, tl.where(wanted > 1, size - 1, first)
        while low + 1 < top:
            step = tl.cdiv(top - low, WAYS)
            counts = tie_counts(x_ptr, list_ptr, n, key_wanted, low, step, TILE)
            low += tl.sum(((counts < wanted) & (tl.arange(0, WAYS) > 0)).to(tl.int32), 0) * step
            top = tl.minimum(low + step, top)
        found = top
    return found


@triton.jit
def sum_terms(
    x_ptr, list_ptr, sums_ptr, n, op, lowest, cut_key, cut_id, m, c, widest, TILE: tl.constexpr
):  # fmt: skip
    """Write the sums that a step needs of the set, all of which is in the open range."""
    # The later of both ends, and an operation of 32 bits: what is passed takes no more registers than a call may.
    last_id = tl.where(lowest > cut_key, NO_ID, cut_id)
    add_terms(
        x_ptr, list_ptr, sums_ptr, n, op.to(tl.int32), tl.maximum(lowest, cut_key), last_id, m, c, widest, TILE
    )  # fmt: skip


@triton.jit(noinline=True)
def add_terms(
    x_ptr, list_ptr, sums_ptr, n, op, cut_key, cut_id, m, c, widest, TILE: tl.constexpr
):  # fmt: skip
    """What `sum_terms` does. Not inlined: what few rows need takes no registers of the others."""
    PART: tl.constexpr = TILE // 4
    at = tl.arange(0, WAYS)
    sums = (at * 0).to(tl.int64)
    for start in range(0, n, TILE):
        # A few of a tile at a time: what is summed takes many registers.
        for part in range(0, TILE, PART):
            key, ids, x = open_keys(x_ptr, list_ptr, start + part, n, PART)
            kept = is_in(key, ids, cut_key, cut_id)
            for j in range(number_of_sums(op)):
                sums += tl.where(at == j, tl.sum(tl.where(kept, term(op, j, x, m, c, widest), 0), 0), 0)
    tl.store(sums_ptr + at, sums, mask=at < ADDENDS)
    tl.debug_barrier()
