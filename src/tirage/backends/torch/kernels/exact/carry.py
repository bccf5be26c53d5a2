"""What rows carry from token to token, moved by the kernels: what `device.carry` says, in binary64 (SPEC.md S-C1).

Minima stand around products that are added to, which nothing can fuse then.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.device.carry import (
    AIM,
    BY_CHANCE,
    COLUMN,
    KIND,
    NEXT,
    RATE,
    STATE,
    TOKEN,
    WIDTH,
)
from tirage.exact.logs import OCTAVE
from tirage.operators.adaptive_p import ONE
from tirage.operators.mirostat import LIMIT, LOG2E

CARRIED, TOKEN_AT = tl.constexpr(WIDTH), tl.constexpr(TOKEN)
_KIND, _COLUMN, _STATE, _AIM, _RATE, _NEXT = (tl.constexpr(at) for at in (KIND, COLUMN, STATE, AIM, RATE, NEXT))
_BY_CHANCE = tl.constexpr(BY_CHANCE)
_BITS, _OCTAVE, _LIMIT, _ONE = (tl.constexpr(float(each)) for each in (-LOG2E, OCTAVE, LIMIT, ONE))
_LARGEST = tl.constexpr(1e300)


@triton.jit
def number_at(carry_ptr, at: tl.constexpr):
    """A float64 of a row, from its bits."""
    return tl.load(carry_ptr + at).to(tl.float64, bitcast=True)


@triton.jit
def rounded(product):
    """A product of two float64, rounded, whatever is added to it."""
    return tl.minimum(product, tl.full((), _LARGEST, tl.float64))


@triton.jit
def follow(carry_ptr, token, logprob, chance):
    """The state of a row after its token, float64, noted with it; NaN where it carries none."""
    kind, one = tl.load(carry_ptr + _KIND), tl.full((), 1.0, tl.float64)
    state, aim, rate = number_at(carry_ptr, _STATE), number_at(carry_ptr, _AIM), number_at(carry_ptr, _RATE)
    error = rounded(logprob.to(tl.float64) * tl.full((), _BITS, tl.float64)) - aim
    surprised = state - rounded(rate * error)
    seen = tl.where(chance == chance, rounded(chance * (one - rate)) + rounded(state * rate), state)
    after = tl.where(kind == _BY_CHANCE, seen, surprised)
    after = tl.where(token >= 0, after, state)
    tl.store(carry_ptr + TOKEN_AT, token.to(tl.int64))
    tl.store(carry_ptr + _NEXT, after.to(tl.int64, bitcast=True))
    return tl.where(kind == 0, tl.full((), float("nan"), tl.float64), after)


@triton.jit
def move(carry_ptr, meta_ptr, is_drawn):
    """Moves the state of a row where its token is the one that `is_drawn`, and the step that follows from it."""
    kind, column = tl.load(carry_ptr + _KIND), tl.load(carry_ptr + _COLUMN)
    aim, after = number_at(carry_ptr, _AIM), number_at(carry_ptr, _NEXT)
    state = tl.where(is_drawn, after, number_at(carry_ptr, _STATE))
    tl.debug_barrier()
    tl.store(carry_ptr + _STATE, state.to(tl.int64, bitcast=True))
    tl.store(carry_ptr + TOKEN_AT, tl.full((), -1, tl.int64))
    operand = tl.where(kind == _BY_CHANCE, target_of_mean(state, aim), units_of(state))
    tl.store(meta_ptr + column, operand, mask=column > 0)


@triton.jit
def units_of(mu):
    """floor(mu * 2^23) between bounds, int64."""
    limit = tl.full((), _LIMIT, tl.float64)
    found = tl.minimum(tl.maximum(mu * tl.full((), _OCTAVE, tl.float64), -limit), limit)
    whole = found.to(tl.int64)
    return whole - (whole.to(tl.float64) > found).to(tl.int64)


@triton.jit
def target_of_mean(mean, aim):
    """The target of adaptive-p in units of 2^-32, rounded to the nearest, and to even: int64."""
    one, none = tl.full((), 1.0, tl.float64), tl.full((), 0.0, tl.float64)
    found = tl.maximum(tl.minimum(aim + aim - mean, one), none) * tl.full((), _ONE, tl.float64)
    whole = found.to(tl.int64)
    rest, half = found - whole.to(tl.float64), tl.full((), 0.5, tl.float64)
    return whole + ((rest > half) | ((rest == half) & ((whole & 1) > 0))).to(tl.int64)
