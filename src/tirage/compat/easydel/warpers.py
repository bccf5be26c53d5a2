"""Warpers with EasyDeL's call: temperature, and filters that set what they drop to -inf.

Tokens are ranked by (score descending, id ascending), so ties are cut by id and top-k keeps exactly k. A greedy row
passes every warper unchanged: its largest score is the answer already. NaN and +inf stay, to mark a bad row.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tirage.compat.easydel.columns import column, rows_of, run


@dataclass(frozen=True, slots=True, eq=False)
class TemperatureLogitsWarper:
    """Scores divided by the temperature; 1 is off, and at 0 or below a row is greedy and unchanged."""

    temperature: jax.Array
    greedy: jax.Array | bool = False

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_temperature, input_ids, scores, cur_len, self.temperature, self.greedy)


@jax.jit
def _temperature(
    input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, temperature: jax.Array, greedy: jax.Array
) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    temperature = column("temperature", temperature, rows)
    still = column("greedy", greedy, rows) | (temperature <= 0)
    # Dividing by 1.0 might change bits under XLA; `where` keeps greedy rows bit for bit.
    return jnp.where(still, rows, rows / jnp.where(still, 1.0, temperature)).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class TopKLogitsWarper:
    """Scores of the k first tokens, -inf elsewhere; k <= 0 or k >= V is off."""

    top_k: jax.Array
    greedy: jax.Array | bool = False

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_top_k, input_ids, scores, cur_len, self.top_k, self.greedy)


@jax.jit
def _top_k(
    input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, top_k: jax.Array, greedy: jax.Array
) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    k = column("top_k", top_k, rows)
    rank = jnp.argsort(_order(rows), axis=-1)
    return _kept(rows, (k <= 0) | (rank < k), greedy).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class TopPLogitsWarper:
    """Scores of the shortest prefix whose mass reaches p, -inf elsewhere; 1 is off.

    The token that crosses p is kept, and so is the first one, whatever p. Source: arXiv:1904.09751.
    """

    top_p: jax.Array
    greedy: jax.Array | bool = False

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_top_p, input_ids, scores, cur_len, self.top_p, self.greedy)


@jax.jit
def _top_p(
    input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, top_p: jax.Array, greedy: jax.Array
) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    p = column("top_p", top_p, rows)
    order = _order(rows)
    mass = jax.nn.softmax(jnp.take_along_axis(rows, order, axis=-1), axis=-1)
    before = jnp.cumsum(mass, axis=-1) - mass
    # The subtraction may leave a rounding error instead of zero, so the first token is kept by its rank.
    keep = (before < p).at[:, 0].set(True)
    keep = jnp.take_along_axis(keep, jnp.argsort(order, axis=-1), axis=-1)
    return _kept(rows, (p >= 1) | keep, greedy).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class MinPLogitsWarper:
    """Scores of tokens at least `min_p` times as likely as the first, -inf elsewhere; 0 is off.

    Likelihoods, not logits, are compared: a constant added to all scores changes nothing. At 1 only tokens
    equal to the largest stay. Source: arXiv:2407.01082.
    """

    min_p: jax.Array
    greedy: jax.Array | bool = False

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_min_p, input_ids, scores, cur_len, self.min_p, self.greedy)


@jax.jit
def _min_p(
    input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, min_p: jax.Array, greedy: jax.Array
) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    min_p = column("min_p", min_p, rows)
    ratio = jnp.exp(rows - jnp.max(rows, axis=-1, keepdims=True))
    return _kept(rows, (min_p <= 0) | (ratio >= min_p), greedy).reshape(scores.shape)


def _order(rows: jax.Array) -> jax.Array:
    return jnp.argsort(-rows, axis=-1, stable=True)


def _kept(rows: jax.Array, keep: jax.Array, greedy: jax.Array) -> jax.Array:
    untouched = column("greedy", greedy, rows) | ~jnp.isfinite(rows)
    return jnp.where(keep | untouched, rows, -jnp.inf)
