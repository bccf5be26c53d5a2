"""A mesh axis that the vocabulary lies on: what its devices exchange inside `shard_map`, in sums and short lists.

The counterpart of `communicators` for programs that XLA compiles; numbers are int32 and uint32, for JAX without x64.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import Cut
from tirage.backends.jax.candidates import ranked
from tirage.backends.jax.passes import count, largest, smallest
from tirage.backends.jax.reach import Made
from tirage.backends.jax.rule import NO_KEY, FloatMass, Mass, keys, least, locate, ordered
from tirage.backends.jax.wide import Wide, u32

NO_ID = -1


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """An `Axis` over the devices of a mesh axis; each holds `width` token ids of it."""

    name: str
    size: int
    width: int
    most = 256

    @property
    def start(self) -> Array:
        """The first token id of this device, an int32 scalar."""
        return lax.axis_index(self.name).astype(jnp.int32) * self.width

    def whole(self, x: Array) -> Array:
        """The columns [B, N] of all devices, in id order, [B, size * N]."""
        return lax.all_gather(x, self.name, axis=1, tiled=True)

    def max(self, values: Array) -> Array:
        """The largest over devices, same shape."""
        return lax.pmax(values, self.name)

    def min(self, values: Array) -> Array:
        """The smallest over devices, same shape."""
        return lax.pmin(values, self.name)

    def sum(self, number: Array) -> Array:
        """The sum over devices of int32 [B]."""
        return lax.psum(number, self.name)

    def sum_wide(self, number: Wide) -> Wide:
        """The sum over devices, limbs [B]."""
        # Halves of 16 bits leave room for 2^16 devices.
        halves = jnp.stack([part for limb in number for part in (limb & 0xFFFF, limb >> 16)])
        out = _zero(number)
        for at, half in enumerate(lax.psum(halves, self.name)):
            out = wide.add(out, wide.left(wide.wide(half, len(number)), 16 * at))
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
        mine, at = ranked(key, n)
        room = ((0, 0), (0, n - mine.shape[1]))
        mine = jnp.pad(mine, room, constant_values=NO_KEY)
        both = lax.all_gather(jnp.stack([mine, jnp.pad(at, room) + self.start]), self.name)
        each, ids = jnp.moveaxis(both, 0, 2).reshape(2, key.shape[0], self.size * n)
        best, position = ranked(each, n)
        return best, jnp.take_along_axis(ids, position, 1)

    def top_logits(self, x: Array, maxima: Array, n: int) -> tuple[Array, Array]:
        """As `top` of the keys of logits [B, N]; the maxima are not needed."""
        return self.top(keys(x), n)

    def reach(self, coarse: Made, key: Made, among: Array, mass: Mass | FloatMass, goal: Wide) -> tuple[Cut, Wide]:
        """As `Axis.reach`, of [B, N] on each device; a round of the bisection exchanges 16 bytes per row.

        Tokens of one key must have one weight for the id and the mass to be right, as they do unless `key` is a
        distance.
        """
        mass, distance = mass.mass(), ~ordered(key())
        low = self.min(smallest(jnp.where(among, distance, jnp.uint32(0xFFFFFFFF))))
        high = self.max(largest(jnp.where(among, distance, 0)))
        within = lambda t: self.sum_wide(mass.where(distance <= t[:, None]).total())  # noqa: E731
        found = least(low, high, lambda t: ~wide.less(within(t), goal))
        nearer = self.sum_wide(mass.where(distance < found[:, None]).total())
        tied = among & (distance == found[:, None])
        one = Mass(*(self.max(largest(jnp.where(tied, limb, 0)))[:, None] for limb in mass)).wide()
        each: Wide = one[0][:, 0], one[1][:, 0]
        # Of tokens with equal keys, each with the weight w, the first ceil((goal - nearer) / w) are needed.
        needed = wide.divide(wide.add(wide.sub(goal, nearer), wide.sub(each, wide.constant(1, low, 2))), each)
        ties = self.sum(count(tied))
        unbounded = wide.is_zero(each) | wide.less(wide.wide(u32(ties), 2), needed)
        n = jnp.where(unbounded, ties, needed[0].astype(jnp.int32))
        before = wide.add(nearer, wide.mul(each, wide.wide(u32(jnp.maximum(n - 1, 0)), 1), 2))
        return Cut((~found ^ jnp.uint32(0x80000000)).astype(jnp.int32), self.nth(tied, n)), before

    def kth(self, key: Array, among: Array, k: Array) -> Cut:
        """As `Axis.kth`, of [B, N] on each device; exchanges what `reach` does."""
        one = Mass(jnp.zeros_like(key, jnp.uint32), jnp.ones_like(key, jnp.uint32)).where(among)
        return self.reach(lambda: u32(key), lambda: key, among, one, wide.wide(u32(k), 2))[0]

    def key_at(self, key: Array, ids: Array) -> Array:
        """Keys [B, n] of tokens by global id, from all devices' keys [B, N]; below NO_KEY for ids that nobody holds."""
        at = ids - self.start
        mine = (at >= 0) & (at < self.width)
        found = jnp.take_along_axis(key, jnp.clip(at, 0, self.width - 1), 1)
        return self.max(jnp.where(mine, found, np.int32(-0x80000000)))

    def allowed(self, mask: Array, size: int) -> Array:
        """Which of this device's `size` columns a bitmask [B, W] of whole rows allows, bool [B, size]."""
        words, ids = u32(mask), self.start + jnp.arange(size, dtype=jnp.int32)
        word = jnp.take(words, jnp.minimum(ids >> 5, words.shape[1] - 1), axis=1)
        return (word >> u32(ids & 31)) & 1 == 1

    def local(self, ids: Array, size: int) -> Array:
        """This device's columns of token ids [B, n]; `size` for those of others."""
        at = ids - self.start
        return jnp.where((at >= 0) & (at < self.width), at, size)


def _zero(number: Wide) -> Wide:
    return tuple(jnp.zeros_like(limb) for limb in number)
