"""In which order a search looks at tokens, and at which places in it they stand."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, POS_INF, exponent_of, value_of
from tirage.backends.torch.kernels.sets.tokens import scales_of
from tirage.backends.torch.kernels.sets.words import CUT_KEY, LEVEL, LOW_KEY, MEAN, TOP_KEY, word

BY_LEVEL, BY_KEY, BY_ID = (tl.constexpr(kind) for kind in range(3))
"""What a search orders tokens by: how far exponents are from the mean one, keys from the largest down, ids."""


@triton.jit
def place_of(state_ptr, kind, ids, q, key):
    """(whether tokens are looked at, their places in the order of a search, int64).

    From level 0 on, only those at that distance from the mean exponent are, and by id only those of one key.
    """
    level, only_key = word(state_ptr, LEVEL), word(state_ptr, CUT_KEY).to(tl.int32)
    distance = tl.abs(q - word(state_ptr, MEAN).to(tl.int32))
    place = tl.where(kind == BY_LEVEL, distance, ids).to(tl.int64)
    place = tl.where(kind == BY_KEY, -key.to(tl.int64) + POS_INF, place)
    looked = (key > NEG_INF) & ((level < 0) | (distance == level)) & ((kind != BY_ID) | (key == only_key))
    return looked, place


@triton.jit
def places_of(state_ptr, kind, size):
    """(low, end) int64: all tokens of the set have places in ]low, end]."""
    m, c, _, _ = scales_of(state_ptr)
    top, low_key = word(state_ptr, TOP_KEY), word(state_ptr, LOW_KEY)
    mean = word(state_ptr, MEAN).to(tl.int32)
    first = tl.abs(exponent_of(value_of(top.to(tl.int32)), m, c) - mean)
    last = tl.abs(exponent_of(value_of(low_key.to(tl.int32)), m, c) - mean)
    end = tl.where(kind == BY_LEVEL, tl.maximum(first, last).to(tl.int64), size - 1)
    is_by_key = kind == BY_KEY
    return tl.where(is_by_key, -top + POS_INF, 0) - 1, tl.where(is_by_key, -low_key + POS_INF, end)
