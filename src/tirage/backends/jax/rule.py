"""The numeric rule inside a trace: keys, exponents, weights and the uniform, in float32 and uint32 alone.

XLA contracts a product and a sum into one operation, drops `x + 0.0` and flushes subnormals; so every product that
may reach a sum is held under FLT_MAX, a step no compiler may drop, and every comparison is one of integers (S-N7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.passes import block, count, entries, grouped, sums
from tirage.backends.jax.wide import Wide, u32
from tirage.exact.keys import NEG_INF_KEY, TINY_BITS
from tirage.exact.weights import COEFFICIENTS, Q_LIMIT

FLT_MAX = np.float32(3.4028235e38)
_NEG_INF_BITS = np.int32(-0x800000)
_SIGN, _SIZE, _ZERO = np.int32(-0x80000000), np.int32(0x7FFFFFFF), np.int32(0)
_BLOCK = 1024
"""Weights that are located at once: the most whose sums are exact, and as many as a search brings together."""


def bits_of(x: Array) -> Array:
    """The bits of float32 values, int32 of the same shape."""
    return lax.bitcast_convert_type(x, jnp.int32)


def float_of(bits: Array) -> Array:
    """The float32 values, same shape, with these int32 or uint32 bits."""
    return lax.bitcast_convert_type(bits, jnp.float32)


def keys(x: Array) -> Array:
    """Keys of float32 `x`, int32 of the same shape. Rule S-N3."""
    b = bits_of(x)
    return lax.select(lax.ge(b, _ZERO), b, lax.neg(lax.bitwise_and(b, _SIZE)))


def values(key: Array) -> Array:
    """Logits, same shape, whose keys are `key`; +0.0 for both zeros."""
    return float_of(lax.select(lax.ge(key, _ZERO), key, lax.bitwise_or(lax.neg(key), _SIGN)))


def ordered(key: Array) -> Array:
    """Keys as uint32 in the same order, same shape."""
    return u32(key) ^ jnp.uint32(0x80000000)


def product(a: Array, b: Array) -> Array:
    """a * b for any shape, as a float32 of its own: min with FLT_MAX keeps XLA from fusing it into a sum (S-N7)."""
    return jnp.minimum(a * b, FLT_MAX)


def cleaned(x: Array) -> Array:
    """`x`, same shape, with every |v| <= 2^-126 made +0.0 (S-N7)."""
    return jnp.where((bits_of(x) & 0x7FFFFFFF) <= TINY_BITS, np.float32(0), x)


def clamped(x: Array) -> Array:
    """`x`, same shape, held within the finite float32 range, then cleaned (S-N7)."""
    return cleaned(jnp.minimum(jnp.maximum(x, -FLT_MAX), FLT_MAX))


def is_neg_inf(x: Array) -> Array:
    """Where `x` is -inf, by its bits: bool of the same shape."""
    return bits_of(x) == _NEG_INF_BITS


def exponents(x: Array, m: Array, c: Array) -> Array:
    """q of logits [B, N] for m and c [B]: int32, 41 * 2^23 at most. Rule S-W1."""
    scaled = (m[:, None] - x) * c[:, None]
    return jnp.minimum(scaled, np.float32(Q_LIMIT)).astype(jnp.int32)


class Mass(NamedTuple):
    """Integer weights of at most 2^40 each, or sums of 1024 such: `high` * 2^20 + `low`, uint32."""

    high: Array
    low: Array

    def where(self, kept: Array) -> Mass:
        """The weights of kept tokens, 0 for the others, same shape."""
        return Mass(jnp.where(kept, self.high, 0), jnp.where(kept, self.low, 0))

    def total(self) -> Wide:
        """The sum over the last axis of [..., V], two limbs; V is a `padded_size`, or at most 1024."""
        if self.low.shape[-1] <= 1024:
            low, high = sums([self.low, self.high])
            return Mass(high, low).wide()
        low, high = sums([grouped(self.low), grouped(self.high)])
        return Mass(high, low).total_of_sums()

    def total_and_count(self) -> tuple[Wide, Array]:
        """As `total`, and how many weights are above 0, int32 [...], in the same pass."""
        if self.low.shape[-1] <= 1024:
            low, high, number = sums([self.low, self.high, self._positive()])
            return Mass(high, low).wide(), number.astype(jnp.int32)
        each, numbers = self.in_groups()
        return each.total_of_sums(), sums([numbers])[0].astype(jnp.int32)

    def in_groups(self) -> tuple[Mass, Array]:
        """The sums of groups of weights [..., n], and how many of a group are above 0, uint32 [..., n]."""
        # Without the barrier XLA works out the sums that are used together in one pass, and those of others in another.
        low, high, numbers = lax.optimization_barrier(
            tuple(sums([grouped(part) for part in (self.low, self.high, self._positive())]))
        )
        return Mass(high, low), numbers

    def _positive(self) -> Array:
        return jnp.minimum(self.low | self.high, jnp.uint32(1))

    def total_of_sums(self) -> Wide:
        """As `total`, of sums [..., n] of at most 1024 weights each; at most 1024 of them."""
        parts = sums([half for limb in self for half in (limb & 0xFFFF, limb >> 16)])
        # The high half counts 2^20: a digit of 16 bits and four bits more.
        high, higher, low, middle = parts
        return wide.from_digits([low, middle + (high << 4), higher << 4], 2)

    def wide(self) -> Wide:
        """Each as two limbs of the same shape."""
        return wide.add((self.low, jnp.zeros_like(self.low)), (self.high << 20, self.high >> 12))

    def at(self, index: Array) -> Wide:
        """The weight of each row's entry at `index` [B], two limbs."""
        return wide.take(self.wide(), index)

    def mass(self) -> Mass:
        """Itself."""
        return self


def mass_of(number: Wide) -> Mass:
    """Two limbs as a Mass of the same shape."""
    return Mass((number[0] >> 20) | (number[1] << 12), number[0] & 0xFFFFF)


class FloatMass(NamedTuple):
    """Integer weights that a float32 holds exactly: half as much to write down and to read again as a Mass."""

    w: Array

    def where(self, kept: Array) -> FloatMass:
        """The weights of kept tokens, 0 for the others, same shape."""
        return FloatMass(jnp.where(kept, self.w, np.float32(0)))

    def mass(self) -> Mass:
        """The same weights as limbs."""
        high = (self.w * np.float32(2.0**-20)).astype(jnp.int32)
        # The product and the difference are exact, so it does not matter whether XLA fuses them.
        low = (self.w - high.astype(jnp.float32) * np.float32(2.0**20)).astype(jnp.int32)
        return Mass(u32(high), u32(low))


def weights(q: Array) -> FloatMass:
    """Weights of exponents, same shape: w(0) = 2^40, w(41 * 2^23) = 0. Rule S-W2."""
    f = float_of((q & 0x7FFFFF) | 0x3F800000) - np.float32(1)
    r = jnp.full(q.shape, COEFFICIENTS[5])
    for b in COEFFICIENTS[4::-1]:
        r = b + product(r, f)
    # Without the barrier XLA works out the polynomial anew for each limb and each of its uses.
    w = jnp.where(q < Q_LIMIT, float_of(bits_of(r) - (q & np.int32(-0x800000))), 0)
    return FloatMass(lax.optimization_barrier(w))


class Random(NamedTuple):
    """Random bits of rows, uint32 [6, B, n], of n domains: taken apart where they are used, not in a kernel each."""

    words: Array

    def uniform(self, n: int) -> Wide:
        """U of a domain, [B], as two limbs."""
        return self.words[3, :, n], self.words[2, :, n]


def random_words(words: Array, domains: Sequence[int]) -> Random:
    """What Philox4x32-10 makes of `words` uint32 [B, 4]: the seed's low and high half, step and sample. Rule S-W7."""
    shape = words.shape[0], len(domains)
    m0, m1 = jnp.full(shape, 0xD2511F53, jnp.uint32), jnp.full(shape, 0xCD9E8D57, jnp.uint32)

    def turn(_: int, state: Array) -> Array:
        k0, k1, c0, c1, c2, c3 = state
        (l0, h0), (l1, h1) = wide.mul32(m0, c0), wide.mul32(m1, c2)
        words = k0 + jnp.uint32(0x9E3779B9), k1 + jnp.uint32(0xBB67AE85), h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        return jnp.stack(words)

    rest = np.stack([np.broadcast_to(np.array(domains, np.uint32), shape), np.zeros(shape, np.uint32)])
    start = jnp.concatenate([jnp.broadcast_to(words.T[:, :, None], (4, *shape)), rest])
    # The loop carries one array: each array of its own would be a kernel that makes it.
    return Random(lax.fori_loop(0, 10, turn, start))


# --- searching by integer thresholds ---------------------------------------------------------------------------


def locate(mass: Mass, rest: Wide) -> Array:
    """The first position [B] whose running sum of weights [B, N] exceeds `rest` [B] (two limbs), int32.

    N is a `padded_size`; the total must exceed `rest`.
    """
    size = mass.low.shape[-1]
    if size <= 1024:
        return _within_block(mass, rest)
    # The sums that `total_and_count` asks for, so that they are worked out once.
    each = mass.in_groups()[0].wide()
    before = _before(each)
    group = count(~wide.less(tuple(limb[:, None] for limb in rest), wide.add(before, each)))
    group = jnp.minimum(group, each[0].shape[-1] - 1)
    rest = wide.sub(rest, wide.take(before, group))
    each_size = size // each[0].shape[-1]
    first = group * each_size
    # With what comes after the group they are as many as elsewhere, and are located by the same kernels.
    ids = jnp.minimum(first[:, None] + lax.broadcasted_iota(jnp.int32, (1, _BLOCK), 1), size - 1)
    one = Mass(*(entries(limb, ids) for limb in mass))
    return first + jnp.minimum(_within_block(one, rest), each_size - 1)


def _within_block(mass: Mass, rest: Wide) -> Array:
    """`locate` among at most 1024 weights, whose halves can be summed in one word each."""
    reached = running(mass).wide()
    reached = tuple(limb.reshape(limb.shape[0], -1) for limb in reached)
    passed = count(~wide.less(tuple(limb[:, None] for limb in rest), reached))
    return jnp.minimum(passed, mass.low.shape[-1] - 1)


def running(mass: Mass) -> Mass:
    """Inclusive running sums of at most 1024 weights [B, N], as [B, N / 32, 32]; N a multiple of 32."""
    parts = [block(limb, 32) for limb in (mass.low, mass.high)]
    upto = np.tri(32, dtype=bool)
    inside = sums([jnp.where(upto, part[..., None, :], 0) for part in parts])
    if parts[0].shape[-2] == 1:
        return Mass(inside[1], inside[0])
    earlier = np.tri(parts[0].shape[-2], k=-1, dtype=bool)
    before = sums([jnp.where(earlier, part[..., None, :, -1], 0) for part in inside])
    low, high = (part + early[..., None] for part, early in zip(inside, before, strict=True))
    return Mass(high, low)


def _before(each: Wide) -> Wide:
    """Exclusive running sums over the last axis, by a triangle: short rows only."""
    earlier = np.tri(each[0].shape[-1], k=-1, dtype=bool)
    return wide.total_wide(tuple(jnp.where(earlier, limb[:, None, :], 0) for limb in each), 2)


def nth(chosen: Array, n: Array) -> Array:
    """The position [B] of the n-th (from 1) True of bool [B, N]; anything when there are fewer."""
    ones = Mass(jnp.zeros(chosen.shape, jnp.uint32), chosen.astype(jnp.uint32))
    return locate(ones, wide.wide(u32(jnp.maximum(n - 1, 0)), 2))


Reached = Callable[[Array], Array]
"""A test of uint32 thresholds [B], bool [B], that stays true once it is."""


def least(low: Array, high: Array, reached: Reached) -> Array:
    """The least uint32 t in [low, high] with `reached(t)`, by bisection; `high` when none below it is."""
    return lax.while_loop(lambda s: jnp.any(s[0] < s[1]), lambda s: _halved(s[0], s[1], reached), (low, high))[0]


def _halved(low: Array, high: Array, reached: Reached) -> tuple[Array, Array]:
    middle = low + ((high - low) >> 1)
    enough, unfinished = reached(middle), low < high
    return jnp.where(unfinished & ~enough, middle + 1, low), jnp.where(unfinished & enough, middle, high)


NO_KEY = NEG_INF_KEY
"""Key of tokens that are out: that of -inf, below every candidate."""
