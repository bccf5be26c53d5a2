"""Triton kernels that multiply and add in one expression, with and without the guard of the rule."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unguarded(x_ptr, c_ptr, mass_ptr, BLOCK: tl.constexpr):
    """x * c + x: one fused operation wherever the compiler may fuse."""
    ids = tl.arange(0, BLOCK)
    x, c = tl.load(x_ptr + ids), tl.load(c_ptr + ids)
    tl.store(mass_ptr + ids, (x * c + x).to(tl.int64))


@triton.jit
def guarded(x_ptr, c_ptr, mass_ptr, BLOCK: tl.constexpr):
    """min(x * c, FLT_MAX) + x: two operations under every compiler option."""
    ids = tl.arange(0, BLOCK)
    x, c = tl.load(x_ptr + ids), tl.load(c_ptr + ids)
    tl.store(mass_ptr + ids, (tl.minimum(x * c, 3.4028234663852886e38) + x).to(tl.int64))
