"""Filters that read the spread of a row: typical-p, eta, top-n-sigma, top-h, dynamic temperature (S-O4 ... S-O9)."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from tirage.backends.jax import wide
from tirage.backends.jax.passes import count, largest
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.reach import reach
from tirage.backends.jax.rule import (
    FLT_MAX,
    Mass,
    bits_of,
    cleaned,
    exponents,
    float_of,
    product,
    values,
    weights,
)
from tirage.backends.jax.steps import TracedState
from tirage.backends.jax.sums import Cut, mean_exponent, ranked, share, target
from tirage.backends.jax.wide import OCTAVE, Wide, u32
from tirage.exact import numbers
from tirage.exact.weights import Q_LIMIT

_UNIT = numbers.temperature_constant(1.0)
_TOP_H_TOKENS = 100


def dynamic_temperature(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """T between T min and T max by the entropy of the set, in integers: rule S-O9."""
    state = state.rebased(on)
    fraction = _entropy_fraction(state, given)
    ratio = _long(given["ratio"])
    rest = wide.sub(wide.constant(1 << 32, ratio[0], 2), ratio)
    t = wide.add(ratio, wide.right(wide.mul(rest, fraction), 32)[:2])
    floor = wide.constant(1 << 9, ratio[0], 2)
    t = wide.select(wide.less(t, floor), floor, t)
    r = wide.to_float32(wide.divide(wide.constant(1 << 62, ratio[0], 2), t)) * np.float32(2.0**-30)
    c = jnp.where(on, product(given["c"], r), state.c)
    return replace(state, c=c, inverse_t=jnp.where(on, product(given["inverse_t"], r), state.inverse_t)).weighed()


def _long(words: Array) -> Wide:
    words = jnp.asarray(words)
    return words[:, 0], words[:, 1]


def _entropy_fraction(state: TracedState, given: Columns) -> Wide:
    """(H / H max) ** exponent in units of 2^-32, entropies at T = 1 over the current set; two limbs."""
    q = exponents(state.x, state.m, jnp.full_like(state.m, _UNIT))
    w = weights(q).where(state.kept)
    entropy = mean_exponent(q, w) + wide.ilog2(w.total()) - 40 * OCTAVE
    size = u32(count(state.kept))
    most = wide.ilog2((size,))
    octaves = jnp.maximum(_ilog2(most) - _ilog2(entropy), 0)
    scaled = wide.right_by(wide.mul32(u32(octaves), jnp.asarray(given["e"])), jnp.asarray(given["s"]))
    far = (scaled[1] != 0) | (scaled[0] > Q_LIMIT)
    power = jnp.where(far, Q_LIMIT, scaled[0].astype(jnp.int32))
    fraction = wide.right(weights(power).wide(), 8)
    none = (entropy <= 0) | (most <= 0)
    return wide.select(none, wide.constant(0, fraction[0], 2), fraction)


def _ilog2(n: Array) -> Array:
    return wide.ilog2((u32(jnp.maximum(n, 1)),))


def sigma(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep x >= max - n * standard deviation, in row-relative fixed point: rule S-O6."""
    distance = cleaned(jnp.minimum(values(state.top())[:, None] - state.x, FLT_MAX))
    distance = jnp.where(state.kept, distance, 0)
    widest = largest(bits_of(distance))
    shift = 29 + 127 - (widest >> 23)
    half = shift >> 1
    # Two steps, since 2^shift itself may leave the float32 range.
    scaled = distance * _power_of_two(half)[:, None] * _power_of_two(shift - half)[:, None]
    v = scaled.astype(jnp.int32).astype(jnp.uint32)
    n = wide.wide(u32(count(state.kept)), 1)
    s1, s2 = wide.total_wide((v,), 2), wide.total_wide(wide.mul32(v, v), 3)
    spread = wide.sub(wide.mul(n, s2), wide.mul(s1, s1))
    variance = wide.divide(spread, wide.mul(n, n))
    deviation = wide.isqrt(wide.left(variance[:2], 2))
    limit = wide.right_by(wide.mul32(jnp.asarray(given["e"]), deviation), jnp.asarray(given["s"]) + 1)
    far = ~wide.less(limit, tuple(limb for limb in wide.constant(1 << 31, limit[0], 2)))
    bound = jnp.where(far, jnp.uint32(0xFFFFFFFF), limit[0])
    return state.keep(v <= bound[:, None], on & (widest > 0))


def _power_of_two(n: Array) -> Array:
    return float_of((n + 127) << 23)


def typical(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the tokens nearest to the mean exponent whose mass reaches p: rule S-O4."""
    q, mass = state.q, state.mass()
    distance = u32(jnp.abs(q - mean_exponent(q, mass)[:, None]))
    goal = target(given["p"], mass.total(), above=bool(stage.option("exceed")))
    found = reach(distance, state.kept, mass, goal).low
    return state.keep(distance <= found[:, None], on)


def eta(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep at least epsilon of the mass, or an exponent not far above the mean: rule S-O5."""
    q, mass = state.q, state.mass()
    likely = share(given, mass.total()).at_least(mass)
    near = q <= (mean_exponent(q, mass) + given["distance"])[:, None]
    return state.keep(likely | near | (state.key == state.top()[:, None]), on)


def top_h(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Among the first 100 tokens, the prefix that holds the share H of their entropy: rule S-O7."""
    key, ids = ranked(state, _TOP_H_TOKENS)
    inside = jnp.take_along_axis(state.kept, ids, 1)
    q = jnp.take_along_axis(state.q, ids, 1)
    mass = Mass(*(jnp.take_along_axis(part, ids, 1) for part in state.mass())).where(inside)
    surprise = q + (wide.ilog2(mass.total()) - 40 * OCTAVE)[:, None]
    parts = _signed_product(mass.wide(), surprise)
    n = key.shape[1]
    upto = np.tri(n, dtype=bool)
    reached = wide.total_wide(tuple(jnp.where(upto, limb[:, None, :], 0) for limb in parts), 4)
    whole = tuple(limb[:, -1:] for limb in reached)
    bound = wide.mul(_extended(whole, 5), tuple(limb[:, None] for limb in _long(given["h"])), 5)
    over = _signed_less(bound, wide.left(_extended(reached, 5), 32))
    first = jnp.sum(jnp.cumsum(over, -1, dtype=jnp.int32) == 0, -1, dtype=jnp.int32)
    inside_count = jnp.sum(inside, -1, dtype=jnp.int32)
    last = jnp.maximum(jnp.minimum(first, inside_count) - 1, 0)[:, None]
    cut = Cut(*(jnp.take_along_axis(each, last, 1)[:, 0] for each in (key, ids)))
    return state.keep(cut.keeps(state), on)


def _signed_product(w: Wide, n: Array) -> Wide:
    """w * n for int32 n, four limbs in two's complement."""
    size = wide.resized(wide.mul(w, (u32(jnp.abs(n)),)), 4)
    return wide.select(n < 0, wide.negated(size), size)


def _extended(a: Wide, size: int) -> Wide:
    sign = jnp.where(a[-1] >> 31 == 1, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    return (*a, *[sign] * (size - len(a)))


def _signed_less(a: Wide, b: Wide) -> Array:
    flip = jnp.uint32(0x80000000)
    return wide.less((*a[:-1], a[-1] ^ flip), (*b[:-1], b[-1] ^ flip))
