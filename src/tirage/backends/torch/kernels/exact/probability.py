"""Probabilities in units of 2^-63, and the logprobs of a mixture of two sets (SPEC.md S-L4)."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import ln_of, log2_fixed
from tirage.backends.torch.kernels.exact.thresholds import sum_128

_POINT, _POINT_LOG = tl.constexpr(63), tl.constexpr(63 << 23)


@triton.jit
def point_of(w, mass):
    """floor(w * 2^63 / mass) of int64 w <= mass, any shape: uint64."""
    rest, by = w.to(tl.uint64), mass.to(tl.uint64)
    found = rest * 0
    for _ in range(63):
        rest = rest << 1
        fits = rest >= by
        rest = tl.where(fits, rest - by, rest)
        found = (found << 1) | fits.to(tl.uint64)
    return tl.where(w == mass, tl.full((), 1, tl.uint64) << _POINT, found)


@triton.jit
def mixed_logprob(w, total, w_on, total_on, share):
    """ln of the probability of a token with these weights in sets of these masses, the second drawn with a share."""
    off, on = point_of(w, total), point_of(w_on, total_on)
    off_share, on_share = (tl.full((), 1 << 32, tl.int64) - share).to(tl.uint64), share.to(tl.uint64)
    high, low = sum_128(
        tl.umulhi(off, off_share), off * off_share, tl.umulhi(on, on_share), on * on_share
    )  # fmt: skip
    return logprob_at((high << 32) | (low >> 32))


@triton.jit
def logprob_at(point):
    """ln of probabilities in units of 2^-63, uint64 of any shape; 0 is taken for the least one."""
    return ln_of(log2_fixed(tl.where(point > 0, point, 1)) - _POINT_LOG) + 0.0
