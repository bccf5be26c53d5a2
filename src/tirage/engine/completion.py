"""The answer to a request: a Completion of Samples, and the Deltas of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tirage.text import Stop

FinishReason = Literal["stop", "length", "error", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobEntry:
    """The log-probability of one token, in the `logprobs_mode` of its request.

    `rank` is 1 for the most likely token, and equally likely ones share a rank; it is 0, and `logprob` NaN, for a token
    of `Prompt.output_ids`, which was not drawn. `text` and `bytes` are those of the
    token itself, and `offset` is the position in the sample's text at which it starts. `top` has the most likely tokens
    of the step, `given` the (token id, logprob) pairs of `logprob_token_ids`.
    """

    token_id: int
    logprob: float
    rank: int
    text: str
    bytes: bytes
    offset: int | None = None
    top: Sequence[LogprobEntry] = ()
    given: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRecord:
    """What is recorded of a token's draw, where the request asks for it (`return_kept`).

    `kept_ids` int32 [n], ascending, could have been drawn; `kept_logmass` is ln of the share that they hold of the mass
    of the set that the last temperature stage saw. The logprobs are those of the token under the model's law, after
    penalties, masks and temperature, and as it was drawn. A token that was forced, or stood before the request, keeps
    itself alone; its logprobs are NaN but for a forced one's `sampled_logprob` of 0.
    """

    kept_ids: NDArray[np.int32]
    kept_logmass: float
    raw_logprob: float
    processed_logprob: float
    sampled_logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The numbers of tokens of a request: of its prompt, counted once, and of all its samples.

    `cached_tokens` of the prompt were in the prefix cache and not computed again.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """The sum of prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds from the making of the request to its first token, None before that, and to its end or else to now."""

    first_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One of the samples of a prompt.

    `token_ids` has every token drawn, the one that ended the text included; `text` does not contain the stop unless the
    request asks for that. `cumulative_logprob` is the sum of the tokens' `logprobs`, in their `logprobs_mode`, also
    where only `best_of` needs them; without any it is the sum of the log-probabilities with which the tokens were
    drawn, 0 for greedy ones. Of a beam it is the sum that its `score` is computed from. `finish_reason` and `stop` are
    None while the sample runs. `hidden_states`, where the request asks for them, are float32 [T, hidden].
    `forced_tokens` of the tokens were not drawn but forced (`SamplingParams.forcing`). `records` has one entry per
    token where the request has `return_kept`, else it is None.
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
    forced_tokens: int = 0
    records: tuple[TokenRecord, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to a prompt: its samples in order, and the fields of the first one.

    With `best_of` above `n` they are the best `n` by log-probability per token, best first. `prompt` is None for a
    prompt of ids. `prompt_logprobs` has an entry per prompt token, None for the first. The same request with this
    `seed` gives the same tokens again.
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
        """One entry per token of the first sample; None unless the request asks for them."""
        return self.samples[0].logprobs

    @property
    def records(self) -> tuple[TokenRecord, ...] | None:
        """One record per token of the first sample; None unless the request asks for them."""
        return self.samples[0].records

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
        """Hidden states float32 [T, hidden] of the first sample; None unless the request asks for them."""
        return self.samples[0].hidden_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What is new of a sample; the `text` of all its deltas together is the sample's text.

    `index` is that of the sample. `completion` is the whole answer so far: on every delta for CUMULATIVE, on the last
    one for DELTA, FINAL_ONLY and any kind of a beam search.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    index: int = 0
    logprobs: tuple[LogprobEntry, ...] | None = None
    records: tuple[TokenRecord, ...] | None = None
    finish_reason: FinishReason | None = None
    stop: Stop | None = None
    completion: Completion | None = None
