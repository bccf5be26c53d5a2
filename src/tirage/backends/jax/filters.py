"""Filters that cut the set of tokens by rank, by mass or by weight, without a sort (S-W4, S-O1 ... S-O8).

A cut in (key descending, id ascending) order is two integers per row: the key it falls on and the highest id kept
among equal keys. Both are found by narrowing down where the mass reaches its goal, or by `lax.top_k`; either way the
same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.entropy import dynamic_temperature, eta, sigma, top_h, typical
from tirage.backends.jax.passes import count, largest, smallest
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.reach import ROOM, narrowed, reach, together
from tirage.backends.jax.rule import (
    Mass,
    clamped,
    keys,
    nth,
    ordered,
    product,
    values,
)
from tirage.backends.jax.steps import TracedState
from tirage.backends.jax.sums import Cut, ranked, share, target
from tirage.backends.jax.wide import Wide, u32
from tirage.stages import TOP_P_RULES, Op

TOP_K_LIMIT = 1024
"""Largest k that is found by `lax.top_k`; larger ones by bisection."""

Filter = Callable[[TracedState, TracedStage, Columns, Array, int], TracedState]


def greedy(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the largest key, at its lowest id."""
    best = state.first(state.kept & (state.key == state.top()[:, None]))
    return replace(state.keep(state.ids == best[:, None], on), greedy=state.greedy | on, special=True)


def temperature(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Weights are those of this temperature from here on (S-W1)."""
    c, inverse_t = (jnp.where(on, given[name], getattr(state, name)) for name in ("c", "inverse_t"))
    return replace(state.rebased(on), c=c, inverse_t=inverse_t).weighed()


def top_k(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the first k; with ties, every key equal to the last of them."""
    k = jnp.minimum(given["k"], state.x.shape[1])
    if 0 < width <= min(TOP_K_LIMIT, state.x.shape[1]):
        key, ids = ranked(state, width)
        last = jnp.maximum(k - 1, 0)[:, None]
        cut = Cut(*(jnp.take_along_axis(each, last, 1)[:, 0] for each in (key, ids)))
    else:
        cut = _cut_by_count(state, k)
    return state.keep(cut.keeps(state, bool(stage.option("ties"))), on)


def _cut_by_count(state: TracedState, k: Array) -> Cut:
    one = Mass(jnp.zeros_like(state.key, jnp.uint32), jnp.ones_like(state.key, jnp.uint32))
    return _cut_by_mass(state, one.where(state.kept), wide.wide(u32(k), 2))[0]


def top_p(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the shortest prefix that reaches its share of the mass, under the rule, scope and ties of the stage."""
    mass = state.mass()
    judged = state.w.where(state.base) if stage.option("joint") else mass
    goal = target(given["p"], judged.total(), above=TOP_P_RULES[stage.option("rule")] == "le")
    cut, before = _cut_by_mass(state, mass, goal)
    kept = state.keep(cut.keeps(state, bool(stage.option("ties"))), on)
    if TOP_P_RULES[stage.option("rule")] != "truncated":
        return kept
    return _truncated(kept, mass, cut, wide.sub(goal, before), on)


def _cut_by_mass(state: TracedState, mass: Mass, goal: Wide) -> tuple[Cut, Wide]:
    """The last token with less than `goal` before it, and what is before it; everything when the goal is too high."""
    level = _level(state.key, state.kept, mass, goal) if state.x.shape[1] <= 2 * ROOM else _far(state, mass, goal)
    each = mass.at(level.first)
    # Of tokens with equal keys, each with the weight w, the first ceil((goal - before) / w) are needed.
    rest = wide.add(wide.sub(goal, level.before), wide.sub(each, wide.constant(1, level.first, 2)))
    needed = wide.divide(rest, each)
    unbounded = wide.is_zero(each) | wide.less(wide.wide(u32(level.ties), 2), needed)
    n = jnp.where(unbounded, level.ties, needed[0].astype(jnp.int32))
    before = wide.add(level.before, wide.mul(each, wide.wide(u32(jnp.maximum(n - 1, 0)), 1), 2))
    # Ties at the cut are rare, and to count them off is another pass.
    tied = state.kept & (state.key == level.key[:, None])
    return Cut(level.key, lax.cond(jnp.all(n <= 1), lambda: level.first, lambda: nth(tied, n))), before


class _Level(NamedTuple):
    """The key that a cut falls on, the mass of larger ones, and how many tokens have it, from which position on."""

    key: Array
    before: Wide
    first: Array
    ties: Array


def _level(key: Array, among: Array, mass: Mass, goal: Wide) -> _Level:
    distance = ~ordered(key)
    at = reach(distance, among, mass, goal)
    tied = among & (distance == at.low[:, None])
    position = lax.broadcasted_iota(jnp.int32, key.shape, 1)
    first = smallest(jnp.where(tied, position, key.shape[1] - 1))
    return _Level(jnp.take_along_axis(key, first[:, None], 1)[:, 0], at.before, first, count(tied))


def _far(state: TracedState, mass: Mass, goal: Wide) -> _Level:
    """The level of long rows: narrowed down by exponents, then found among the few tokens left."""
    exponent = u32(state.q)
    at, few = narrowed(exponent, state.kept, mass, goal)
    inside = state.kept & at.of(exponent)
    rest = wide.sub(goal, at.before)

    def alone() -> _Level:
        ids, there = together(inside)
        key, *limbs = (jnp.take_along_axis(part, ids, 1) for part in (state.key, *mass))
        level = _level(key, there, Mass(*limbs).where(there), rest)
        return level._replace(first=jnp.take_along_axis(ids, level.first[:, None], 1)[:, 0])

    # More than few are left only where they share one exponent, so that their keys differ little.
    level = lax.cond(jnp.all(few), alone, lambda: _level(state.key, inside, mass.where(inside), rest))
    return level._replace(before=wide.add(at.before, level.before))


def _truncated(state: TracedState, mass: Mass, cut: Cut, left: Wide, on: Array) -> TracedState:
    """The crossing token keeps no more weight than the prefix needed."""
    whole = mass.at(cut.id)
    left = wide.select(wide.less(left, whole), left, whole)
    return replace(
        state,
        trimmed=jnp.where(on, cut.id, state.trimmed),
        left=wide.select(on, left, state.left),
        special=True,
    )


def min_p(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep q within a threshold of the smallest."""
    q = state.q
    least_q = smallest(jnp.where(state.kept, q, jnp.int32(0x7FFFFFFF)))
    return state.keep(q - least_q[:, None] <= given["widest"][:, None], on)


def min_p_logit(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep logits of at least the ratio times the largest."""
    top = state.top()
    bound = keys(clamped(product(given["ratio"], values(top))))
    return state.keep((state.key >= bound[:, None]) | (state.key == top[:, None]), on)


def epsilon(state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep at least a share of the mass, and the largest keys."""
    mass = state.mass()
    likely = share(given, mass.total()).at_least(mass)
    return state.keep(likely | (state.key == state.top()[:, None]), on)


def xtc(state: TracedState, stage: TracedStage, given: Columns, on: Array, protected: Any) -> TracedState:
    """Without every token at or above the threshold but the last of them (S-O8): the branch where the coin says so."""
    mass = state.mass()
    above = state.kept & share(given, mass.total(), strict=bool(stage.option("strict"))).at_least(mass)
    lowest = smallest(jnp.where(above, state.key, jnp.int32(0x7FFFFFFF)))
    last = largest(jnp.where(above & (state.key == lowest[:, None]), state.ids, -1))
    several = count(above) >= 2
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
