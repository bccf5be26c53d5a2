"""Rows that are worked on a part at a time. What is found for each row travels as one array of words: a loop that
fills arrays one by one compiles a kernel for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def by_parts(run: Callable[[Any], Any], given: Any, count: int) -> Any:
    """What `run` makes of `given`, trees whose leaves are [B, ...], of B / `count` rows at a time."""
    made: list[Any] = []

    def part(now: Any) -> Array:
        found, tree = jax.tree.flatten(run(now))
        made[:] = tree, [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in found]
        return _packed(found)

    words = lax.map(part, jax.tree.map(lambda a: jnp.reshape(a, (count, a.shape[0] // count, *a.shape[1:])), given))
    tree, like = made
    return tree.unflatten(_unpacked(words.reshape(-1, words.shape[2]), like))


def _packed(leaves: Sequence[Any]) -> Array:
    """Leaves [B, ...] side by side, uint32 [B, n]."""
    return jnp.concatenate(
        [_words(jnp.asarray(leaf)).reshape(leaf.shape[0], leaf.size // leaf.shape[0]) for leaf in leaves], 1
    )


def _words(leaf: Array) -> Array:
    wide = leaf if leaf.dtype.itemsize == 4 else leaf.astype(jnp.int32)
    return lax.bitcast_convert_type(wide, jnp.uint32)


def _unpacked(words: Array, like: Sequence[Any]) -> list[Array]:
    """The leaves that were packed, of as many rows as `words` [B, n] has."""
    out, at = [], 0
    for leaf in like:
        size = leaf.size // leaf.shape[0]
        own = words[:, at : at + size].reshape(words.shape[0], *leaf.shape[1:])
        out.append(_typed(own, leaf.dtype))
        at += size
    return out


def _typed(words: Array, dtype: Any) -> Array:
    return lax.bitcast_convert_type(words, dtype if dtype.itemsize == 4 else jnp.int32).astype(dtype)
