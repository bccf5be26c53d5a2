"""The passes over the logits that a draw makes once rows are settled, split over thread blocks.

`weigh` is for rows in shards whose temperature follows from sums over the whole of them; of whole rows `split_first`
(`split_first`) does that.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.entropy import is_dynamic
from tirage.backends.torch.kernels.exact.rule import NEG_INF, POS_INF, exponent_of, key_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import least_entering, number_of_sums, term, widest_of
from tirage.backends.torch.kernels.layout import (
    ABOVE,
    ABOVE_FIRST,
    ABOVE_LAST,
    ABOVE_WEIGHTY,
    ADDED,
    ALL_FIRST,
    ALL_LAST,
    BEHIND,
    CORE,
    CORE_TOP,
    FIRST_C,
    GAP_FIRST,
    GAP_LAST,
    GREATEST,
    HIGH,
    IS_GREEDY,
    IS_SPLIT,
    LAST,
    LEAST,
    LOW,
    LOWER,
    LOWER_LENGTH,
    LOWER_TOP,
    LOWEST,
    OPEN,
    RATE,
    SUMMANDS,
    SUMMED,
    TO_BE_SUMMED,
    TOP,
    VARYING,
    WEIGHTY,
    WHOLE,
    WIDTH,
    constant,
)  # fmt: skip
from tirage.backends.torch.kernels.measure import bounds_of
from tirage.backends.torch.kernels.open_range.sparing import note_slot


@triton.jit(do_not_specialize=VARYING)
def weigh(
    x_ptr, meta_ptr, row_ptr, status_ptr, mass_ptr, count_ptr, sums_ptr, columns, size, blocks, steps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """What `weigh_block` does of one block of one row whose temperature follows from sums."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    meta_ptr, row_ptr = meta_ptr + row * columns, row_ptr + row * WIDTH
    is_summed = is_dynamic(tl.load(meta_ptr + SUMMED))
    if (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0) & is_summed:
        weigh_block(x_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, sums_ptr, row, block, size, blocks, steps, BLOCK)


@triton.jit
def weigh_block(
    x_ptr, meta_ptr, row_ptr, mass_ptr, count_ptr, sums_ptr, row, block, size, blocks, steps, BLOCK: tl.constexpr
):
    """Weights of a block of a row, how many of its tokens have any, and its part of the sums of the row.

    These are without what thresholds by keys remove that stand before the temperature.
    """
    op, high, c = tl.load(meta_ptr + SUMMED), tl.load(row_ptr + HIGH), constant(meta_ptr, FIRST_C)
    m = value_of(high)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * size + ids, mask=ids < size, other=float("-inf"))
    w = weight_of(exponent_of(x, m, c))
    at = row * blocks + block
    tl.store(mass_ptr + at * 4 + ALL_FIRST, tl.sum(w, 0))
    tl.store(count_ptr + at * 4 + WEIGHTY, tl.sum((w > 0).to(tl.int32), 0))
    x = tl.where(key_of(x) >= least_entering(meta_ptr, op, m, c, high, steps), x, float("-inf"))
    add_terms(sums_ptr + row * SUMMANDS, op, x, m, c, 0)


@triton.jit
def add_terms(sums_ptr, op, x, m, c, widest):
    """Adds what the logits of a block are to the sums of its row that a step needs."""
    for j in range(number_of_sums(op)):
        each = tl.where(key_of(x) > NEG_INF, term(op, j, x, m, c, widest), 0)
        tl.atomic_add(sums_ptr + j, tl.sum(each, 0), sem="relaxed")


@triton.jit(do_not_specialize=(*VARYING, "spares"))
def split(
    x_ptr, meta_ptr, row_ptr, status_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, slots_ptr,
    plane, columns, size, blocks, spares,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Masses and counts of each block of the rows that are not split yet, and what lies in their open ranges.

    `spares` is how many words of a slot say which tokens XTC never removes.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    meta_ptr, row_ptr = meta_ptr + row * columns, row_ptr + row * WIDTH
    is_drawn = (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0)
    if is_drawn & (tl.load(row_ptr + ADDED) != IS_SPLIT):
        split_block(
            x_ptr, meta_ptr, row_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, slots_ptr, row,
            block, plane, size, blocks, spares, BLOCK,
        )  # fmt: skip


@triton.jit
def list_lower(row_ptr, list_ptr, values, key, lower, lower_top, size):
    """Lists the values of a block's tokens in the lower range, from the end of the list of their row on."""
    is_lower = (key >= lower) & (key < lower_top)
    one = is_lower.to(tl.int32)
    start = tl.atomic_add(row_ptr + LOWER_LENGTH, tl.sum(one, 0), sem="relaxed")
    tl.store(list_ptr + size - start - tl.cumsum(one, 0), values, mask=is_lower)


@triton.jit
def split_block(
    x_ptr, meta_ptr, row_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, slots_ptr, row, block,
    plane, size, blocks, spares, BLOCK: tl.constexpr,
):  # fmt: skip
    """Masses and counts of a block, those above the open range of keys, and the ids of the range in any order.

    The least and the greatest key in the range are those of the row. A range of one key is only counted. The keys of
    the lower range, or ids where a set is summed that is cut there, are listed from the end of the list on, and what
    lies between both is weighed. Blocks that lie below the ranges are not read, unless the whole row is weighed and
    they have a weight, or add to its sums. Of a row that is not weighed, the first two sums bound its mass.
    """
    note_slot(row_ptr, slots_ptr + row, spares)
    first_c, last_c = constant(meta_ptr, FIRST_C), constant(row_ptr, LAST)
    lowest, top = tl.load(row_ptr + LOWEST), tl.load(row_ptr + TOP)
    m, at, is_whole = value_of(tl.load(row_ptr + HIGH)), row * blocks + block, tl.load(row_ptr + WHOLE) != 0
    high, added = tl.load(ends_ptr + at), tl.load(row_ptr + ADDED)
    is_added, is_behind = added == TO_BE_SUMMED, added == BEHIND
    # The smaller constant gives the larger weight.
    heaviest = weight_of(exponent_of(value_of(high), m, tl.minimum(first_c, last_c)))
    lower, lower_top = tl.load(row_ptr + LOWER), tl.load(row_ptr + LOWER_TOP)
    least_read = tl.where(lower < lower_top, lower, lowest)
    read = ((high >= least_read) & (lowest < top)) | (is_whole & (is_added | (heaviest > 0)))
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * size + ids, mask=ids < tl.where(read, size, 0), other=float("-inf"))
    key = key_of(x)
    w, last_w = weight_of(exponent_of(x, m, first_c)), weight_of(exponent_of(x, m, last_c))
    if is_whole:
        tl.store(mass_ptr + at * 4 + ALL_FIRST, tl.sum(w, 0))
        tl.store(mass_ptr + at * 4 + ALL_LAST, tl.sum(last_w, 0))
        tl.store(count_ptr + at * 4 + WEIGHTY, tl.sum((last_w > 0).to(tl.int32), 0))
    elif is_dynamic(tl.load(meta_ptr + SUMMED)) == 0:
        least = tl.sum(w, 0)
        most = least
        if read == 0:
            mass = tl.load(ends_ptr + 2 * plane + at).to(tl.float32, bitcast=True)
            least, most = bounds_of(mass, tl.load(row_ptr + RATE).to(tl.float32, bitcast=True), BLOCK)
        tl.atomic_add(sums_ptr + row * SUMMANDS, least, sem="relaxed")
        tl.atomic_add(sums_ptr + row * SUMMANDS + 1, most, sem="relaxed")
    above = (key >= tl.load(row_ptr + CORE)) & (key < tl.load(row_ptr + CORE_TOP))
    is_open = (key >= lowest) & (key < top) & (above == 0)
    tl.store(mass_ptr + at * 4 + ABOVE_FIRST, tl.sum(tl.where(above, w, 0), 0))
    tl.store(mass_ptr + at * 4 + ABOVE_LAST, tl.sum(tl.where(above, last_w, 0), 0))
    count = tl.sum(is_open.to(tl.int32), 0)
    tl.store(count_ptr + at * 4 + ABOVE, tl.sum(above.to(tl.int32), 0))
    tl.store(count_ptr + at * 4 + ABOVE_WEIGHTY, tl.sum((above & (last_w > 0)).to(tl.int32), 0))
    tl.store(count_ptr + at * 4 + OPEN, count)
    if lower < lower_top:
        gap = (key >= lower_top) & (key < lowest)
        tl.atomic_add(sums_ptr + row * SUMMANDS + GAP_FIRST, tl.sum(tl.where(gap, w, 0), 0), sem="relaxed")
        tl.atomic_add(sums_ptr + row * SUMMANDS + GAP_LAST, tl.sum(tl.where(gap, last_w, 0), 0), sem="relaxed")
        list_lower(row_ptr, list_ptr + row * size, tl.where(is_behind, ids, key), key, lower, lower_top, size)
    is_open &= key < tl.where(lowest + 1 < top, top, lowest)
    one = is_open.to(tl.int32)
    count = tl.sum(one, 0)
    if count > 0:  # pyright: ignore[reportOperatorIssue]
        tl.atomic_min(row_ptr + LEAST, tl.min(tl.where(is_open, key, POS_INF), 0), sem="relaxed")
        tl.atomic_max(row_ptr + GREATEST, tl.max(tl.where(is_open, key, NEG_INF), 0), sem="relaxed")
        start = tl.atomic_add(length_ptr + row, count, sem="relaxed")
        tl.store(list_ptr + row * size + start + tl.cumsum(one, 0) - one, ids, mask=is_open)
    if is_added | is_behind:
        # Of a set that is cut, what lies in the range of the cut is added once that is found.
        x = tl.where((key >= tl.where(lower < lower_top, lower_top, top)) | is_added, x, float("-inf"))
        widest = widest_of(tl.load(row_ptr + LOW), m)
        add_terms(sums_ptr + row * SUMMANDS, tl.load(meta_ptr + SUMMED), x, m, first_c, widest)
