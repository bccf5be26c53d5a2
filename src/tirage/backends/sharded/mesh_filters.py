"""Filters over a mesh axis: `backends/jax/filters.py` with sums and maxima of all devices (S-O1, S-O2, S-O3, S-O5).

A cut is found by bisection; a round exchanges a few integers per row. Columns of State count from the device's own
first id, so global ids are moved by it before they are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from tirage.backends.jax import wide
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.rule import (
    NO_KEY,
    Mass,
    clamped,
    exponents,
    keys,
    least,
    ordered,
    product,
    values,
    weights,
)
from tirage.backends.jax.steps import TracedState
from tirage.backends.jax.sums import Cut, share, target
from tirage.backends.jax.wide import Wide, u32
from tirage.backends.sharded.axis import Axis
from tirage.stages import TOP_P_RULES, Op

GATHERED = 256
"""Largest k whose candidates are gathered, 8 k bytes per row; above it a bisection exchanges less."""

MeshFilter = Callable[[Axis, TracedState, TracedStage, Columns, Array, int], TracedState]


def top(axis: Axis, state: TracedState) -> Array:
    """The largest key still in on any device, int32 [B]."""
    return axis.max(state.top())


def _rank_of(key: Array) -> Array:
    return (key ^ jnp.uint32(0x80000000)).astype(jnp.int32)


def greedy(axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the largest key, at its lowest id."""
    _, best = axis.top(jnp.where(state.kept, state.key, NO_KEY), 1)
    return replace(state.keep(state.ids == best - axis.start, on), greedy=state.greedy | on, special=True)


def temperature(
    axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int
) -> TracedState:
    """Weights are those of this temperature from here on (S-W1)."""
    c, inverse_t = (jnp.where(on, given[name], getattr(state, name)) for name in ("c", "inverse_t"))
    m = jnp.where(on, values(top(axis, state)), state.m)
    base = jnp.where(on[:, None], state.kept, state.base)
    return replace(state, base=base, m=m, c=c, inverse_t=inverse_t).weighed()


def top_k(axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the first k; with ties, every key equal to the last of them."""
    if 0 < width <= GATHERED:
        key, ids = axis.top(jnp.where(state.kept, state.key, NO_KEY), width)
        last = jnp.clip(given["k"] - 1, 0, width - 1)[:, None]
        cut = Cut(*(jnp.take_along_axis(each, last, 1)[:, 0] for each in (key, ids)))
    else:
        cut = _cut_by_count(axis, state, jnp.asarray(given["k"]))
    return _keep(axis, state, cut, bool(stage.option("ties")), on)


def _keep(axis: Axis, state: TracedState, cut: Cut, ties: bool, on: Array) -> TracedState:
    return state.keep(Cut(cut.key, cut.id - axis.start).keeps(state, ties), on)


def _cut_by_count(axis: Axis, state: TracedState, k: Array) -> Cut:
    rank = jnp.where(state.kept, ordered(state.key), 0)
    few = lambda t: axis.count(rank > t[:, None]) < k  # noqa: E731
    found = least(jnp.zeros_like(u32(k)), axis.max(jnp.max(rank, -1)), few)
    above = axis.count(rank > found[:, None])
    return Cut(_rank_of(found), axis.nth(rank == found[:, None], k - above))


def top_p(axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep the shortest prefix that reaches its share of the mass, under the rule, scope and ties of the stage."""
    mass = state.mass()
    judged = state.w.where(state.base) if stage.option("joint") else mass
    goal = target(given["p"], axis.total(judged), above=TOP_P_RULES[stage.option("rule")] == "le")
    cut, before, each = _cut_by_mass(axis, state, mass, goal)
    kept = _keep(axis, state, cut, bool(stage.option("ties")), on)
    if TOP_P_RULES[stage.option("rule")] != "truncated":
        return kept
    left = wide.sub(goal, before)
    left = wide.select(wide.less(left, each), left, each)
    trimmed = jnp.where(on, cut.id - axis.start, state.trimmed)
    return replace(kept, trimmed=trimmed, left=wide.select(on, left, state.left), special=True)


def _cut_by_mass(axis: Axis, state: TracedState, mass: Mass, goal: Wide) -> tuple[Cut, Wide, Wide]:
    """The last token with less than `goal` before it, the mass before it, its weight; all if the goal is too high."""
    rank = ordered(state.key)
    lowest = axis.min(jnp.min(jnp.where(state.kept, rank, jnp.uint32(0xFFFFFFFF)), -1))
    highest = axis.max(jnp.max(jnp.where(state.kept, rank, 0), -1))
    found = least(lowest, highest, lambda t: wide.less(axis.total(mass.where(rank > t[:, None])), goal))
    above = axis.total(mass.where(rank > found[:, None]))
    tied = state.kept & (rank == found[:, None])
    each = _weight(state, _rank_of(found))
    # Of tokens with equal keys, each with the weight w, the first ceil((goal - above) / w) are needed.
    needed = wide.divide(wide.add(wide.sub(goal, above), wide.sub(each, wide.constant(1, above[0], 2))), each)
    count = axis.count(tied)
    unbounded = wide.is_zero(each) | wide.less(wide.wide(u32(count), 2), needed)
    n = jnp.where(unbounded, count, needed[0].astype(jnp.int32))
    before = wide.add(above, wide.mul(each, wide.wide(u32(jnp.maximum(n - 1, 0)), 1), 2))
    return Cut(_rank_of(found), axis.nth(tied, n)), before, each


def _weight(state: TracedState, key: Array) -> Wide:
    """The weight of a key [B], wherever its token is."""
    w = weights(exponents(values(key)[:, None], state.m, state.c)).wide()
    return w[0][:, 0], w[1][:, 0]


def min_p(axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep q within a threshold of the smallest, which is that of the largest key."""
    least_q = exponents(values(top(axis, state))[:, None], state.m, state.c)
    return state.keep(state.q - least_q <= given["widest"][:, None], on)


def min_p_logit(
    axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int
) -> TracedState:
    """Keep logits of at least the ratio times the largest."""
    largest = top(axis, state)
    bound = keys(clamped(product(given["ratio"], values(largest))))
    return state.keep((state.key >= bound[:, None]) | (state.key == largest[:, None]), on)


def epsilon(axis: Axis, state: TracedState, stage: TracedStage, given: Columns, on: Array, width: int) -> TracedState:
    """Keep at least a share of the mass, and the largest keys."""
    mass = state.mass()
    likely = share(given, axis.total(mass)).at_least(mass)
    return state.keep(likely | (state.key == top(axis, state)[:, None]), on)


FILTERS: dict[Op, MeshFilter] = {
    Op.GREEDY: greedy,
    Op.TEMPERATURE: temperature,
    Op.TOP_K: top_k,
    Op.TOP_P: top_p,
    Op.MIN_P: min_p,
    Op.MIN_P_LOGIT: min_p_logit,
    Op.EPSILON: epsilon,
}
"""The filters that devices work out each from its part; rows with another one are gathered."""
