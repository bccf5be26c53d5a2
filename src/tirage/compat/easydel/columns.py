"""Values per row of logits: shapes that fit, lengths that hide padding, and ids as counts of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tirage.errors import ParamsError

PAD = -100
"""EasyDeL's padding of id tables; any negative id counts as padding."""


def run(kernel: Callable[..., jax.Array], *arrays: Any) -> jax.Array:
    """What a compiled kernel returns for arrays of any shape, lists or numbers; `jax.jit` itself takes no lists."""
    return kernel(*map(jnp.asarray, arrays))


def column(name: str, values: jax.Array, scores: jax.Array) -> jax.Array:
    """`values` ([], [B] or [B, 1]) as [1, 1] or [B, 1], for scores [B, V]; ParamsError for another B."""
    flat = values.reshape(-1, 1)
    if flat.shape[0] not in (1, scores.shape[0]):
        raise ParamsError(
            f"{name} must hold 1 or {scores.shape[0]} values, one per row of scores, got {flat.shape[0]}; "
            "give scores with one row per slot"
        )
    return flat


def table_per_row(name: str, table: jax.Array, rank: int, scores: jax.Array) -> jax.Array:
    """A table of one request, of `rank` axes, or one for each row, [B, ...], as [B, ...] for scores [B, V].

    Raises ParamsError for another number of tables.
    """
    rows = scores.shape[0]
    table = table[None] if table.ndim == rank else table
    if table.shape[0] not in (1, rows):
        raise ParamsError(
            f"{name} must hold 1 or {rows} tables, one per row of scores, got {table.shape[0]}; "
            "give scores with one row per slot"
        )
    return jnp.broadcast_to(table, (rows, *table.shape[1:]))


def rows_of(input_ids: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`input_ids` [B, T] as int32 and `scores` [B, V] as float32; a row [T] with [V], as inside vmap, becomes B = 1.

    Raises ParamsError for other shapes.
    """
    scores, input_ids = scores.astype(jnp.float32), input_ids.astype(jnp.int32)
    scores = scores[None] if scores.ndim == 1 else scores
    input_ids = input_ids[None] if input_ids.ndim == 1 else input_ids
    if scores.ndim != 2 or input_ids.ndim != 2 or scores.shape[0] != input_ids.shape[0]:
        raise ParamsError(
            "scores and input_ids must be [B, V] and [B, T] with the same B, "
            f"got {list(scores.shape)} and {list(input_ids.shape)}; give one row of ids per row of scores"
        )
    return input_ids, scores


def within_length(input_ids: jax.Array, cur_len: jax.Array) -> jax.Array:
    """Boolean [B, T]: the positions before `cur_len`, [] or [B]; the others are padding. ParamsError for another B."""
    if cur_len.size not in (1, input_ids.shape[0]):
        raise ParamsError(
            f"cur_len must hold 1 or {input_ids.shape[0]} lengths, got {cur_len.size}; give one per row of input_ids"
        )
    return jnp.arange(input_ids.shape[1])[None] < cur_len.reshape(-1, 1)


def counts(ids: jax.Array, counted: jax.Array, vocabulary: int) -> jax.Array:
    """int32 [B, V]: how often each token occurs among the `counted` of `ids` [B, T]; ids outside [0, V) never count."""
    rows = jnp.arange(ids.shape[0])[:, None]
    legal = counted & (ids >= 0) & (ids < vocabulary)
    # A negative index would wrap around, so it is sent past the end, where `drop` drops it.
    places = jnp.where(legal, ids, vocabulary)
    return jnp.zeros((ids.shape[0], vocabulary), jnp.int32).at[rows, places].add(1, mode="drop")
