"""Kernels of logits in shards: what one of them measures of its own, and rows that are settled from all.

Between the two the shards exchange what they have measured, and share the sample that the histogram follows from. What
XTC leaves may have weights of its own, and tokens among it that it spares: a shard weighs its part of that once the
head of the row is known, and the row is drawn again from all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.probability import mixed_logprob
from tirage.backends.torch.kernels.exact.rule import POS_INF, exponent_of, is_in, key_of, value_of, weight_of
from tirage.backends.torch.kernels.histogram.lanes import SAMPLED, store_knots
from tirage.backends.torch.kernels.layout import (
    FIRST_C,
    HEAD_ID,
    HEAD_KEY,
    HIGH,
    IS_GREEDY,
    LANES,
    LEFT_HIGH,
    SUMMANDS,
    VARYING,
    WIDTH,
    constant,
)  # fmt: skip
from tirage.backends.torch.kernels.measure import measure_run, settle_row
from tirage.backends.torch.kernels.open_range.exclusion import is_on, share_of_xtc, weight_left
from tirage.backends.torch.kernels.open_range.sparing import is_spared
from tirage.backends.torch.kernels.reports.told import LAST_ID, LAST_KEY, LAW, LAWS, MASS, C, note
from tirage.backends.torch.kernels.resolve import drawn_from, uniform_of

_ALWAYS, _BY_CUTS = tl.constexpr(1 << 32), tl.constexpr(False)


# fmt: off
@triton.jit(do_not_specialize=VARYING)
def measure_shard(
    x_ptr, sample_ptr, meta_ptr, ends_ptr, row_ptr, bins_ptr, plane, columns, size, blocks, run, counts,
    BLOCK: tl.constexpr,
):
    """The ends, masses and histogram of `run` blocks of a row's part; `sample` float32 [B, 64] is of the whole row."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * run
    meta_ptr += row * columns
    c, counts = constant(meta_ptr, FIRST_C), (counts != 0) & (tl.load(meta_ptr + IS_GREEDY) == 0)
    if counts:
        store_knots(row_ptr + row * WIDTH, tl.load(sample_ptr + row * SAMPLED + tl.arange(0, SAMPLED)))
    measure_run(
        x_ptr + row * size, ends_ptr + row * blocks, row_ptr + row * WIDTH, bins_ptr + row * LANES, first, run, c,
        counts, plane, size, blocks, BLOCK,
    )


@triton.jit(do_not_specialize=VARYING)
def settle_shards(
    bad_ptr, meta_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, plane, columns, size, blocks,
    counts, PADDED: tl.constexpr,
):
    """Settles one row from the blocks of all its parts."""
    row = tl.program_id(0).to(tl.int64)
    meta_ptr += row * columns
    c, counts = constant(meta_ptr, FIRST_C), (counts != 0) & (tl.load(meta_ptr + IS_GREEDY) == 0)
    given = (tl.load(bad_ptr + row) != 0).to(tl.int32)
    settle_row(
        ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, c, counts, plane, size, blocks,
        PADDED,
    )


@triton.jit
def has_head(meta_ptr, row_ptr, status_ptr, steps):
    """Whether an XTC removes tokens of a row."""
    is_drawn = (tl.load(status_ptr) == 0) & (tl.load(meta_ptr + IS_GREEDY) == 0)
    return is_drawn & (share_of_xtc(meta_ptr, steps) >= 0) & (tl.load(row_ptr + HEAD_KEY) < POS_INF)


@triton.jit
def weights_of(x, ids, meta_ptr, row_ptr, sums_ptr, spared_ptr, spares):
    """(weights of tokens, any shape, in the set that XTC is given, those in what it leaves)."""
    m, c = value_of(tl.load(row_ptr + HIGH)), constant(sums_ptr, C)
    cut_key, cut_id = tl.load(sums_ptr + LAWS + LAST_KEY), tl.load(sums_ptr + LAWS + LAST_ID)
    kept = is_in(key_of(x), ids, cut_key, cut_id)
    spared = is_spared(ids, kept, row_ptr, spared_ptr, spares)
    left = tl.where(kept, weight_left(x, ids, row_ptr, c, spared), 0)
    return tl.where(kept, weight_of(exponent_of(x, m, c)), 0), left


@triton.jit(do_not_specialize=(*VARYING, "spares", "home"))
def weigh_left(
    x_ptr, meta_ptr, row_ptr, status_ptr, sums_ptr, spared_ptr, mass_ptr, count_ptr, home, columns, size, blocks, steps,
    spares, BLOCK: tl.constexpr,
):
    """The mass of what XTC leaves of each block of a row's part, and how many tokens of the part can be drawn.

    The first of the part is the one at `home` among all blocks. Rows of which nothing is removed are left out.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    meta_ptr, row_ptr, sums_ptr = meta_ptr + row * columns, row_ptr + row * WIDTH, sums_ptr + row * SUMMANDS
    if has_head(meta_ptr, row_ptr, status_ptr + row, steps):
        own = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * size + own, mask=own < size, other=float("-inf"))
        w, left = weights_of(x, home + own, meta_ptr, row_ptr, sums_ptr, spared_ptr, spares)
        is_drawable = (left > 0) | ((w > 0) & (share_of_xtc(meta_ptr, steps) < _ALWAYS))
        tl.store(mass_ptr + row * blocks + block, tl.sum(left, 0))
        tl.atomic_add(count_ptr + row, tl.sum(is_drawable.to(tl.int32), 0), sem="relaxed")


@triton.jit(do_not_specialize=(*VARYING, "spares"))
def draw_left(
    x_ptr, meta_ptr, row_ptr, status_ptr, sums_ptr, spared_ptr, mass_ptr, count_ptr, token_ptr, logprob_ptr,
    support_ptr, columns, size, blocks, steps, spares, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """Draws one row anew from what XTC leaves of all its blocks, if its coin says so: token, logprob and support."""
    row = tl.program_id(0).to(tl.int64)
    meta_ptr, row_ptr, sums_ptr = meta_ptr + row * columns, row_ptr + row * WIDTH, sums_ptr + row * SUMMANDS
    x_ptr += row * size
    if has_head(meta_ptr, row_ptr, status_ptr + row, steps):
        at, share = tl.arange(0, PADDED), share_of_xtc(meta_ptr, steps)
        each = tl.load(mass_ptr + row * blocks + at, mask=at < blocks, other=0)
        total, total_on = tl.load(sums_ptr + LAWS + MASS), tl.sum(each, 0)
        token, none = tl.load(token_ptr + row).to(tl.int32), tl.full((), -1, tl.int32)
        if is_on(meta_ptr, share):
            token = drawn_from(
                x_ptr, each, uniform_of(meta_ptr), row_ptr, spared_ptr, spares, tl.load(row_ptr + HEAD_KEY),
                tl.load(row_ptr + HEAD_ID), tl.load(sums_ptr + LAWS + LAST_KEY).to(tl.int32),
                tl.load(sums_ptr + LAWS + LAST_ID).to(tl.int32), value_of(tl.load(row_ptr + LEFT_HIGH)),
                constant(sums_ptr, C), none, none.to(tl.int64), size, blocks, _BY_CUTS, BLOCK, PADDED,
            )
        w, left = weights_of(tl.load(x_ptr + token), token, meta_ptr, row_ptr, sums_ptr, spared_ptr, spares)
        tl.store(logprob_ptr + row, mixed_logprob(w, total, left, total_on, share))
        tl.store(token_ptr + row, token.to(tl.int64))
        tl.store(support_ptr + row, tl.load(count_ptr + row).to(tl.int64))
        note(sums_ptr + LAWS + LAW, MASS, total_on)
# fmt: on
