"""What the tokens of a set weigh once all of its steps have run."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, exponent_of, value_of, weight_of
from tirage.backends.torch.kernels.sets.tokens import scales_of, weights_at
from tirage.backends.torch.kernels.sets.words import IS_ONE, NEAREST, TARGET, WHOLE, word
from tirage.exact.numbers import LOG2E_23
from tirage.operators.adaptive_p import INVERSE_WIDTH

_NEARLY_ONE = tl.constexpr(1 - 2.0**-48)
_CERTAIN = tl.constexpr(1 << 40)
_INVERSE_WIDTH, _LOG2E = tl.constexpr(INVERSE_WIDTH), tl.constexpr(LOG2E_23)


@triton.jit
def drawn_weights(ids, x, key, state_ptr):
    """int64 weights of tokens, any shape, once all steps have run; 0 where there is none."""
    m, c, trimmed, left = scales_of(state_ptr)
    _, w = weights_at(ids, x, key, m, c, trimmed, left)
    if word(state_ptr, IS_ONE) != 0:
        w = tl.where(key > NEG_INF, _CERTAIN, w * 0)
    if word(state_ptr, TARGET) >= 0:
        q = target_exponents(w, state_ptr) - word(state_ptr, NEAREST).to(tl.int32)
        w = tl.where(key > NEG_INF, weight_of(q), w * 0)
    return w


@triton.jit
def target_exponents(w, state_ptr):
    """int32 exponents of weights, any shape, by how far their shares are from the target of adaptive-p (S-O15)."""
    return target_powers(w, state_ptr).to(tl.int32)


@triton.jit
def target_powers(w, state_ptr):
    """The same before they are rounded down, float64. Each operation is one of binary64, rounded once."""
    p = w.to(tl.float64) / word(state_ptr, WHOLE).to(tl.float64)
    target = word(state_ptr, TARGET).to(tl.float64) * tl.full((), 2.0**-32, tl.float64)
    distance = tl.abs(p - target) * tl.full((), _INVERSE_WIDTH, tl.float64)
    square = tl.full((), 10.0, tl.float64) * (distance * distance)
    return square / (tl.full((), 1.0, tl.float64) + distance) * tl.full((), _LOG2E, tl.float64)


@triton.jit
def nearest_at(state_ptr, key):
    """(whether no lesser key has a lesser exponent under adaptive-p, the exponent int32) of the weight of a key."""
    m, c, trimmed, _ = scales_of(state_ptr)
    w = weight_of(exponent_of(value_of(key), m, c))
    power = target_powers(w, state_ptr)
    share, target = w.to(tl.float64) / word(state_ptr, WHOLE).to(tl.float64), word(state_ptr, TARGET).to(tl.float64)
    # Where no share is above the target, those of other tokens are no nearer to it. What is rounded may come out less
    # for these by some bits: that matters only if it is so near to an integer.
    less = power * tl.full((), _NEARLY_ONE, tl.float64)
    is_below = (trimmed < 0) & (share <= target * tl.full((), 2.0**-32, tl.float64))
    return is_below & (less.to(tl.int32) == power.to(tl.int32)), power.to(tl.int32)
