"""How the kernels lay out what they pass on: the numbers of a row, of a block, and of the histogram."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.rule import exponent_of, value_of
from tirage.backends.torch.plan import HEADER

VARYING = ("plane", "columns", "steps")
"""Arguments that change with the requests: kernels are not compiled anew for their values."""

BINS = 512
"""Bins of the histogram of exponents, the last for what is not counted; one is an eighth of an octave wide, or less
where a row's exponents reach less far."""
LANES = tl.constexpr(BINS)
NOT_COUNTED = tl.constexpr(BINS - 1)

SEED, STEP, SAMPLE, FIRST_C, LAST_C, IS_GREEDY = (tl.constexpr(at) for at in range(HEADER))
PROGRAM = tl.constexpr(HEADER)

ROW = 4
"""Keys of a row, int32: its largest, its smallest, the lowest of the open range, and the one above that range."""
HIGH, LOW, LOWEST, TOP = (tl.constexpr(at) for at in range(ROW))

PLANES = 4
"""Masses of a block, int64: of all its tokens under the first c and under the last, and of those above the open range
under both."""
ALL_FIRST, ALL_LAST, ABOVE_FIRST, ABOVE_LAST = (tl.constexpr(at) for at in range(PLANES))

COUNTS = 4
"""Counts of a block, int32: its tokens with weight, those above the open range, those above it with weight, and those
in it."""
WEIGHTY, ABOVE, ABOVE_WEIGHTY, OPEN = (tl.constexpr(at) for at in range(COUNTS))


@triton.jit
def constant(meta_ptr, at: tl.constexpr):
    """A constant c of a row, float32, from its bits."""
    return tl.load(meta_ptr + at).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_of(row_ptr, column: tl.constexpr, blocks, PADDED: tl.constexpr):
    """The sum over the blocks of a row of one of their four numbers."""
    at = tl.arange(0, PADDED)
    return tl.sum(tl.load(row_ptr + at * 4 + column, mask=at < blocks, other=0), 0)


@triton.jit
def shift_of(m, low, c):
    """How many low bits of its exponent a token's bin leaves out: the fewest with which the row's lowest has a bin."""
    q = exponent_of(value_of(low), m, c)
    shift = tl.full((), 0, tl.int32)
    for bits in tl.static_range(20):  # pyright: ignore[reportGeneralTypeIssues]
        shift = tl.where((q >> bits) >= NOT_COUNTED, bits + 1, shift)
    return shift
