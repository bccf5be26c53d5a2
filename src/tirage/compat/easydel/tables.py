"""Tables of ids: one request's [K], a batch's [B, K], padded to a width; and how rows are written into a batch's."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tirage.compat.easydel.columns import PAD
from tirage.errors import ParamsError


def table_of(name: str, ids: Sequence[int], width: int | None) -> jax.Array:
    """The ids as int32 [width], padded with -100; a `width` of None is as wide as needed."""
    size = _width(name, len(ids), width)
    return jnp.asarray(np.array([*ids, *[PAD] * (size - len(ids))], np.int32))


def tables_of(words: Sequence[Sequence[int]], count: int | None, length: int | None) -> tuple[jax.Array, jax.Array]:
    """Bad words as int32 [W, L], padded with -100, and their lengths as int32 [W], padded with 0."""
    lengths = [len(word) for word in words]
    rows = _width("bad_words", len(words), count)
    columns = _width("bad_word_len", max(lengths, default=0), length)
    table = np.full((rows, columns), PAD, np.int32)
    for row, word in zip(table, words, strict=False):
        row[: len(word)] = word
    return jnp.asarray(table), jnp.asarray(np.array([*lengths, *[0] * (rows - len(words))], np.int32))


def _width(name: str, needed: int, width: int | None) -> int:
    if width is None:
        return needed
    if isinstance(width, bool) or not isinstance(width, int) or width < needed:
        raise ParamsError(f"{name} must be an integer >= {needed}, the width that is needed, got {width!r}; widen it")
    return width


def per_slot(table: jax.Array | None, slots: int, width: tuple[int, ...], fill: int) -> jax.Array:
    """A table for every slot, int32 [slots, *width], padded with `fill`; one request's is repeated, None is empty."""
    if table is None:
        return jnp.full((slots, *width), fill, jnp.int32)
    shared = table.ndim == len(width)
    table = jnp.broadcast_to(table, (slots, *table.shape)) if shared else table
    gaps = [(0, room - have) for have, room in zip(table.shape[1:], width, strict=True)]
    return jnp.pad(table, [(0, 0), *gaps], constant_values=fill)


def width_of(
    name: str, mine: jax.Array | None, others: jax.Array | None, rank: int, growing: bool
) -> tuple[int, ...] | None:
    """The widths of a table [..., K] or [..., W, L] after an insertion; None when neither batch has the table.

    When not `growing` they are those of `mine`, and ParamsError is raised when `others` are wider.
    """
    if mine is None and others is None:
        return None
    have, room = ((0,) * rank if table is None else table.shape[table.ndim - rank :] for table in (others, mine))
    wider = tuple(map(max, have, room))
    if not growing and wider != room:
        raise ParamsError(
            f"{name} must fit into {list(room)} places when traced, got {list(have)}; "
            "make room in init_empty, or insert outside jit"
        )
    return wider


def with_rows(table: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
    """The table [B, ...] with `rows` at `slots` [n], in its own dtype; rows for a slot outside it are dropped."""
    size = table.shape[0]
    # A negative index would wrap around to another request.
    places = jnp.where((slots >= 0) & (slots < size), slots, size)
    return table.at[places].set(rows.astype(table.dtype), mode="drop")
