"""The passes over the logits that a draw makes once rows are settled, split over thread blocks."""

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
    SUMMANDS,
    SUMMED,
    TOP,
    VARYING,
    WEIGHTY,
    WIDTH,
    constant,
    lane_of,
)  # fmt: skip
from tirage.backends.torch.kernels.rule import NEG_INF, POS_INF, exponent_of, key_of, value_of, weight_of
from tirage.backends.torch.kernels.thresholds import number_of_sums, term, widest_of


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
