"""How the kernels lay out what they pass on: the numbers of a row, of a block, and of the histogram."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch import plan
from tirage.backends.torch.plan import BINS, HEADER

VARYING = ("plane", "columns", "steps", "room", "run", "counts")
"""Arguments that change with the requests: kernels are not compiled anew for their values."""

LANES = tl.constexpr(BINS)
"""Lanes of the histogram of logits, the last for what is not counted: `histogram.lanes` says where they lie."""
NOT_COUNTED = tl.constexpr(BINS - 1)
KNOTS = 8
"""Logits of a sample of the row between which its lanes are spread evenly."""
KNOTTED = tl.constexpr(KNOTS)

SEED, STEP, SAMPLE, FIRST_C, LAST_C, IS_GREEDY, SUMMED, LISTED, ARRIVED = (tl.constexpr(at) for at in range(HEADER))
PROGRAM = tl.constexpr(HEADER)

ROW = 34
"""Numbers of a row, int32: its largest and its least key, the lowest key of the open range, the one above that range,
the least and the greatest key that a token has in it, whether every block is weighed, whether the terms of all its
tokens are summed on the way, the constant c of the last temperature as bits, those of what a dynamic temperature is
divided by, 0 until it is known, key and id of the token before which XTC removes all, the key from which the weights of
what that leaves count, which row of a table says what it never removes, as bits the factor of masses that count from
the first knot, 0 where they tell nothing, the lowest key of the lower range and the one above it, how many keys of that
range are listed, a bit for each step that removes no token, the lowest key of the core, which is in every set and
mostly lies above the open range, and the key above it, key and id of the token behind which a typical left a hole,
the key at which that ends, the last lanes of both open ranges while these are looked for, and the knots."""
WIDTH = tl.constexpr(ROW)
(
    HIGH, LOW, LOWEST, TOP, LEAST, GREATEST, WHOLE, ADDED, LAST, FACTOR, HEAD_KEY, HEAD_ID, LEFT_HIGH, SLOT, RATE,
    LOWER, LOWER_TOP, LOWER_LENGTH, IDLE, CORE, CORE_TOP, HOLE_KEY, HOLE_ID, HOLE_END, REACH, WIDEST,
    KNOT,
) = (tl.constexpr(at) for at in range(ROW - KNOTS + 1))  # fmt: skip

SECOND, PARTS = HOLE_END, LOWER_LENGTH
"""Words that hold the first lane of the lower range, and whether there may be one, while ranges are looked for; from
then on they hold something else."""

TO_BE_SUMMED, SUMMED_ALREADY, IS_SPLIT, BEHIND = (tl.constexpr(at) for at in (1, 2, 3, 4))
"""Whether the terms of a row are summed where it is split, or before, or the row is split already, or whether those
above its open range are, for the threshold of a set that is cut there (`open_range.behind`); 0 where none are."""

MANY = tl.constexpr(16)
"""A row of whose tokens more than one in so many is open is read once more: each is read some 18 times otherwise."""

TERMS = 5
"""Sums over a row, or a set of its tokens, for the threshold of one step, int64: of what `thresholds.term` gives."""
SUMMANDS, ADDENDS = tl.constexpr(plan.SUMS), tl.constexpr(TERMS)
"""Those of a row, between which bounds its mass under the first temperature lies, what weighs between its open
ranges under the first and under the last temperature, what is left of a weight that top-p cuts, the mass of the set
that the last temperature saw; what `plan.SUMS` says of laws stands behind them (`kernels.told`)."""
MASS_FROM, MASS_TO, GAP_FIRST, GAP_LAST, LEFT, BASE = (tl.constexpr(at) for at in range(TERMS, plan.LAWS))

ENDS = 3
"""Numbers of a block that the first pass finds, int32: its largest key, its least one, and its mass as float32 bits."""

PLANES = 4
"""Masses of a block, int64: of all its tokens under the first c and under the last, and of those above the open range
under both."""
ALL_FIRST, ALL_LAST, ABOVE_FIRST, ABOVE_LAST = (tl.constexpr(at) for at in range(PLANES))

COUNTS = 4
"""Counts of a block, int32: its tokens with weight, those above the open range, those above it with weight, and those
in it."""
WEIGHTY, ABOVE, ABOVE_WEIGHTY, OPEN = (tl.constexpr(at) for at in range(COUNTS))


@triton.jit
def constant(meta_ptr, at):
    """A constant c of a row, float32, from its bits."""
    return tl.load(meta_ptr + at).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_of(row_ptr, column: tl.constexpr, blocks, PADDED: tl.constexpr):
    """The sum over the blocks of a row of one of their four numbers."""
    at = tl.arange(0, PADDED)
    return tl.sum(tl.load(row_ptr + at * 4 + column, mask=at < blocks, other=0), 0)


@triton.jit
def first_lane(reached):
    """The first lane where bool [BINS] is true, BINS if there is none."""
    return tl.min(tl.where(reached, tl.arange(0, LANES), LANES), 0)
