"""What a call gives back, and what the next one continues from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "cache_full", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One conversation: all its tokens, how many slots of its cache are filled, and how its last turn went.

    The last token of a turn is in `token_ids` and not yet in the cache; the next turn reads it first.
    """

    token_ids: tuple[int, ...]
    slots: int
    read: int
    cache: Any = field(repr=False)
    cache_length: int
    output_ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingState:
    """Conversations at the end of a turn, or while one runs; to be passed on as `last_state`, any number of times.

    A conversation keeps the `cache_length` that it began with, whichever sampler goes on with it.
    `finish_reason` per prompt: "stop" for an end token, "length" for `max_new_tokens`, "cache_full" for a
    conversation that fills `cache_length`, "error" for logits without a token, None while it runs.
    """

    rows: tuple[Row, ...]
    max_out_length: int
    cache_length: int

    @property
    def predicted_tokens(self) -> NDArray[np.int32]:
        """Tokens of the turn [B, max_out_length], the end token included, then zeros."""
        tokens = np.zeros((len(self.rows), self.max_out_length), np.int32)
        for row, out in zip(self.rows, tokens, strict=True):
            out[: len(row.output_ids)] = row.output_ids
        return tokens

    @property
    def step(self) -> int:
        """Steps of the turn so far."""
        return max((len(row.output_ids) for row in self.rows), default=0)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which prompts have ended with an end token [B]."""
        return np.array([row.finish_reason == "stop" for row in self.rows], bool)

    @property
    def finish_reason(self) -> tuple[FinishReason | None, ...]:
        """Why each prompt's turn ended."""
        return tuple(row.finish_reason for row in self.rows)

    @property
    def last_token(self) -> NDArray[np.int32]:
        """The newest token of each conversation [B]."""
        return np.array([row.token_ids[-1] for row in self.rows], np.int32)

    @property
    def last_token_pos(self) -> NDArray[np.int32]:
        """Its position, image tokens counted [B]; once a turn has begun."""
        return np.array([row.slots + len(row.token_ids) - row.read - 1 for row in self.rows], np.int32)

    @property
    def used_cache_length(self) -> int:
        """Slots of the fullest cache in use."""
        return max((row.slots for row in self.rows), default=0)


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
        """Why the text ended; one reason per prompt for a list of prompts."""
        reasons = self.state.finish_reason
        return reasons[0] if isinstance(self.text, str) else reasons
