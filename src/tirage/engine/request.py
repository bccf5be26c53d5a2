"""One prompt with its parameters, and everything that has come of it so far."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from tirage.engine.completion import Completion, LogprobEntry, Timings, Usage
from tirage.engine.sample import GrowingSample
from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.text import Stop, Tokenizer


class Request:
    """A prompt's samples as they grow.

    `params` come with EOS ids and tokenised words filled in; an unseeded request gets its seed here, one for
    all its samples. `context_ids` are what the text continues: the prompt, or nothing when the text stands
    alone, as a chat reply does.
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
    ) -> None:
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.params = params if params.seed is not None else params.replace(seed=self.seed)
        self.prompt, self.prompt_ids = prompt, cut_prompt(params, prompt_ids, max_length)
        self.prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self._started, self._first_token, self._ended = time.perf_counter(), None, None
        limit, limit_stop = length_limit(params, max_length - len(self.prompt_ids))
        self.samples = [
            GrowingSample(
                self.params,
                tokenizer,
                index=index,
                context_ids=self.prompt_ids if context_ids is None else context_ids,
                limit=limit,
                limit_stop=limit_stop,
            )
            for index in range(params.best_of or params.n)
        ]

    @property
    def finished(self) -> bool:
        """True when no sample runs any more."""
        return all(sample.stop is not None for sample in self.samples)

    def mark_token(self) -> None:
        """Notes the time of a step, for the timings."""
        now = time.perf_counter()
        self._first_token = now if self._first_token is None else self._first_token
        self._ended = now

    def completion(self) -> Completion:
        """The request's answer so far; complete once `finished`."""
        now = time.perf_counter() if self._ended is None or not self.finished else self._ended
        first = None if self._first_token is None else self._first_token - self._started
        return Completion(
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_ids),
            samples=tuple(sample.freeze(index=rank) for rank, sample in enumerate(self._chosen())),
            seed=self.seed,
            usage=Usage(
                prompt_tokens=len(self.prompt_ids),
                completion_tokens=sum(len(sample.token_ids) for sample in self.samples),
            ),
            timings=Timings(first_token_s=first, total_s=now - self._started),
            prompt_logprobs=self.prompt_logprobs,
        )

    def _chosen(self) -> list[GrowingSample]:
        if self.params.best_of is None:
            return self.samples
        # The sort is stable, so equal samples keep the order in which they were drawn.
        ranked = sorted(self.samples, key=lambda sample: -sample.score())
        return ranked[: self.params.n]


def cut_prompt(params: SamplingParams, prompt_ids: Sequence[int], max_length: int) -> list[int]:
    """The prompt's ids, cut to the last `truncate_prompt_tokens`; ParamsError when empty or too long."""
    keep = params.truncate_prompt_tokens
    ids = list(prompt_ids if keep is None else prompt_ids[-keep:])
    if not ids:
        raise ParamsError("prompt must hold at least one token, got none; begin it with a BOS token or some text")
    if len(ids) > max_length:
        raise ParamsError(
            f"prompt must hold at most {max_length} tokens, the model's context, got {len(ids)}; "
            f"shorten it or set truncate_prompt_tokens"
        )
    return ids


def length_limit(params: SamplingParams, room: int) -> tuple[int, Stop]:
    """The number of tokens a sample may have, and the stop that names the limit."""
    if params.max_tokens is None or params.max_tokens > room:
        return room, Stop(kind="context")
    return params.max_tokens, Stop(kind="max_tokens")
