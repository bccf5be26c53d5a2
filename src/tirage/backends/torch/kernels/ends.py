"""The ends of each row: the largest and the least key of its blocks, and what the last of its programs makes of them.

Programs of a row come in any order, and none waits for another. Each adds one to the row's counter once it has stored
what it found; the one that finds all others counted goes on with the row, and leaves the counter at 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.layout import (
    ARRIVED,
    FAR,
    FIRST_C,
    GREATEST,
    HIGH,
    LANES,
    LEAST,
    LOW,
    NEAR,
    SEED,
    SUMMANDS,
    VARYING,
    WIDTH,
    constant,
    span_of,
)
from tirage.backends.torch.kernels.rule import LIMIT, NEG_INF, POS_INF, exponent_of, key_of, value_of


@triton.jit
def is_last(arrived_ptr, programs):
    """Whether all `programs` that count there have come: to the last of them, and to no other.

    What they stored before can be read from then on, past the nearest cache.
    """
    # All threads store before the first barrier. One thread's addition then releases their stores, and acquires those
    # of the programs before; behind the second barrier that holds for the other threads too.
    tl.debug_barrier()
    before = tl.atomic_add(arrived_ptr, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    if before == programs - 1:
        tl.store(arrived_ptr, 0)
    return before == programs - 1


# fmt: off
@triton.jit(do_not_specialize=VARYING)
def measure(
    x_ptr, bad_ptr, meta_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, plane, columns, size,
    blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """The ends of one block of one row; the last block settles the row."""
    row = tl.program_id(0).to(tl.int64)
    measure_block(x_ptr + row * size, ends_ptr + row * blocks, tl.program_id(1), plane, size, BLOCK)
    meta_ptr += row * columns
    if is_last(meta_ptr + ARRIVED, blocks):
        given = (tl.load(bad_ptr + row) != 0).to(tl.int32)
        settle_row(
            x_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given,
            constant(meta_ptr, FIRST_C), plane, size, blocks, BLOCK, PADDED,
        )


@triton.jit(do_not_specialize=VARYING)
def measure_slots(
    x_ptr, slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, arrived_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr,
    status_ptr, bins_ptr, sums_ptr, length_ptr, room, plane, columns, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, FULL: tl.constexpr, EMPTY: tl.constexpr,
):
    """The same for rows whose tables lie at slots."""
    row = tl.program_id(0).to(tl.int64)
    measure_block(x_ptr + row * size, ends_ptr + row * blocks, tl.program_id(1), plane, size, BLOCK)
    if is_last(arrived_ptr + row, blocks):
        settle_slot(
            x_ptr, slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr,
            bins_ptr, sums_ptr, length_ptr, row, room, plane, columns, size, blocks, BLOCK, PADDED, FULL, EMPTY,
        )


@triton.jit
def measure_block(x_ptr, ends_ptr, block, plane, size, BLOCK: tl.constexpr):
    """Stores the largest key of a block, and the smallest but that of -inf, in two planes of so many numbers."""
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < size
    key = key_of(tl.load(x_ptr + ids, mask=inside, other=float("-inf")))
    tl.store(ends_ptr + block, tl.max(key, 0))
    tl.store(ends_ptr + plane + block, tl.min(tl.where(inside & (key != NEG_INF), key, POS_INF), 0))


@triton.jit
def settle_slot(
    x_ptr, slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr,
    bins_ptr, sums_ptr, length_ptr, row, room, plane, columns, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, FULL: tl.constexpr, EMPTY: tl.constexpr,
):
    """Settles a row whose tables lie at a slot, and brings its numbers and its seed there.

    `tokens` is how many it has, `room` how many it may have.
    """
    slot = tl.load(slots_ptr + row)
    slots_meta_ptr += slot * columns
    for start in range(0, columns, 32):
        at = start + tl.arange(0, 32)
        read = tl.load(slots_meta_ptr + at, mask=at < columns, other=0)
        tl.store(meta_ptr + row * columns + at, read, mask=at < columns)
    used = tl.load(used_ptr + slot) != 0
    given = tl.where(used, tl.where(tl.load(tokens_ptr + slot) > room, FULL, 0), EMPTY)
    tl.store(seed_ptr + row, tl.where(used, tl.load(slots_meta_ptr + SEED), 0))
    settle_row(
        x_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given,
        constant(slots_meta_ptr, FIRST_C), plane, size, blocks, BLOCK, PADDED,
    )


@triton.jit
def settle_row(
    x_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, first_c, plane, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """Largest and least key of a row, its status, and where its bins lie, from a logit of each block.

    Its status is `given` where that is not 0. Its histogram, its sums and its list are emptied.
    """
    at = tl.arange(0, PADDED)
    there = at < blocks
    ends_ptr += row * blocks
    top = tl.max(tl.load(ends_ptr + at, mask=there, other=NEG_INF, cache_modifier=".cg"), 0)
    low = tl.min(tl.load(ends_ptr + plane + at, mask=there, other=POS_INF, cache_modifier=".cg"), 0)
    found = tl.where((top >= POS_INF) | (low < NEG_INF), 1, tl.where(top > NEG_INF, 0, 2))
    status = tl.where(given != 0, given, found)
    tl.store(status_ptr + row, status.to(tl.int8))
    tl.store(row_ptr + row * WIDTH + HIGH, top)
    tl.store(row_ptr + row * WIDTH + LOW, low)
    tl.store(row_ptr + row * WIDTH + LEAST, POS_INF)
    tl.store(row_ptr + row * WIDTH + GREATEST, NEG_INF)
    if status == 0:
        sample = tl.load(x_ptr + row * size + at * BLOCK, mask=there, cache_modifier=".cg")
        q = exponent_of(sample, value_of(top), first_c)
        near, far = span_of(tl.where(there, q, LIMIT))
        tl.store(row_ptr + row * WIDTH + NEAR, near)
        tl.store(row_ptr + row * WIDTH + FAR, far)
    lanes = tl.arange(0, LANES)
    tl.store(bins_ptr + row * LANES + lanes, lanes * 0)
    at = tl.arange(0, 8)
    tl.store(sums_ptr + row * SUMMANDS + at, (at * 0).to(tl.int64), mask=at < SUMMANDS)
    tl.store(length_ptr + row, 0)
# fmt: on
