"""The least weights that top-a and Mirostat 2 keep, from the largest one and the mass of a set (S-O10, S-O14)."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import log2_fixed
from tirage.backends.torch.kernels.exact.thresholds import quotient, sum_128


@triton.jit
def least_of_top_a(step_ptr, largest, total):
    """ceil(E * M^2 / (W * 2^s)) of a step's operands, the largest weight and the mass: int64."""
    e, s, m = tl.load(step_ptr + 1).to(tl.uint64), tl.load(step_ptr + 2), largest.to(tl.uint64)
    # E * M has 72 bits, and times M 112.
    high, low = tl.umulhi(e, m), e * m
    high, low = high * m + tl.umulhi(low, m), low * m
    by = tl.minimum(s, 127).to(tl.uint64)
    near, far = tl.maximum(tl.minimum(by, 63), 1), tl.maximum(by, 64) - 64
    is_short = by < 64
    rest = low & ((tl.full((), 1, tl.uint64) << near) - 1)
    rest = tl.where(is_short, rest, low | (high - ((high >> far) << far)))
    low = tl.where(is_short, (high << (64 - near)) | (low >> near), high >> far)
    high = tl.where(is_short, high >> near, 0)
    high, low = sum_128(high, low, high * 0, (rest > 0).to(tl.uint64))
    found, more = quotient(high, low, high * 0, total.to(tl.uint64))
    return found + more.to(tl.int64)


@triton.jit
def least_surprising(mu, largest, total):
    """The least weight whose surprise in the mass is at most mu, or one more than the largest: int64."""
    least = log2_fixed(total.to(tl.uint64)) - mu
    low, top = tl.full((), 0, tl.int64), largest + 1
    for _ in range(42):
        middle = (low + top) >> 1
        reaches = (middle > low) & (log2_fixed(tl.maximum(middle, 1).to(tl.uint64)) >= least)
        top = tl.where(reaches, middle, top)
        low = tl.where(reaches, low, middle)
    return top
