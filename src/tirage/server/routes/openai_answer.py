"""Answers of OpenAI's two routes, whole or as a stream of chunks.

`AnswerBuilder` makes both. It builds each choice with a `ChoiceBuilder` of the route, in which every member of a choice
is written once: a stream adds the deltas of a sample as they come, a whole answer adds the sample as a single delta.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from fastapi.responses import Response

from tirage.engine import Completion, Delta, Sample, TokenRecord, kept_of
from tirage.engine.completion import LogprobEntry
from tirage.server import errors
from tirage.server.http_request import ignored_header
from tirage.server.replay import effective
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.request_manager import RequestManager
from tirage.server.routes.openai_request import OpenAIRequest
from tirage.server.routes.openai_shapes import (
    ResponseMetadata,
    is_start_certain,
    raise_failed,
    shown_entries,
    stops_of,
    usage,
)
from tirage.server.sse import Event, EventStream, JsonAnswer, JsonTemplate, dump_text
from tirage.text import Stop


class NewText(NamedTuple):
    """The text, token ids and log-probabilities that a choice has not shown yet."""

    text: str
    ids: Sequence[int]
    entries: Sequence[LogprobEntry]


class UnsentText:
    """What a sample has brought so far, and how much of it has not been sent yet: text, token ids, log-probabilities.

    `tokens` and `length` count its tokens and characters.
    """

    def __init__(self, running: RunningRequest) -> None:
        self.running, self.tokens, self.length = running, 0, 0
        self._text, self._ids, self._entries = "", list[int](), list[LogprobEntry]()
        self._last_ids: tuple[int, ...] = ()
        self._start: str | None = ""
        self._records = list[TokenRecord]()

    def add(self, delta: Delta) -> None:
        """Appends a delta."""
        self._text += delta.text
        self._ids += delta.token_ids
        self._last_ids = delta.token_ids[-1:] or self._last_ids
        self._entries += delta.logprobs or ()
        self._start = None if self._start is None else self._start + delta.text
        self._records += delta.records or ()
        self.length += len(delta.text)
        self.tokens += len(delta.token_ids)

    def add_whole(self, sample: Sample) -> None:
        """Appends all of a sample."""
        self.add(Delta(text=sample.text, token_ids=sample.token_ids, logprobs=sample.logprobs, records=sample.records))

    @property
    def waiting(self) -> int:
        """How many tokens have not been sent yet."""
        return len(self._ids)

    def take(self, stop: Stop | None, *, ended: bool) -> NewText:
        """What has not been sent yet, but for log-probabilities of tokens that the text may yet leave out.

        At the end it is all, without the log-probabilities of a stop that the text leaves out.
        """
        included = self.running.engine_input.params.include_stop_str_in_output
        count = len(self._entries) if ended else self._certain()
        entries, waiting = self._entries[:count], self._entries[count:]
        if ended:
            entries = shown_entries(entries, stop, self.length, included=included)
        if entries:
            self._start = None
        new = NewText(self._text, self._ids, entries)
        self._text, self._ids, self._entries = "", [], waiting
        return new

    def _certain(self) -> int:
        """How many entries belong to text that has come; no stop can take these back."""
        if self._start is not None and self._entries and not is_start_certain(self._entries, self._start):
            return 0
        late = (
            at for at, entry in enumerate(self._entries) if entry.offset is not None and entry.offset >= self.length
        )
        return next(late, len(self._entries))


class ChoiceBuilder(UnsentText, ABC):
    """Builds one choice from the deltas of its sample; `index` is its place in the answer.

    `is_plain` says that chunks of text alone differ in their text only. Methods that return several choices return the
    contents of as many chunks.
    """

    text_member: ClassVar[str]
    """The member that holds text in a chunk."""

    def __init__(self, index: int, running: RunningRequest, request: OpenAIRequest) -> None:
        super().__init__(running)
        self.index, self.request = index, request
        self.opened, self.begun, self.is_plain, self.template = False, False, True, None

    template: JsonTemplate | None

    def whole(self, sample: Sample) -> dict[str, Any]:
        """The choice of a sample that has finished."""
        self.add_whole(sample)
        return self.complete(self.take(sample.stop, ended=True), sample)

    def choice(
        self,
        content: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        end: Delta | Sample | None = None,
        new: NewText | None = None,
    ) -> dict[str, Any]:
        """A choice with this content: how it finished, if it did, and where requested the ids of `new`."""
        found = {"index": self.index, **content, "logprobs": logprobs, "finish_reason": None}
        if end is not None:
            found["finish_reason"] = self.finish_reason(end.finish_reason)
            found |= stops_of(end.stop, self._last_ids)
            if self.running.engine_input.params.return_kept:
                found["kept"] = kept_of(self._records)
        if new is not None and self.request.fields["return_token_ids"]:
            found |= self.ids(new)
        return found

    def finish_reason(self, reason: str | None) -> str | None:
        """OpenAI's word for the reason."""
        return reason

    def ids(self, new: NewText) -> dict[str, Any]:
        """The members that hold token ids."""
        return {"token_ids": list(new.ids)}

    def opening(self) -> Iterable[dict[str, Any]]:
        """Choices that a stream sends before the prompt was read."""
        return ()

    def shared(self) -> dict[str, Any]:
        """Members of the answer, or of the first chunk, beside its choices."""
        return {}

    def lead(self) -> Iterable[dict[str, Any]]:
        """Choices that come before the first new text, once the prompt was read."""
        return ()

    @abstractmethod
    def text_choice(self, text: str | None) -> dict[str, Any]:
        """A choice that holds text and nothing else."""

    @abstractmethod
    def parts(self, new: NewText) -> Iterable[dict[str, Any]]:
        """Choices that hold what is new."""

    @abstractmethod
    def last(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """Choices that end a stream; `delta` is the last one."""

    @abstractmethod
    def complete(self, new: NewText, sample: Sample) -> dict[str, Any]:
        """The whole choice of a sample, of which all is new."""


class AnswerBuilder:
    """Builds the answer to a request: `whole`, or the chunks of a stream.

    `kind` and `chunk_kind` are the `object` of an answer and of a chunk. `reasoning_tokens` counts those of a sample
    where reasoning is separated. In a stream a sample that fails ends without a finish reason, and when all others have
    ended an error is the last event.
    """

    def __init__(
        self,
        metadata: ResponseMetadata,
        group: RequestGroup,
        request: OpenAIRequest,
        new_choice: Callable[[int, RunningRequest], ChoiceBuilder],
        *,
        kind: str,
        chunk_kind: str,
        reasoning_tokens: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        self._metadata, self._group, self._request, self._new_choice = metadata, group, request, new_choice
        self._kind, self._chunk_kind, self._reasoning_tokens = kind, chunk_kind, reasoning_tokens
        self._include_usage = request.stream_options["include_usage"]
        self._running_usage = request.stream_options["continuous_usage_stats"]
        self._text_only = not (self._running_usage or request.fields["return_token_ids"])
        self._choices: dict[tuple[int, int], ChoiceBuilder] = {}
        self._completions: dict[int, Completion] = {}
        self._failure: errors.Refusal | None = None

    def response(self) -> Response:
        """The HTTP response, whole or streamed as the request wants it."""
        headers = ignored_header(self._request.ignored, self._group)
        if self._request.fields["stream"]:
            return EventStream(self._group, self, headers=headers)
        return JsonAnswer(self._group, self.whole, headers=headers)

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The whole answer; raises Refusal when a sample has failed or was aborted."""
        raise_failed(completions)
        first, pairs = 0, list[tuple[ChoiceBuilder, Sample]]()
        for running, completion in zip(self._group.requests, completions, strict=True):
            pairs += [(self._new_choice(first + sample.index, running), sample) for sample in completion.samples]
            # A beam search may find fewer; a stream numbers its choices before that is known.
            first += running.engine_input.returned
        choices = (builder.whole(sample) for builder, sample in pairs)
        more = {"usage": self._usage(completions), **self._extras(), **pairs[0][0].shared()}
        return self._metadata.object(self._kind, choices, **more)

    def begin(self) -> Iterable[Event]:
        """The first chunk of every choice that is certain to come: a beam search may find fewer than were asked for."""
        for number, running in enumerate(self._group.requests):
            for index in range(running.engine_input.returned):
                choice = self._choices[number, index] = self._new_choice(len(self._choices), running)
                if not index or running.engine_input.beams is None:
                    yield from self._open(choice)

    def format(self, number: int, delta: Delta) -> Iterator[Event]:
        """The chunks of a delta."""
        choice = self._choices[number, delta.index]
        choice.add(delta)
        if delta.completion is not None:
            self._completions[number] = delta.completion
        if not choice.begun:
            choice.begun = True
            yield from self._open(choice)
            yield from map(self._chunk, choice.lead())
        if delta.finish_reason is None and choice.waiting < self._request.interval:
            return
        new = choice.take(delta.stop, ended=delta.finish_reason is not None)
        if self._text_only and choice.is_plain and new.text and not new.entries and not delta.finish_reason:
            yield self._text_chunk(choice, new.text)
        else:
            yield from map(self._chunk, choice.parts(new))
        if (failure := failure_of(delta, self._group)) is not None:
            self._failure = failure
        elif delta.finish_reason is not None:
            yield from map(self._chunk, choice.last(delta))

    def end(self) -> Iterator[Event]:
        """The error of a sample that failed, or else the usage and effective parameters where requested."""
        if self._failure is not None:
            yield errors.envelope(self._failure)
            return
        more = self._extras()
        if self._include_usage:
            more["usage"] = self._usage([self._completions[number] for number in range(len(self._group.requests))])
        if more:
            yield self._metadata.object(self._chunk_kind, [], **more)

    def _open(self, choice: ChoiceBuilder) -> Iterator[dict[str, Any]]:
        """The chunks that open a choice, unless it is open."""
        if not choice.opened:
            choice.opened = True
            for part in choice.opening():
                yield {**self._chunk(part), **choice.shared()}

    def _text_chunk(self, choice: ChoiceBuilder, text: str) -> bytes:
        """The chunk of a text alone, from JSON that is prepared once for each choice."""
        if choice.template is None:
            choice.template = JsonTemplate(self._chunk(choice.text_choice(None)), [choice.text_member])
        return choice.template.fill(dump_text(text))

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        if self._running_usage:
            return self._metadata.object(self._chunk_kind, [choice], usage=self._usage_so_far())
        more = {"usage": None} if self._include_usage else {}
        return self._metadata.object(self._chunk_kind, [choice], **more)

    def _usage_so_far(self) -> dict[str, int]:
        prompt = sum(running.request.inputs.length for running in self._group.requests)
        drawn = sum(choice.tokens for choice in self._choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}

    def _usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        requests = [running.request for running in self._group.requests]
        return usage(completions, requests, reasoning_tokens=self._reasoning_tokens)

    def _extras(self) -> dict[str, Any]:
        """What the answer holds besides OpenAI's members because the request wants it."""
        if not self._request.fields["return_effective_params"]:
            return {}
        return {"effective_params": [effective(running) for running in self._group.requests]}


def failure_of(delta: Delta, group: RequestGroup) -> errors.Refusal | None:
    """The refusal for the last delta of a sample that failed or was aborted; None for any other delta."""
    if delta.finish_reason not in {"error", "abort"}:
        return None
    return errors.timed_out() if group.reason == "timeout" else errors.of_stop(delta.stop)


def model_of(group: RequestGroup, manager: RequestManager) -> str:
    """The name of the model that answers: that of the adapter, or of the base."""
    engine_input = group.requests[0].engine_input
    prompt = engine_input.prompt
    return (engine_input.adapter if prompt is None else prompt.adapter) or manager.options.model_name


def new_metadata(prefix: str, group: RequestGroup, manager: RequestManager) -> ResponseMetadata:
    """The metadata of a new answer; its id is random and the server's own."""
    first = group.requests[0]
    fingerprint = f"fp_{first.model.fingerprint.rpartition(':')[2][:10]}"
    return ResponseMetadata(
        id=f"{prefix}-{first.id}", created=int(time.time()), model=model_of(group, manager), fingerprint=fingerprint
    )
