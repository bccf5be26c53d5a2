"""The protocols that the engine requires of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Model(Protocol):
    """Token ids to logits, with a cache per request: what a user's own model has to offer.

    Only the model looks into its caches, so they may be of any type. The logits of a request must not depend on the
    other requests of a call; that makes a request a pure function of itself.
    """

    @property
    def vocab_size(self) -> int:
        """The width V of the logits, which may exceed the number of tokens of the tokenizer."""
        ...

    @property
    def max_length(self) -> int:
        """The context length: most tokens of prompt and output together."""
        ...

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, Any]:
        """Logits float32 [V] after the last of 1 to max_length ids, and the cache to continue from."""
        ...

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> Logits:
        """Logits float32 [B, V] after one more id per request, which is appended to its cache in place."""
        ...

    def fork(self, cache: Any) -> Any:
        """An independent copy of a cache, for another sample of the same prompt."""
        ...

    def score(self, token_ids: Sequence[int]) -> Logits:
        """Logits float32 [T, V] after each of the T ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of one request to a model.

    `token_ids` are those of the prompt, with placeholders for media. They are empty if `embeds` [T, hidden] are given
    instead. `media` are the tensors that the model's processor made, `media_key` is a hash of them, `media_end` the
    position after their last placeholder. `salt` separates the prefix caches of tenants. `score` asks for logits after
    every token, `hidden_states` for the states of the last layer.
    """

    token_ids: tuple[int, ...]
    embeds: Any = None
    media: Mapping[str, Any] = field(default_factory=dict)
    media_key: bytes = b""
    media_end: int = 0
    adapter: str | None = None
    salt: str = ""
    score: bool = False
    hidden_states: bool = False

    @property
    def length(self) -> int:
        """The number of positions of the prompt."""
        return len(self.token_ids) if self.embeds is None else len(self.embeds)


class CachedRow(Protocol):
    """One request inside a `StepModel`.

    `left` prompt positions are still to be prefilled; `cached` were taken from the prefix cache. `hidden` float32
    [k, hidden] are the states of the positions computed last, if the inputs ask for them.
    """

    left: int
    cached: int
    hidden: NDArray[np.float32] | None


class StepModel(Model, Protocol):
    """A model that prefills prompts in chunks and decodes rows in batches.

    Its caches are rows: `decode` and `fork` take what `open` gave. All calls come from one thread. If `decode` raises,
    no row has advanced, and each may be tried again, alone or with others.
    """

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for inputs that this model cannot take; computes nothing."""
        ...

    @property
    def media_marks(self) -> Mapping[str, str]:
        """The placeholders of "image" and "audio" in a text, for those kinds that the model takes."""
        ...

    @property
    def sampling_rate(self) -> int | None:
        """The sampling rate in Hz of the audio that the model takes; None if it takes none."""
        ...

    def read_media(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """The inputs for a text with placeholders for the given `images` and `audio`; ParamsError if they do not match.

        Images are PIL images or uint8 [H, W, 3], audio is float [samples]. With `special=False` the text already
        contains BOS and the like.
        """
        ...

    def open(self, inputs: Inputs) -> Any:
        """A new row, which may start from a cached prefix; ParamsError as for `check`."""
        ...

    def prefill_chunk(self, row: Any) -> Logits:
        """Logits float32 [k, V] of the next chunk of the prompt: k = 1 at its end and 0 before; all with `score`.

        The chunks of a prompt do not depend on other requests.
        """
        ...

    def close(self, row: Any, *, reuse: bool) -> None:
        """Frees a row; with `reuse` its cache may be kept as a prefix for later requests."""
        ...

    def forget(self) -> None:
        """Clears the prefix cache."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutput:
    """What a `BatchingModel` has to say of one request after a step.

    `token_id` is the token with which it goes on, None where it has none yet. `prompt_logprobs` are those of the prompt
    as far as they are new: for each of its tokens the (token id, logprob, rank) of the token itself, then of the most
    likely ones, None for the first. `ended` says why it takes no more tokens; None while it does.
    """

    key: int
    token_id: int | None = None
    cached_tokens: int = 0
    prompt_logprobs: Sequence[Sequence[tuple[int, float, int]] | None] = ()
    ended: str | None = None


DrawTokens = Callable[[Sequence[int], Any], Sequence[int]]
"""From the keys of requests and their logits float32 [n, V] to a token for each; -1 where none can be drawn."""


class BatchingModel(Protocol):
    """A model that schedules and batches its requests itself, as vLLM's engine does.

    All calls come from one thread, except that of `check`.
    """

    @property
    def vocab_size(self) -> int:
        """The width V of the logits."""
        ...

    @property
    def max_length(self) -> int:
        """The context length: most tokens of prompt and output together."""
        ...

    @property
    def media_marks(self) -> Mapping[str, str]:
        """As that of `StepModel`."""
        ...

    @property
    def sampling_rate(self) -> int | None:
        """As that of `StepModel`."""
        ...

    def read_media(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """As that of `StepModel`."""
        ...

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for inputs that this model cannot take; computes nothing."""
        ...

    def add(self, key: int, inputs: Inputs, *, limit: int, prompt_logprobs: int | None = None) -> None:
        """Queues a request for at most `limit` tokens; with `prompt_logprobs` each prompt token has so many top ones.

        Raises ParamsError or ModelError for one that cannot run.
        """
        ...

    def remove(self, key: int) -> None:
        """Ends a request; one that is not there is none."""
        ...

    def step(self, draw: DrawTokens) -> Sequence[RowOutput]:
        """One step of all requests, in which `draw` is called once, or not at all where no request gets a token."""
        ...

    def forget(self) -> None:
        """Clears the prefix cache."""
        ...

    def close(self) -> None:
        """Frees the model; nothing is called after it."""
        ...


@runtime_checkable
class ExtendModel(Protocol):
    """What a `StepModel` may offer besides: several more tokens of a row read in one pass."""

    def extend_row(self, row: Any, token_ids: Sequence[int]) -> Logits:
        """Logits float32 [1, V] after the last of at least one more id of a row whose prompt is prefilled.

        They do not depend on other rows. If it raises, the row has not advanced.
        """
        ...


@runtime_checkable
class SingleStepModel(Protocol):
    """What a `StepModel` may offer besides: a step of one row that takes less time than a batch of one."""

    def decode_single(self, token_id: int, row: Any) -> Logits:
        """Logits float32 [1, V], C-contiguous, after one more id of a row, valid until the model is called again.

        They are those of `decode`. If it raises, the row has not advanced.
        """
        ...


@runtime_checkable
class SpeculativeModel(Protocol):
    """What a `StepModel` may offer besides: drafts read in one pass, and tokens taken back.

    One with a `draft_cost: float` says what a token of a draft adds to the time of a pass, as a share of that of a
    single token: about 0.05 where reading the weights takes the time, and 0.25, the default, where computing does.
    """

    @property
    def draft_refusal(self) -> str:
        """Why rows of this model cannot have drafts; empty where they can."""
        ...

    def room_for_draft(self, row: Any) -> int:
        """The most tokens of a draft that the row may read now and give back; 0 for none."""
        ...

    def extend_rows(self, token_ids: Sequence[Sequence[int]], rows: Sequence[Any]) -> Logits:
        """Logits float32 [n, V] after each of one or more ids of each row, those of a row together.

        If it raises, no row has advanced.
        """
        ...

    def truncate_row(self, row: Any, count: int) -> None:
        """Takes back the last `count` of the ids that `extend_rows` has read."""
        ...


@runtime_checkable
class BatchPrefillModel(Protocol):
    """What a `StepModel` may offer besides: several short prompts prefilled in one pass."""

    def choose_prefill(self, rows: Sequence[Any]) -> list[int]:
        """The indices, the first of which is 0, of the rows that are prefilled next in one pass.

        `rows` are those whose prompts are being prefilled, in the order of their turns. [0] alone has the first row
        prefilled by `prefill_chunk`.
        """
        ...

    def prefill_batch(self, rows: Sequence[Any]) -> Logits:
        """Logits float32 [B, V] after the whole prompts of rows that `choose_prefill` has chosen.

        If it raises, no row has advanced, and each may be tried again by `prefill_chunk`.
        """
        ...
