"""The law that a row was drawn from, read of what the draw has told: logits, and logprobs, of the tokens that it has.

Where that is a mixture of two sets, or the weights are those of adaptive-p, tokens are ordered by their logprobs and
these stand in the place of logits (SPEC.md S-L5).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.probability import logprob_at, point_of
from tirage.backends.torch.kernels.exact.rule import NEG_INF, is_in, key_of, ln_of, log2_fixed, value_of
from tirage.backends.torch.kernels.open_range.sparing import is_before
from tirage.backends.torch.kernels.reports.told import (
    BASIS,
    FIRST_ID,
    FIRST_KEY,
    HOW_OFTEN,
    LAST_ID,
    LAST_KEY,
    LAW,
    LAWS,
    LEFT,
    MASS,
    TARGET,
    TRIMMED,
)
from tirage.backends.torch.kernels.sets.drawn import drawn_weights
from tirage.backends.torch.kernels.sets.words import IS_LISTED, word

_ALWAYS = tl.constexpr(1 << 32)
_LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit
def goes_by_logprob(sums_ptr):
    """Whether the tokens of a law are ordered by their logprobs."""
    return (word(sums_ptr, HOW_OFTEN) >= 0) | (word(sums_ptr + LAWS, TARGET) >= 0)


@triton.jit
def shown(edited_ptr, ids, there, sums_ptr, kept_ptr, law_ptr):
    """The logits of tokens, any shape, that a row was drawn from, or their logprobs, which have been written, where
    these order them; -inf for the others."""
    if goes_by_logprob(sums_ptr):
        x = tl.load(law_ptr + ids, mask=there, other=float("-inf"))
    else:
        x = tl.load(edited_ptr + ids, mask=there, other=float("-inf"))
        x = tl.where(is_kept(key_of(x), ids, sums_ptr + LAWS, kept_ptr, 1), x, float("-inf"))
    return x


@triton.jit
def is_kept(key, ids, law_ptr, kept_ptr, bit):
    """Whether tokens of these keys and ids, any shape, are in a set, which marks its own with a bit."""
    first_key, first_id = word(law_ptr, FIRST_KEY).to(tl.int32), word(law_ptr, FIRST_ID).to(tl.int32)
    last_key, last_id = word(law_ptr, LAST_KEY).to(tl.int32), word(law_ptr, LAST_ID).to(tl.int32)
    inside = is_in(key, ids, last_key, last_id) & (is_before(key, ids, first_key, first_id) == 0)
    if word(law_ptr, IS_LISTED) != 0:
        inside = inside & ((tl.load(kept_ptr + ids, mask=inside, other=0) & bit) != 0)
    return inside


@triton.jit
def logprobs_of(x, ids, sums_ptr, kept_ptr):
    """The logprobs of tokens, any shape, in a mixture or under adaptive-p; -inf for what cannot be drawn."""
    if word(sums_ptr, HOW_OFTEN) >= 0:
        # One set after the other: registers are few.
        point = point_in(x, ids, sums_ptr + LAWS, kept_ptr, 1)
        off_share = (tl.full((), _ALWAYS, tl.int64) - word(sums_ptr, HOW_OFTEN)).to(tl.uint64)
        can_be = (point > 0) & (off_share > 0)
        low, high = (point & _LOW) * off_share, (point >> 32) * off_share
        point = point_in(x, ids, sums_ptr + LAWS + LAW, kept_ptr, 2)
        can_be = can_be | (point > 0)
        on_share = word(sums_ptr, HOW_OFTEN).to(tl.uint64)
        point = high + (point >> 32) * on_share + ((low + (point & _LOW) * on_share) >> 32)
        lp = logprob_at(point)
    else:
        w, total = weights_in(x, ids, sums_ptr + LAWS, kept_ptr, 1), word(sums_ptr + LAWS, MASS)
        can_be = w > 0
        lp = ln_of(log2_fixed(tl.maximum(w, 1).to(tl.uint64)) - log2_fixed(total.to(tl.uint64))) + 0.0
    return tl.where(can_be, lp, float("-inf"))


@triton.jit
def point_in(x, ids, law_ptr, kept_ptr, bit):
    """Probabilities in units of 2^-63, uint64, of tokens, any shape, in a set (S-L4)."""
    return point_of(weights_in(x, ids, law_ptr, kept_ptr, bit), word(law_ptr, MASS))


@triton.jit
def weights_in(x, ids, law_ptr, kept_ptr, bit):
    """int64 weights of tokens, any shape, in a set; 0 for those that it lacks."""
    key = key_of(x)
    # What is above the logit that weights count from is not in the set.
    least = tl.minimum(x, value_of(word(law_ptr, BASIS).to(tl.int32)))
    return tl.where(is_kept(key, ids, law_ptr, kept_ptr, bit), drawn_weights(ids, least, key, law_ptr), 0)


@triton.jit
def largest_of(sums_ptr):
    """The logit that weights count from in the first set."""
    return value_of(word(sums_ptr + LAWS, BASIS).to(tl.int32))


@triton.jit
def mass_of(sums_ptr):
    """The mass of the first set."""
    return word(sums_ptr + LAWS, MASS)


@triton.jit
def own_logprob(lp, x, ids, sums_ptr, total):
    """The logprobs of tokens, any shape, that a row was drawn from, where `lp` are those of their logits x."""
    trimmed, left = word(sums_ptr + LAWS, TRIMMED).to(tl.int32), word(sums_ptr + LAWS, LEFT)
    part = ln_of(log2_fixed(tl.maximum(left, 1).to(tl.uint64)) - log2_fixed(total.to(tl.uint64))) + 0.0
    lp = tl.where((trimmed >= 0) & (ids == trimmed) & (key_of(x) > NEG_INF), part, lp)
    return tl.where(goes_by_logprob(sums_ptr), x, lp)
