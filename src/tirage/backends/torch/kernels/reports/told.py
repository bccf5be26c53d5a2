"""What `resolve` and `general` tell of the sets that a row was drawn from, as `tirage.backends.torch.told` has it."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch import plan, told
from tirage.backends.torch.kernels.exact.rule import POS_INF
from tirage.backends.torch.kernels.layout import HEAD_ID, HEAD_KEY, HIGH, LEFT_HIGH
from tirage.backends.torch.kernels.sets.marks import bits_at, drawn_marks
from tirage.backends.torch.kernels.sets.words import (
    IS_LISTED,
    IS_ONE,
    NUMBER,
    SHARE,
    TOP_KEY,
    TOTAL,
    TOTAL_WITHOUT,
    WITHOUT,
    word,
)

LAWS, LAW, HOW_OFTEN = tl.constexpr(plan.LAWS), tl.constexpr(plan.LAW), tl.constexpr(told.SHARE)
"""Where the first law begins, how many numbers it has, and where it stands how often XTC is on."""
_IS_LISTED, BASIS, _CONSTANT, _SCALE, TRIMMED, LEFT, _IS_ONE, TARGET = (
    tl.constexpr(at)
    for at in (
        told.IS_LISTED, told.BASIS, told.CONSTANT, told.SCALE, told.TRIMMED, told.LEFT, told.IS_ONE, told.TARGET,
    )
)  # fmt: skip
MASS, LAST_KEY, LAST_ID, FIRST_KEY, FIRST_ID = (
    tl.constexpr(at) for at in (told.TOTAL, told.LAST_KEY, told.LAST_ID, told.FIRST_KEY, told.FIRST_ID)
)
_CERTAIN = tl.constexpr(1 << 40)
C, SCALE = tl.constexpr(plan.LAWS + told.CONSTANT), tl.constexpr(plan.LAWS + told.SCALE)
"""Where those of the first law stand."""


@triton.jit
def note(law_ptr, at: tl.constexpr, value):
    """Writes one number of a law."""
    tl.store(law_ptr + at, value.to(tl.int64))


# --- by resolve -------------------------------------------------------------------------------------------------------


@triton.jit
def tell_scale(sums_ptr, c, inverse_t):
    """Writes c and 1 / T of the first law."""
    note(sums_ptr, C, c.to(tl.int32, bitcast=True))
    note(sums_ptr, SCALE, inverse_t.to(tl.int32, bitcast=True))


@triton.jit
def tell_first(sums_ptr, row_ptr, share, last_key, last_id, trimmed, left, total):
    """Writes the first law of a row but for its scale: a prefix, with its last token, and a mass."""
    none = tl.full((), 0, tl.int64)
    law_ptr = sums_ptr + LAWS
    note(sums_ptr, HOW_OFTEN, share)
    note(law_ptr, _IS_LISTED, none)
    note(law_ptr, BASIS, tl.load(row_ptr + HIGH))
    note(law_ptr, TRIMMED, trimmed)
    note(law_ptr, LEFT, left)
    note(law_ptr, _IS_ONE, none)
    note(law_ptr, TARGET, none - 1)
    note(law_ptr, MASS, total)
    note(law_ptr, LAST_KEY, last_key)
    note(law_ptr, LAST_ID, last_id)
    note(law_ptr, FIRST_KEY, none + POS_INF)
    note(law_ptr, FIRST_ID, none)


@triton.jit
def tell_greedy(sums_ptr, row_ptr, token):
    """Writes the law of a row that is drawn greedily."""
    one, none, high = tl.full((), 1.0, tl.float32), tl.full((), -1, tl.int32), tl.load(row_ptr + HIGH)
    tell_scale(sums_ptr, one, one)
    tell_first(sums_ptr, row_ptr, none, high, token, none, none, tl.full((), _CERTAIN, tl.int64))


@triton.jit
def tell_second(sums_ptr, row_ptr, c, last_key, last_id, total):
    """Writes the second law: what the row's XTC leaves of the first one."""
    none = tl.full((), 0, tl.int64)
    law_ptr = sums_ptr + LAWS + LAW
    note(law_ptr, _IS_LISTED, none)
    note(law_ptr, BASIS, tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg"))
    note(law_ptr, _CONSTANT, c.to(tl.int32, bitcast=True))
    note(law_ptr, TRIMMED, none - 1)
    note(law_ptr, LEFT, none)
    note(law_ptr, _IS_ONE, none)
    note(law_ptr, TARGET, none - 1)
    note(law_ptr, MASS, total)
    note(law_ptr, LAST_KEY, last_key)
    note(law_ptr, LAST_ID, last_id)
    note(law_ptr, FIRST_KEY, tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg"))
    note(law_ptr, FIRST_ID, tl.load(row_ptr + HEAD_ID, cache_modifier=".cg"))


# --- by general -------------------------------------------------------------------------------------------------------


@triton.jit
def is_told(scale_ptr, slot_ptr):
    """Whether what a slot reports follows from the draw."""
    scale = tl.load(scale_ptr + tl.load(slot_ptr) * 2)
    return scale != scale


# fmt: off
@triton.jit(noinline=True)
def tell_set(sums_ptr, kept_ptr, list_ptr, state_ptr, size, keeps, TILE: tl.constexpr):
    """Writes the laws of a row that was drawn as a set, from its words, and marks its tokens if it `keeps` so many."""
    share = word(state_ptr, SHARE)
    is_mixed = share >= 0
    copy_law(sums_ptr + LAWS, state_ptr + tl.where(is_mixed, WITHOUT, 0))
    copy_law(sums_ptr + LAWS + LAW, state_ptr)
    tl.debug_barrier()
    note(sums_ptr, HOW_OFTEN, share)
    total = word(state_ptr, TOTAL)
    note(sums_ptr + LAWS, MASS, tl.where(is_mixed, word(state_ptr, TOTAL_WITHOUT), total))
    note(sums_ptr + LAWS + LAW, MASS, total)
    # What is drawn without XTC was marked when it was weighed.
    if is_mixed:
        note(sums_ptr + LAWS, _IS_LISTED, share * 0 + 1)
    mark(kept_ptr, list_ptr, state_ptr, is_mixed, size, keeps, TILE)


@triton.jit
def copy_law(law_ptr, state_ptr):
    """Copies the words of a set, among them the tokens that it lies between; if it is listed, so are its tokens."""
    at = tl.arange(0, LAW)
    words = tl.load(state_ptr + at)
    high, is_one = tl.load(state_ptr + TOP_KEY), tl.load(state_ptr + IS_ONE) != 0
    words = tl.where((at == BASIS) & is_one, high, words)
    tl.store(law_ptr + at, words, mask=at != MASS)


@triton.jit
def mark(kept_ptr, list_ptr, state_ptr, is_mixed, size, keeps, TILE: tl.constexpr):
    """Marks what is drawn without XTC, as its marks say, and what is in the list."""
    PART: tl.constexpr = TILE // 4
    for start in range(0, keeps, PART):
        at = start + tl.arange(0, PART)
        marked = bits_at(drawn_marks(list_ptr, size), at, at < tl.where(is_mixed, keeps, 0))
        tl.store(kept_ptr + at, marked.to(tl.uint8), mask=at < keeps)
    tl.debug_barrier()
    number = tl.where((keeps > 0) & (word(state_ptr, IS_LISTED) != 0), word(state_ptr, NUMBER), 0).to(tl.int32)
    by = tl.where(is_mixed, 2, 1)
    for start in range(0, number, PART):
        at = start + tl.arange(0, PART)
        ids = tl.load(list_ptr + at, mask=at < number, other=0)
        before = tl.load(kept_ptr + ids, mask=at < number, other=0)
        tl.store(kept_ptr + ids, (before | by).to(tl.uint8), mask=at < number)
# fmt: on
