"""Filters that cut the set of tokens by rank, by mass or by weight, without a sort (S-W4, S-O1 ... S-O8).

A cut in (key descending, id ascending) order is two integers per row: the key it falls on and the highest id kept
among equal keys. Both are found by bisection over masked integer sums, or among `lax.top_k` candidates where those
hold enough; either way the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.entropy import dynamic_temperature, eta, sigma, top_h, typical
from tirage.backends.jax.program import Columns, Stage
from tirage.backends.jax.rule import (
    NO_KEY,
    Mass,
    clamped,
    keys,
    least,
    nth,
    ordered,
    product,
    values,
)
from tirage.backends.jax.steps import State
from tirage.backends.jax.sums import Cut, ranked, share, target, top_entries
from tirage.backends.jax.wide import Wide, u32
from tirage.stages import TOP_P_RULES, Op

CANDIDATES = 512
"""Tokens that top-p looks at before it searches the whole row."""
NARROWING = 10
"""Bisections over the whole row before top-p looks at what is left between the bounds alone."""
TOP_K_LIMIT = 1024
"""Largest k that is found by `lax.top_k`; larger ones by bisection."""

Filter = Callable[[State, Stage, Columns, Array, int], State]


def greedy(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Keep the largest key, at its lowest id."""
    best = state.first(state.kept & (state.key == state.top()[:, None]))
    return replace(state.keep(state.ids == best[:, None], on), greedy=state.greedy | on, special=True)


def temperature(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Weights are those of this temperature from here on (S-W1)."""
    c, inverse_t = (jnp.where(on, given[name], getattr(state, name)) for name in ("c", "inverse_t"))
    return replace(state.rebased(on), c=c, inverse_t=inverse_t).weighed()


def top_k(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Keep the first k; with ties, every key equal to the last of them."""
    k = jnp.minimum(given["k"], state.x.shape[1])
    if 0 < width <= min(TOP_K_LIMIT, state.x.shape[1]):
        key, ids = ranked(state, width)
        last = jnp.maximum(k - 1, 0)[:, None]
        cut = Cut(*(jnp.take_along_axis(each, last, 1)[:, 0] for each in (key, ids)))
    else:
        cut = _cut_by_count(state, k)
    return state.keep(cut.keeps(state, bool(stage.option("ties"))), on)


def _cut_by_count(state: State, k: Array) -> Cut:
    rank = jnp.where(state.kept, ordered(state.key), 0)
    few = lambda t: jnp.sum(rank > t[:, None], -1, dtype=jnp.int32) < k  # noqa: E731
    found = least(jnp.zeros_like(u32(k)), jnp.max(rank, -1), few)
    above = jnp.sum(rank > found[:, None], -1, dtype=jnp.int32)
    return Cut(_key_of(found), nth(rank == found[:, None], k - above))


def _key_of(rank: Array) -> Array:
    return (rank ^ jnp.uint32(0x80000000)).astype(jnp.int32)


def top_p(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Keep the shortest prefix that reaches its share of the mass, under the rule, scope and ties of the stage."""
    mass = state.mass()
    judged = state.w.where(state.base) if stage.option("joint") else mass
    goal = target(given["p"], judged.total(), above=TOP_P_RULES[stage.option("rule")] == "le")
    cut, before = _cut_by_mass(state, mass, goal)
    kept = state.keep(cut.keeps(state, bool(stage.option("ties"))), on)
    if TOP_P_RULES[stage.option("rule")] != "truncated":
        return kept
    return _truncated(kept, mass, cut, wide.sub(goal, before), on)


def _cut_by_mass(state: State, mass: Mass, goal: Wide) -> tuple[Cut, Wide]:
    """The last token with less than `goal` before it, and what is before it; everything when the goal is too high."""
    rank = ordered(state.key)
    lowest = jnp.min(jnp.where(state.kept, rank, jnp.uint32(0xFFFFFFFF)), -1)
    found = jnp.maximum(_threshold(state, mass, goal), lowest)
    above = mass.where(rank > found[:, None]).total()
    tied = state.kept & (rank == found[:, None])
    first = state.first(tied)
    each = mass.at(first)
    # Of tokens with equal keys, each with the weight w, the first ceil((goal - above) / w) are needed.
    needed = wide.divide(wide.add(wide.sub(goal, above), wide.sub(each, wide.constant(1, above[0], 2))), each)
    count = jnp.sum(tied, -1, dtype=jnp.int32)
    unbounded = wide.is_zero(each) | wide.less(wide.wide(u32(count), 2), needed)
    n = jnp.where(unbounded, count, needed[0].astype(jnp.int32))
    before = wide.add(above, wide.mul(each, wide.wide(u32(jnp.maximum(n - 1, 0)), 1), 2))
    # Ties at the cut are rare, and to count them off is another pass.
    last = lax.cond(jnp.all(n <= 1), lambda: first, lambda: nth(tied, n))
    return Cut(_key_of(found), last), before


def _threshold(state: State, mass: Mass, goal: Wide) -> Array:
    """The least rank such that less than `goal` lies above it, uint32 [B]."""
    key = jnp.where(state.kept, state.key, NO_KEY)
    if state.x.shape[1] <= 8 * CANDIDATES:
        return _searched(key, state.q, mass, goal)
    first, q, likely = _candidates(key, state.q, mass)
    enough = jnp.all(~wide.less(likely.total(), goal))
    return lax.cond(
        enough,
        lambda: _searched(first, q, likely, goal),
        lambda: _searched_far(key, state.q, mass, goal),
    )


def _candidates(key: Array, q: Array, mass: Mass) -> tuple[Array, Array, Mass]:
    """The first tokens of the row with their exponents and weights, [B, CANDIDATES]."""
    first, ids = top_entries(key, CANDIDATES)
    q, high, low = (jnp.take_along_axis(part, ids, 1) for part in (q, *mass))
    return first, q, Mass(high, low).where(first > NO_KEY)


def _searched_far(key: Array, q: Array, mass: Mass, goal: Wide) -> Array:
    """The threshold anywhere in a long row: a few passes narrow it down to tokens that can be looked at alone."""
    exponent = _exponents(key, q)
    low, high = _narrowed(exponent, mass, goal)
    inside = (exponent >= low[:, None]) & (exponent <= high[:, None])
    few = jnp.all(jnp.sum(inside, -1, dtype=jnp.int32) <= CANDIDATES)

    def alone() -> Array:
        rest = wide.sub(goal, mass.where((exponent > 0) & (exponent < low[:, None])).total())
        return _searched(*_candidates(jnp.where(inside, key, NO_KEY), q, mass), rest)

    return lax.cond(few, alone, lambda: _searched(key, q, mass, goal))


def _narrowed(exponent: Array, mass: Mass, goal: Wide) -> tuple[Array, Array]:
    """Bounds of the exponent at which the goal is reached, from weights cut to 26 bits: half the memory to read."""
    coarse = lax.optimization_barrier((mass.high << 5) | (mass.low >> 15))
    lost = u32(exponent.shape[1])

    def halved(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + ((high - low) >> 1)
        part = wide.total(jnp.where(exponent <= middle[:, None], coarse, 0), 26)
        short = wide.less(wide.left(wide.add(part, wide.wide(jnp.full_like(low, lost), 2)), 15), goal)
        enough = ~wide.less(wide.left(part, 15), goal)
        # Neither, where what was cut off decides: such a row is narrowed no further.
        return jnp.where(short & (low < high), middle + 1, low), jnp.where(enough, middle, high)

    return lax.fori_loop(0, NARROWING, halved, (jnp.ones_like(goal[0]), jnp.max(exponent, -1)))


def _searched(key: Array, q: Array, mass: Mass, goal: Wide) -> Array:
    """The threshold among these tokens: first the exponent it falls on, in few steps, then the key."""
    rank, exponent = ordered(key), _exponents(key, q)
    found = least(
        jnp.ones_like(goal[0]),
        jnp.max(exponent, -1),
        lambda t: ~wide.less(mass.where(exponent <= t[:, None]).total(), goal),
    )
    tied = (exponent > 0) & (exponent == found[:, None])
    lowest = jnp.min(jnp.where(tied, rank, jnp.uint32(0xFFFFFFFF)), -1)
    highest = jnp.max(jnp.where(tied, rank, 0), -1)
    return least(lowest, highest, lambda t: wide.less(mass.where(rank > t[:, None]).total(), goal))


def _exponents(key: Array, q: Array) -> Array:
    """q + 1 of the tokens that are in, 0 of the others, uint32."""
    return jnp.where(key > NO_KEY, u32(q) + 1, jnp.uint32(0))


def _truncated(state: State, mass: Mass, cut: Cut, left: Wide, on: Array) -> State:
    """The crossing token keeps no more weight than the prefix needed."""
    whole = mass.at(cut.id)
    left = wide.select(wide.less(left, whole), left, whole)
    return replace(
        state,
        trimmed=jnp.where(on, cut.id, state.trimmed),
        left=wide.select(on, left, state.left),
        special=True,
    )


def min_p(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Keep q within a threshold of the smallest."""
    q = state.q
    least_q = jnp.min(jnp.where(state.kept, q, jnp.int32(0x7FFFFFFF)), -1)
    return state.keep(q - least_q[:, None] <= given["widest"][:, None], on)


def min_p_logit(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Keep logits of at least the ratio times the largest."""
    top = state.top()
    bound = keys(clamped(product(given["ratio"], values(top))))
    return state.keep((state.key >= bound[:, None]) | (state.key == top[:, None]), on)


def epsilon(state: State, stage: Stage, given: Columns, on: Array, width: int) -> State:
    """Keep at least a share of the mass, and the largest keys."""
    mass = state.mass()
    likely = share(given, mass.total()).at_least(mass)
    return state.keep(likely | (state.key == state.top()[:, None]), on)


def xtc(state: State, stage: Stage, given: Columns, on: Array, protected: Any) -> State:
    """Without every token at or above the threshold but the last of them (S-O8): the branch where the coin says so."""
    mass = state.mass()
    above = state.kept & share(given, mass.total(), strict=bool(stage.option("strict"))).at_least(mass)
    lowest = jnp.min(jnp.where(above, state.key, jnp.int32(0x7FFFFFFF)), -1)
    last = jnp.max(jnp.where(above & (state.key == lowest[:, None]), state.ids, -1), -1)
    several = jnp.sum(above, -1, dtype=jnp.int32) >= 2
    spared = jnp.asarray(protected)
    kept = ~above | (state.ids == last[:, None])
    if spared.shape[1]:
        rows = lax.broadcasted_iota(jnp.int32, spared.shape, 0)
        kept = kept.at[rows, spared].set(True, mode="drop")
    return state.keep(kept, on & several)


FILTERS: dict[Op, Filter] = {
    Op.GREEDY: greedy,
    Op.TEMPERATURE: temperature,
    Op.TOP_K: top_k,
    Op.TOP_P: top_p,
    Op.MIN_P: min_p,
    Op.MIN_P_LOGIT: min_p_logit,
    Op.EPSILON: epsilon,
    Op.DYNAMIC_TEMPERATURE: dynamic_temperature,
    Op.TOP_N_SIGMA: sigma,
    Op.TYPICAL: typical,
    Op.ETA: eta,
    Op.TOP_H: top_h,
}
"""The filters by operation; XTC is apart, because it splits a row in two."""
