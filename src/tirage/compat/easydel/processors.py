"""Processors of logits with EasyDeL's call: `(input_ids [B, T], scores [B, V], cur_len, **kwargs) -> scores`.

Each holds one value or one per row, computes in float32, and reads `input_ids` up to `cur_len` only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tirage.compat.easydel.columns import PAD, column, counts, rows_of, run, table_per_row, within_length
from tirage.errors import ParamsError, nearest

LogitsProcessor = Callable[..., jax.Array]


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors that run in order; a list, so that others can be appended."""

    __slots__ = ()

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int, **kwargs: Any) -> jax.Array:
        """The scores after all processors.

        `input_ids` is [B, T], `scores` [B, V], `cur_len` the number of ids that are not padding, [] or [B].
        A processor that takes more than these three gets them by name from `kwargs`; one that is missing, or
        that no processor takes, raises ParamsError.
        """
        taken = [_extras(processor) for processor in self]
        _refuse_unknown(kwargs, taken)
        for processor, (required, optional, open_ended) in zip(self, taken, strict=True):
            if missing := sorted(required - kwargs.keys()):
                name = getattr(processor, "__name__", type(processor).__name__)
                raise ParamsError(f"{missing[0]} must be given for {name}, got no value; pass it by name")
            passed = kwargs if open_ended else {key: kwargs[key] for key in kwargs.keys() & (required | optional)}
            scores = processor(input_ids, scores, cur_len, **passed)
        return scores


def _extras(processor: LogitsProcessor) -> tuple[set[str], set[str], bool]:
    """Arguments after the first three: the names required, those optional, and whether any other name is taken."""
    own = list(inspect.signature(processor).parameters.values())
    named = [p for p in own[3:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = {p.name for p in named if p.default is p.empty}
    return required, {p.name for p in named} - required, any(p.kind is p.VAR_KEYWORD for p in own)


def _refuse_unknown(kwargs: dict[str, Any], taken: list[tuple[set[str], set[str], bool]]) -> None:
    known = {name for required, optional, _ in taken for name in required | optional}
    for name in kwargs:
        if name not in known and not any(open_ended for _, _, open_ended in taken):
            raise ParamsError(f"{name} must be an argument of some processor, got none{nearest(name, known)}")


@dataclass(frozen=True, slots=True, eq=False)
class PresencePenaltyLogitsProcessor:
    """Scores less the penalty for every token that occurs, however often; 0 is off."""

    penalty: jax.Array

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_presence, input_ids, scores, cur_len, self.penalty)


@jax.jit
def _presence(input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, penalty: jax.Array) -> jax.Array:
    ids, rows = rows_of(input_ids, scores)
    seen = counts(ids, within_length(ids, cur_len), rows.shape[-1]) > 0
    return jnp.where(seen, rows - column("penalty", penalty, rows), rows).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class FrequencyPenaltyLogitsProcessor:
    """Scores less the penalty times the number of occurrences of the token; 0 is off."""

    penalty: jax.Array

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_frequency, input_ids, scores, cur_len, self.penalty)


@jax.jit
def _frequency(input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, penalty: jax.Array) -> jax.Array:
    ids, rows = rows_of(input_ids, scores)
    times = counts(ids, within_length(ids, cur_len), rows.shape[-1])
    less = rows - column("penalty", penalty, rows) * times
    return jnp.where(times > 0, less, rows).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RepetitionPenaltyLogitsProcessor:
    """Positive scores of tokens that occur divided by the penalty, others multiplied; 1 is off.

    Source: Keskar et al. 2019, arXiv:1909.05858.
    """

    penalty: jax.Array

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_repetition, input_ids, scores, cur_len, self.penalty)


@jax.jit
def _repetition(input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, penalty: jax.Array) -> jax.Array:
    ids, rows = rows_of(input_ids, scores)
    penalty = column("penalty", penalty, rows)
    seen = counts(ids, within_length(ids, cur_len), rows.shape[-1]) > 0
    weaker = jnp.where(rows > 0, rows / penalty, rows * penalty)
    return jnp.where(seen, weaker, rows).reshape(scores.shape)


@dataclass(frozen=True, slots=True, eq=False)
class BadWordsLogitsProcessor:
    """Scores with -inf for each token that would complete a bad word (rule S-H3, over prompt and output).

    `words` is [W, L] or one such table per row, [B, W, L], filled up with -100; `lengths` has the shape
    without L, and length 0 is no word.
    """

    words: jax.Array
    lengths: jax.Array

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_bad_words, input_ids, scores, cur_len, self.words, self.lengths)


@jax.jit
def _bad_words(
    input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, words: jax.Array, lengths: jax.Array
) -> jax.Array:
    ids, rows = rows_of(input_ids, scores)
    words = table_per_row("words", words, 2, rows)
    lengths = table_per_row("lengths", lengths, 1, rows)
    if not words.shape[1] or not words.shape[2]:
        return rows.reshape(scores.shape)
    begun = _begun(words, lengths, ids, jnp.sum(within_length(ids, cur_len), axis=1))
    last = jnp.take_along_axis(words, jnp.maximum(lengths - 1, 0)[..., None], axis=2)[..., 0]
    banned = counts(last, jnp.broadcast_to(begun, last.shape), rows.shape[-1]) > 0
    return jnp.where(banned, -jnp.inf, rows).reshape(scores.shape)


def _begun(words: jax.Array, lengths: jax.Array, ids: jax.Array, cur_len: jax.Array) -> jax.Array:
    """Boolean [B, W]: whether the ids before `cur_len` end with all of the word but its last id."""
    at = jnp.arange(words.shape[2])
    # One column of padding in front: an index before the text reads it, and it equals no word's id.
    text = jnp.concatenate([jnp.full((ids.shape[0], 1), PAD, ids.dtype), ids], axis=1)
    places = (cur_len.reshape(-1, 1) - (lengths - 1))[..., None] + at
    places = jnp.broadcast_to(jnp.maximum(places + 1, 0), words.shape)
    # No copy of the text per word: [B, W * L] places are gathered from [B, T + 1].
    flat = places.reshape(places.shape[0], -1)
    found = jnp.take_along_axis(text, jnp.minimum(flat, text.shape[1] - 1), axis=1).reshape(words.shape)
    behind = at >= (lengths - 1)[..., None]
    return (lengths > 0) & jnp.all(behind | (found == words) & (words >= 0), axis=2)


@dataclass(frozen=True, slots=True, eq=False)
class AllowedTokensLogitsProcessor:
    """Scores with -inf for every token outside the allowed ids; a row whose ids are all negative allows every token.

    `ids` is [A] or, per row, [B, A], filled up with -100.
    """

    ids: jax.Array

    def __call__(self, input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array | int) -> jax.Array:
        return run(_allowed, input_ids, scores, cur_len, self.ids)


@jax.jit
def _allowed(input_ids: jax.Array, scores: jax.Array, cur_len: jax.Array, ids: jax.Array) -> jax.Array:
    _, rows = rows_of(input_ids, scores)
    ids = table_per_row("ids", ids, 1, rows)
    free = jnp.all(ids < 0, axis=1, keepdims=True)
    allowed = counts(ids, ids >= 0, rows.shape[-1]) > 0
    return jnp.where(free | allowed, rows, -jnp.inf).reshape(scores.shape)
