"""The largest keys of a row, without a sort of it: of a long row, only the best of its blocks are looked at."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax.passes import block, entries, reduced
from tirage.backends.jax.rule import NO_KEY, keys, values
from tirage.backends.jax.wide import u32
from tirage.exact.keys import POS_INF_KEY

_BLOCK, _PARTS = 32, 4
_LONG = 4096
_SPARE = 14
"""Blocks that are looked at besides as many as entries are asked for: equal maxima must not leave one out."""


def highest(key: Array, n: int) -> tuple[Array, Array]:
    """The n largest of keys [B, N], and their positions, equal keys in order of position; both int32 [B, min(n, N)].

    The n largest tokens lie in the n blocks with the largest maxima, unless there are more blocks with such a maximum.
    """
    if _blocks_asked_for(key.shape[1], n) is None:
        return ranked(key, n)
    maxima = jnp.max(block(key, key.shape[1] // _BLOCK), -2)
    return _of_best_blocks(maxima, n, lambda ids: entries(key, ids), lambda: key)


def highest_logits(x: Array, maxima: Array, n: int) -> tuple[Array, Array]:
    """As `highest` of the keys of logits [B, N], given their `block_maxima`; the keys are not written down."""
    if _blocks_asked_for(x.shape[1], n) is None:
        return ranked(keys(x), n)
    return _of_best_blocks(maxima, n, lambda ids: keys(entries(x, ids)), lambda: keys(x))


def block_maxima(x: Array) -> Array:
    """The largest key of each block of logits [B, N], int32 [B, N / 32]; at least that of +inf where it has a NaN.

    A block is every N / 32-th token: a maximum over rows of whole vectors.
    """
    parts = x.reshape(x.shape[0], _PARTS, _BLOCK // _PARTS, x.shape[1] // _BLOCK)
    # Counted from the key of -inf, that of a negative NaN is beyond +inf's.
    codes = [u32(keys(parts[:, i])) + jnp.uint32(POS_INF_KEY) for i in range(_PARTS)]
    largest = reduced(codes, lax.max, 0, axis=1)
    most = lax.max(lax.max(*largest[:2]), lax.max(*largest[2:]))
    found = jnp.minimum(most, jnp.uint32(2 * POS_INF_KEY)) - jnp.uint32(POS_INF_KEY)
    # Without the barrier XLA works out the maxima anew for each of their uses.
    return lax.optimization_barrier(found.astype(jnp.int32))


def _blocks_asked_for(size: int, n: int) -> int | None:
    """How many blocks of a row of `size` are looked at for its n largest; None where whole rows are ranked."""
    most = -(-(n + _SPARE) // 32) * 32
    return most if size > _LONG and 0 < n <= most <= size // _BLOCK // 8 else None


def _of_best_blocks(
    maxima: Array, n: int, key_at: Callable[[Array], Array], whole: Callable[[], Array]
) -> tuple[Array, Array]:
    """As `highest`, given the maxima [B, count] of blocks, the keys at positions [B, m], and all keys."""
    rows, count = maxima.shape
    most = _blocks_asked_for(_BLOCK * count, n)
    assert most is not None
    best, at = ranked(maxima, most)
    apart = (best[:, -1] < best[:, n - 1]) | (best[:, n - 1] == NO_KEY)

    def few() -> tuple[Array, Array]:
        ids = _ascending(at)[:, None, :] + count * lax.broadcasted_iota(jnp.int32, (1, _BLOCK, 1), 1)
        ids = ids.reshape(rows, _BLOCK * most)
        top, position = ranked(key_at(ids), n)
        return top, entries(ids, position)

    return lax.cond(jnp.all(apart), few, lambda: ranked(whole(), n))


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
    return entries(key, at), -sorted_ids.astype(jnp.int32)
