"""min_keep inside a trace: a filter that leaves at least so many tokens, the first in its order (S-O11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from tirage.backends.jax import wide
from tirage.backends.jax.program import Columns, TracedStage
from tirage.backends.jax.steps import TracedState

Filter = Callable[[TracedState, TracedStage, Columns, Array | None, int], TracedState]
"""(state, stage, its operands, rows that are on or None for all, largest top-k) -> state without what is cut."""


def by_rank(cut: Filter) -> Filter:
    """`cut`, which keeps a prefix in (key descending, id ascending) order, with `least` tokens [B] of it at least."""

    def run(state: TracedState, stage: TracedStage, given: Columns, on: Array | None, width: int) -> TracedState:
        found = cut(state, stage, given, on, width)
        least = floor(state, given)
        short = found.count(found.kept) < least
        first = state.keep_to(state.kth(jnp.maximum(least, 1)), short).kept
        return replace(
            found,
            kept=jnp.where(short[:, None], first, found.kept),
            trimmed=jnp.where(short, state.trimmed, found.trimmed),
            left=wide.select(short, state.left, found.left),
        )

    return run


def or_none(state: TracedState, found: TracedState, given: Columns) -> TracedState:
    """`found`, or the state [B, N] before it in rows where too few tokens would be left."""
    short = found.count(found.kept) < floor(state, given)
    return replace(found, kept=jnp.where(short[:, None], state.kept, found.kept))


def floor(state: TracedState, given: Columns) -> Array:
    """How many tokens must be left, int32 [B]; rows without the stage have `least` 0."""
    return jnp.minimum(jnp.asarray(given["least"]), state.count(state.kept))
