"""The three passes over the logits, split over thread blocks, and the ends of each row."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.layout import (
    ABOVE,
    ABOVE_FIRST,
    ABOVE_LAST,
    ABOVE_WEIGHTY,
    ALL_FIRST,
    ALL_LAST,
    FAR,
    FIRST_C,
    GREATEST,
    HIGH,
    IS_GREEDY,
    LANES,
    LAST,
    LEAST,
    LOW,
    LOWEST,
    NEAR,
    NOT_COUNTED,
    OPEN,
    SEED,
    SUMMANDS,
    SUMMED,
    TOP,
    VARYING,
    WEIGHTY,
    WIDTH,
    constant,
    lane_of,
    span_of,
)  # fmt: skip
from tirage.backends.torch.kernels.rule import LIMIT, NEG_INF, POS_INF, exponent_of, key_of, value_of, weight_of
from tirage.backends.torch.kernels.thresholds import number_of_sums, term, widest_of


@triton.jit(do_not_specialize=VARYING)
def measure(x_ptr, ends_ptr, plane, size, blocks, BLOCK: tl.constexpr):
    """Largest key of each block of one row, and the smallest but that of -inf, in two planes of so many numbers."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < size
    key = key_of(tl.load(x_ptr + row * size + ids, mask=inside, other=float("-inf")))
    at = ends_ptr + row * blocks + block
    tl.store(at, tl.max(key, 0))
    tl.store(at + plane, tl.min(tl.where(inside & (key != NEG_INF), key, POS_INF), 0))


# fmt: off
@triton.jit(do_not_specialize=VARYING)
def settle(
    x_ptr, ends_ptr, bad_ptr, meta_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, plane, columns, size,
    blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """Largest and least key of each row, its status, and where its bins lie, from a logit of each block.

    Its histogram, its sums and its list are emptied.
    """
    row = tl.program_id(0).to(tl.int64)
    first_c = constant(meta_ptr + row * columns, FIRST_C)
    given = (tl.load(bad_ptr + row) != 0).to(tl.int32)
    settle_row(
        x_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, first_c, plane, size, blocks,
        BLOCK, PADDED,
    )


@triton.jit(do_not_specialize=VARYING)
def settle_slots(
    x_ptr, ends_ptr, slots_ptr, used_ptr, said_ptr, slots_meta_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr, bins_ptr,
    sums_ptr, length_ptr, room, plane, columns, size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr,
    FULL: tl.constexpr, EMPTY: tl.constexpr,
):
    """The same for rows whose tables lie at slots: each one's numbers and seed are brought to its row.

    `said` is how many tokens it has, `room` how many it may have.
    """
    row, slot = tl.program_id(0).to(tl.int64), tl.load(slots_ptr + tl.program_id(0))
    for start in range(0, columns, 32):
        at = start + tl.arange(0, 32)
        read = tl.load(slots_meta_ptr + slot * columns + at, mask=at < columns, other=0)
        tl.store(meta_ptr + row * columns + at, read, mask=at < columns)
    used = tl.load(used_ptr + slot) != 0
    given = tl.where(used, tl.where(tl.load(said_ptr + slot) > room, FULL, 0), EMPTY)
    seed = tl.load(slots_meta_ptr + slot * columns + SEED)
    tl.store(seed_ptr + row, tl.where(used, seed, 0))
    settle_row(
        x_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given,
        constant(slots_meta_ptr + slot * columns, FIRST_C), plane, size, blocks, BLOCK, PADDED,
    )


@triton.jit
def settle_row(
    x_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, first_c, plane, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """What `settle` does with a row whose status is `given` where that is not 0."""
    at = tl.arange(0, PADDED)
    there = at < blocks
    top = tl.max(tl.load(ends_ptr + row * blocks + at, mask=there, other=NEG_INF), 0)
    low = tl.min(tl.load(ends_ptr + plane + row * blocks + at, mask=there, other=POS_INF), 0)
    found = tl.where((top >= POS_INF) | (low < NEG_INF), 1, tl.where(top > NEG_INF, 0, 2))
    status = tl.where(given != 0, given, found)
    tl.store(status_ptr + row, status.to(tl.int8))
    tl.store(row_ptr + row * WIDTH + HIGH, top)
    tl.store(row_ptr + row * WIDTH + LOW, low)
    tl.store(row_ptr + row * WIDTH + LEAST, POS_INF)
    tl.store(row_ptr + row * WIDTH + GREATEST, NEG_INF)
    if status == 0:
        sample = tl.load(x_ptr + row * size + at * BLOCK, mask=there)
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


@triton.jit(do_not_specialize=VARYING)
def weigh(
    x_ptr, meta_ptr, row_ptr, status_ptr, mass_ptr, count_ptr, bins_ptr, sums_ptr, columns, size, blocks, run,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights of `run` blocks of one row, how many of their tokens have any, and the histogram of their exponents.

    Where a step needs them, also the sums of the row.
    """
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * run
    meta_ptr += row * columns
    if (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0):
        lanes = tl.arange(0, LANES)
        found = lanes * 0
        for at in range(tl.minimum(run, blocks - first)):
            found += weigh_block(
                x_ptr + row * size, meta_ptr, row_ptr + row * WIDTH, mass_ptr + row * blocks * 4,
                count_ptr + row * blocks * 4, sums_ptr + row * SUMMANDS, first + at, size, BLOCK,
            )  # fmt: skip
        # One addition for each bin of a program, as they cost more than the logits.
        tl.atomic_add(bins_ptr + row * LANES + lanes, found, mask=(found > 0) & (lanes < NOT_COUNTED), sem="relaxed")


@triton.jit
def weigh_block(x_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, sums_ptr, block, size, BLOCK: tl.constexpr):
    """The histogram of one block of a row; what else `weigh` finds is written or added."""
    m, c = value_of(tl.load(row_ptr + HIGH)), constant(meta_ptr, FIRST_C)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))
    q = exponent_of(x, m, c)
    w, key = weight_of(q), key_of(x)
    tl.store(mass_ptr + block * 4 + ALL_FIRST, tl.sum(w, 0))
    tl.store(count_ptr + block * 4 + WEIGHTY, tl.sum((w > 0).to(tl.int32), 0))
    op = tl.load(meta_ptr + SUMMED)
    if op > 0:
        widest = widest_of(tl.load(row_ptr + LOW), m)
        for j in range(number_of_sums(op)):
            each = tl.where(key > NEG_INF, term(op, j, x, m, c, widest), 0)
            tl.atomic_add(sums_ptr + j, tl.sum(each, 0), sem="relaxed")
    lane = lane_of(q, tl.load(row_ptr + NEAR), tl.load(row_ptr + FAR))
    return tl.histogram(tl.where(key > NEG_INF, lane, NOT_COUNTED), LANES)


@triton.jit(do_not_specialize=VARYING)
def split(
    x_ptr, meta_ptr, row_ptr, status_ptr, ends_ptr, mass_ptr, count_ptr, list_ptr, length_ptr, columns, size, blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums and counts of each block above the open range of keys, and the ids of the range, listed in any order.

    The least and the greatest key in the range are those of the row. A range of one key is only counted. Blocks that
    lie below the range are not read, nor are rows without filters.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    meta_ptr += row * columns
    first_c, last_c = constant(meta_ptr, FIRST_C), constant(row_ptr + row * WIDTH, LAST)
    lowest, top = tl.load(row_ptr + row * WIDTH + LOWEST), tl.load(row_ptr + row * WIDTH + TOP)
    draws = (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0)
    if draws & ((first_c != last_c) | (lowest < top)):
        at = row * blocks + block
        ids = block * BLOCK + tl.arange(0, BLOCK)
        read = (first_c != last_c) | (tl.load(ends_ptr + at) >= lowest)
        x = tl.load(x_ptr + row * size + ids, mask=ids < tl.where(read, size, 0), other=float("-inf"))
        m, key = value_of(tl.load(row_ptr + row * WIDTH + HIGH)), key_of(x)
        w, last_w = weight_of(exponent_of(x, m, first_c)), weight_of(exponent_of(x, m, last_c))
        above, is_open = key >= top, (key >= lowest) & (key < top)
        tl.store(mass_ptr + at * 4 + ALL_LAST, tl.sum(last_w, 0))
        tl.store(mass_ptr + at * 4 + ABOVE_FIRST, tl.sum(tl.where(above, w, 0), 0))
        tl.store(mass_ptr + at * 4 + ABOVE_LAST, tl.sum(tl.where(above, last_w, 0), 0))
        if first_c != last_c:
            tl.store(count_ptr + at * 4 + WEIGHTY, tl.sum((last_w > 0).to(tl.int32), 0))
        one = is_open.to(tl.int32)
        count = tl.sum(one, 0)
        tl.store(count_ptr + at * 4 + ABOVE, tl.sum(above.to(tl.int32), 0))
        tl.store(count_ptr + at * 4 + ABOVE_WEIGHTY, tl.sum((above & (last_w > 0)).to(tl.int32), 0))
        tl.store(count_ptr + at * 4 + OPEN, count)
        if (count > 0) & (lowest + 1 < top):  # pyright: ignore[reportOperatorIssue]
            tl.atomic_min(row_ptr + row * WIDTH + LEAST, tl.min(tl.where(is_open, key, POS_INF), 0), sem="relaxed")
            tl.atomic_max(row_ptr + row * WIDTH + GREATEST, tl.max(tl.where(is_open, key, NEG_INF), 0), sem="relaxed")
            start = tl.atomic_add(length_ptr + row, count, sem="relaxed")
            tl.store(list_ptr + row * size + start + tl.cumsum(one, 0) - one, ids, mask=is_open)
