"""The smoothing of a row that is drawn as a set, with the histogram of what becomes of its logits (SPEC.md S-N8)."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    POS_INF,
    cleaned,
    exponent_of,
    key_of,
    smoothed,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.histogram.lanes import lane_of, sample_of, store_knots, stored_knots
from tirage.backends.torch.kernels.layout import (
    FIRST_C,
    HIGH,
    LANES,
    LOW,
    MASS_FROM,
    MASS_TO,
    NOT_COUNTED,
    PROGRAM,
    constant,
)
from tirage.operators.smoothing import SMOOTH

_SMOOTH, _NOT_BFLOAT = tl.constexpr(int(SMOOTH)), tl.constexpr(False)
_MOST, _ONE = tl.constexpr(1 << 61), tl.constexpr(1)


# fmt: off
@triton.jit
def smooth(x_ptr, bins_ptr, sums_ptr, meta_ptr, row_ptr, size, steps, TILE: tl.constexpr):
    """Changes the logits of a row that has a smoothing, and counts what becomes of them.

    Gives the largest and the least key of a row, and how many of its tokens are above -inf: -1 where it has none.
    """
    top_key, low_key, count = tl.load(row_ptr + HIGH), tl.load(row_ptr + LOW), tl.full((), -1, tl.int32)
    for s in range(steps):
        if tl.load(meta_ptr + PROGRAM + s * 6) == _SMOOTH:
            top_key, low_key, count = smooth_by(x_ptr, bins_ptr, sums_ptr, meta_ptr, row_ptr, s, top_key, size, TILE)
    return top_key, low_key, count


@triton.jit(noinline=True)
def smooth_by(x_ptr, bins_ptr, sums_ptr, meta_ptr, row_ptr, s, top_key, size, TILE: tl.constexpr):
    """Changes logits by their distances from the largest one, as the step `s` says; counts what becomes of them in
    lanes, and writes the bounds of their mass. Gives what `smooth` does.

    There is no loop over the steps here: what the sample needs would be held from one to the next.
    """
    PART: tl.constexpr = TILE // 16 if TILE > 8 else _ONE
    lanes, bins, step_ptr = tl.arange(0, PART), tl.arange(0, LANES), meta_ptr + PROGRAM + s * 6
    square, cube, top = constant(step_ptr, 1), constant(step_ptr, 2), cleaned(value_of(top_key))
    sample, c = sample_of(x_ptr, size, _NOT_BFLOAT), constant(meta_ptr, FIRST_C)
    store_knots(row_ptr, tl.where(key_of(sample) > NEG_INF, smoothed(sample, top, square, cube), sample))
    number, high, low = lanes * 0, lanes * 0 + NEG_INF, lanes * 0 + POS_INF
    found, mass = bins * 0, (lanes * 0).to(tl.int64)
    for start in range(0, size, TILE):
        for part in range(0, TILE, PART):
            at = start + part + lanes
            x = tl.load(x_ptr + at, mask=at < size, other=float("-inf"))
            there, new = key_of(x) > NEG_INF, smoothed(x, top, square, cube)
            new = tl.where(there, new, x)
            tl.store(x_ptr + at, new, mask=at < size)
            number += there.to(tl.int32)
            high = tl.maximum(high, tl.where(there, key_of(new), NEG_INF))
            low = tl.minimum(low, tl.where(there, key_of(new), POS_INF))
            mass += tl.where(there & (new <= top), weight_of(exponent_of(tl.minimum(new, top), top, c)), 0)
            found += tl.histogram(lane_of(new, stored_knots(row_ptr)), LANES)
    is_top, whole = tl.max(high, 0) == key_of(top), tl.sum(mass, 0)
    tl.debug_barrier()
    tl.store(bins_ptr + bins, tl.where(bins < NOT_COUNTED, found, 0))
    tl.store(sums_ptr + MASS_FROM, tl.where(is_top, whole, 0))
    tl.store(sums_ptr + MASS_TO, tl.where(is_top, whole, _MOST))
    tl.debug_barrier()
    return tl.max(high, 0), tl.min(low, 0), tl.sum(number, 0)
# fmt: on
