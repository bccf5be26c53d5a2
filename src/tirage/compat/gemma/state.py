"""What a call gives back, and what the next one continues from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.models.transformer import has_end_index, with_end_index

FinishReason = Literal["stop", "length", "cache_full", "error"]

REASONS: tuple[FinishReason | None, ...] = (None, "stop", "length", "cache_full", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One conversation of a state: its tokens, `read` of which fill `slots` slots of its cache, and its last turn.

    The last token of a turn is in `token_ids` and not yet in the cache; the next turn begins with it.
    """

    token_ids: tuple[int, ...]
    slots: int
    read: int
    output_ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, kw_only=True)
class SamplingState:
    """Conversations at the end of a turn, or while one runs; to be passed on as `last_state`, any number of times.

    A conversation keeps the `cache_length` that it began with, whichever sampler goes on with it. Where JAX is in
    use this is a pytree, whose leaves are the fields.

    `step`: steps of the turn so far, int32 []. `done`: which prompts ended with an end token [B]. `last_token`: the
    newest token of each conversation, not yet in the cache [B]. `last_token_pos`: its position, image tokens counted
    [B]. `predicted_tokens`: tokens of the turn, the end token included, then zeros [B, max_out_length]. `cache`: the
    model's own, or a tuple with one for each prompt where the model takes one prompt at a time. `rng`: the key or
    keys of the call. `init_cache_length`: slots that the longest prompt had filled when its last token was due.
    `full_attention_mask`: slots that the last token of each conversation attends to [B, cache_length].

    `token_ids`: every token of each conversation, then zeros [B, cache_length]; `lengths` how many they are,
    `read` how many are in the cache and `slots` how many slots those take, `output_lengths` how many the turn wrote,
    `reasons` why it ended, as indices into REASONS, each [B].
    """

    step: Any
    done: Any
    last_token: Any
    last_token_pos: Any
    predicted_tokens: Any
    cache: Any = field(repr=False)
    rng: Any
    init_cache_length: Any
    full_attention_mask: Any
    token_ids: Any = field(repr=False)
    lengths: Any
    read: Any
    slots: Any
    output_lengths: Any
    reasons: Any

    @property
    def cache_length(self) -> int:
        """Slots of each conversation's cache."""
        return int(self.full_attention_mask.shape[-1])

    @property
    def max_out_length(self) -> int:
        """Tokens that a turn may write."""
        return int(self.predicted_tokens.shape[-1])

    @property
    def used_cache_length(self) -> Any:
        """Slots in use by the longest conversation."""
        return self.slots.max()

    @property
    def attention_mask_for_step(self) -> Any:
        """The slots that the next step attends to [B, cache_length]; rows have no idle slots, so all of the mask."""
        return self.full_attention_mask & (self.last_token_pos[:, None] >= np.arange(self.cache_length))

    @property
    def cache_info(self) -> CacheInfo:
        """The cache with its length and how much of it is in use; ParamsError for a cache not in Gemma's layout."""
        if not has_end_index(self.cache):
            raise ParamsError("cache_info must be of a cache in Gemma's layout, this model keeps its cache in another")
        return CacheInfo(cache=self.cache)

    @property
    def finish_reason(self) -> tuple[FinishReason | None, ...]:
        """Why each prompt's turn ended.

        "stop" for an end token, "length" for `max_new_tokens`, "cache_full" for a conversation that fills
        `cache_length`, "error" for logits without a token, None while it runs.
        """
        return tuple(REASONS[int(code)] for code in np.asarray(self.reasons))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Each conversation by itself, in Python's own types."""
        token_ids, outputs = np.asarray(self.token_ids), np.asarray(self.predicted_tokens)
        columns = (np.asarray(column).tolist() for column in (self.lengths, self.slots, self.read, self.output_lengths))
        return tuple(
            Row(
                token_ids=tuple(ids[:length].tolist()),
                slots=slots,
                read=read,
                output_ids=tuple(out[:count].tolist()),
                finish_reason=reason,
            )
            for ids, out, length, slots, read, count, reason in zip(
                token_ids, outputs, *columns, self.finish_reason, strict=True
            )
        )

    def replace(self, **changes: Any) -> SamplingState:
        """The state with other values in some fields."""
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class CacheInfo:
    """A cache of Gemma's layout: `k`, `v`, `end_index` and more for each layer."""

    cache: Any = field(repr=False)

    @property
    def total_cache_length(self) -> int:
        """Slots of the cache."""
        return next(iter(self.cache.values()))["k"].shape[1]

    @property
    def end_index(self) -> Any:
        """Slots in use by the longest conversation."""
        return next(iter(self.cache.values()))["end_index"].max()

    @property
    def is_full(self) -> Any:
        """Whether the longest conversation fills the cache; a step needs one slot more."""
        return self.end_index >= self.total_cache_length - 1

    def set_end_index(self, value: Any) -> CacheInfo:
        """The same cache with another number of slots in use, for all conversations."""
        return CacheInfo(cache=with_end_index(self.cache, value))

    def __getitem__(self, key: tuple[Any, Any]) -> CacheInfo:
        """The part of the cache of some conversations and slots: `info[rows, slots]`."""
        cut = {
            name: {part: leaf[key[: leaf.ndim]] for part, leaf in layer.items()} for name, layer in self.cache.items()
        }
        return CacheInfo(cache=cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """Sampled text, and the state to continue from; a list of texts for a list of prompts."""

    text: str | list[str]
    state: SamplingState

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Predicted tokens [max_out_length], or [B, max_out_length] for a list of prompts; zeros after the end."""
        tokens = self.state.predicted_tokens
        return tokens[0] if isinstance(self.text, str) else tokens

    @property
    def finish_reason(self) -> FinishReason | tuple[FinishReason | None, ...] | None:
        """Why the text ended; a tuple of reasons for a list of prompts."""
        reasons = self.state.finish_reason
        return reasons[0] if isinstance(self.text, str) else reasons


def without_last(state: SamplingState) -> SamplingState:
    """A state of one conversation without its last token, which no cache holds yet."""
    (row,) = state.rows
    token_ids, predicted = np.array(state.token_ids), np.array(state.predicted_tokens)
    token_ids[0, len(row.token_ids) - 1] = predicted[0, len(row.output_ids) - 1] = 0
    position = np.asarray(state.last_token_pos) - 1
    return state.replace(
        token_ids=token_ids,
        predicted_tokens=predicted,
        lengths=np.asarray(state.lengths) - 1,
        output_lengths=np.asarray(state.output_lengths) - 1,
        last_token=token_ids[:, len(row.token_ids) - 2],
        last_token_pos=position,
        full_attention_mask=np.arange(state.cache_length) <= position[:, None],
    )


def with_slots(cache: Any, slots: NDArray[np.int32]) -> Any:
    """A model's cache with the number of slots [B] in use by each conversation, where its layout holds it."""
    return with_end_index(cache, slots) if has_end_index(cache) else cache


def register_pytrees() -> None:
    """Registers states as pytrees once JAX is in use."""
    if sys.modules.get("jax") is not None:
        _register()


@cache
def _register() -> None:
    import jax

    for kind in (SamplingState, CacheInfo):
        names = [one.name for one in fields(kind)]
        jax.tree_util.register_dataclass(kind, data_fields=names, meta_fields=[])
