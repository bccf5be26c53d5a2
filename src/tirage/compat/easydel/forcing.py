"""Processors that force, suppress or ban tokens by position, with EasyDeL's names and call.

They do what EasyDeL's classes, copied from transformers for Flax, do: lengths include the prompt, a forced token gets
score 0 and every other -inf. Besides, they take several EOS ids, a length for each row instead of one for the batch,
and ignore ids outside the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tirage.backends.jax.traced_history import BEYOND, TracedHistory, by_ngrams
from tirage.compat.easydel.columns import PAD, column, counts, rows_of, run
from tirage.errors import ParamsError
from tirage.fields.rules import BrokenRuleError, Ids, integer, shown


@dataclass(frozen=True, slots=True, eq=False)
class EmptyProcessor:
    """Scores as they are."""

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class MinLengthLogitsProcessor:
    """EOS at -inf while the sequence has `min_length` tokens or fewer, prompt included; an id or several."""

    min_length: int
    eos_token_id: int | Sequence[int]

    def __post_init__(self) -> None:
        _check_length("min_length", self.min_length, 0)
        object.__setattr__(self, "eos_token_id", _ids("eos_token_id", self.eos_token_id))

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        when = jnp.asarray(cur_len) <= self.min_length
        return run(_suppressed, input_ids, scores, when, self.eos_token_id)


@dataclass(frozen=True, slots=True, eq=False)
class ForcedBOSTokenLogitsProcessor:
    """Only BOS while the sequence has one token, as the decoder of a sequence-to-sequence model begins."""

    bos_token_id: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bos_token_id", _ids("bos_token_id", self.bos_token_id, one=True))

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_forced, input_ids, scores, jnp.asarray(cur_len) == 1, self.bos_token_id)


@dataclass(frozen=True, slots=True, eq=False)
class ForcedEOSTokenLogitsProcessor:
    """Only EOS for the token that makes the sequence `max_length` long; an id or several."""

    max_length: int
    eos_token_id: int | Sequence[int]

    def __post_init__(self) -> None:
        _check_length("max_length", self.max_length, 1)
        object.__setattr__(self, "eos_token_id", _ids("eos_token_id", self.eos_token_id))

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        when = jnp.asarray(cur_len) == self.max_length - 1
        return run(_forced, input_ids, scores, when, self.eos_token_id)


@dataclass(frozen=True, slots=True, eq=False)
class SuppressTokensLogitsProcessor:
    """The given tokens at -inf, always."""

    suppress_tokens: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "suppress_tokens", _ids("suppress_tokens", self.suppress_tokens))

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_suppressed, input_ids, scores, True, self.suppress_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class SuppressTokensAtBeginLogitsProcessor:
    """The given tokens at -inf while the sequence has exactly `begin_index` tokens, prompt included."""

    begin_suppress_tokens: Sequence[int]
    begin_index: int

    def __post_init__(self) -> None:
        _check_length("begin_index", self.begin_index, 0)
        object.__setattr__(self, "begin_suppress_tokens", _ids("begin_suppress_tokens", self.begin_suppress_tokens))

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        when = jnp.asarray(cur_len) == self.begin_index
        return run(_suppressed, input_ids, scores, when, self.begin_suppress_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class ForceTokensLogitsProcessor:
    """Only the token that `force_token_map` names for the length of the sequence; None or no entry forces nothing.

    The map is a mapping from length to token, or pairs of the two, as generation configurations have them.
    """

    force_token_map: Mapping[int, int | None] | Sequence[Sequence[int | None]]
    tokens: jax.Array = field(init=False)

    def __post_init__(self) -> None:
        try:
            pairs: Any = self.force_token_map
            named = {integer(at, ""): token for at, token in dict(pairs).items()}
            forced = {at: integer(token, "") for at, token in named.items() if token is not None}
        except (TypeError, ValueError, BrokenRuleError):
            forced = {-1: -1}
        if any(at < 0 or token < 0 for at, token in forced.items()):
            raise ParamsError(
                "force_token_map must be a mapping from lengths to token ids, "
                f"got {shown(self.force_token_map)}; give {{length: token_id}}"
            )
        table = np.full(max(forced, default=-1) + 2, PAD, np.int32)
        table[list(forced)] = list(forced.values())
        object.__setattr__(self, "tokens", jnp.asarray(table))

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        token = self.tokens[jnp.clip(jnp.asarray(cur_len), 0, self.tokens.size - 1)]
        return run(_forced, input_ids, scores, token >= 0, token[..., None])


@dataclass(frozen=True, slots=True, eq=False)
class NoRepeatNGramLogitsProcessor:
    """-inf for each token that would repeat a sequence of `ngram_size` tokens; 0 is off (rule S-H4)."""

    ngram_size: int

    def __post_init__(self) -> None:
        _check_length("ngram_size", self.ngram_size, 0)

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_without_repeats, input_ids, scores, cur_len, self.ngram_size)


@jax.jit
def _suppressed(input_ids: jax.Array, scores: jax.Array, when: jax.Array, ids: jax.Array) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    banned = column("cur_len", when, rows) & _listed_tokens(ids, rows)
    return jnp.where(banned, -jnp.inf, rows).reshape(scores.shape)


@jax.jit
def _forced(input_ids: jax.Array, scores: jax.Array, when: jax.Array, ids: jax.Array) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    only = jnp.where(_listed_tokens(ids, rows), jnp.float32(0), -jnp.inf)
    return jnp.where(column("cur_len", when, rows), only, rows).reshape(scores.shape)


def _listed_tokens(ids: jax.Array, rows: jax.Array) -> jax.Array:
    """The tokens listed in `ids`, [N] or per row [B, N], as bool [1, V] or [B, V]."""
    table = (ids[None] if ids.ndim == 1 else ids).astype(jnp.int32)
    return counts(table, table >= 0, rows.shape[-1]) > 0


@jax.jit
def _without_repeats(input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, size: jax.Array) -> jax.Array:
    ids, rows = rows_of(input_ids, scores)
    ids = jnp.pad(ids, ((0, 0), (0, ids.shape[1] == 0)), constant_values=PAD)
    lengths = jnp.broadcast_to(column("cur_len", cur_len, rows)[:, 0], rows.shape[:1]).astype(jnp.int32)
    none = jnp.zeros(rows.shape[0], jnp.int32)
    history = TracedHistory(
        tokens=ids, prompt=none, length=jnp.clip(lengths, 0, ids.shape[1]), counts=none, distinct=none
    )
    repeats = by_ngrams(history, jnp.broadcast_to(size, lengths.shape).astype(jnp.int32))
    banned = counts(repeats, repeats < BEYOND, rows.shape[-1]) > 0
    return jnp.where(banned, -jnp.inf, rows).reshape(scores.shape)


def _check_length(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ParamsError(f"{name} must be an integer >= {low}, got {shown(value)}; give a number of tokens")


def _ids(name: str, value: Any, *, one: bool = False) -> np.ndarray:
    """An id or a list of ids as int32 [N]."""
    listed = [value] if isinstance(value, (int, np.integer)) or one else value
    try:
        return np.array(Ids().check(listed), np.int32)
    except BrokenRuleError as broken:
        raise ParamsError(f"{name} must be {broken.rule}, got {shown(value)}; give token ids") from None
