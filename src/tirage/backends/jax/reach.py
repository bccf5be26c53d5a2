"""Where the mass of a row reaches a goal, without a sort of it: the search behind top-p and typical-p (S-W4).

The question is the last token that is needed, in (key descending, id ascending) order. Tokens have a distance that
rises as keys fall. Each pass over the row sums within seven distances at once, which leaves an eighth of the range.
Once few tokens are left in question, they are brought together and ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.candidates import ranked
from tirage.backends.jax.passes import block, count, entries, grouped, joined, reduced, sums
from tirage.backends.jax.rule import NO_KEY, FloatMass, Mass, locate, ordered
from tirage.backends.jax.wide import Wide

ROOM = 1024
"""Tokens that can be brought together; rows up to twice that length are ranked as they are."""
_WAYS = 8
_LANES = np.arange(32, dtype=np.uint32)
_FAR = np.uint32(0xFFFFFFFF)

Made = Callable[[], Array]
"""What makes an array [B, N] wherever it is asked for: a loop that is given an array has it written down first."""


def first_reaching(
    coarse: Made, key: Made, among: Array, mass: Mass | FloatMass, goal: Wide
) -> tuple[Array, Array, Wide]:
    """Of tokens `among`, bool [B, N], the last that is needed for the mass `goal` [B]: its position and key, int32 [B],
    and the mass before it; the last of all when the goal is too high.

    `coarse` uint32 [B, N] rises as the key falls, and is below 2^32 - 1; `mass` is 0 for tokens that are not `among`.
    """
    if among.shape[1] <= 2 * ROOM:
        return _ranked(key(), among, mass.mass(), goal)
    inside, before = narrowed((coarse, lambda: ~ordered(key()), lambda: _positions(among)), among, mass, goal)
    ids, there = together(inside)
    few, mass = jax.tree.map(lambda part: entries(part, ids), (key(), mass))
    at, last, rest = _ranked(few, there, mass.mass().where(there), wide.sub(goal, before))
    return wide.column(ids, at), last, wide.add(before, rest)


def kth(key: Array, among: Array, k: Array) -> tuple[Array, Array]:
    """A key and a position, int32 [B]: the first `k` [B] of the tokens `among` have larger keys, or that key up to that
    position. No token need have the key. All stay when there are fewer; `k` is at least 1."""
    ids = _positions(key)

    def search(turn: Any, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        """First by key; then by position, among those of one key of which some are beyond the k-th."""
        distance, least, _, found = state
        low, high = _ends(distance)
        distance = lax.optimization_barrier(distance)
        unfinished = lambda ends: jnp.any(ends[0] < ends[1])  # noqa: E731
        at, _ = lax.while_loop(unfinished, lambda ends: _eighth(*ends, distance, least), (low, high))
        nearer, level = count(distance < at[:, None]), distance == at[:, None]
        rest = least - nearer
        level &= (rest < count(level))[:, None]
        return jnp.where(level, ids, _FAR), rest, found, at

    start = jnp.where(among, ~ordered(key), _FAR), jnp.minimum(k, count(among)), *(jnp.zeros_like(k, jnp.uint32),) * 2
    _, _, last, at = lax.fori_loop(0, 2, search, start)
    return _key_of(last), jnp.minimum(at, key.shape[1] - 1).astype(jnp.int32)


def _eighth(low: Array, high: Array, distance: Array, least: Array) -> tuple[Array, Array]:
    """An eighth of the range [low, high], uint32 [B], that holds the distance within which `least` tokens are; one
    distance as soon as exactly so many are within it."""
    width = ((high - low) >> 3) + 1
    steps = jnp.arange(1, _WAYS, dtype=jnp.uint32)[:, None]
    ends = low + steps * width - 1
    inside = (low < high) & (steps * width <= high - low)
    found = jnp.stack(_counts([distance <= end[:, None] for end in ends]))
    n = jnp.sum(inside & (found < least), 0, dtype=jnp.uint32)
    start = low + n * width
    stop = jnp.where(high - start < width, high, start + width - 1)
    exact = inside & (found == least)
    at = jnp.max(jnp.where(exact, ends, 0), 0)
    one = jnp.any(exact, 0)
    return jnp.where(one, at, start), jnp.where(one, at, stop)


def _ends(distance: Array) -> tuple[Array, Array]:
    """The smallest and the largest of distances, uint32 [B, N], but for `_FAR`; in one pass."""
    parts = [grouped(each) for each in (~distance, jnp.where(distance == _FAR, 0, distance))]
    below, high = reduced(reduced(parts, lax.max, 0), lax.max, 0)
    return ~below, high


def _key_of(distance: Array) -> Array:
    return (~distance ^ jnp.uint32(0x80000000)).astype(jnp.int32)


def _counts(chosen: list[Array]) -> list[Array]:
    """How many entries of each bool [B, N] are True, int32 [B], in one pass."""
    return [jnp.sum(part, -1) for part in sums([grouped(each.astype(jnp.int32)) for each in chosen])]


def _positions(key: Array) -> Array:
    return lax.broadcasted_iota(jnp.uint32, key.shape, 1)


def _ranked(key: Array, among: Array, mass: Mass, goal: Wide) -> tuple[Array, Array, Wide]:
    key, at = ranked(jnp.where(among, key, NO_KEY), key.shape[1])
    mass = Mass(*(entries(limb, at) for limb in mass))
    # The first whose running sum exceeds one less than the goal.
    last = locate(mass, wide.sub(goal, wide.constant(1, goal[0], 2)))
    last = jnp.minimum(last, jnp.maximum(count(among) - 1, 0))
    before = mass.where(_positions(key).astype(jnp.int32) < last[:, None]).total()
    return wide.column(at, last), wide.column(key, last), before


# --- long rows --------------------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """The goal is reached at a distance in [low, high], uint32 [B]; `before` is the mass of what is nearer than low."""

    low: Array
    high: Array
    before: Wide

    def holds(self, distance: Array) -> Array:
        """Which tokens are still in question."""
        return (distance >= self.low[:, None]) & (distance <= self.high[:, None])


class _Question(NamedTuple):
    """Tokens in question: those whose every distance lies in its range, uint32 [distances, B]. `by`: the distance to
    narrow next, [B]."""

    low: Array
    high: Array
    before: Wide
    by: Array
    few: Array

    def holds(self, distances: Sequence[Made], among: Array) -> Array:
        for level, distance in enumerate(made() for made in distances):
            among &= (distance >= self.low[level][:, None]) & (distance <= self.high[level][:, None])
        return among


def narrowed(distances: Sequence[Made], among: Array, mass: Mass | FloatMass, goal: Wide) -> tuple[Array, Wide]:
    """At most `ROOM` tokens among which the last needed one is, bool [B, N], and the mass of all that are nearer.

    Tokens are compared by the first distance, uint32 [B, N], those with equal ones by the next; no two agree in all.
    """
    none = jnp.zeros_like(goal[0])

    def asked(at: _Question) -> Array:
        distance = distances[-1]()
        for level in range(len(distances) - 2, -1, -1):
            distance = jnp.where((at.by == level)[:, None], distances[level](), distance)
        return jnp.where(at.holds(distances, among), distance, _FAR)

    def narrower(at: _Question) -> _Question:
        here = at.by == jnp.arange(len(distances), dtype=jnp.int32)[:, None]
        # Most rows need the first distance alone: no others are read for it.
        first = lambda _: jnp.where(among, distances[0](), _FAR)  # noqa: E731
        distance = lax.cond(jnp.all(at.by == 0), first, asked, at)
        found = _until_few(distance, mass, wide.sub(goal, at.before))
        few = count(found.holds(distance)) <= ROOM
        return _Question(
            jnp.where(here, found.low, at.low),
            jnp.where(here, found.high, at.high),
            wide.add(at.before, found.before),
            jnp.where(few, at.by, at.by + 1),
            few,
        )

    nearest = jnp.zeros((len(distances), *none.shape), jnp.uint32)
    start = _Question(nearest, nearest | _FAR, wide.constant(0, none, 2), none.astype(jnp.int32), none != 0)
    at = lax.while_loop(lambda at: ~jnp.all(at.few), narrower, start)
    return at.holds(distances, among), at.before


def _until_few(distance: Array, mass: Mass | FloatMass, goal: Wide) -> Reach:
    """A range that holds `ROOM` tokens at most, or one distance; tokens at the distance `_FAR` do not count."""
    low, high = _ends(distance)
    distance, mass = lax.optimization_barrier((distance, mass))
    unfinished = lambda at: (at.low < at.high) & (count(at.holds(distance)) > ROOM)  # noqa: E731
    step = lambda at: _narrowed(at, distance, mass.mass(), goal)  # noqa: E731
    start = Reach(low, high, wide.constant(0, low, 2))
    return lax.while_loop(lambda at: jnp.any(unfinished(at)), step, start)


def _narrowed(at: Reach, distance: Array, mass: Mass, goal: Wide) -> Reach:
    """An eighth of the range."""
    width = ((at.high - at.low) >> 3) + 1
    steps = jnp.arange(1, _WAYS, dtype=jnp.uint32)[:, None]
    # A range of one is left as it is, and nothing at or beyond `high` is asked.
    inside = (at.low < at.high) & (steps * width <= at.high - at.low)
    within = _within(distance, mass, at.low + steps * width - 1)
    short = inside & wide.less(within, tuple(limb[None] for limb in goal))
    n = jnp.sum(short, 0, dtype=jnp.uint32)
    before = tuple(jnp.max(jnp.where(steps == n, limb, 0), 0) for limb in within)
    low = at.low + n * width
    high = jnp.where(at.high - low < width, at.high, low + width - 1)
    return Reach(low, high, wide.select(n > 0, before, at.before))


def _within(distance: Array, mass: Mass, ends: Array) -> Wide:
    """The mass within each of the distances `ends`, uint32 [n, B]: two limbs [n, B]."""
    parts = [grouped(jnp.where(distance <= end[:, None], limb, 0)) for end in ends for limb in mass]
    total = sums(parts)
    return Mass(jnp.stack(total[::2]), jnp.stack(total[1::2])).total_of_sums()


# --- the few ------------------------------------------------------------------------------------------------------


class Few(NamedTuple):
    """Tokens in question, in id order: their ids [B, ROOM], and which of these are any (the others are filling)."""

    ids: Array
    there: Array


def together(chosen: Array) -> Few:
    """The first `ROOM` tokens that are chosen, bool [B, N]; N a multiple of 32."""
    words = sums([jnp.where(block(chosen, 32), jnp.uint32(1) << _LANES, 0)])[0]
    words = jnp.pad(words, ((0, 0), (0, -words.shape[1] % 32)))
    counts = lax.population_count(words).astype(jnp.int32)
    ends = _running(counts, lax.add, 0)
    starts = ends - counts
    slots = lax.broadcasted_iota(jnp.int32, (words.shape[0], ROOM), 1)
    word = _word_of(slots, jnp.where(counts > 0, starts, ROOM))
    bit = _nth_bit(entries(words, word), slots - entries(starts, word))
    return Few(32 * word + bit, slots < ends[:, -1:])


def _running(v: Array, join: Callable[[Any, Any], Any], start: int) -> Array:
    """Running sums or maxima of int32 [B, N], N a multiple of 32, over groups of 32 and over the groups."""
    upto = np.tri(32, dtype=bool)
    inside = reduced([jnp.where(upto, block(v, 32)[..., None, :], start)], join, start)[0]
    earlier = np.tri(inside.shape[1], k=-1, dtype=bool)
    before = joined(jnp.where(earlier, inside[:, None, :, -1], start), join, start)
    return join(inside, jnp.broadcast_to(before[..., None], inside.shape)).reshape(v.shape)


def _word_of(slots: Array, starts: Array) -> Array:
    """Which word each slot is filled from, given where the words that fill any start."""
    rows = lax.broadcasted_iota(jnp.int32, starts.shape, 0)
    words = lax.broadcasted_iota(jnp.int32, starts.shape, 1)
    return _running(jnp.zeros_like(slots).at[rows, starts].max(words, mode="drop"), lax.max, 0)


def _nth_bit(word: Array, n: Array) -> Array:
    """The position of the n-th (from 0) bit that is set."""
    at = jnp.zeros_like(n)
    for size in (16, 8, 4, 2, 1):
        lower = lax.population_count(word & np.uint32((1 << size) - 1)).astype(jnp.int32)
        up = n >= lower
        n, at = jnp.where(up, n - lower, n), jnp.where(up, at + size, at)
        word = jnp.where(up, word >> np.uint32(size), word)
    return at
