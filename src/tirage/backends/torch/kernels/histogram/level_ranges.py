"""Where a typical that is the only cut of a row likely ends, by the row's histogram (SPEC.md S-O4).

It keeps the tokens at the lowest levels: the distances of their exponents from the mean one. So two ranges of keys stay
open, one at each end of what is kept, and what lies between them, the core, is only weighed. Nothing here is more than
likely: what the tokens of a lane add up to is known about as well as evenly spread ones tell. `levels` makes sure, and
lists the row where it was otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    LIMIT,
    NEG_INF,
    exponent_of,
    lowest_key,
    power_of,
    target_of,
    times,
    value_of,
)
from tirage.backends.torch.kernels.exact.thresholds import mean_of, summed
from tirage.backends.torch.kernels.histogram.averages import between
from tirage.backends.torch.kernels.layout import (
    ADDED,
    CORE,
    CORE_TOP,
    FIRST_C,
    HIGH,
    LOW,
    LOWEST,
    MASS_FROM,
    MASS_TO,
    PROGRAM,
    SUMMED,
    SUMMED_ALREADY,
    TO_BE_SUMMED,
    TOP,
    WHOLE,
    constant,
)
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
_FEW = tl.constexpr(64)
"""One token in so many is listed sooner than logits are taken for evenly spread, and the row is read once more."""
_EVEN = tl.constexpr(0.125)
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
def masses_within(d, mass, apart, square, even, near, far, margin, mean, last, last_w, IS_MOST: tl.constexpr):
    """(what tokens weigh whose exponents are within `d` of the mean, what all others weigh, how far that is off): of a
    lane that is partly there, the most that is likely or the least."""
    inside = tl.minimum(far, mean + d) - tl.maximum(near, mean - d) + 1.0
    part = tl.minimum(tl.maximum(inside / (far - near + 1.0), 0.0), 1.0)
    if IS_MOST:
        part = tl.where(part > 0.0, tl.minimum(part + margin, 1.0), 0.0)
    else:
        part = tl.where(part < 1.0, tl.maximum(part - margin, 0.0), 1.0)
    ends = tl.where(mean <= d, 1.0, 0.0) + tl.where(last - mean <= d, last_w, 0.0)
    others = tl.sum(times(mass, 1.0 - part), 0) + (1.0 + last_w - ends)
    doubt = doubt_of(tl.where(part < 1.0, apart, 0.0), tl.where(part < 1.0, square, 0.0), even)
    return tl.sum(times(mass, part), 0) + ends, others, doubt


@triton.jit
def doubt_of(apart, square, even):
    """How far a sum over lanes is off, of each of which the most is known, and the square of what is likely: that, or
    so much `even` of half the most, which holds where all of a lane lies at one end."""
    return tl.maximum(times(_DOUBT, tl.sqrt_rn(tl.sum(square, 0))), times(tl.sum(apart, 0), 0.5 * even))


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
def is_reached(
    d, mass, apart, square, even, near, far, margin, mean, total, share, least, most, last, last_w,
    IS_MOST: tl.constexpr,
):  # fmt: skip
    """Whether tokens within `d` likely may weigh that `share` of their row (`IS_MOST`), or do.

    The mass of the row is known between two as well: where few tokens weigh much, what they do is told by the others.
    """
    found, others, doubt = masses_within(d, mass, apart, square, even, near, far, margin, mean, last, last_w, IS_MOST)
    whole = doubt_of(apart, square, even) + times(total, _ROUNDED)
    doubt += times(most, _ROUNDED)
    if IS_MOST:
        reached = (found >= times(share, total) - whole) & (others - doubt <= times(1.0 - share, most))
    else:
        reached = (found >= times(share, total) + whole) | (others + doubt <= times(1.0 - share, least))
    return reached


@triton.jit
def known_levels(counts, edge_ptr, sums_ptr, low, high, c, share):
    """(mean exponent, how far that is off, a level that is surely kept, one beyond which nothing is), float32, where
    the sums of the row are known."""
    m = value_of(high)
    number, least, greatest = between(counts, edge_ptr, low, high)
    n, near, far = number.to(tl.float32), exponent_of(greatest, m, c), exponent_of(least, m, c)
    heavy, light = times(n, times(power_of(near), _UNIT)), times(n, times(power_of(far), _UNIT))
    near, far, last = near.to(tl.float32), far.to(tl.float32), exponent_of(value_of(low), m, c)
    last_w, last = times(power_of(last), _UNIT), last.to(tl.float32)
    mean, total = mean_of(sums_ptr).to(tl.float32), times(summed(sums_ptr, 1).to(tl.float32), _UNIT)
    doubt, goal = times(total, _ROUNDED), times(share, total)
    sure, end = tl.full((), -1.0, tl.float32), tl.full((), -1.0, tl.float32)
    beyond = tl.maximum(mean, last - mean) + 1.0
    far_end = beyond
    for _ in range(_TURNS):
        d = times(sure + beyond, 0.5)
        reached = surely_within(d, heavy, light, near, far, mean, total, last, last_w, _MOST) >= goal - doubt
        sure, beyond = tl.where(reached, sure, d), tl.where(reached, d, beyond)
        d = times(end + far_end, 0.5)
        reached = surely_within(d, heavy, light, near, far, mean, total, last, last_w, _LEAST) >= goal + doubt
        end, far_end = tl.where(reached, end, d), tl.where(reached, d, far_end)
    return mean, times(mean, _ROUNDED) + 2.0, sure, far_end


@triton.jit
def likely_levels(counts, edge_ptr, sums_ptr, low, high, c, share, few):
    """The same where they are not: as surely as leaves `few` tokens open, else as is likely where logits are spread
    about evenly in their lanes."""
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
    width, apart, unit = times(n, width), times(n, across), tl.maximum(n, 1.0)
    of_mean, square = times(width, width) / unit, times(apart, apart) / unit
    even, off = tl.full((), 1.0, tl.float32), tl.full((), 0.0, tl.float32)
    sure, end, is_open = off, off, tl.full((), True, tl.int1)
    while is_open:
        off = doubt_of(width, of_mean, even) / total + times(mean, _ROUNDED) + 2.0
        sure, end = searched_levels(
            n, mass, apart, square, even, near, far, mean, total, share, sums_ptr, last, last_w
        )  # fmt: skip
        touched = (near <= mean + end + times(2.0, off)) & (far >= mean - end - times(2.0, off))
        inside = (near >= mean - sure + times(2.0, off)) & (far <= mean + sure - times(2.0, off))
        left_open = tl.sum(tl.where(touched & (inside == 0), n, 0.0), 0)
        is_open = (even > 0.0) & (left_open > few.to(tl.float32))
        even = tl.where(even > _EVEN, _EVEN, 0.0)
    return mean, off, sure, end


@triton.jit
def searched_levels(n, mass, apart, square, even, near, far, mean, total, share, sums_ptr, last, last_w):
    """(a level that is likely kept, one beyond which likely nothing is), float32."""
    margin = tl.minimum(tl.maximum(2.0 / tl.sqrt_rn(tl.maximum(n, 1.0)), even), 1.0)
    least = times(tl.load(sums_ptr + MASS_FROM).to(tl.float32), _UNIT)
    most = times(tl.load(sums_ptr + MASS_TO).to(tl.float32), _UNIT)
    sure, end = tl.full((), -1.0, tl.float32), tl.full((), -1.0, tl.float32)
    beyond = tl.maximum(mean, last - mean) + 1.0
    far_end = beyond
    for _ in range(_TURNS):
        d = times(sure + beyond, 0.5)
        reached = is_reached(
            d, mass, apart, square, even, near, far, margin, mean, total, share, least, most, last, last_w, _MOST
        )  # fmt: skip
        sure, beyond = tl.where(reached, sure, d), tl.where(reached, d, beyond)
        d = times(end + far_end, 0.5)
        reached = is_reached(
            d, mass, apart, square, even, near, far, margin, mean, total, share, least, most, last, last_w, _LEAST
        )  # fmt: skip
        end, far_end = tl.where(reached, end, d), tl.where(reached, d, far_end)
    return sure, far_end


@triton.jit
def store_levels(counts, edge_ptr, sums_ptr, meta_ptr, row_ptr, size, steps, IS_KNOWN: tl.constexpr):
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
        c, share = constant(meta_ptr, FIRST_C), share_of_levels(meta_ptr, steps)
        if IS_KNOWN:
            mean, off, sure, end = known_levels(counts, edge_ptr, sums_ptr, low, high, c, share)
        else:
            mean, off, sure, end = likely_levels(counts, edge_ptr, sums_ptr, low, high, c, share, size // _FEW)
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
