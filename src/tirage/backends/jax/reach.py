"""Where the mass of a row reaches a goal, without a sort: the search behind top-p and typical-p (S-W4).

Tokens have a distance, and the question is the least distance within which their mass reaches the goal. Each pass over
the row sums within seven distances at once, which leaves an eighth of the range. Once few tokens are left in question,
they are brought together and looked at alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.passes import block, count, largest, smallest, sums
from tirage.backends.jax.rule import Mass
from tirage.backends.jax.wide import Wide, u32

ROOM = 2048
"""Tokens that can be brought together; rows up to twice that length are searched as they are."""
_WAYS = 8
_LANES = np.arange(32, dtype=np.uint32)


class Reach(NamedTuple):
    """The goal is reached at a distance in [low, high], uint32 [B]; `before` is the mass of what is nearer than low."""

    low: Array
    high: Array
    before: Wide

    def of(self, distance: Array) -> Array:
        """Which tokens are still in question."""
        return (distance >= self.low[:, None]) & (distance <= self.high[:, None])


def reach(distance: Array, among: Array, mass: Mass, goal: Wide) -> Reach:
    """The least distance within which tokens `among` have the mass `goal`; their largest when they do not have it.

    distance: uint32 [B, N]; mass: 0 for tokens that are not `among`.
    """
    return _until(_whole(distance, among), distance, mass, goal, lambda at: at.low < at.high)


def _whole(distance: Array, among: Array) -> Reach:
    low = smallest(jnp.where(among, distance, np.uint32(0xFFFFFFFF)))
    return Reach(low, largest(jnp.where(among, distance, 0)), wide.constant(0, low, 2))


def _until(start: Reach, distance: Array, mass: Mass, goal: Wide, unfinished: Callable[[Reach], Array]) -> Reach:
    distance, *limbs = lax.optimization_barrier((distance, *mass))
    step = lambda at: _narrowed(at, distance, Mass(*limbs), goal)  # noqa: E731
    return lax.while_loop(lambda at: jnp.any(unfinished(at)), step, start)


def _narrowed(at: Reach, distance: Array, mass: Mass, goal: Wide) -> Reach:
    """An eighth of the range."""
    width = ((at.high - at.low) >> 3) + 1
    steps = jnp.arange(1, _WAYS, dtype=jnp.uint32)[:, None]
    # A range of one is left as it is, and nothing at or beyond `high` is asked.
    inside = (at.low < at.high) & (steps * width <= at.high - at.low)
    within = _within(distance, mass, at.low + steps * width - 1)
    short = inside & wide.less(within, tuple(limb[None] for limb in goal))
    n = u32(count(short.T))
    last = jnp.maximum(n, 1).astype(jnp.int32) - 1
    before = tuple(jnp.take_along_axis(limb, last[None], 0)[0] for limb in within)
    low = at.low + n * width
    high = jnp.where(at.high - low < width, at.high, low + width - 1)
    return Reach(low, high, wide.select(n > 0, before, at.before))


def _within(distance: Array, mass: Mass, ends: Array) -> Wide:
    """The mass within each of the distances `ends`, uint32 [n, B]: two limbs [n, B]."""
    size = min(distance.shape[1], 1024)
    parts = [block(jnp.where(distance <= end[:, None], limb, 0), size) for end in ends for limb in mass]
    total = sums(parts)
    high, low = wide.totals([jnp.stack(total[::2]), jnp.stack(total[1::2])], 31)
    return wide.add(low, wide.left(high, 20))


# --- long rows --------------------------------------------------------------------------------------------------


class Few(NamedTuple):
    """Tokens in question, in id order: their ids [B, ROOM], and which of these are any (the others are filling)."""

    ids: Array
    there: Array


def narrowed(distance: Array, among: Array, mass: Mass, goal: Wide) -> tuple[Reach, Array]:
    """A range that holds `ROOM` tokens at most, or one distance; and which rows have the former, bool [B].

    Distances must be below 2^32 - 1.
    """
    start = _whole(distance, among)
    distance = jnp.where(among, distance, np.uint32(0xFFFFFFFF))
    many = lambda at: count(at.of(distance)) > ROOM  # noqa: E731
    at = _until(start, distance, mass, goal, lambda at: many(at) & (at.low < at.high))
    return at, ~many(at)


def together(chosen: Array) -> Few:
    """The first `ROOM` tokens that are chosen, bool [B, N]."""
    words = sums([jnp.where(block(chosen, 32), jnp.uint32(1) << _LANES, 0)])[0]
    counts = lax.population_count(words).astype(jnp.int32)
    ends = jnp.cumsum(counts, -1)
    starts = ends - counts
    slots = lax.broadcasted_iota(jnp.int32, (words.shape[0], ROOM), 1)
    word = _word_of(slots, jnp.where(counts > 0, starts, ROOM))
    bit = _nth_bit(jnp.take_along_axis(words, word, 1), slots - jnp.take_along_axis(starts, word, 1))
    return Few(32 * word + bit, slots < ends[:, -1:])


def _word_of(slots: Array, starts: Array) -> Array:
    """Which word each slot is filled from, given where the words that fill any start."""
    rows = lax.broadcasted_iota(jnp.int32, starts.shape, 0)
    words = lax.broadcasted_iota(jnp.int32, starts.shape, 1)
    return lax.cummax(jnp.zeros_like(slots).at[rows, starts].max(words, mode="drop"), axis=1)


def _nth_bit(word: Array, n: Array) -> Array:
    """The position of the n-th (from 0) bit that is set."""
    at = jnp.zeros_like(n)
    for size in (16, 8, 4, 2, 1):
        lower = lax.population_count(word & np.uint32((1 << size) - 1)).astype(jnp.int32)
        up = n >= lower
        n, at = jnp.where(up, n - lower, n), jnp.where(up, at + size, at)
        word = jnp.where(up, word >> np.uint32(size), word)
    return at
