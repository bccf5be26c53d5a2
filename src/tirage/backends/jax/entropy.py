"""Filters that read the spread of a row: eta, top-n-sigma, top-h, dynamic temperature (S-O5 ... S-O9)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import Cut
from tirage.backends.jax.passes import largest, smallest
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.rule import (
    FLT_MAX,
    NO_KEY,
    Mass,
    bits_of,
    exponents,
    float_of,
    product,
    values,
    weights,
)
from tirage.backends.jax.steps import TracedState, either
from tirage.backends.jax.sums import share
from tirage.backends.jax.wide import OCTAVE, Wide, u32
from tirage.exact import numbers
from tirage.exact.keys import TINY_BITS
from tirage.exact.weights import Q_LIMIT

_UNIT = numbers.temperature_constant(1.0)
_TOP_H_TOKENS = 100
_LIFT, _TINY = np.int32(64 << 23), np.int32((127 - 60) << 23)
"""What multiplies a float32 by 2^64, added to its bits; the bits of 2^-60."""


def mean_exponent(state: TracedState, q: Array, mass: Mass, total: Wide) -> Array:
    """floor(sum(w * q) / sum(w)) of exponents and weights [B, N] with this sum of weights, int32 [B]."""
    low, high = mass.low | (mass.high << 20), mass.high >> 12
    products = wide.mul32(low, u32(q))
    products = (products[0], products[1] + high * u32(q))
    weighted = state.axis.sum_wide(wide.total_wide(products, 3))
    return wide.divide_short(weighted, total).astype(jnp.int32)


def dynamic_temperature(
    state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int
) -> TracedState:
    """The state [B, N] at a T between T min and T max, by the entropy of the set in integers: rule S-O9."""
    m = state.highest_value(on)
    fraction = _entropy_fraction(state, m, given)
    ratio = _long(given["ratio"])
    rest = wide.sub(wide.constant(1 << 32, ratio[0], 2), ratio)
    t = wide.add(ratio, wide.right(wide.mul(rest, fraction), 32)[:2])
    floor = wide.constant(1 << 9, ratio[0], 2)
    t = wide.select(wide.less(t, floor), floor, t)
    r = wide.to_float32(wide.fraction(wide.constant(1, ratio[0], 2), t, 62)) * np.float32(2.0**-30)
    c, inverse_t = (either(on, product(given[name], r), getattr(state, name)) for name in ("c", "inverse_t"))
    return state.weighed(m, c, inverse_t, on)


def _long(words: Array) -> Wide:
    words = jnp.asarray(words)
    return words[:, 0], words[:, 1]


def _entropy_fraction(state: TracedState, m: Array, given: Columns) -> Wide:
    """(H / H max) ** exponent in units of 2^-32, entropies at T = 1 over the current set; two limbs."""
    q = exponents(state.x, m, jnp.full_like(m, _UNIT))
    w = weights(q).where(state.kept).mass()
    total = state.total(w)
    size = u32(state.count(state.kept))
    log_mass, most = wide.ilog2(tuple(jnp.stack(limbs) for limbs in zip(total, wide.wide(size, 2), strict=True)))
    entropy = mean_exponent(state, q, w, total) + log_mass - 40 * OCTAVE
    one = jnp.stack([most, entropy])
    most_log, entropy_log = wide.ilog2((u32(jnp.maximum(one, 1)),))
    octaves = jnp.maximum(most_log - entropy_log, 0)
    scaled = wide.right_by(wide.mul32(u32(octaves), jnp.asarray(given["e"])), jnp.asarray(given["s"]))
    far = (scaled[1] != 0) | (scaled[0] > Q_LIMIT)
    power = jnp.where(far, Q_LIMIT, scaled[0].astype(jnp.int32))
    fraction = wide.right(weights(power).mass().wide(), 8)
    none = (entropy <= 0) | (most <= 0)
    return wide.select(none, wide.constant(0, fraction[0], 2), fraction)


def sigma(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps x >= max - n * standard deviation, in row-relative fixed point: rule S-O6."""
    distance = _below_top(state)
    widest = state.axis.max(largest(bits_of(distance)))
    shift = 29 + 127 - (widest >> 23)
    half = shift >> 1
    # Two steps, since 2^shift itself may leave the float32 range.
    scaled = distance * _power_of_two(half)[:, None] * _power_of_two(shift - half)[:, None]
    v = scaled.astype(jnp.int32).astype(jnp.uint32)
    n = wide.wide(u32(state.count(state.kept)), 1)
    s1, s2 = (state.axis.sum_wide(wide.total_wide(*of)) for of in (((v,), 2), (wide.mul32(v, v), 3)))
    deviation = _twice_deviation(n, s1, s2)
    limit = wide.right_by(wide.mul32(jnp.asarray(given["e"]), deviation), jnp.asarray(given["s"]) + 1)
    far = ~wide.less(limit, tuple(limb for limb in wide.constant(1 << 31, limit[0], 2)))
    bound = jnp.where(far, jnp.uint32(0xFFFFFFFF), limit[0])
    return state.keep((v <= bound[:, None]) | (widest == 0)[:, None], on)


def _twice_deviation(n: Wide, s1: Wide, s2: Wide) -> Array:
    """floor(sqrt(4 * floor(a / n^2))), uint32, for a = n * s2 - s1^2, without the quotient: r is at most that where
    ceil(r^2 / 4) * n^2 <= a."""

    def holds(r: Array, n: Wide, s1: Wide, s2: Wide) -> Array:
        # Here rather than before the search, where each limb would be a kernel of its own.
        spread = wide.sub(wide.mul(n, s2), wide.mul(s1, s1))
        quarter = wide.right(wide.add(wide.mul32(r, r), wide.constant(3, r, 2)), 2)
        return ~wide.less(spread, wide.mul(quarter, wide.mul(n, n), 4))

    return wide.last(holds, n, s1, s2)


def _below_top(state: TracedState) -> Array:
    """Distances [B, N] from the largest logit, 0 for tokens that are out; of rows of tiny logits 2^64 times as much.

    XLA takes subnormals for zeros, so that their differences would be wrong.
    """
    size = jnp.where(state.kept, jnp.abs(state.key), 0)
    tiny = state.axis.max(largest(size)) < _TINY
    top = state.top()[:, None]
    x, most = (jnp.where(tiny[:, None], _lifted(key), values(key)) for key in (state.key, top))
    distance = jnp.minimum(most - x, FLT_MAX)
    nothing = jnp.where(tiny, TINY_BITS + _LIFT, TINY_BITS)
    return jnp.where(state.kept & (bits_of(distance) > nothing[:, None]), distance, 0)


def _lifted(key: Array) -> Array:
    """2^64 times the logits of these keys, from their bits; right below 2^60."""
    size = jnp.abs(key)
    lifted = jnp.where(size < 1 << 23, size.astype(jnp.float32) * np.float32(2.0**-85), float_of(size + _LIFT))
    return jnp.where(key < 0, -lifted, lifted)


def _power_of_two(n: Array) -> Array:
    return float_of((n + 127) << 23)


def eta(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps at least epsilon of the mass, or an exponent not far above the mean: rule S-O5."""
    q, mass = state.q, state.mass()
    total = state.total(mass)
    likely = share(given, total).at_least(mass)
    near = q <= (mean_exponent(state, q, mass, total) + given["distance"])[:, None]
    return state.keep(likely | near | (state.key == state.top()[:, None]), on)


def top_h(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps, of the first 100 tokens, the prefix with the share H of their entropy: rule S-O7."""
    key, ids = state.first(_TOP_H_TOKENS)
    inside = key > NO_KEY
    q = exponents(values(key), state.m, state.c)
    mass = state.mass_of(key, ids)
    surprise = q + (wide.ilog2(mass.total()) - 40 * OCTAVE)[:, None]
    parts = _signed_product(mass.wide(), surprise)
    upto = np.tri(key.shape[1], dtype=bool)
    reached = wide.total_wide(tuple(jnp.where(upto, limb[:, None, :], 0) for limb in parts), 3)
    whole = tuple(limb[:, -1:] for limb in reached)
    bound = wide.mul(_extended(whole, 4), tuple(limb[:, None] for limb in _long(given["h"])), 4)
    over = _signed_less(bound, wide.left(_extended(reached, 4), 32))
    first = smallest(jnp.where(over, lax.broadcasted_iota(jnp.int32, over.shape, 1), key.shape[1]))
    last = jnp.maximum(jnp.minimum(first, jnp.sum(inside, -1, dtype=jnp.int32)) - 1, 0)
    return state.keep_to(Cut(wide.column(key, last), wide.column(ids, last)), on)


def _signed_product(w: Wide, n: Array) -> Wide:
    """w * n for int32 n, three limbs in two's complement."""
    size = wide.mul(w, (u32(jnp.abs(n)),))
    return wide.select(n < 0, wide.negated(size), size)


def _extended(a: Wide, size: int) -> Wide:
    sign = jnp.where(a[-1] >> 31 == 1, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    return (*a, *[sign] * (size - len(a)))


def _signed_less(a: Wide, b: Wide) -> Array:
    flip = jnp.uint32(0x80000000)
    return wide.less((*a[:-1], a[-1] ^ flip), (*b[:-1], b[-1] ^ flip))
