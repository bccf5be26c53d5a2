"""The largest keys of a row, without a sort of it: of a long row, only the best of its blocks are looked at."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax.passes import block
from tirage.backends.jax.rule import NO_KEY, keys, values

_BLOCK = 32
_LONG = 4096
_SPARE = 14
"""Blocks that are looked at besides as many as entries are asked for: equal maxima must not leave one out."""


def highest(key: Array, n: int) -> tuple[Array, Array]:
    """The n largest of keys [B, N], and their positions, equal keys in order of position; both int32 [B, min(n, N)].

    The n largest tokens lie in the n blocks with the largest maxima, unless there are more blocks with such a maximum.
    """
    count = key.shape[1] // _BLOCK
    most = -(-(n + _SPARE) // 32) * 32
    if key.shape[1] <= _LONG or not 0 < n <= most <= count // 8:
        return ranked(key, n)
    # A block is every count-th token: a maximum over rows of whole vectors.
    best, at = ranked(jnp.max(block(key, count), -2), most)
    apart = (best[:, -1] < best[:, n - 1]) | (best[:, n - 1] == NO_KEY)

    def few() -> tuple[Array, Array]:
        ids = _ascending(at)[:, None, :] + count * lax.broadcasted_iota(jnp.int32, (1, _BLOCK, 1), 1)
        ids = ids.reshape(key.shape[0], _BLOCK * most)
        top, position = ranked(jnp.take_along_axis(key, ids, 1), n)
        return top, jnp.take_along_axis(ids, position, 1)

    return lax.cond(jnp.all(apart), few, lambda: ranked(key, n))


def ranked(key: Array, n: int) -> tuple[Array, Array]:
    """As `highest`, by `lax.top_k` of the whole rows [B, N]."""
    top, ids = _top(values(key), min(n, key.shape[1]))
    return keys(top), ids


def _top(x: Array, n: int) -> tuple[Array, Array]:
    """The n largest of float32 [B, N] without -0.0, in descending order, and their positions."""
    # `lax.top_k` is fast on float32 alone, and there it puts -0.0 below +0.0; values made from keys have no -0.0.
    # Asked for whole rows it becomes a slower sort.
    x = jnp.pad(x, ((0, 0), (0, int(n == x.shape[1]))), constant_values=-np.inf)
    # Without the barriers a later slice of the result turns top_k into a full sort. There is one for each result:
    # compiling for several devices, XLA crashes on one around both.
    top, ids = (lax.optimization_barrier(each) for each in lax.top_k(x, n))
    return top, ids


def _ascending(ids: Array) -> Array:
    """Small non-negative integers [B, n] in ascending order."""
    return -_top(-ids.astype(jnp.float32), ids.shape[1])[0].astype(jnp.int32)


def in_id_order(key: Array, ids: Array) -> tuple[Array, Array]:
    """Keys and ids [B, n], each row by ascending id."""
    sorted_ids, at = _top(-ids.astype(jnp.float32), ids.shape[1])
    return jnp.take_along_axis(key, at, 1), -sorted_ids.astype(jnp.int32)
