"""One prompt with its parameters, and everything that has come of it so far."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tirage.engine.completion import Completion, LogprobEntry, Timings, Usage
from tirage.engine.grammar_state import Constrained
from tirage.engine.sample import GrowingSample
from tirage.errors import ParamsError
from tirage.models import Inputs
from tirage.params import BeamSearchParams, SamplingParams
from tirage.text import Stop, Tokenizer


class EngineRequest:
    """A prompt's samples as they grow.

    `params` come with EOS ids and tokenised words filled in; an unseeded request gets its seed here, one for
    all its samples. `context_ids` are what the text continues: the prompt, or nothing when the text stands
    alone, as a chat reply does. `inputs` hold what the model reads besides ids; with embeddings there are none.
    `constrained` is what `params.guided_decoding` was compiled to. `cache_length`, when it is less than the model's
    `max_length`, bounds prompt and output in its place. With `beams` the samples are the hypotheses of a search, one
    that has no token yet until it ends; `live` are those that may still come back, or that later ones will continue.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        max_length: int,
        prompt: str | None = None,
        context_ids: Sequence[int] | None = None,
        inputs: Inputs | None = None,
        constrained: Constrained | None = None,
        cache_length: int | None = None,
        beams: BeamSearchParams | None = None,
    ) -> None:
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.params = params if params.seed is not None else params.replace(seed=self.seed)
        given = Inputs(token_ids=()) if inputs is None else inputs
        room = TokenBudget.of(max_length, cache_length)
        self.prompt, self.prompt_ids = prompt, cut_prompt(params, prompt_ids, room, given)
        wants_scores = params.prompt_logprobs is not None
        self.inputs = dataclasses.replace(given, token_ids=tuple(self.prompt_ids), score=wants_scores)
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self._started, self._first_token, self._ended = time.perf_counter(), None, None
        self.limit, limit_stop = room.limit(params, self.inputs.length)
        self.beams = beams
        row_params = with_scores(self.params)
        self.samples = [
            GrowingSample(
                self.params,
                tokenizer,
                index=index,
                context_ids=self.prompt_ids if context_ids is None else context_ids,
                limit=self.limit,
                limit_stop=limit_stop,
                constrained=constrained,
                row_params=row_params,
            )
            for index in range(params.best_of or params.n)
        ]
        self.live: Sequence[GrowingSample] = ()
        if beams is not None:
            self.samples[0].beam_score = 0.0

    @property
    def finished(self) -> bool:
        """True when no sample runs any more."""
        return all(sample.stop is not None for sample in self.samples)

    def mark_token(self) -> float | None:
        """Notes the time of a step, for the timings; the seconds until the first token when this is it."""
        self._ended = time.perf_counter()
        if self._first_token is not None:
            return None
        self._first_token = self._ended
        return self._first_token - self._started

    def settle(self, hypotheses: Sequence[tuple[float, GrowingSample]]) -> None:
        """Takes the hypotheses of a beam search, best first, each with its score."""
        for index, (score, sample) in enumerate(hypotheses):
            sample.index, sample.beam_score = index, score
        self.samples, self.live = [sample for _, sample in hypotheses], ()

    def completion(self) -> Completion:
        """The request's answer so far, complete once `finished`."""
        now = time.perf_counter() if self._ended is None or not self.finished else self._ended
        first = None if self._first_token is None else self._first_token - self._started
        return Completion(
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_ids),
            samples=tuple(sample.freeze(index=rank) for rank, sample in enumerate(self._chosen())),
            seed=self.seed,
            usage=Usage(
                prompt_tokens=self.inputs.length,
                completion_tokens=sum(len(sample.token_ids) for sample in self.samples),
                cached_tokens=self.cached_tokens,
            ),
            timings=Timings(first_token_s=first, total_s=now - self._started),
            prompt_logprobs=self.prompt_logprobs,
        )

    def _chosen(self) -> list[GrowingSample]:
        if not _chooses(self.params):
            return self.samples
        # The sort is stable, so equal samples keep the order in which they were drawn.
        ranked = sorted(self.samples, key=lambda sample: -sample.score())
        return ranked[: self.params.n]


def with_scores(params: SamplingParams) -> SamplingParams:
    """The parameters with logprobs for `best_of` to rank by, where the request lists none itself."""
    if not _chooses(params) or params.lists_logprobs:
        return params
    return params.replace(logprobs=0)


def _chooses(params: SamplingParams) -> bool:
    """Whether more samples are drawn than returned; all of them stay in the order in which a stream shows them."""
    return params.best_of is not None and params.best_of > params.n


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The largest number of positions that a request may fill, and what sets it."""

    length: int
    kind: Literal["context", "cache"] = "context"

    @classmethod
    def of(cls, max_length: int, cache_length: int | None) -> TokenBudget:
        """The smaller of the model's context and what is kept of each request."""
        return cls(max_length) if cache_length is None or cache_length >= max_length else cls(cache_length, "cache")

    def limit(self, params: SamplingParams, prompt_length: int) -> tuple[int, Stop]:
        """The number of tokens a sample may have, and the stop that names the limit."""
        left = self.length - prompt_length
        if params.max_tokens is None or params.max_tokens > left:
            return left, Stop(kind=self.kind)
        return params.max_tokens, Stop(kind="max_tokens")


def cut_prompt(params: SamplingParams, prompt_ids: Sequence[int], room: TokenBudget, inputs: Inputs) -> list[int]:
    """The prompt's ids, cut to the last `truncate_prompt_tokens`; ParamsError when empty or too long."""
    keep = params.truncate_prompt_tokens
    if keep is not None and (inputs.media or inputs.embeds is not None):
        raise ParamsError(f"truncate_prompt_tokens must be None for images, audio and embeds, got {keep}")
    ids = list(prompt_ids if keep is None else prompt_ids[-keep:])
    length = len(ids) if inputs.embeds is None else len(inputs.embeds)
    if not length:
        raise ParamsError("prompt must hold at least one token, got none; begin it with a BOS token or some text")
    if length > room.length:
        name = "the model's context" if room.kind == "context" else "the cache_length"
        raise ParamsError(
            f"prompt must hold at most {room.length} tokens, {name}, got {length}; "
            f"shorten it or set truncate_prompt_tokens"
        )
    return ids
