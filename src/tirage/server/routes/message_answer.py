"""The answer to a chat that is one message, whole or as a stream of named events.

`MessageAnswer` makes both of the same events: a stream sends them, and a whole answer is what they come to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastapi.responses import Response

from tirage.engine import Completion, Delta, Sample
from tirage.server.errors import Refusal
from tirage.server.http_request import ignored_header
from tirage.server.request_group import RequestGroup
from tirage.server.routes.openai_answer import NewText, UnsentText, failure_of
from tirage.server.routes.openai_request import OpenAIRequest
from tirage.server.routes.openai_shapes import raise_failed
from tirage.server.routes.reasoning import MessageReader
from tirage.server.routes.toolcalls import MessagePart
from tirage.server.sse import Event, EventStream, JsonAnswer, StreamStyle

NamedEvent = dict[str, Any]
"""An event of a stream: its `type` is its name."""


class MessageAnswer(ABC):
    """Builds the answer to a group of one request with one sample.

    In a stream a sample that fails ends with the event of an error, and `closing` is not called.
    """

    def __init__(self, request: OpenAIRequest, group: RequestGroup, reader: MessageReader) -> None:
        [self.running] = group.requests
        self.request, self.group, self.reader = request, group, reader
        self.unsent, self._parser = UnsentText(self.running), reader.parser()
        self._begun = False
        self._completion: Completion | None = None
        self._failure: Refusal | None = None

    @property
    @abstractmethod
    def style(self) -> StreamStyle:
        """How the events of a stream are written."""

    def begin(self) -> Iterable[NamedEvent]:
        """Events of a stream that come before the prompt was read."""
        return ()

    @abstractmethod
    def opening(self) -> Iterable[NamedEvent]:
        """Events that come once the prompt was read, before the first text."""

    @abstractmethod
    def events(self, parts: Sequence[MessagePart], new: NewText) -> Iterable[NamedEvent]:
        """Events of new parts of the message; `new` is the text that they were found in, with its tokens."""

    @abstractmethod
    def closing(self, completion: Completion, sample: Sample) -> Iterable[NamedEvent]:
        """Events that end the message."""

    @abstractmethod
    def assembled(self, events: Iterable[NamedEvent]) -> dict[str, Any]:
        """The whole answer that all events of a stream come to."""

    def response(self) -> Response:
        """The HTTP response, whole or streamed as the request wants it."""
        headers = ignored_header(self.request.ignored, self.group)
        if self.request.fields["stream"]:
            return EventStream(self.group, self, headers=headers, style=self.style)
        return JsonAnswer(self.group, self.whole, headers=headers, encoded=self.encoded)

    def encoded(self, parts: Sequence[bytes]) -> None:
        """Called with the JSON of a whole answer, in parts, before it is sent; does nothing here."""
        return

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The whole answer; raises Refusal when the sample has failed or was aborted."""
        raise_failed(completions)
        return self.assembled(self._all_events(completions[0]))

    def format(self, number: int, delta: Delta) -> Iterator[NamedEvent]:
        """The events of a delta."""
        if not self._begun:
            self._begun = True
            yield from self.opening()
        self.unsent.add(delta)
        self._completion = delta.completion or self._completion
        self._failure = failure_of(delta, self.group)
        if delta.finish_reason is not None or self.unsent.waiting >= self.request.interval:
            ended = delta.finish_reason is not None
            new = self.unsent.take(delta.stop, ended=ended)
            yield from self.events(self._parts(new.text, last=ended), new)

    def end(self) -> Iterator[Event]:
        """The event of an error if the sample failed, or else those that end the message."""
        if self._failure is not None:
            yield self.style.error(self._failure)
        elif self._completion is not None:
            yield from self.closing(self._completion, self._completion.samples[0])

    def _all_events(self, completion: Completion) -> Iterator[NamedEvent]:
        sample = completion.samples[0]
        yield from self.begin()
        yield from self.opening()
        self.unsent.add_whole(sample)
        new = self.unsent.take(sample.stop, ended=True)
        yield from self.events(self._parts(new.text, last=True), new)
        yield from self.closing(completion, sample)

    def _parts(self, text: str, *, last: bool) -> list[MessagePart]:
        return [*self._parser.feed(text), *(self._parser.finish() if last else ())]
