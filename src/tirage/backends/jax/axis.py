"""Where the columns of rows lie: all of them on one device, or a part on each device along a mesh axis.

Filters and the draw ask an `Axis` for whatever concerns all columns, so that one set of them serves both.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax.candidates import highest, highest_logits
from tirage.backends.jax.passes import entries
from tirage.backends.jax.reach import Made, first_reaching, kth
from tirage.backends.jax.rule import FloatMass, Mass, locate
from tirage.backends.jax.wide import Wide, u32


class Cut(NamedTuple):
    """Where a prefix in (key descending, id ascending) order ends: the last token's key and id, int32 [B]."""

    key: Array
    id: Array


class Axis(Protocol):
    """What is asked of all columns [B, N]; ids are those of the whole vocabulary."""

    @property
    def start(self) -> Any:
        """The first token id of the columns here."""
        ...

    @property
    def most(self) -> int:
        """The largest n for `top`; more are found faster by `reach`."""
        ...

    def max(self, values: Array) -> Array:
        """The largest [B] of each device's own [B]."""
        ...

    def min(self, values: Array) -> Array:
        """The smallest [B] of each device's own [B]."""
        ...

    def sum(self, number: Array) -> Array:
        """The sum [B] of each device's own int32 [B]."""
        ...

    def sum_wide(self, number: Wide) -> Wide:
        """The sum, limbs [B], of each device's own."""
        ...

    def top(self, key: Array, n: int) -> tuple[Array, Array]:
        """The n largest keys [B, n] of keys [B, N] and their ids, in (key descending, id ascending) order."""
        ...

    def top_logits(self, x: Array, maxima: Array, n: int) -> tuple[Array, Array]:
        """As `top` of the keys of logits [B, N] whose `block_maxima` on this device are [B, N / 32]."""
        ...

    def reach(self, coarse: Made, key: Made, among: Array, mass: Mass | FloatMass, goal: Wide) -> tuple[Cut, Wide]:
        """The last token needed for the mass `goal` [B], in (key descending, id ascending) order, and the mass before
        it; the last of all when the goal is too high. `coarse` uint32 [B, N] rises as the key falls."""
        ...

    def kth(self, key: Array, among: Array, k: Array) -> Cut:
        """Where the first `k`, int32 [B], at least 1, of tokens `among`, bool [B, N], end in (key descending, id
        ascending) order; all of them are before it when there are fewer."""
        ...

    def pick(self, mass: Mass, rest: Wide) -> Array:
        """The first id [B] whose running weight, of weights [B, N], exceeds `rest` [B]."""
        ...

    def key_at(self, key: Array, ids: Array) -> Array:
        """Keys [B, n] of tokens by id, from keys [B, N]."""
        ...

    def allowed(self, mask: Array, size: int) -> Array:
        """Which of `size` columns a bitmask uint32 [B, ceil(V / 32)] of the whole vocabulary allows, bool [B, size]."""
        ...

    def local(self, ids: Array, size: int) -> Array:
        """The columns of token ids; `size` for those of other devices."""
        ...


class OneDevice:
    """Whole rows: nothing is exchanged."""

    start = 0
    most = 1024

    def max(self, values: Array) -> Array:
        """`values` [B] themselves."""
        return values

    def min(self, values: Array) -> Array:
        """`values` [B] themselves."""
        return values

    def sum(self, number: Array) -> Array:
        """The number [B] itself."""
        return number

    def sum_wide(self, number: Wide) -> Wide:
        """The number, limbs [B], itself."""
        return number

    def top(self, key: Array, n: int) -> tuple[Array, Array]:
        """The n largest of keys [B, N] and their positions."""
        return highest(key, n)

    def top_logits(self, x: Array, maxima: Array, n: int) -> tuple[Array, Array]:
        """The n largest keys of logits [B, N], and their positions."""
        return highest_logits(x, maxima, n)

    def reach(self, coarse: Made, key: Made, among: Array, mass: Mass | FloatMass, goal: Wide) -> tuple[Cut, Wide]:
        """As `Axis.reach`, of [B, N]."""
        at, key_of_last, before = first_reaching(coarse, key, among, mass, goal)
        return Cut(key_of_last, at), before

    def kth(self, key: Array, among: Array, k: Array) -> Cut:
        """As `Axis.kth`, of [B, N]."""
        return Cut(*kth(key, among, k))

    def pick(self, mass: Mass, rest: Wide) -> Array:
        """The first position [B] whose running weight exceeds `rest` [B]; the total must exceed it."""
        return locate(mass, rest)

    def key_at(self, key: Array, ids: Array) -> Array:
        """Keys [B, n] at positions `ids`."""
        return entries(key, ids)

    def allowed(self, mask: Array, size: int) -> Array:
        """The bits of a mask [B, W] as bool [B, size]; what lies beyond the mask is allowed."""
        words = u32(mask)
        bits = (words[:, :, None] >> lax.broadcasted_iota(jnp.uint32, (1, 1, 32), 2)) & 1
        bits = bits.reshape(words.shape[0], -1)[:, :size] == 1
        return jnp.pad(bits, ((0, 0), (0, size - bits.shape[1])), constant_values=True)

    def local(self, ids: Array, size: int) -> Array:
        """The ids [B, n] themselves."""
        return ids


ONE_DEVICE = OneDevice()
