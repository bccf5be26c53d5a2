"""Filters that keep the tokens nearest to a point until their mass reaches a goal: top-p and typical-p (S-O2, S-O4).

The search is most of what such a filter compiles to. Where a program has several of them, one loop holds it once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import Cut
from tirage.backends.jax.entropy import mean_exponent
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.rule import Mass
from tirage.backends.jax.steps import TracedState
from tirage.backends.jax.sums import target
from tirage.backends.jax.wide import Wide, u32
from tirage.operators import Operation
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.typical import TYPICAL


class Placed(NamedTuple):
    """A stage of a program with its operands, and the rows that have it: bool [B], None for all."""

    stage: TracedStage
    given: Columns
    on: Array | None


Apply = Callable[[TracedState, Placed], TracedState]
"""(state, stage) -> state without what the stage cuts."""


class SearchTurn(NamedTuple):
    """A search, and the filters that stand between it and the search before it."""

    between: tuple[Placed, ...]
    search: Placed


class _Goal(NamedTuple):
    """The exponent that tokens are near to or far from, int32 [B], and the mass to be reached, [B]."""

    centre: Array
    mass: Wide


class _Kind(NamedTuple):
    """Of a search, or of one turn of a loop, bool or bool []: whether tokens are taken in the order of their logits,
    not by their distance; whether all at the last one's place stay; whether the last one's weight is cut; whether
    tokens are counted, not weighed."""

    by_logit: Any
    ties: Any
    trims: Any
    counts: Any


def _top_p_goal(state: TracedState, at: Placed, mass: Mass, total: Wide) -> _Goal:
    judged = state.judged() if at.stage.option("joint") else total
    above = RULES[at.stage.option("rule")] == "le"
    return _Goal(jnp.zeros_like(state.m, jnp.int32), target(at.given["p"], judged, above=above))


def _typical_goal(state: TracedState, at: Placed, mass: Mass, total: Wide) -> _Goal:
    above = bool(at.stage.option("exceed"))
    return _Goal(mean_exponent(state, state.q, mass, total), target(at.given["p"], total, above=above))


def _top_k_goal(state: TracedState, at: Placed, mass: Mass, total: Wide) -> _Goal:
    return _Goal(jnp.zeros_like(state.m, jnp.int32), wide.wide(u32(at.given["k"]), 2))


_GOALS: dict[Operation, Callable[[TracedState, Placed, Mass, Wide], _Goal]] = {
    TOP_P: _top_p_goal,
    TYPICAL: _typical_goal,
    TOP_K: _top_k_goal,
}


def _kind(stage: TracedStage) -> _Kind:
    if stage.op.base == TYPICAL:
        return _Kind(False, True, False, False)
    trims = stage.op.base == TOP_P and RULES[stage.option("rule")] == "truncated"
    return _Kind(True, bool(stage.option("ties")), trims, stage.op == TOP_K)


def search(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps the shortest prefix with its share of the mass, by the stage's options: the tokens
    with the largest logits, or those nearest to the mean exponent."""
    at, mass = Placed(stage, given, on), state.mass()
    goal = _GOALS[stage.op.base](state, at, mass, state.total(mass))
    return _cut(state, _kind(stage), goal, mass, on)


def _cut(state: TracedState, kind: _Kind, goal: _Goal, mass: Mass, on: Array | None) -> TracedState:
    q = state.q if kind.by_logit is True else jnp.abs(state.q - goal.centre[:, None])
    key = _choose(kind.by_logit, state.key, -q)
    if kind.counts is not False:
        mass = _choose(kind.counts, Mass(jnp.zeros_like(mass.high), u32(state.kept)), mass)
    cut, before = state.reach(u32(q), key, mass, goal.mass)
    level = (key == cut.key[:, None]) & (kind.ties | (state.ids <= cut.id[:, None]))
    kept = state.keep((key > cut.key[:, None]) | level, on)
    return kept if kind.trims is False else _trimmed(state, kept, cut, wide.sub(goal.mass, before), kind.trims, on)


def _choose(first: Any, a: Any, b: Any) -> Any:
    if isinstance(first, bool):
        return a if first else b
    return jax.tree.map(partial(jnp.where, first), a, b)


def _trimmed(state: TracedState, kept: TracedState, cut: Cut, left: Wide, trims: Any, on: Array | None) -> TracedState:
    """`kept`, whose crossing token keeps no more weight than the prefix needed; `trims` says whether at all."""
    low, high = state.mass_of(cut.key[:, None], cut.id[:, None]).wide()
    whole = low[:, 0], high[:, 0]
    left = wide.select(wide.less(left, whole), left, whole)
    now = jnp.broadcast_to(trims, cut.id.shape) if on is None else on & trims
    return replace(
        kept, trimmed=jnp.where(now, cut.id, state.trimmed), left=wide.select(now, left, state.left), special=True
    )


# --- several searches -------------------------------------------------------------------------------------------


def turns(steps: Sequence[Placed], searches: Collection[Operation], plain: Collection[Operation]) -> list[SearchTurn]:
    """The searches that `steps` begin with, with nothing but `plain` filters between them; [] unless there are two."""
    found, between = [], []
    for step in steps:
        if step.stage.op in searches:
            found.append(SearchTurn(tuple(between), step))
            between = []
        elif step.stage.op in plain:
            between.append(step)
        else:
            break
    return found if len(found) > 1 and not found[0].between else []


def searched(state: TracedState, listed: Sequence[SearchTurn], apply: Apply) -> TracedState:
    """The state [B, N] after all turns, whose searches are compiled once."""
    kinds = list(zip(*[_kind(turn.search.stage) for turn in listed], strict=True))
    trims = any(_Kind(*kinds).trims)
    on = jnp.stack([_rows(state, turn.search) for turn in listed])
    begun = settled(state, (turn.search for turn in listed))
    start = replace(begun, maxima=None, uncut=False, special=state.special or trims)

    def turn(n: Array, at: tuple[Array, Array, Wide]) -> tuple[Array, Array, Wide]:
        now = replace(start, kept=at[0], trimmed=at[1], left=at[2])
        if any(each.between for each in listed):
            now = replace(now, kept=lax.switch(n, [partial(_between, now, each.between, apply) for each in listed]))
        # Rows of one batch seldom have all searches.
        return lax.cond(jnp.any(on[n]), partial(sought, n, now), lambda: (now.kept, *at[1:]))

    def sought(n: Array, now: TracedState) -> tuple[Array, Array, Wide]:
        mass = now.mass()
        total = now.total(mass)
        goals = [partial(_GOALS[each.search.stage.op], now, each.search, mass, total) for each in listed]
        kind = _Kind(*(any(each) and jnp.asarray(each)[n] for each in kinds))
        end = _cut(now, kind, lax.switch(n, goals), mass, on[n])
        return end.kept, end.trimmed, end.left

    kept, trimmed, left = lax.fori_loop(0, len(listed), turn, (state.kept, state.trimmed, state.left))
    found = replace(start, kept=kept)
    return replace(found, trimmed=trimmed, left=left) if trims else found


def _rows(state: TracedState, search: Placed) -> Array:
    on = jnp.ones(state.m.shape, bool) if search.on is None else search.on
    # A top-k of 0 is that of rows that nobody looks at.
    return on & (search.given["k"] > 0) if search.stage.op == TOP_K else on


def _between(state: TracedState, steps: Sequence[Placed], apply: Apply) -> Array:
    for step in steps:
        state = apply(state, step)
    return state.kept


def settled(state: TracedState, steps: Iterable[Placed]) -> TracedState:
    """The state with its weights worked out, and the mass that it judges where some of the steps ask for it, for a loop
    to read."""
    state.weighing()
    if not any(step.stage.op.base == TOP_P and step.stage.option("joint") for step in steps):
        return state
    judged = state.judged()
    return replace(state, judged=lambda: judged)


def apart(state: TracedState, steps: Sequence[Placed]) -> tuple[TracedState, list[Placed]]:
    """A state and steps inside a loop, tied to what changes from turn to turn: else XLA works out before the loop what
    it finds the same for all turns, one array after another, each in a kernel of its own."""
    columns = [(step.given, step.on) for step in steps]
    logits = (state.x, state.key, state.kept, state.m, state.c, state.inverse_t)
    logits, weighed, columns = lax.optimization_barrier((logits, state.weighing(), columns))
    x, key, kept, m, c, inverse_t = logits
    tied = replace(state, x=x, key=key, kept=kept, m=m, c=c, inverse_t=inverse_t, weighing=lambda: weighed)
    return tied, [step._replace(given=given, on=on) for step, (given, on) in zip(steps, columns, strict=True)]
