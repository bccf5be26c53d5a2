"""What a step keeps where that is a range in the order of rank: it need not be listed, as its ends tell what is in it.

A list of most of the vocabulary is as long as the row, and each later reading of it would read both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NO_ID, exponent_of, value_of, weight_of
from tirage.backends.torch.kernels.exact.thresholds import least_kept
from tirage.backends.torch.kernels.sets.brackets import number_from
from tirage.backends.torch.kernels.sets.listing import MASS_AT, NUMBER_AT, TOP_AT, WEIGHTY_AT, last_of_levels
from tirage.backends.torch.kernels.sets.tokens import scales_of
from tirage.backends.torch.kernels.sets.words import (
    ARE_KEPT,
    ARE_SUMMED,
    CUT_ID,
    CUT_KEY,
    CUT_TURN,
    CUT_TURNS,
    FIRST_ID,
    FIRST_KEY,
    FLOOR,
    HAS_LANES,
    IS_FRESH,
    IS_LEVELED,
    IS_LISTED,
    IS_PARTED,
    IS_WEIGHED_OUT,
    KEPT,
    KEPT_LOW,
    KEPT_MASS,
    KEPT_TOP,
    KEPT_WEIGHTY,
    LARGEST,
    LAST_ID,
    LAST_KEY,
    LEAST,
    LIMIT,
    LOW_KEY,
    NEVER,
    STAYS_WHOLE,
    SUMS_AT,
    SURE_AT,
    TOP_KEY,
    TRIMMED,
    UNCUT,
    put,
    word,
)
from tirage.operators import END

_END = tl.constexpr(END)
_FEW_FIRST = tl.constexpr(8)
"""A range of fewer tokens than one in so many of the vocabulary is listed."""
AS_RANGE = tl.constexpr(2)
"""What stands for whether all tokens of a set stay where those of a range do."""


# fmt: off
@triton.jit
def last_kept(state_ptr):
    """(key, id) of where the tokens end that a step keeps by weight, exponent or rank; those of the set where it keeps
    all of them."""
    m, c, _, _ = scales_of(state_ptr)
    least, limit, key = word(state_ptr, LEAST), word(state_ptr, LIMIT), word(state_ptr, CUT_KEY).to(tl.int32)
    top, at = word(state_ptr, TOP_KEY).to(tl.int32), word(state_ptr, CUT_ID).to(tl.int32)
    reached = least_kept(_END, limit, least, m, c, top, 0)
    is_lower = ((limit >= 0) | (least < NEVER)) & (reached <= key)
    key, at = tl.where(is_lower, reached, key), tl.where(is_lower, NO_ID, at)
    before, before_id = word(state_ptr, LAST_KEY).to(tl.int32), word(state_ptr, LAST_ID).to(tl.int32)
    is_beyond = (before > key) | ((before == key) & (before_id <= at))
    return tl.where(is_beyond, before, key), tl.where(is_beyond, before_id, at)


@triton.jit(noinline=True)
def keep_range(state_ptr, is_prefix, is_found, number, size):
    """Writes what a step keeps as a range, and its `number` where that is not -1, if that is a prefix and has many
    tokens. Whether it has many is told by the histogram, or else it has where its last token `is_found` by a search."""
    low, top = word(state_ptr, LOW_KEY), word(state_ptr, TOP_KEY)
    is_weighed, sure_ptr = word(state_ptr, IS_WEIGHED_OUT) != 0, state_ptr + SURE_AT
    can_be = is_prefix & (word(state_ptr, IS_LISTED) == 0) & (word(state_ptr, STAYS_WHOLE) < 2)
    can_be &= (word(state_ptr, FLOOR) <= 1) & (word(state_ptr, TRIMMED) < 0)
    can_be &= word(state_ptr, CUT_TURN) + 1 == word(state_ptr, CUT_TURNS)
    is_leveled = word(state_ptr, IS_LEVELED) != 0
    can_be &= (is_leveled == 0) | (is_weighed & (word(state_ptr, IS_PARTED) == 0))
    can_be &= is_found | (word(state_ptr, HAS_LANES) != 0)
    first, first_id = word(state_ptr, FIRST_KEY), word(state_ptr, FIRST_ID)
    key, at = last_kept(state_ptr)
    if is_leveled:
        before, before_id = word(state_ptr, LAST_KEY), word(state_ptr, LAST_ID).to(tl.int32)
        key, at = last_of_levels(state_ptr)
        at = tl.where(before == key, tl.minimum(before_id, at), at)
        # Of those that tie with the first one, none before it is in the set.
        top = word(sure_ptr, TOP_AT)
        first_id = tl.where(first == top, first_id, 0)
        first = top
    low = tl.where(is_leveled, key, tl.maximum(low, key))
    # What tail-free reads often is listed if it is not much, though that takes a reading.
    can_be &= (is_weighed == 0) | (word(state_ptr, STAYS_WHOLE) == 0) | (word(sure_ptr, NUMBER_AT) > size // _FEW_FIRST)
    if can_be & (word(state_ptr, HAS_LANES) != 0) & (is_weighed == 0):
        can_be &= number_from(state_ptr, key) > size // _FEW_FIRST
    tl.debug_barrier()
    if can_be:
        put(state_ptr, LAST_KEY, key)
        put(state_ptr, LAST_ID, at)
        put(state_ptr, FIRST_KEY, first)
        put(state_ptr, FIRST_ID, first_id)
        put(state_ptr, ARE_KEPT, low * 0 + AS_RANGE)
        put(state_ptr, KEPT, tl.where(is_weighed, word(sure_ptr, NUMBER_AT), number))
        put(state_ptr, KEPT_TOP, top)
        put(state_ptr, KEPT_LOW, low)
        put(state_ptr, KEPT_MASS, word(sure_ptr, MASS_AT))
        put(state_ptr, KEPT_WEIGHTY, word(sure_ptr, WEIGHTY_AT))
    tl.debug_barrier()


@triton.jit
def settle_range(state_ptr, trimmed):
    """Writes whether a range is weighed, and its sums where no weight in it is cut."""
    is_weighed, sure_ptr = word(state_ptr, IS_WEIGHED_OUT) != 0, state_ptr + SURE_AT
    m, c, _, _ = scales_of(state_ptr)
    largest = weight_of(exponent_of(value_of(word(state_ptr, KEPT_TOP).to(tl.int32)), m, c))
    tl.debug_barrier()
    put(state_ptr, IS_FRESH, is_weighed)
    put(state_ptr, ARE_SUMMED, is_weighed & (trimmed < 0))
    if is_weighed:
        for at in tl.static_range(4):  # pyright: ignore[reportGeneralTypeIssues]
            put(state_ptr, SUMS_AT + at, word(sure_ptr, at))
        put(state_ptr, LARGEST, largest)
        put(state_ptr, UNCUT, word(sure_ptr, MASS_AT))
    tl.debug_barrier()
# fmt: on
