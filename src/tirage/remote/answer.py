"""An answer as it comes, whole or in pieces, as our Completion and Deltas."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tirage.engine import Completion, Delta, LogprobEntry, Sample, Timings, Usage
from tirage.engine.completion import FinishReason
from tirage.errors import RemoteError
from tirage.params import RequestOutputKind
from tirage.remote.request import RemoteRequest
from tirage.text import Stop

_MOST_IDLE = 10_000
"""How many parts in a row may say nothing."""
_MOST_CHARS = 1024
"""How many characters a token has at most."""
_MOST_TEXT = 1 << 28
"""The most characters of a text without a limit of tokens."""


def fresh_seed() -> int:
    """A seed that every server takes: 31 random bits."""
    return secrets.randbits(31)


@dataclass(frozen=True, slots=True)
class SampleEnding:
    """Why a sample ended; `stop` is None where the server does not tell."""

    finish_reason: FinishReason
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """What is new of one sample in an answer or an event."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    ending: SampleEnding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """What an answer or an event says: of samples, and of the request; None for what it does not say."""

    samples: tuple[SamplePart, ...] = ()
    usage: Usage | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None


@dataclass(slots=True)
class _RemoteSample:
    """A sample so far, and how much of it deltas have shown."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    ending: SampleEnding | None = None
    sent: tuple[int, int, int] = (0, 0, 0)
    closed: bool = False


class RemoteAnswer:
    """The answer to a request, from its parts. Raises RemoteError for parts that no answer to the request has."""

    def __init__(self, request: RemoteRequest) -> None:
        self._request = request
        self._samples = [_RemoteSample() for _ in range(request.params.n)]
        self._usage: Usage | None = None
        self._prompt_token_ids = request.token_ids or ()
        self._prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self._started, self._first, self._idle = time.perf_counter(), None, 0

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sample.ending is not None for sample in self._samples)

    def add(self, part: AnswerPart) -> list[int]:
        """Takes a part in; the indices of the samples of which it says something."""
        self._usage = part.usage or self._usage
        self._prompt_token_ids = part.prompt_token_ids or self._prompt_token_ids
        self._prompt_logprobs = part.prompt_logprobs or self._prompt_logprobs
        if self._first is None and any(each.text or each.token_ids for each in part.samples):
            self._first = time.perf_counter() - self._started
        for each in part.samples:
            self._add(each)
        says = any(each.text or each.token_ids or each.ending for each in part.samples)
        self._idle = 0 if says else self._idle + 1
        if self._idle > _MOST_IDLE:
            raise RemoteError(f"the server must say something in an event, got {self._idle} that say nothing")
        return [each.index for each in part.samples]

    def deltas(self, changed: Iterable[int]) -> Iterator[Delta]:
        """The deltas of samples that have changed, of the kind that the request asks for; not that of the last end."""
        if self._request.params.output_kind is RequestOutputKind.FINAL_ONLY:
            return
        for index in dict.fromkeys(changed):
            sample = self._samples[index]
            ended = sample.ending is not None and not self.finished
            if not sample.closed and (ended or len(sample.text) > sample.sent[0]):
                yield self._delta(index, closed=ended)

    def end(self) -> Iterator[Delta]:
        """What is left: the end of every sample that has not been told, and with the last delta the completion."""
        completion = self.completion()
        final = self._request.params.output_kind is RequestOutputKind.FINAL_ONLY
        left = [0] if final else [index for index, sample in enumerate(self._samples) if not sample.closed]
        for index in left:
            yield self._delta(index, completion if index == left[-1] else None, closed=True)

    def completion(self) -> Completion:
        """The whole answer. Raises RemoteError where a sample has not ended, or has more tokens than it may."""
        if not self.finished:
            raise RemoteError("the server must end every sample with a finish reason, got an answer that was cut off")
        self._check_length(self._known_usage())
        return self._completion()

    def _completion(self) -> Completion:
        return Completion(
            prompt=self._request.text,
            prompt_token_ids=self._prompt_token_ids,
            samples=tuple(self._frozen(index, sample) for index, sample in enumerate(self._samples)),
            seed=self._request.seed,
            usage=self._known_usage(),
            timings=Timings(
                first_token_s=self._first if self._request.stream else None,
                total_s=time.perf_counter() - self._started,
            ),
            prompt_logprobs=self._prompt_logprobs,
        )

    def _check_length(self, usage: Usage) -> None:
        most = self._request.params.max_tokens
        count = self._request.params.best_of or len(self._samples)
        if most is not None and usage.completion_tokens > most * count:
            got = usage.completion_tokens
            raise RemoteError(f"the server must end {count} texts after {most} tokens, got {got}; is it the dialect?")

    def _add(self, part: SamplePart) -> None:
        if not 0 <= part.index < len(self._samples):
            raise RemoteError(f"the server must answer with {len(self._samples)} samples, got number {part.index}")
        sample = self._samples[part.index]
        sample.text += part.text
        sample.token_ids += part.token_ids
        sample.entries += part.logprobs
        most = self._request.params.max_tokens
        longest = _MOST_TEXT if most is None else _MOST_CHARS * (most + 1)
        if (most is not None and len(sample.token_ids) > most) or len(sample.text) > longest:
            raise RemoteError(f"the server must end a text after {most or 'fewer'} tokens, it goes on")
        if part.ending is not None:
            sample.ending = self._resolved(part.ending, len(sample.token_ids))

    def _resolved(self, ending: SampleEnding, count: int) -> SampleEnding:
        """The ending; a limit that is reached before `max_tokens`, where tokens are known, is that of the context."""
        most = self._request.params.max_tokens
        if ending.finish_reason != "length":
            return ending
        before = most is None or 0 < count < most
        return SampleEnding("length", Stop(kind="context" if before else "max_tokens"))

    def _delta(self, index: int, completion: Completion | None = None, *, closed: bool) -> Delta:
        sample = self._samples[index]
        sample.closed = closed
        chars, tokens, entries = sample.sent
        sample.sent = (len(sample.text), len(sample.token_ids), len(sample.entries))
        if self._request.params.output_kind is RequestOutputKind.CUMULATIVE and completion is None:
            completion = self._completion()
        return Delta(
            text=sample.text[chars:],
            token_ids=tuple(sample.token_ids[tokens:]),
            index=index,
            logprobs=tuple(sample.entries[entries:]) if self._request.params.lists_logprobs else None,
            finish_reason=sample.ending.finish_reason if closed and sample.ending else None,
            stop=sample.ending.stop if closed and sample.ending else None,
            completion=completion,
        )

    def _known_usage(self) -> Usage:
        drawn = sum(len(sample.token_ids) for sample in self._samples)
        return self._usage or Usage(prompt_tokens=len(self._prompt_token_ids), completion_tokens=drawn)

    def _frozen(self, index: int, sample: _RemoteSample) -> Sample:
        scored = self._request.params.lists_logprobs
        return Sample(
            index=index,
            text=sample.text,
            token_ids=tuple(sample.token_ids),
            finish_reason=None if sample.ending is None else sample.ending.finish_reason,
            stop=None if sample.ending is None else sample.ending.stop,
            logprobs=tuple(sample.entries) if scored else None,
            cumulative_logprob=sum(entry.logprob for entry in sample.entries) if scored else math.nan,
        )
