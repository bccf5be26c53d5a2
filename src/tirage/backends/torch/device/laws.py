"""The laws that rows were drawn from, as tensor operations on what their draws have told (`told`): who is in, and the
logprobs of rows whose tokens these order."""

from __future__ import annotations

import torch
from torch import Tensor

from tirage.backends.torch.plan import LAW, LAWS
from tirage.backends.torch.rule import exponents, keys, weights
from tirage.backends.torch.state import logit_of
from tirage.backends.torch.told import (
    BASIS,
    CONSTANT,
    FIRST_ID,
    FIRST_KEY,
    IS_LISTED,
    IS_ONE,
    LAST_ID,
    LAST_KEY,
    LEFT,
    NEAREST,
    SHARE,
    TARGET,
    TOTAL,
    TRIMMED,
    WHOLE,
)
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.logs import LN2_31
from tirage.exact.numbers import LOG2E_23
from tirage.operators.adaptive_p import INVERSE_WIDTH, ONE

_CERTAIN = 1 << 40
_ALWAYS = 1 << 32
_POINT = 63
_LOW = 0xFFFFFFFF
_MASK33 = (1 << 33) - 1


def law_of(sets: Tensor, at: int) -> Tensor:
    """int64 [B, LAW]: the numbers of one of the two sets."""
    return sets[:, LAWS + at * LAW : LAWS + (at + 1) * LAW]


def goes_by_logprob(sets: Tensor) -> Tensor:
    """bool [B]: rows whose tokens are ordered by their logprobs."""
    return (sets[:, SHARE] >= 0) | (law_of(sets, 0)[:, TARGET] >= 0)


def is_in(key: Tensor, sets: Tensor, kept: Tensor, at: int) -> Tensor:
    """bool [B, V]: which tokens with the keys [B, V] are in a set; `kept` uint8 [B, V or 0] marks some."""
    ids = torch.arange(key.shape[1], device=key.device)
    law = law_of(sets, at)
    first_key, first_id, last_key, last_id = (law[:, n, None] for n in (FIRST_KEY, FIRST_ID, LAST_KEY, LAST_ID))
    inside = (key > last_key) | ((key == last_key) & (ids <= last_id))
    inside &= (key < first_key) | ((key == first_key) & (ids >= first_id))
    if kept.shape[1]:
        inside &= ((kept & (1 << at)) != 0) | (law[:, IS_LISTED, None] == 0)
    return inside & (key > NEG_INF_KEY)


def cut_logprobs(sets: Tensor) -> tuple[Tensor, Tensor]:
    """(ids int64 [B] of the tokens whose weights were cut, -1 for none, their logprobs float32 [B])."""
    law = law_of(sets, 0)
    return law[:, TRIMMED], _ln(_log2(law[:, LEFT].clamp(min=1)) - _log2(law[:, TOTAL].clamp(min=1)))


def logprobs(x: Tensor, sets: Tensor, kept: Tensor) -> Tensor:
    """Logprobs float32 [B, V] of tokens with the logits [B, V] in mixtures and under adaptive-p; -inf for what cannot
    be drawn. Of other rows they are any numbers."""
    share, w = sets[:, SHARE, None], weights_in(x, sets, kept, 0)
    total, total_on = (law_of(sets, at)[:, TOTAL, None].clamp(min=1) for at in (0, 1))
    own = _ln(_log2(w.clamp(min=1)) - _log2(total)).masked_fill(w == 0, -torch.inf)
    w_on = weights_in(x, sets, kept, 1)
    off, on = _points(w, total), _points(w_on, total_on)
    low = (off & _LOW) * (_ALWAYS - share) + (on & _LOW) * share
    # Unsigned: shifts of negative numbers bring in ones.
    high = ((off >> 32) & _LOW) * (_ALWAYS - share) + ((on >> 32) & _LOW) * share
    point = high + ((low >> 32) & _LOW)
    mixed = _ln(_log2(point.masked_fill(point == 0, 1)) - (_POINT << 23))
    can_be = (w_on > 0) | ((w > 0) & (share < _ALWAYS))
    return torch.where(share >= 0, mixed.masked_fill(~can_be, -torch.inf), own)


def weights_in(x: Tensor, sets: Tensor, kept: Tensor, at: int) -> Tensor:
    """int64 weights [B, V] of tokens with the logits [B, V] in a set; 0 for those that it lacks."""
    law, key = law_of(sets, at), keys(x)
    m = logit_of(law[:, BASIS])
    q = exponents(torch.minimum(x, m[:, None]), m, law[:, CONSTANT].to(torch.int32).view(torch.float32))
    ids = torch.arange(x.shape[1], device=x.device)
    w = torch.where(ids == law[:, TRIMMED, None], law[:, LEFT, None], weights(q))
    w = w.masked_fill(law[:, IS_ONE, None] != 0, _CERTAIN)
    target = law[:, TARGET, None]
    new = weights((_target_exponents(w, law) - law[:, NEAREST, None]).clamp(min=0).to(torch.int32))
    return torch.where(target >= 0, new, w) * is_in(key, sets, kept, at)


def _target_exponents(w: Tensor, law: Tensor) -> Tensor:
    """int64 exponents [B, V] of weights by how far their shares are from the target of adaptive-p (S-O15)."""
    p = w.to(torch.float64) / law[:, WHOLE, None].clamp(min=1).to(torch.float64)
    distance = (p - law[:, TARGET, None].to(torch.float64) / ONE).abs() * INVERSE_WIDTH
    return ((distance * distance * 10.0) / (distance + 1.0) * LOG2E_23).to(torch.int32).to(torch.int64)


# --- integers of 64 bits ----------------------------------------------------------------------------------------------


def _points(w: Tensor, total: Tensor) -> Tensor:
    """floor(w * 2^63 / total) of w <= total, int64 of any shape; 2^63 as the number with its bits."""
    rest, found = w.clone(), torch.zeros_like(w)
    for _ in range(_POINT):
        rest <<= 1
        fits = rest >= total
        rest -= fits * total
        found <<= 1
        found |= fits
    return found.masked_fill(w == total, -(1 << 63))


def _log2(n: Tensor) -> Tensor:
    """log2 of integers from 1 to 2^63, int64 of any shape, in 2^-23; 2^63 comes as the number with its bits (S-L1)."""
    e, rest = torch.zeros_like(n), n.clone()
    for shift in (32, 16, 8, 4, 2, 1):
        big = (rest >> shift) > 0
        e += big * shift
        rest = torch.where(big, rest >> shift, rest)
    z = torch.where(e <= 31, n << (31 - e).clamp(min=0), n >> (e - 31).clamp(min=0))
    out = torch.zeros_like(n)
    for _ in range(23):
        z *= z
        z >>= 31
        z &= _MASK33
        carry = z >> 32
        z >>= carry
        out <<= 1
        out |= carry
    return ((e << 23) | out).masked_fill(n < 0, _POINT << 23)


def _ln(log2: Tensor) -> Tensor:
    """Natural logarithms float32 of base-2 ones in 2^-23, int64 of any shape; a zero is +0.0."""
    return ((log2 * LN2_31) >> 31).to(torch.float32) * 2.0**-23 + 0.0
