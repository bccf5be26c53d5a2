"""Where a typical that is the only cut of a row likely ends, by the row's histogram (SPEC.md S-O4).

It keeps the tokens at the lowest levels: the distances of their exponents from the mean one. So two ranges of keys stay
open, one at each end of what is kept, and what lies between them, the core, is only weighed. Nothing here is more than
likely: what the tokens of a lane add up to is known about as well as evenly spread ones tell. `levels` makes sure, and
lists the row where it was otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.averages import between
from tirage.backends.torch.kernels.layout import (
    ADDED,
    CORE,
    CORE_TOP,
    FIRST_C,
    HIGH,
    LOW,
    LOWEST,
    PROGRAM,
    SUMMED,
    SUMMED_ALREADY,
    TO_BE_SUMMED,
    TOP,
    WHOLE,
    constant,
)
from tirage.backends.torch.kernels.rule import (
    LIMIT,
    NEG_INF,
    exponent_of,
    lowest_key,
    power_of,
    target_of,
    times,
    value_of,
)
from tirage.backends.torch.kernels.thresholds import mean_of, summed
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK

_TYPICAL, _BY_RANK = tl.constexpr(int(TYPICAL)), tl.constexpr(int(TYPICAL_BY_RANK))
_UNIT = tl.constexpr(2.0**-40)
_SIXTH = tl.constexpr(1 / 6)
_DOUBT = tl.constexpr(1.25)
"""Of evenly spread numbers, n between two bounds are off their middle by more than this part of the root of n times
what lies between the bounds in one of 10^4 rows."""
_ROUNDED = tl.constexpr(2.0**-18)
_SHARE = tl.constexpr(2.0**-32)
_TURNS = tl.constexpr(20)
_MOST, _LEAST = tl.constexpr(True), tl.constexpr(False)


@triton.jit
def is_leveled(op):
    """Whether a step keeps the most typical tokens."""
    return (op == _TYPICAL) | (op == _BY_RANK)


@triton.jit
def has_levels(meta_ptr, steps):
    """Whether some step of a row does."""
    found = tl.full((), False, tl.int1)
    for s in range(steps):
        found = found | is_leveled(tl.load(meta_ptr + PROGRAM + s * 6))
    return found


@triton.jit
def share_of_levels(meta_ptr, steps):
    """What part of the mass a row's typical keeps at least, float32."""
    share = tl.full((), 0, tl.int64)
    for s in range(steps):
        if is_leveled(tl.load(meta_ptr + PROGRAM + s * 6)):
            share = tl.load(meta_ptr + PROGRAM + s * 6 + 1)
    return share.to(tl.float32) * _SHARE


@triton.jit
def goal_of_levels(meta_ptr, steps, total):
    """What mass, int64, a row's typical keeps at least of `total`."""
    goal = total
    for s in range(steps):
        step_ptr = meta_ptr + PROGRAM + s * 6
        if is_leveled(tl.load(step_ptr)):
            goal = target_of(tl.load(step_ptr + 1), total, tl.load(step_ptr + 2))
    return goal


@triton.jit
def mass_within(d, mass, near, far, margin, mean, last, last_w, IS_MOST: tl.constexpr):
    """What tokens weigh whose exponents are within `d` of the mean: of a lane that is partly there, the most that is
    likely or the least."""
    inside = tl.minimum(far, mean + d) - tl.maximum(near, mean - d) + 1.0
    part = tl.minimum(tl.maximum(inside / (far - near + 1.0), 0.0), 1.0)
    if IS_MOST:
        part = tl.where(part > 0.0, tl.minimum(part + margin, 1.0), 0.0)
    else:
        part = tl.where(part < 1.0, tl.maximum(part - margin, 0.0), 1.0)
    ends = tl.where(mean <= d, 1.0, 0.0) + tl.where(last - mean <= d, last_w, 0.0)
    return tl.sum(times(mass, part), 0) + ends


@triton.jit
def surely_within(d, heavy, light, near, far, mean, total, last, last_w, IS_MOST: tl.constexpr):
    """The most that tokens within `d` can weigh in a row whose mass is known, or the least: what lies further off tells
    too."""
    ends = tl.where(mean <= d, 1.0, 0.0) + tl.where(last - mean <= d, last_w, 0.0)
    others = total - (1.0 + last_w - ends)
    if IS_MOST:
        touched = (near <= mean + d) & (far >= mean - d)
        found = tl.minimum(
            tl.sum(tl.where(touched, heavy, 0.0), 0) + ends, others - tl.sum(tl.where(touched, 0.0, light), 0)
        )
    else:
        inside = (near >= mean - d) & (far <= mean + d)
        found = tl.maximum(
            tl.sum(tl.where(inside, light, 0.0), 0) + ends, others - tl.sum(tl.where(inside, 0.0, heavy), 0)
        )
    return found


@triton.jit
def within(
    d, mass, heavy, light, near, far, margin, mean, total, last, last_w, IS_KNOWN: tl.constexpr, IS_MOST: tl.constexpr
):
    """What tokens within `d` weigh, the most or the least, surely where the sums of the row are known."""
    if IS_KNOWN:
        found = surely_within(d, heavy, light, near, far, mean, total, last, last_w, IS_MOST)
    else:
        found = mass_within(d, mass, near, far, margin, mean, last, last_w, IS_MOST)
    return found


@triton.jit
def likely_levels(counts, edge_ptr, sums_ptr, low, high, c, share, IS_KNOWN: tl.constexpr):
    """(mean exponent, how far that is off, a level that is surely kept, one beyond which nothing is), float32.

    Where the sums of the row are known, nothing is taken for evenly spread.
    """
    m = value_of(high)
    number, least, greatest = between(counts, edge_ptr, low, high)
    n, near, far = number.to(tl.float32), exponent_of(greatest, m, c), exponent_of(least, m, c)
    middle = near + ((far - near) >> 1)
    heavy, light, w = times(power_of(near), _UNIT), times(power_of(far), _UNIT), times(power_of(middle), _UNIT)
    near, far, middle = near.to(tl.float32), far.to(tl.float32), middle.to(tl.float32)
    last = exponent_of(value_of(low), m, c)
    last_w, last = times(power_of(last), _UNIT), last.to(tl.float32)
    mass = times(n * (heavy + times(4.0, w) + light), _SIXTH)
    total = tl.sum(mass, 0) + 1.0 + last_w
    mean = tl.sum(times(n * (times(heavy, near) + times(4.0 * w, middle) + times(light, far)), _SIXTH), 0)
    mean = (mean + times(last_w, last)) / total
    moment, across = times(w, middle - mean), heavy - light
    width = tl.abs(times(heavy, near - mean) - moment) + tl.abs(moment - times(light, far - mean))
    off = _DOUBT * tl.sqrt_rn(tl.sum(times(n * width, width), 0)) / total + times(mean, _ROUNDED) + 2.0
    doubt = times(_DOUBT, tl.sqrt_rn(tl.sum(times(n * across, across), 0))) + times(total, _ROUNDED)
    margin = tl.minimum(2.0 / tl.sqrt_rn(tl.maximum(n, 1.0)), 1.0)
    if IS_KNOWN:
        mean, total = mean_of(sums_ptr).to(tl.float32), times(summed(sums_ptr, 1).to(tl.float32), _UNIT)
        off, doubt = times(mean, _ROUNDED) + 2.0, times(total, _ROUNDED)
        heavy, light = times(n, heavy), times(n, light)
    sure, most, end = tl.full((), -1.0, tl.float32), tl.maximum(mean, last - mean) + 1.0, tl.full((), -1.0, tl.float32)
    beyond, far_end = most, most
    for _ in range(_TURNS):
        d = times(sure + beyond, 0.5)
        found = within(
            d, mass, heavy, light, near, far, margin, mean, total, last, last_w, IS_KNOWN, _MOST
        )  # fmt: skip
        is_less = found < times(share, total) - doubt
        sure, beyond = tl.where(is_less, d, sure), tl.where(is_less, beyond, d)
        d = times(end + far_end, 0.5)
        found = within(
            d, mass, heavy, light, near, far, margin, mean, total, last, last_w, IS_KNOWN, _LEAST
        )  # fmt: skip
        is_less = found < times(share, total) + doubt
        end, far_end = tl.where(is_less, d, end), tl.where(is_less, far_end, d)
    return mean, off, sure, far_end


@triton.jit
def store_levels(counts, edge_ptr, sums_ptr, meta_ptr, row_ptr, steps, IS_KNOWN: tl.constexpr):
    """Write the open range and the core of a row whose only cut is a typical; its sums may be known.

    Where all of its tokens are equal they are all kept, or as many of them as a typical by rank needs.
    """
    op, low, high = tl.load(meta_ptr + SUMMED), tl.load(row_ptr + LOW), tl.load(row_ptr + HIGH)
    if (op == _BY_RANK) & (low == high):
        tl.store(row_ptr + LOWEST, high)
        tl.store(row_ptr + TOP, high + 1)
        tl.store(row_ptr + CORE_TOP, NEG_INF)
        tl.store(row_ptr + WHOLE, 1)
        tl.store(row_ptr + ADDED, SUMMED_ALREADY if IS_KNOWN else TO_BE_SUMMED)
    if is_leveled(op) & (low < high):
        c = constant(meta_ptr, FIRST_C)
        mean, off, sure, end = likely_levels(
            counts, edge_ptr, sums_ptr, low, high, c, share_of_levels(meta_ptr, steps), IS_KNOWN
        )
        sure, end = sure - times(2.0, off) - 1.0, end + times(2.0, off) + 2.0
        at = tl.arange(0, 4)
        # The least and the greatest exponents of the range, and those of the core; what is nearer than these is above.
        side = tl.where(at < 2, end, sure)
        limits = mean + tl.where(at % 2 == 0, side, -side)
        rounded = limits.to(tl.int32)
        is_up = (at == 0) | (at == 3)
        rounded += (is_up & (rounded.to(tl.float32) < limits)).to(tl.int32)
        rounded -= ((is_up == 0) & (rounded.to(tl.float32) > limits)).to(tl.int32)
        limit = tl.minimum(rounded - at % 2, LIMIT)
        keys = tl.where(limit < 0, high + 1, lowest_key(tl.maximum(limit, 0), value_of(high), c, high))
        sure = tl.where(at > 1, sure, 1.0)
        keys = tl.where(sure < 1.0, NEG_INF, keys)
        # LOWEST, TOP, CORE, CORE_TOP
        to = tl.where(at == 0, LOWEST, tl.where(at == 1, TOP, tl.where(at == 2, CORE, CORE_TOP)))
        tl.store(row_ptr + to, keys)
        tl.store(row_ptr + WHOLE, 1)
        tl.store(row_ptr + ADDED, SUMMED_ALREADY if IS_KNOWN else TO_BE_SUMMED)
