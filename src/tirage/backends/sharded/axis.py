"""What devices along one mesh axis exchange inside `shard_map`: maxima, counts and sums in limbs, small lists.

The counterpart of `communicate` for programs that XLA compiles; numbers are int32 and uint32, for JAX without x64.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.rule import NO_KEY, Mass, keys, locate, values
from tirage.backends.jax.wide import Wide, u32

NO_ID = -1


@dataclass(frozen=True, slots=True)
class Axis:
    """The mesh axis that the vocabulary lies on; each device holds `width` token ids of it."""

    name: str
    size: int
    width: int

    @property
    def start(self) -> Array:
        """The first token id of this device, int32."""
        return lax.axis_index(self.name).astype(jnp.int32) * self.width

    def whole(self, x: Array) -> Array:
        """The columns [B, N] of all devices, in id order, [B, size * N]."""
        return lax.all_gather(x, self.name, axis=1, tiled=True)

    def max(self, values: Array) -> Array:
        """The largest over devices."""
        return lax.pmax(values, self.name)

    def min(self, values: Array) -> Array:
        """The smallest over devices."""
        return lax.pmin(values, self.name)

    def count(self, chosen: Array) -> Array:
        """How many True the rows bool [B, N] have on all devices, int32 [B]."""
        return lax.psum(jnp.sum(chosen, -1, dtype=jnp.int32), self.name)

    def total(self, mass: Mass) -> Wide:
        """The sum of weights [B, N] over all devices, two limbs."""
        limbs = mass.total()
        # Halves of 16 bits leave room for 2^16 devices.
        halves = jnp.stack([part for limb in limbs for part in (limb & 0xFFFF, limb >> 16)])
        out = _zero(limbs)
        for at, half in enumerate(lax.psum(halves, self.name)):
            out = wide.add(out, wide.left((half, jnp.zeros_like(half)), 16 * at))
        return out

    def before(self, values: Wide) -> tuple[Wide, Wide]:
        """Sums of two-limb numbers [B] over the devices with lower ids than this one's, and over all."""
        each = lax.all_gather(jnp.stack(values), self.name)
        here = running = _zero(values)
        for device in range(self.size):
            here = wide.select(lax.axis_index(self.name) == device, running, here)
            running = wide.add(running, (each[device, 0], each[device, 1]))
        return here, running

    def pick(self, mass: Mass, rest: Wide) -> Array:
        """The global id [B] of the first token whose running weight over all devices exceeds `rest`; NO_ID if none."""
        own = mass.total()
        before, _ = self.before(own)
        left = wide.sub(rest, before)
        mine = ~wide.less(rest, before) & wide.less(left, own)
        return self.max(jnp.where(mine, self.start + locate(mass, wide.select(mine, left, _zero(left))), NO_ID))

    def nth(self, chosen: Array, n: Array) -> Array:
        """The global id [B] of the n-th (from 1) True of all devices' bool [B, N], in id order; NO_ID if none."""
        ones = Mass(jnp.zeros(chosen.shape, jnp.uint32), chosen.astype(jnp.uint32))
        return self.pick(ones, wide.wide(u32(jnp.maximum(n - 1, 0)), 2))

    def top(self, key: Array, n: int) -> tuple[Array, Array]:
        """Keys and global ids [B, n] of the n largest of all devices' keys [B, N], in (key descending, id ascending)
        order; NO_KEY where there are no more."""
        mine, at = _highest(key, n)
        room = ((0, 0), (0, n - mine.shape[1]))
        mine = jnp.pad(mine, room, constant_values=NO_KEY)
        both = lax.all_gather(jnp.stack([mine, jnp.pad(at, room) + self.start]), self.name)
        each, ids = jnp.moveaxis(both, 0, 2).reshape(2, key.shape[0], self.size * n)
        best, position = _highest(each, n)
        return best, jnp.take_along_axis(ids, position, 1)

    def key_at(self, key: Array, ids: Array) -> Array:
        """Keys [B, n] of tokens by global id, from all devices' keys [B, N]; below NO_KEY for ids that nobody holds."""
        at = ids - self.start
        mine = (at >= 0) & (at < self.width)
        found = jnp.take_along_axis(key, jnp.clip(at, 0, self.width - 1), 1)
        return self.max(jnp.where(mine, found, np.int32(-0x80000000)))


def _highest(key: Array, n: int) -> tuple[Array, Array]:
    """The n largest of keys [B, N] and where they are, equal ones in order; values made from keys have no -0.0."""
    top, at = lax.top_k(values(key), min(n, key.shape[1]))
    return keys(top), at


def _zero(number: Wide) -> Wide:
    return tuple(jnp.zeros_like(limb) for limb in number)
