"""What a request gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tirage.text import Stop

FinishReason = Literal["stop", "length", "error", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobEntry:
    """One token's log-probability, in the `logprobs_mode` of its request.

    `rank` 1 is the likeliest token and equal ones share a rank. `text` and `bytes` are the token's own, `offset`
    is where it starts in the completion's text. `top` holds the likeliest tokens of the step, `given` the pairs
    (token id, logprob) asked for by `logprob_token_ids`.
    """

    token_id: int
    logprob: float
    rank: int
    text: str
    bytes: bytes
    offset: int | None = None
    top: tuple[LogprobEntry, ...] = ()
    given: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request: its prompt once, and all that was drawn for it.

    `cached_tokens` of the prompt were not read again, because an earlier request began alike.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds since the call: until the first token was drawn (None before), and until now or the end."""

    first_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One of a prompt's samples.

    `token_ids` holds every token drawn, the one that ended the text included; `text` leaves a stop out unless the
    request includes it. `cumulative_logprob` is the sum of the `logprobs` of its tokens, in their `logprobs_mode`, also
    where only `best_of` asked for them; without any it adds up the log-probabilities with which the tokens were drawn,
    0 for greedy ones. A beam's is what its score is made of. `finish_reason` and `stop` are None while the sample runs.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop: Stop | None
    logprobs: tuple[LogprobEntry, ...] | None
    cumulative_logprob: float
    score: float | None = None
    grammar_complete: bool | None = None
    hidden_states: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt's answer: its samples in order, with the first at hand.

    With `best_of` above `n` they are the best `n`, by log-probability per token, the best first.

    `prompt` is None for a prompt of ids. `prompt_logprobs` has an entry per prompt token, None for the first.
    With `seed` the same request gives the same tokens again.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    samples: tuple[Sample, ...]
    seed: int
    usage: Usage
    timings: Timings
    prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.samples[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first sample."""
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first sample ended."""
        return self.samples[0].finish_reason

    @property
    def stop(self) -> Stop | None:
        """What ended the first sample, in detail."""
        return self.samples[0].stop

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        """One entry per token of the first sample, when asked for."""
        return self.samples[0].logprobs

    @property
    def cumulative_logprob(self) -> float:
        """Log-probability of the first sample."""
        return self.samples[0].cumulative_logprob

    @property
    def grammar_complete(self) -> bool | None:
        """Whether the first sample satisfies its constraint; None without one."""
        return self.samples[0].grammar_complete

    @property
    def hidden_states(self) -> NDArray[np.float32] | None:
        """Hidden states of the first sample, where they were asked for."""
        return self.samples[0].hidden_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text of a running sample; the `text` of all its deltas together is the sample's text.

    `index` says which of n samples moved. `completion` is all so far, on every delta (CUMULATIVE) or on the
    last alone (DELTA, FINAL_ONLY, and any kind of a beam search).
    """

    text: str
    token_ids: tuple[int, ...] = ()
    index: int = 0
    logprobs: tuple[LogprobEntry, ...] | None = None
    finish_reason: FinishReason | None = None
    stop: Stop | None = None
    completion: Completion | None = None
