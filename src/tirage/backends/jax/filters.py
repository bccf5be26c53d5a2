"""Filters that cut the set of tokens by rank, by mass or by weight, without a sort (S-W4, S-O1 ... S-O8).

A cut in (key descending, id ascending) order is two integers per row: the key it falls on and the highest id kept
among equal keys. Columns may lie on one device or along a mesh axis; see `axis`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import Cut
from tirage.backends.jax.entropy import dynamic_temperature, eta, sigma, top_h
from tirage.backends.jax.min_keep import Filter, by_rank, or_none
from tirage.backends.jax.narrowing import FEW, MOST
from tirage.backends.jax.passes import largest, smallest
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.rule import NO_KEY, clamped, exponents, keys, product, values, weights
from tirage.backends.jax.searches import search
from tirage.backends.jax.steps import TracedState, either
from tirage.backends.jax.sums import Share, share
from tirage.backends.jax.wide import u32
from tirage.operators import Operation
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, GREEDY, TEMPERATURE
from tirage.operators.top_a import TOP_A
from tirage.operators.top_h import TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.operators.xtc import XTC_TIES_KEPT


def greedy(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps the largest key, at its lowest id."""
    key, ids = state.top(), state.ids
    best = jnp.where(state.kept & (state.key == key[:, None]), ids, jnp.int32(0x7FFFFFFF))
    best = state.axis.min(smallest(best))
    greedy = jnp.ones_like(state.greedy) if on is None else state.greedy | on
    return replace(state.keep(ids == best[:, None], on), greedy=greedy, special=True)


def temperature(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] whose weights are those of this temperature (S-W1)."""
    c, inverse_t = (either(on, given[name], getattr(state, name)) for name in ("c", "inverse_t"))
    return state.weighed(state.highest_value(on), c, inverse_t, on)


def top_k(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps the first k; with ties, every key equal to the last of them."""
    ties = bool(stage.option("ties"))
    if not 0 < width <= state.axis.most:
        return state.keep_to(state.kth(jnp.maximum(given["k"], 1)), on, ties=ties)
    key, ids = _first(state, given["k"], width)
    last = jnp.clip(given["k"] - 1, 0, key.shape[1] - 1)
    cut = Cut(wide.column(key, last), wide.column(ids, last))
    if on is not None or ties or not state.narrows:
        return state.keep_to(cut, on, ties=ties)
    rank = lax.broadcasted_iota(jnp.int32, key.shape, 1)
    return state.narrowed(jnp.where(rank <= last[:, None], key, NO_KEY), ids)


def _first(state: TracedState, k: Array, width: int) -> tuple[Array, Array]:
    """Keys and ids [B, width] of at least the first k [B] tokens still in; fewer are looked for where few are asked."""
    if width != MOST:
        return state.first(width)
    room = ((0, 0), (0, width - FEW))

    def few() -> tuple[Array, Array]:
        key, ids = state.first(FEW)
        return jnp.pad(key, room, constant_values=NO_KEY), jnp.pad(ids, room)

    return lax.cond(jnp.all(k <= FEW), few, lambda: state.first(width))


def min_p(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps q within a threshold of the smallest, which is that of the largest key."""
    least_q = exponents(values(state.top())[:, None], state.m, state.c)
    return state.keep(state.q - least_q <= given["widest"][:, None], on)


def min_p_logit(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps logits of at least the ratio times the largest."""
    top = state.top()
    bound = keys(clamped(product(given["ratio"], values(top))))
    return state.keep((state.key >= bound[:, None]) | (state.key == top[:, None]), on)


def epsilon(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps at least a share of the mass, and the largest keys."""
    mass = state.mass()
    likely = share(given, state.total(mass)).at_least(mass)
    return state.keep(likely | (state.key == state.top()[:, None]), on)


def top_a(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps at least a share of the square of the largest probability."""
    mass, top = state.mass(), state.top()
    total = state.total(mass)
    best: wide.Wide = tuple(w[:, 0] for w in weights(exponents(values(top)[:, None], state.m, state.c)).mass().wide())
    square = wide.mul(wide.mul(best, best), (jnp.asarray(given["e"]),), 4)
    one = wide.constant(1, total[0], 4)
    # Rounded up twice, which is as once: ceil(ceil(E M^2 / 2^s) / W).
    scaled = wide.add(wide.right_by(wide.sub(square, one), jnp.asarray(given["s"])), one)
    least = wide.divide(wide.add(scaled, wide.sub(total, one[:2])), total)[:2]
    return state.keep(Share(least).at_least(mass) | (state.key == top[:, None]), on)


def p_less(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
    """The state [B, N] that keeps what is at least as likely as two draws are to be equal."""
    mass = state.mass()
    total, each = state.total(mass), mass.wide()
    squared = state.axis.sum_wide(wide.total_wide(wide.mul(each, each, 3), 4))
    one, share_of = wide.constant(1, total[0], 4), wide.resized(total, 4)
    if stage.option("norm"):
        count = u32(state.count(state.kept))
        squared = wide.sub(wide.mul(squared, (count,), 4), wide.mul(total, total, 4))
        rest = jnp.maximum(count, 2) - 1
        share_of = wide.mul(total, (rest,), 4)
        squared = wide.select(count > 1, squared, wide.constant(0, total[0], 4))
    least = wide.divide(wide.add(squared, wide.sub(share_of, one)), share_of)[:2]
    return state.keep(Share(least).at_least(mass) | (state.key == state.top()[:, None]), on)


def xtc(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, protected: Any) -> TracedState:
    """The state [B, N] without the tokens at or above the threshold but the last, or all that equal it: the branch with
    XTC on (S-O8)."""
    mass, ids = state.mass(), state.ids
    above = state.kept & share(given, state.total(mass), strict=bool(stage.option("strict"))).at_least(mass)
    lowest = state.axis.min(smallest(jnp.where(above, state.key, jnp.int32(0x7FFFFFFF))))
    level = state.key == lowest[:, None]
    last = state.axis.max(largest(jnp.where(above & level, ids, -1)))
    spared = level if stage.op.base == XTC_TIES_KEPT else ids == last[:, None]
    kept = ~above | spared | (state.count(above) < 2)[:, None]
    found = state.keep(state.marked(kept, jnp.asarray(protected)), on)
    return found if stage.op.base == stage.op else or_none(state, found, given)


PLAIN = frozenset({MIN_P, MIN_P_LOGIT, TOP_A, P_LESS, EPSILON, TOP_N_SIGMA, ETA, TOP_H})
"""Filters that change nothing of a state but which tokens are kept."""
FILTERS: dict[Operation, Filter] = {
    GREEDY: greedy,
    TEMPERATURE: temperature,
    TOP_K: top_k,
    TOP_P: search,
    MIN_P: min_p,
    MIN_P_LOGIT: min_p_logit,
    TOP_A: top_a,
    P_LESS: p_less,
    EPSILON: epsilon,
    DYNAMIC_TEMPERATURE: dynamic_temperature,
    TOP_N_SIGMA: sigma,
    TYPICAL: search,
    ETA: eta,
    TOP_H: top_h,
    **{FLOORED[op]: by_rank(cut) for op, cut in ((TOP_P, search), (MIN_P, min_p), (MIN_P_LOGIT, min_p_logit))},
}
"""The filters by operation; XTC is apart, because it splits a row in two."""
