"""Sums, shares and cuts that several filters need."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.passes import block, count
from tirage.backends.jax.program import Columns
from tirage.backends.jax.reach import ROOM, together
from tirage.backends.jax.rule import NO_KEY, Mass, keys, values
from tirage.backends.jax.steps import TracedState
from tirage.backends.jax.wide import Wide, u32

_BLOCK = 32


class Cut(NamedTuple):
    """Where a prefix in (key descending, id ascending) order ends: the last token's key and id, int32 [B]."""

    key: Array
    id: Array

    def keeps(self, state: TracedState, ties: bool = False) -> Array:
        """Which tokens lie before or at the cut; with ties, all that share its key."""
        level = state.key == self.key[:, None]
        return (state.key > self.key[:, None]) | (level if ties else level & (state.ids <= self.id[:, None]))


class Share(NamedTuple):
    """A threshold on weights, two limbs [B]."""

    least: Wide

    def at_least(self, mass: Mass) -> Array:
        """Where weights [B, N] reach the threshold."""
        return ~wide.less(mass.wide(), tuple(limb[:, None] for limb in self.least))


def share(given: Columns, mass: Wide, *, strict: bool = False) -> Share:
    """E / 2^s of a total mass, rounded up, at least 1; strict: the next integer above it."""
    total = wide.mul(mass, (jnp.asarray(given["e"]),))
    one = wide.constant(1, total[0], 4)
    shifts = jnp.asarray(given["s"])
    total = wide.resized(total, 4)
    least = wide.add(wide.right_by(total, shifts), one) if strict else wide.right_up(total, shifts)
    least = wide.select(wide.is_zero(least), one, least)
    huge = ~wide.is_zero(least[2:])
    return Share(wide.select(huge, wide.constant(-1, total[0], 2), least[:2]))


def target(p: Array, total: Wide, *, above: bool) -> Wide:
    """max(1, ceil(P * W / 2^32)), or floor(P * W / 2^32) + 1 where mass must lie above: two limbs (S-W4)."""
    scaled = wide.mul(total, (jnp.asarray(p),))
    floor, rest = scaled[1:], scaled[0]
    more = jnp.ones_like(rest) if above else (rest != 0).astype(jnp.uint32)
    goal = wide.add(floor, wide.wide(more, 2))
    return wide.select(wide.is_zero(goal), wide.constant(1, rest, 2), goal)


def mean_exponent(q: Array, mass: Mass) -> Array:
    """floor(sum(w * q) / sum(w)), int32 [B]."""
    low, high = mass.wide()
    products = wide.mul32(low, u32(q))
    products = (products[0], products[1] + high * u32(q))
    total = wide.total_wide(products, 3)
    return wide.divide(total, mass.total())[0].astype(jnp.int32)


def ranked(state: TracedState, n: int) -> tuple[Array, Array]:
    """Keys and ids of the first n tokens still in, int32 [B, n], (key descending, id ascending)."""
    return top_entries(jnp.where(state.kept, state.key, NO_KEY), n)


def top_entries(key: Array, n: int) -> tuple[Array, Array]:
    """The n largest keys of [B, N] and their ids, equal keys in id order.

    Of a long row, only tokens that reach the n-th largest maximum of its blocks are looked at: n tokens do.
    """
    blocks = key.shape[1] // _BLOCK
    if key.shape[1] <= 2 * ROOM or not 0 < n <= blocks // 8:
        return _top(key, n)
    bound = _top(jnp.max(block(key, blocks), -2), n)[0][:, -1:]
    chosen = key >= bound

    def likely() -> tuple[Array, Array]:
        ids, there = together(chosen)
        top, at = _top(jnp.where(there, jnp.take_along_axis(key, ids, 1), NO_KEY), n)
        return top, jnp.take_along_axis(ids, at, 1)

    return lax.cond(jnp.all(count(chosen) <= ROOM), likely, lambda: _top(key, n))


def _top(key: Array, n: int) -> tuple[Array, Array]:
    # `lax.top_k` is fast on float32 alone, and there it puts -0.0 below +0.0; values made from keys have no -0.0.
    # Without the barriers a later slice of the result turns top_k into a full sort. There is one for each result:
    # compiling for several devices, XLA crashes on one around both.
    top, ids = (lax.optimization_barrier(each) for each in lax.top_k(values(key), min(n, key.shape[1])))
    return keys(top), ids
