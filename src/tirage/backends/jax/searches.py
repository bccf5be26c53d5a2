"""Filters that keep the tokens nearest to a point until their mass reaches a goal: top-p and typical-p (S-O2, S-O4).

The search is most of what such a filter compiles to. Where a program has several of them, one loop holds it once; the
filters around them take turns in it too, and those that rest on the same sums (epsilon, eta, min-p) share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import Cut
from tirage.backends.jax.entropy import mean_exponent
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.rule import FloatMass, Mass, exponents, keys, values
from tirage.backends.jax.steps import TracedState
from tirage.backends.jax.sums import share, target
from tirage.backends.jax.wide import Wide, u32
from tirage.operators import Operation
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_p import MIN_P
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
    return _Goal(jnp.zeros_like(state.m, jnp.int32), target(at.given["p"], judged, above=_above(at.stage)))


def _typical_goal(state: TracedState, at: Placed, mass: Mass, total: Wide) -> _Goal:
    return _Goal(mean_exponent(state, state.q, mass, total), target(at.given["p"], total, above=_above(at.stage)))


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
    at, mass = Placed(stage, given, on), state.compact_mass()
    goal = _GOALS[stage.op.base](state, at, mass.mass(), state.total(mass.mass()))
    cut = _cut(state, _kind(stage), goal, mass, on)
    # What the search writes down of the weights of the tokens that it sees is read after it, not worked out again.
    return replace(cut, weighing=lambda: (state.q, mass)) if isinstance(mass, FloatMass) else cut


def _cut(state: TracedState, kind: _Kind, goal: _Goal, mass: Mass | FloatMass, on: Array | None) -> TracedState:
    place = partial(_place, state, kind, goal)
    if kind.counts is not False:
        counted = Mass(jnp.zeros_like(state.key, jnp.uint32), u32(state.kept))
        mass = _choose(kind.counts, counted, mass.mass())
    cut, before = state.reach(lambda: u32(place()[0]), lambda: place()[1], mass, goal.mass)
    _, key = place()
    level = kind.ties | (state.ids <= cut.id[:, None])
    kept = state.keep(key > cut.key[:, None] - level.astype(jnp.int32), on)
    return kept if kind.trims is False else _trimmed(state, kept, cut, wide.sub(goal.mass, before), kind.trims, on)


def _place(state: TracedState, kind: _Kind, goal: _Goal) -> tuple[Array, Array]:
    """Where tokens stand, int32 [B, N]: how far they are, coarsely, and keys that fall with it."""
    if kind.by_logit is True:
        return exponents(state.x, state.m, state.c), keys(state.x)
    q = jnp.abs(state.q - goal.centre[:, None])
    return q, _choose(kind.by_logit, state.key, -q)


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


# --- several filters --------------------------------------------------------------------------------------------

_NUMBERS: dict[Operation, tuple[str, str, str]] = {
    TOP_P: ("p", "", ""),
    TYPICAL: ("p", "", ""),
    TOP_K: ("k", "", ""),
    EPSILON: ("e", "s", ""),
    ETA: ("e", "s", "distance"),
    MIN_P: ("", "", "widest"),
}
"""The operands of filters that share code, by where a turn of the loop finds them."""
_BOUNDS = frozenset({EPSILON, ETA, MIN_P})
"""Filters that keep all tokens of at least a weight, or of at most an exponent."""
_NO_KIND = _Kind(False, False, False, False)


class _Turn(NamedTuple):
    """A turn of a loop: the number n, int32 [], of its filter, and its row of `_numbers`, uint32 [4, B]; the filters of
    all turns, and how they search."""

    n: Array
    words: Array
    listed: Sequence[Placed]
    kinds: Sequence[_Kind]

    @property
    def on(self) -> Array:
        """The rows that have the filter, bool [B]."""
        return self.words[0] != 0

    def number(self, at: int) -> Array:
        """One of the filter's three numbers, uint32 [B]."""
        return self.words[1 + at]

    def is_one(self, ops: Collection[Operation]) -> Any:
        """Whether the filter is of these operations, bool []; False where no filter of the loop is."""
        return self.one_of([step.stage.op in ops for step in self.listed])

    def one_of(self, those: Sequence[bool]) -> Any:
        """What is said of the filter, bool []; False where it is said of none."""
        return any(those) and jnp.asarray(those)[self.n]


class _Sums(NamedTuple):
    """Of a set of tokens: their weights [B, N], the sum of these, two limbs [B], and the mean exponent, int32 [B]."""

    mass: Mass
    total: Wide
    mean: Array


def run_of(steps: Sequence[Placed], searches: Collection[Operation], plain: Collection[Operation]) -> list[Placed]:
    """The searches and `plain` filters that `steps` begin with; [] unless two of them are searches."""
    found = list(takewhile(lambda step: step.stage.op in searches or step.stage.op in plain, steps))
    return found if sum(step.stage.op in searches for step in found) > 1 else []


def searched(state: TracedState, listed: Sequence[Placed], apply: Apply) -> TracedState:
    """The state [B, N] after all filters of a run. Those that rest on the same sums and means are compiled once."""
    kinds = [_kind(step.stage) if step.stage.op in _GOALS else _NO_KIND for step in listed]
    trims = any(kind.trims for kind in kinds)
    start = replace(settled(state, listed), maxima=None, uncut=False, special=state.special or trims)
    table = jnp.stack([_numbers(state, step) for step in listed])
    # What no filter changes is not carried: XLA would copy it at each turn.
    changed = ("kept", "trimmed", "left") if trims else ("kept",)

    def turn(n: Array, at: dict[str, Any]) -> dict[str, Any]:
        now = _Turn(n, lax.dynamic_index_in_dim(table, n, keepdims=False), listed, kinds)
        # Rows of one batch seldom have all filters.
        return lax.cond(jnp.any(now.on), partial(filtered, now), lambda at: at, at)

    def filtered(now: _Turn, at: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(changed, _filtered(replace(start, **at), now, apply, changed), strict=True))

    return replace(start, **lax.fori_loop(0, len(listed), turn, {name: getattr(state, name) for name in changed}))


def _numbers(state: TracedState, step: Placed) -> Array:
    """uint32 [4, B]: 1 for rows that have a filter, and its numbers."""
    given, none = step.given, jnp.zeros(state.m.shape, jnp.uint32)
    names = _NUMBERS.get(step.stage.op, ("", "", ""))
    return jnp.stack([u32(_rows(state, step)), *(u32(given[name]) if name else none for name in names)])


def _rows(state: TracedState, step: Placed) -> Array:
    on = jnp.ones(state.m.shape, bool) if step.on is None else step.on
    # A top-k of 0 is that of rows that nobody looks at.
    return on & (step.given["k"] > 0) if step.stage.op == TOP_K else on


def _filtered(state: TracedState, turn: _Turn, apply: Apply, changed: Sequence[str]) -> list[Any]:
    """What one turn changes of the state, by these names."""
    sums = _sums(state, turn)
    ways: list[Callable[[], TracedState]] = [
        partial(_by_search, state, turn, sums),
        partial(_by_bound, state, turn, sums),
    ]
    way = []
    for step in turn.listed:
        shared = 0 if step.stage.op in _GOALS else 1 if step.stage.op in _BOUNDS else len(ways)
        if shared == len(ways):
            ways.append(partial(apply, state, step))
        way.append(shared)
    used = sorted(set(way))
    branches = [lambda run=ways[at]: [getattr(end, name) for end in [run()] for name in changed] for at in used]
    return lax.switch(jnp.asarray([used.index(at) for at in way], jnp.int32)[turn.n], branches)


def _sums(state: TracedState, turn: _Turn) -> _Sums:
    """The sums that a turn asks for; zeros in place of others."""
    mass, zero = state.mass(), jnp.zeros_like(turn.number(0))
    summed = turn.is_one({*_GOALS, EPSILON, ETA})
    total = lax.cond(summed, lambda: state.total(mass), lambda: (zero, zero))
    mean, asked = zero.astype(jnp.int32), turn.is_one({TYPICAL, ETA})
    if asked is not False:
        mean = lax.cond(asked, lambda: mean_exponent(state, state.q, mass, total), lambda: jnp.zeros_like(mean))
    return _Sums(mass, total, mean)


def _by_search(state: TracedState, turn: _Turn, sums: _Sums) -> TracedState:
    """The state [B, N] without what the search of a turn cuts."""
    listed = [(step.stage, step.stage.op in _GOALS) for step in turn.listed]
    joint = turn.one_of([stage.op == TOP_P and bool(stage.option("joint")) for stage, _ in listed])
    total = sums.total if joint is False else wide.select(joint, state.judged(), sums.total)
    goal = target(turn.number(0), total, above=turn.one_of([of and _above(stage) for stage, of in listed]))
    kind = _Kind(*(turn.one_of(each) for each in zip(*turn.kinds, strict=True)))
    if kind.counts is not False:
        goal = wide.select(kind.counts, wide.wide(turn.number(0), 2), goal)
    centre = jnp.where(turn.is_one({TYPICAL}), sums.mean, 0)
    return _cut(state, kind, _Goal(centre, goal), sums.mass, turn.on)


def _above(stage: TracedStage) -> bool:
    """Whether the mass of what is kept must lie above the goal, not reach it."""
    if stage.op == TOP_P:
        return RULES[stage.option("rule")] == "le"
    return stage.op == TYPICAL and bool(stage.option("exceed"))


def _by_bound(state: TracedState, turn: _Turn, sums: _Sums) -> TracedState:
    """The state [B, N] with what is heavy enough, or near enough to the mean or, for min-p, to the largest."""
    (e, s, reach), top = map(turn.number, range(3)), state.top()
    likely = share({"e": e, "s": s.astype(jnp.int32)}, sums.total).at_least(sums.mass)
    least_q = exponents(values(top)[:, None], state.m, state.c)[:, 0]
    nearest = jnp.where(turn.is_one({MIN_P}), least_q, sums.mean) + reach.astype(jnp.int32)
    likely &= turn.is_one({EPSILON, ETA})
    near = (state.q <= nearest[:, None]) & turn.is_one({ETA, MIN_P})
    return state.keep(likely | near | (state.key == top[:, None]), turn.on)


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
