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
"""Numbers of a row, int32, which the launches of a draw hand on."""
WIDTH = tl.constexpr(ROW)
HIGH = tl.constexpr(0)  # its largest key
LOW = tl.constexpr(1)  # its least key
LOWEST = tl.constexpr(2)  # the lowest key of the open range
TOP = tl.constexpr(3)  # the key above that range
LEAST = tl.constexpr(4)  # the least key that a token has in it
GREATEST = tl.constexpr(5)  # the greatest
WHOLE = tl.constexpr(6)  # whether every block is weighed
ADDED = tl.constexpr(7)  # when the terms of its tokens are summed: `TO_BE_SUMMED` and those behind it, 0 for never
LAST = tl.constexpr(8)  # c of the last temperature, float32 bits
FACTOR = tl.constexpr(9)  # what c of a dynamic temperature is divided by, 0 until it is known
HEAD_KEY = tl.constexpr(10)  # XTC removes all before this token
HEAD_ID = tl.constexpr(11)
LEFT_HIGH = tl.constexpr(12)  # the key from which the weights of what XTC leaves count
SLOT = tl.constexpr(13)  # which row of a table says what XTC never removes
RATE = tl.constexpr(14)  # the factor of masses that count from the first knot, float32 bits; 0 where they tell nothing
LOWER = tl.constexpr(15)  # the lowest key of the lower open range
LOWER_TOP = tl.constexpr(16)  # the key above that range
LOWER_LENGTH = tl.constexpr(17)  # how many of its tokens are listed
IDLE = tl.constexpr(18)  # a bit for each step that removes no token
CORE = tl.constexpr(19)  # the lowest key of the core, which is in every set and mostly lies above the open range
CORE_TOP = tl.constexpr(20)  # the key above the core
HOLE_KEY = tl.constexpr(21)  # a typical left a hole behind this token ...
HOLE_ID = tl.constexpr(22)
HOLE_END = tl.constexpr(23)  # ... down to this key
REACH = tl.constexpr(24)  # the last lane of the open range, while that is looked for
WIDEST = tl.constexpr(25)  # that of the lower one
KNOT = tl.constexpr(26)  # the first of its `KNOTS` knots

SECOND, PARTS = HOLE_END, LOWER_LENGTH
"""While ranges are looked for: the first lane of the lower one, and whether there may be one."""

TO_BE_SUMMED, SUMMED_ALREADY, IS_SPLIT, BEHIND = (tl.constexpr(at) for at in (1, 2, 3, 4))
"""Whether the terms of a row are summed where it is split, or before, or the row is split already, or whether those
above its open range are, for the threshold of a set that is cut there (`open_range.behind`); 0 where none are."""

MANY = tl.constexpr(16)
"""A row of whose tokens more than one in so many is open is read once more: each is read some 18 times otherwise."""

TERMS = 5
"""Sums over a row, or a set of its tokens, for the threshold of one step, int64: of what `thresholds.term` gives."""
SUMMANDS, ADDENDS = tl.constexpr(plan.SUMS), tl.constexpr(TERMS)
"""All numbers of a row that are sums, and those of one step; behind what follows here is what `plan.SUMS` says of laws
(`reports.told`)."""
MASS_FROM = tl.constexpr(TERMS)  # the least mass of the row under the first temperature
MASS_TO = tl.constexpr(TERMS + 1)  # the greatest
GAP_FIRST = tl.constexpr(TERMS + 2)  # what lies between the open ranges weighs under the first temperature
GAP_LAST = tl.constexpr(TERMS + 3)  # the same under the last one
LEFT = tl.constexpr(TERMS + 4)  # what is left of a weight that a top-p cuts
BASE = tl.constexpr(TERMS + 5)  # the mass of the set that the last temperature saw

ENDS = 3
"""Numbers of a block that the first pass finds, int32: its largest key, its least one, and its mass as float32 bits."""

PLANES = 4
"""Masses of a block, int64."""
ALL_FIRST = tl.constexpr(0)  # of all its tokens under the first temperature
ALL_LAST = tl.constexpr(1)  # under the last one
ABOVE_FIRST = tl.constexpr(2)  # of those above the open range, under the first temperature
ABOVE_LAST = tl.constexpr(3)  # under the last one

COUNTS = 4
"""Counts of a block, int32."""
WEIGHTY = tl.constexpr(0)  # its tokens that weigh something
ABOVE = tl.constexpr(1)  # those above the open range
ABOVE_WEIGHTY = tl.constexpr(2)  # those of them that weigh something
OPEN = tl.constexpr(3)  # those in the open range


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
