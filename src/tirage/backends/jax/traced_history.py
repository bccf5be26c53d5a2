"""The tokens of the requests in a batch, as arrays, and the rules that read it inside a trace (S-H1 ... S-H5).

Every row has room for the same number of tokens. A row that outgrows it keeps counting its length, so that it can be
told: nothing it says can be drawn any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax.passes import smallest
from tirage.history import History
from tirage.sampling_metadata import MAX_VOCAB

BEYOND = MAX_VOCAB
"""An id that no row has: what tables of ids are filled up with."""
_BEFORE = -2
"""Stands where a row has no token: equal to no id, and to no padding."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class TracedHistory:
    """The histories of B rows with room for H tokens each.

    `tokens` int32 [B, H], prompt then output; `prompt` and `length` int32 [B]. `counts` int32 [B, 3, H]: the first
    `distinct` int32 [B] columns are the ids seen, how often in the prompt, how often in the output.
    """

    tokens: Any
    prompt: Any
    length: Any
    counts: Any
    distinct: Any

    @classmethod
    def of(cls, history: History, room: int) -> TracedHistory:
        """One row, on the host; the history must fit."""
        tokens_so_far, table = history.tokens(), history.counts().table
        tokens, counts = np.zeros((1, room), np.int32), np.zeros((1, 3, room), np.int32)
        tokens[0, : tokens_so_far.size] = tokens_so_far
        counts[0, 0] = BEYOND
        counts[0, :, : table.shape[1]] = table
        numbers = (history.prompt_length, tokens_so_far.size, table.shape[1])
        prompt, length, distinct = (np.array([n], np.int32) for n in numbers)
        return cls(tokens=tokens, prompt=prompt, length=length, counts=counts, distinct=distinct)

    @property
    def room(self) -> int:
        """H."""
        return self.tokens.shape[1]


@jax.jit
def appended(past: TracedHistory, tokens: Array) -> TracedHistory:
    """The history with one output token more in each row, `tokens` [B]; -1 adds none."""
    new, row, ids = tokens >= 0, lax.iota(jnp.int32, tokens.shape[0]), past.counts[:, 0]
    columns = lax.broadcasted_iota(jnp.int32, ids.shape, 1)
    found = smallest(jnp.where(ids == tokens[:, None], columns, past.room))
    seen = found < past.room
    at = jnp.where(new, jnp.where(seen, found, past.distinct), past.room)
    # What a free column holds becomes the id, in the write that counts it.
    change = jnp.stack([jnp.where(seen, 0, tokens - BEYOND), jnp.ones_like(tokens)], 1)
    return TracedHistory(
        tokens=past.tokens.at[row, jnp.where(new, past.length, past.room)].set(tokens, mode="drop"),
        prompt=past.prompt,
        length=past.length + new,
        counts=past.counts.at[row[:, None], np.array([[0, 2]], np.int32), at[:, None]].add(change, mode="drop"),
        distinct=past.distinct + (new & ~seen),
    )


def _tail(past: TracedHistory, n: int, first: Any = 0) -> Array:
    """The last n tokens of each row, [B, n]; `_BEFORE` for those before position `first`."""
    at = past.length[:, None] - n + jnp.arange(n, dtype=jnp.int32)
    found = jnp.take_along_axis(jnp.asarray(past.tokens), jnp.clip(at, 0, past.room - 1), 1)
    return jnp.where(at >= first, found, _BEFORE)


@partial(jax.jit, static_argnums=2)
def windowed(past: TracedHistory, window: Array, widest: int) -> Array:
    """Counts [B, 3, H] of the last `window` tokens, all as prompt; of everything where `window` [B] is 0 (S-H2)."""
    n = min(widest, past.room)
    recent = _tail(past, n)
    inside = (jnp.arange(n, dtype=jnp.int32) >= n - window[:, None]) & (recent >= 0)
    recent = jnp.where(inside, recent, BEYOND)
    # An id stands once for each time it occurs, with the same count: whoever writes it writes the same.
    times = jnp.sum(recent[:, :, None] == recent[:, None, :], -1, dtype=jnp.int32)
    table = jnp.stack([recent, times, jnp.zeros_like(times)], 1)
    room = ((0, 0), (0, 0), (0, past.room - n))
    ids = jnp.array([BEYOND, 0, 0], jnp.int32)[None, :, None]
    padded = jnp.where(jnp.arange(past.room) < n, jnp.pad(table, room), ids)
    return jnp.where(window[:, None, None] > 0, padded, past.counts)


@jax.jit
def by_words(past: TracedHistory, words: Array, output_only: Array) -> Array:
    """Ids [B, n] that would complete a word of `words` [B, n, L], left-padded with -1 (S-H3)."""
    first = jnp.where(output_only, past.prompt, 0)[:, None]
    recent = _tail(past, words.shape[2] - 1, first)
    prefix, last = words[:, :, :-1], words[:, :, -1]
    matches = jnp.all((prefix == -1) | (prefix == recent[:, None, :]), -1)
    return jnp.where(matches & (last >= 0), last, BEYOND)


@jax.jit
def by_ngrams(past: TracedHistory, size: Array) -> Array:
    """Ids [B, H] that would repeat an n-gram of `size` [B] tokens, off where 0 (S-H4)."""
    tokens = jnp.asarray(past.tokens)
    at = lax.broadcasted_iota(jnp.int32, tokens.shape, 1)

    def agreeing(j: Any, same: Array) -> Array:
        earlier = jnp.take_along_axis(tokens, jnp.maximum(at - j, 0), 1)
        own = jnp.take_along_axis(tokens, jnp.clip(past.length - j, 0, past.room - 1)[:, None], 1)
        return same & ((earlier == own) | (j >= size[:, None]))

    size = jnp.asarray(size)
    inside = (at >= size[:, None] - 1) & (at < past.length[:, None]) & (size[:, None] > 0)
    return jnp.where(lax.fori_loop(1, jnp.max(size), agreeing, inside), tokens, BEYOND)


@partial(jax.jit, static_argnums=3)
def dry_lengths(past: TracedHistory, last_n: Array, breakers: Array, vocab_size: int) -> tuple[Array, Array]:
    """Ids [B, H] and the longest repeated suffix [B, H] that each would extend; 0 where none (S-H5).

    `last_n` [B]: how far to look back, all the way where negative; `breakers` [B, n] end a match, -1 is padding.
    """
    at = lax.broadcasted_iota(jnp.int32, past.tokens.shape, 1)
    size = jnp.where(last_n < 0, past.length, jnp.minimum(past.length, last_n))[:, None]
    back = jnp.take_along_axis(jnp.asarray(past.tokens), jnp.clip(past.length[:, None] - 1 - at, 0, past.room - 1), 1)
    breaks = jnp.any(back[:, :, None] == breakers[:, None, :], -1) & (at < size)
    limit = jnp.min(jnp.where(breaks, at, size), -1, keepdims=True)

    def agreeing(state: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        k, same, z = state
        other = jnp.take_along_axis(back, jnp.minimum(at + k, past.room - 1), 1)
        same &= (other == lax.dynamic_slice_in_dim(back, k, 1, 1)) & (at + k < size)
        return k + 1, same, z + same

    start = (jnp.int32(0), (at > 0) & (at < size), jnp.zeros_like(at))
    z = lax.while_loop(lambda s: jnp.any(s[1]) & (s[0] < past.room), agreeing, start)[2]
    follower = jnp.roll(back, 1, axis=1)
    length = jnp.where(jnp.roll(breaks, 1, axis=1), 0, jnp.minimum(z, limit))
    rows = lax.broadcasted_iota(jnp.int32, at.shape, 0)
    longest = jnp.zeros((at.shape[0], vocab_size), jnp.int32).at[rows, follower].max(length)
    return follower, jnp.take_along_axis(longest, follower, 1)
