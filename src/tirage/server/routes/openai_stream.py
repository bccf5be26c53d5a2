"""Streams of OpenAI's two routes: chunks of one choice each, the end of each choice, then maybe the usage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tirage.engine import Completion, Delta
from tirage.engine.completion import LogprobEntry
from tirage.server import errors, sse
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.routes.openai_answer import extras_of
from tirage.server.routes.openai_request import OpenAIRequest
from tirage.server.routes.openai_shapes import Head, shown_entries, usage
from tirage.text import Stop


class ChoiceStream:
    """A choice as its deltas come: what was shown, and what waits to be shown together.

    `index` is its place among the choices of the answer.
    """

    def __init__(self, index: int, ticket: RunningRequest) -> None:
        self.index, self.ticket = index, ticket
        self.text, self.ids, self.entries = "", list[int](), list[LogprobEntry]()
        self.length, self.drawn, self.begun = 0, 0, False
        self.last_ids: tuple[int, ...] = ()

    def add(self, delta: Delta) -> None:
        """Takes a delta."""
        self.text += delta.text
        self.ids += delta.token_ids
        self.last_ids = delta.token_ids[-1:] or self.last_ids
        self.entries += delta.logprobs or ()
        self.length += len(delta.text)
        self.drawn += len(delta.token_ids)

    def take(self, stop: Stop | None) -> tuple[str, list[int], Sequence[LogprobEntry]]:
        """The text, ids and logprobs that wait; at the end without those of a stop that the text leaves out."""
        included = self.ticket.call.params.include_stop_str_in_output
        taken = self.text, self.ids, shown_entries(self.entries, stop, self.length, included=included)
        self.text, self.ids, self.entries = "", [], []
        return taken


class ChunkFormatter(ABC):
    """Words a stream; a subclass says what the choice of a chunk looks like.

    A sample that fails ends without a finish reason; when all others have ended, an error is the last event.
    """

    kind: str

    def __init__(self, head: Head, asked: OpenAIRequest, visit: RequestGroup) -> None:
        self._head, self._asked, self._visit, self._tickets = head, asked, visit, visit.tickets
        self._choices: dict[tuple[int, int], ChoiceStream] = {}
        self._completions: dict[int, Completion] = {}
        self._failed: errors.Refusal | None = None
        for number, ticket in enumerate(self._tickets):
            for index in range(ticket.call.answers):
                self._choices[number, index] = ChoiceStream(len(self._choices), ticket)

    def begin(self) -> Iterable[sse.Event]:
        """The first chunk of every choice."""
        for choice in self._choices.values():
            for first in self.first(choice):
                yield {**self.chunk(choice, first), **self.told_once(choice)}

    def say(self, number: int, delta: Delta) -> Iterator[sse.Event]:
        """The chunks of a delta."""
        choice = self._choices[number, delta.index]
        choice.add(delta)
        if delta.completion is not None:
            self._completions[number] = delta.completion
        if not choice.begun:
            choice.begun = True
            for part in self.lead(choice):
                yield self.chunk(choice, part)
        if delta.finish_reason is None and len(choice.ids) < self._asked.interval:
            return
        text, ids, entries = choice.take(delta.stop)
        event = None if entries or delta.finish_reason else self.plain(choice, text)
        if event is not None:
            yield event
        else:
            for part in self.parts(choice, text, ids, entries):
                yield self.chunk(choice, part)
        if delta.finish_reason in {"error", "abort"}:
            self._failed = errors.late() if self._visit.reason == "timeout" else errors.of_stop(delta.stop)
        elif delta.finish_reason is not None:
            for part in self.last(choice, delta):
                yield self.chunk(choice, part)

    def end(self) -> Iterator[sse.Event]:
        """The error of a sample that failed, or what was asked for besides: usage, effective parameters."""
        if self._failed is not None:
            yield errors.envelope(self._failed)
            return
        more = extras_of(self._asked, self._tickets)
        if self._asked.stream_options["include_usage"]:
            more["usage"] = self.usage([self._completions[number] for number in range(len(self._tickets))])
        if more:
            yield self._head.of(self.kind, [], **more)

    def chunk(self, choice: ChoiceStream, part: dict[str, Any]) -> dict[str, Any]:
        """A chunk with that choice."""
        ready = {"index": choice.index, **part}
        if self._asked.stream_options["continuous_usage_stats"]:
            return self._head.of(self.kind, [ready], usage=self._usage_so_far())
        more = {"usage": None} if self._asked.stream_options["include_usage"] else {}
        return self._head.of(self.kind, [ready], **more)

    def _usage_so_far(self) -> dict[str, int]:
        prompt = sum(ticket.request.inputs.length for ticket in self._tickets)
        drawn = sum(choice.drawn for choice in self._choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}

    # What a route says of its choices.

    def usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Tokens of the whole answer."""
        return usage(completions)

    def first(self, choice: ChoiceStream) -> Iterable[dict[str, Any]]:
        """Choices that are there before anything is read."""
        return ()

    def told_once(self, choice: ChoiceStream) -> dict[str, Any]:
        """What the chunk with such a choice holds besides."""
        return {}

    def lead(self, choice: ChoiceStream) -> Iterable[dict[str, Any]]:
        """Choices before the first new text, when the prompt has been read."""
        return ()

    def plain(self, choice: ChoiceStream, text: str) -> sse.Event | None:
        """The chunk of a text alone as JSON made ahead; None when it must be made part by part."""
        return None

    @abstractmethod
    def parts(
        self, choice: ChoiceStream, text: str, ids: Sequence[int], entries: Sequence[LogprobEntry]
    ) -> Iterable[dict[str, Any]]:
        """Choices that hold new text."""

    @abstractmethod
    def last(self, choice: ChoiceStream, delta: Delta) -> Iterable[dict[str, Any]]:
        """Choices that end one."""
