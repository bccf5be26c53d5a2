"""How the kernels lay out what they pass on: the numbers of a row, of a block, and of the histogram."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.rule import LIMIT
from tirage.backends.torch.plan import HEADER

VARYING = ("plane", "columns", "steps", "room", "run")
"""Arguments that change with the requests: kernels are not compiled anew for their values."""

BINS = 512
"""Bins of the histogram of exponents, the last for what is not counted.

Where they lie follows from a sample of the row, which a few logits cannot stretch."""
LANES = tl.constexpr(BINS)
NOT_COUNTED = tl.constexpr(BINS - 1)
HEAD, BULK, TAIL = (tl.constexpr(n) for n in (192, 288, 31))
"""Bins up to where most exponents begin, of most of them, and of those beyond."""
_MOST = tl.constexpr(HEAD.value + BULK.value)
_TWO_32 = tl.constexpr(1 << 32)

SEED, STEP, SAMPLE, FIRST_C, LAST_C, IS_GREEDY, SUMMED, LISTED, ARRIVED = (tl.constexpr(at) for at in range(HEADER))
PROGRAM = tl.constexpr(HEADER)

ROW = 13
"""Numbers of a row, int32: its largest key, the exponents where most begin and where they end, the lowest key of the
open range, the one above that range, the least and the greatest key that a token has in it, the least key of a
candidate, the least one that the step keeps for which the whole row was summed, the constant c of the last temperature
as bits, those of what a dynamic temperature is divided by, 0 until it is known, key and id of the token before which
XTC removes all."""
WIDTH = tl.constexpr(ROW)
HIGH, NEAR, FAR, LOWEST, TOP, LEAST, GREATEST, LOW, KEPT, LAST, FACTOR, HEAD_KEY, HEAD_ID = (
    tl.constexpr(at) for at in range(ROW)
)

SUMS = 5
"""Sums over a row, or a set of its tokens, for the threshold of one step, int64: of what `thresholds.term` gives."""
SUMMANDS = tl.constexpr(SUMS)

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


# --- where the bins lie -----------------------------------------------------------------------------------------------


@triton.jit
def octave_part(q):
    """int32 codes in [0, 456) of exponents, any shape: sixteen to a doubling."""
    return tl.maximum((q.to(tl.float32).to(tl.int32, bitcast=True) >> 19) - 2032, 0)


@triton.jit
def first_exponent(code):
    """The least exponent that has a code, or the next above it."""
    return tl.where(code > 0, ((tl.minimum(code, 456) + 2032) << 19).to(tl.float32, bitcast=True).to(tl.int32), 0)


@triton.jit
def span_of(q):
    """(near, far): the exponents between which most of a sample of a row's lie that have weight, and as far again."""
    found = tl.histogram(tl.where(q < LIMIT, octave_part(q), NOT_COUNTED), LANES)
    weighty = tl.where(tl.arange(0, LANES) < NOT_COUNTED, found, 0)
    reached, number = tl.cumsum(weighty, 0), tl.sum(weighty, 0)
    begin = first_exponent(first_lane(reached > number // 16))  # pyright: ignore[reportOperatorIssue]
    end = first_exponent(first_lane(reached >= number - number // 16) + 1)  # pyright: ignore[reportOperatorIssue]
    near = tl.where(number > 0, begin, 0)  # pyright: ignore[reportOperatorIssue]
    far = tl.minimum(near + 2 * (end - near) + 512, LIMIT)
    return near, tl.where(number > 0, far, LIMIT)  # pyright: ignore[reportOperatorIssue]


@triton.jit
def scale_of(width, lanes: tl.constexpr):
    """The uint32 by which exponents below `width` are multiplied, so that the upper 32 bits are lanes."""
    return (tl.full((), 0xFFFFFFFF, tl.uint32) // tl.maximum(width, 512).to(tl.uint32)) * lanes


@triton.jit
def parts_of(in_head, in_bulk, near, far):
    """(first exponent, first lane, scale) of the part, head, bulk or tail, of lanes or exponents, any shape."""
    start = tl.where(in_head, 0, tl.where(in_bulk, near, far))
    lane = tl.where(in_head, 0, tl.where(in_bulk, HEAD, _MOST))
    rest = tl.where(in_bulk, scale_of(far - near, BULK), scale_of(1 - far + LIMIT, TAIL))
    return start, lane, tl.where(in_head, scale_of(near, HEAD), rest)


@triton.jit
def lane_of(q, near, far):
    """The lanes of exponents, any shape: the greater the exponent, the same lane or a later one."""
    start, lane, scale = parts_of(q < near, q < far, near, far)
    return lane + tl.umulhi((q - start).to(tl.uint32), scale).to(tl.int32)


@triton.jit
def last_exponent(lane, near, far):
    """The greatest exponents in lanes up to these, any shape; -1 where there is none."""
    in_head, in_bulk = lane < HEAD, lane < _MOST
    start, first, scale = parts_of(in_head, in_bulk, near, far)
    limit = tl.where(in_head, near - 1, tl.where(in_bulk, far - 1, LIMIT))
    steps, scale = (lane - first + 1).to(tl.int64) * _TWO_32, scale.to(tl.int64)
    return tl.minimum(start + (steps + scale - 1) // scale - 1, limit)
