"""The temperature that follows from the entropy of a set: llama.cpp's dynamic temperature, in integers (SPEC.md S-O9).

It needs the sums that eta needs, of the set that enters, at T = 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import LARGEST, LIMIT, log2_fixed, weight_of
from tirage.backends.torch.kernels.exact.thresholds import mean_of, summed
from tirage.backends.torch.kernels.layout import FACTOR, LISTED, constant
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, TEMPERATURE

_TEMPERATURE, _CANDIDATES, _AND_LISTED = (
    tl.constexpr(int(op)) for op in (TEMPERATURE, DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED)
)  # fmt: skip
_UNIT_LOG = tl.constexpr(40 << 23)


@triton.jit
def is_dynamic(op):
    """Whether a step is a temperature that follows from the set."""
    return (op == _CANDIDATES) | (op == _AND_LISTED)


@triton.jit
def is_temperature(op):
    """Whether a step is a temperature of either kind."""
    return (op == _TEMPERATURE) | is_dynamic(op)


@triton.jit
def log2_of(n):
    """log2 in 2^-23 of an integer n >= 0 (int64), 0 for 0: int64."""
    return log2_fixed(tl.maximum(n, 1).to(tl.uint64))


@triton.jit
def entropy_fraction(mean, mass, number, e, s):
    """(entropy / largest entropy) ** (e / 2^s) of a set of `number` tokens, in units of 2^-32: int64."""
    entropy, most = mean + log2_of(mass) - _UNIT_LOG, log2_of(number)
    octaves = tl.maximum(log2_of(most) - log2_of(entropy), 0)
    power = tl.minimum((octaves * e) >> tl.minimum(s, 63), LIMIT).to(tl.int32)
    return tl.where((entropy <= 0) | (most <= 0), 0, weight_of(power) >> 8)


@triton.jit
def sum_ties(sums_ptr, ties):
    """Writes the sums of a set of tokens that are all equal. Every temperature draws the same of them, but is told."""
    number = ties.to(tl.int64)
    tl.store(sums_ptr, number)
    tl.store(sums_ptr + 1, number << 40)
    tl.store(sums_ptr + 2, number * 0)
    tl.store(sums_ptr + 3, number * 0)
    tl.debug_barrier()


@triton.jit
def factor_of(step_ptr, meta_ptr, sums_ptr, size):
    """The largest temperature over that of a set with these sums, float32."""
    number = tl.maximum(summed(sums_ptr, 0).to(tl.int64), tl.minimum(tl.load(meta_ptr + LISTED), size))
    return factor_at(step_ptr, number, sums_ptr)


@triton.jit
def factor_at(step_ptr, number, sums_ptr):
    """The same where so many tokens count."""
    low, e, s = tl.load(step_ptr + 3), tl.load(step_ptr + 4), tl.load(step_ptr + 5)
    fraction = entropy_fraction(mean_of(sums_ptr), summed(sums_ptr, 1).to(tl.int64), number, e, s)
    # (2^32 - low) * fraction may be 2^64: both factors are moved up, and the upper half is taken.
    rest = tl.umulhi(((1 << 32) - low).to(tl.uint64) << 31, fraction.to(tl.uint64) << 1)
    t = tl.maximum(low + rest.to(tl.int64), 512)
    return (tl.full((), 1 << 62, tl.int64) // t).to(tl.float32) * 9.313225746154785e-10


@triton.jit
def scaled(step_ptr, at, factor):
    """The constant c (`at` 1), or 1 / T (2), of a step's largest temperature times `factor`, float32."""
    return tl.minimum(constant(step_ptr, at) * factor, LARGEST)


@triton.jit
def last_scale(step_ptr, row_ptr, before):
    """1 / T of a step that is a temperature, else what it was `before`."""
    op = tl.load(step_ptr)
    scale = before
    if op == _TEMPERATURE:
        scale = constant(step_ptr, 2)
    if is_dynamic(op):
        factor = tl.load(row_ptr + FACTOR, cache_modifier=".cg").to(tl.float32, bitcast=True)
        scale = scaled(step_ptr, 2, factor)
    return scale
