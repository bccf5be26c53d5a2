"""The first pass over logits in shards: what one of them measures of its own, and rows that are settled from all.

Between the two the shards exchange what they have measured, and share the sample that the histogram follows from.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.ends import measure_run, settle_row
from tirage.backends.torch.kernels.lanes import SAMPLED, store_knots
from tirage.backends.torch.kernels.layout import FIRST_C, IS_GREEDY, LANES, VARYING, WIDTH, constant


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
# fmt: on
