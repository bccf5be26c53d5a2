"""What the set of a row weighs, and whether a step runs on it, before its open tokens are looked at."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.entropy import is_dynamic, is_temperature
from tirage.backends.torch.kernels.exact.rule import NEG_INF, exponent_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import is_top_p, is_xtc, least_number, reads_mass
from tirage.backends.torch.kernels.layout import (
    ABOVE,
    ABOVE_FIRST,
    ALL_FIRST,
    BASE,
    FIRST_C,
    GAP_FIRST,
    GAP_LAST,
    IDLE,
    LAST,
    LOWER_LENGTH,
    LOWER_TOP,
    LOWEST,
    PROGRAM,
    SUMMED,
    TOP,
    WHOLE,
    constant,
    sum_of,
)  # fmt: skip
from tirage.backends.torch.kernels.open_range.lists import open_count, open_mass


@triton.jit
def is_plain(meta_ptr, row_ptr):
    """Whether a row has one temperature, and no open range."""
    is_closed = tl.load(row_ptr + LOWEST) >= tl.load(row_ptr + TOP)
    return is_closed & (constant(meta_ptr, FIRST_C) == constant(row_ptr, LAST))


@triton.jit
def masses_under(mass_ptr, is_first, blocks, PADDED: tl.constexpr):
    """(mass of the row, mass above its open range) under the first temperature, or under the last."""
    # The numbers under the last one stand behind those under the first.
    mass_ptr += tl.where(is_first, 0, 1)
    return sum_of(mass_ptr, ALL_FIRST, blocks, PADDED), sum_of(mass_ptr, ABOVE_FIRST, blocks, PADDED)


@triton.jit
def lower_mass(list_ptr, sums_ptr, meta_ptr, row_ptr, cut_key, m, c, size, TILE: tl.constexpr):
    """What the tokens of a set weigh below its open range, where a threshold cut it in the lower one."""
    PART: tl.constexpr = TILE // 4
    total = tl.full((), 0, tl.int64)
    if cut_key < tl.load(row_ptr + LOWER_TOP):
        total = tl.load(sums_ptr + tl.where(c == constant(meta_ptr, FIRST_C), GAP_FIRST, GAP_LAST))
        n = tl.load(row_ptr + LOWER_LENGTH)
        for start in range(0, n, PART):
            at = start + tl.arange(0, PART)
            key = tl.load(list_ptr + size - 1 - at, mask=at < n, other=NEG_INF)
            total += tl.sum(tl.where(key >= cut_key, weight_of(exponent_of(value_of(key), m, c)), 0), 0)
    return total


# fmt: off
@triton.jit
def store_base(sums_ptr, total, is_base):
    """Write the mass of a set that a temperature saw, if this is one: it would take registers until it is read."""
    tl.store(sums_ptr + BASE, total, mask=is_base)
    tl.debug_barrier()


@triton.jit
def set_mass(
    x_ptr, mass_ptr, list_ptr, sums_ptr, meta_ptr, row_ptr, n, ties, op, lowest, cut_key, cut_id, m, c, blocks,
    PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(mass of the set, mass above its open range) for a step that asks for it; that which a temperature sees is
    written."""
    total = tl.load(sums_ptr + BASE, cache_modifier=".cg")
    above = total
    if (is_temperature(op) | is_top_p(op) | reads_mass(op) | is_xtc(op)) & (is_plain(meta_ptr, row_ptr) == 0):
        total, above = masses_under(mass_ptr, c == constant(meta_ptr, FIRST_C), blocks, PADDED)
        if cut_key > NEG_INF:
            total = above + open_mass(x_ptr, list_ptr, n, ties, lowest, lowest, cut_key, cut_id, m, c, TILE)
        store_base(sums_ptr, total, is_temperature(op))
    return total, above


@triton.jit
def is_in_doubt(meta_ptr, row_ptr, cut_key):
    """Whether the mass of a set is known between bounds only: that of a row that nothing has weighed or cut."""
    is_known = (tl.load(row_ptr + WHOLE) != 0) | is_dynamic(tl.load(meta_ptr + SUMMED))
    return (is_known == 0) & (cut_key == NEG_INF)


@triton.jit
def step_at(
    x_ptr, count_ptr, list_ptr, meta_ptr, row_ptr, n, ties, s, lowest, top, cut_key, cut_id, blocks,
    PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(the numbers of the step s, its operation): 0 for one that removes nothing, as `bound` found, or as the set has
    fewer tokens than it leaves at least.

    They are not counted where there is no open range, as nothing is cut then.
    """
    step_ptr = meta_ptr + PROGRAM + s * 6
    op = tl.where(((tl.load(row_ptr + IDLE) >> s) & 1) != 0, 0, tl.load(step_ptr)).to(tl.int32)
    if least_number(op, step_ptr) > 1:
        number = tl.full((), 0, tl.int32)
        if lowest < top:
            number = sum_of(count_ptr, ABOVE, blocks, PADDED)
            number += open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE)
        op = tl.where(number < least_number(op, step_ptr), 0, op)
    return step_ptr, op
# fmt: on
