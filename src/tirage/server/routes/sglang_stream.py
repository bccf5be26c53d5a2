"""Streams of `/generate`: each event is an entry with all the text so far, or with what is new.

Most of an event is the same every time, and a text that has been sent is sent again with a little more at its end.
So the constant members are encoded once, and texts and lists grow as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tirage.engine import Completion, Delta
from tirage.server.errors import envelope, of_stop
from tirage.server.replay import effective
from tirage.server.request_group import RequestGroup
from tirage.server.routes.reasoning_count import ReasoningCounter
from tirage.server.routes.sglang_request import GenerateBody
from tirage.server.routes.sglang_shapes import NOTHING_SENT, EntryBuilder, LogprobLists, Sent
from tirage.server.sse import Event, JsonTemplate, dump, dump_text, pieces
from tirage.text import Tokenizer

_LONG_BYTES = 32 * 1024
"""How many bytes of log-probabilities are sent at once; more are sent in pieces, as the client reads them."""


class SampleStream:
    """What has come of one sample, as the JSON of its next event.

    `template` is from `EntryBuilder.template`. With one of `later` events each shows what is new, else everything.
    `reasoning` counts the tokens of its reasoning.
    """

    def __init__(
        self,
        template: JsonTemplate,
        logprobs: LogprobLists | None,
        *,
        later: JsonTemplate | None = None,
        reasoning: ReasoningCounter | None = None,
    ) -> None:
        self.unsent_tokens = 0
        self.sent = NOTHING_SENT
        """What earlier events have shown and the last one need not repeat."""
        self._template, self._logprobs, self._later, self._reasoning = template, logprobs, later, reasoning
        self._text, self._ids = bytearray(), bytearray()
        # The element of each token: one array that grows would leave holes behind wherever it was.
        self._lists = {name: list[bytes]() for name in (() if logprobs is None else logprobs.names)}
        self._characters = self._tokens = self._entries = self._listed_bytes = 0

    def add(self, delta: Delta) -> None:
        """Appends a delta."""
        self._text += dump_text(delta.text)[1:-1]
        for token in delta.token_ids:
            self._ids += b",%d" % token
        if self._reasoning is not None:
            self._reasoning.add(delta.token_ids)
        self._characters += len(delta.text)
        self._tokens += len(delta.token_ids)
        self.unsent_tokens += len(delta.token_ids)
        if self._logprobs is not None and delta.logprobs:
            for name, values in self._logprobs.output(delta.logprobs).items():
                # One by one: no other thread runs while the encoder works on a token.
                elements = [*map(dump, values)]
                self._lists[name] += elements
                self._listed_bytes += sum(map(len, elements))
            self._entries += len(delta.logprobs)

    @property
    def is_long(self) -> bool:
        """Whether an event with all log-probabilities so far is made in pieces."""
        return self._listed_bytes > _LONG_BYTES

    def event(self) -> Event:
        """The next event of a sample that has not ended."""
        self.unsent_tokens = 0
        if self.is_long and self._later is None:
            return self._long_event()
        values = [b'"%b"' % self._text, b"[%b]" % self._ids[1:], *self._counts()]
        if self._logprobs is not None:
            values += [b"[%b]" % b",".join(elements) for elements in self._lists.values()]
            values.append(b"%d" % (self._entries - self.sent.logprobs))
        template = self._template
        if self._later is not None:
            self.sent, self._template = Sent(self._characters, self._tokens, self._entries, prompt=True), self._later
            for grown in (self._text, self._ids, *self._lists.values()):
                grown.clear()
            self._listed_bytes = 0
        return template.fill(*values)

    def _long_event(self) -> Iterator[bytes]:
        """The same of many log-probabilities, of which no more than a piece is copied at a time."""
        first = [b'"%b"' % self._text], [b"[%b]" % self._ids[1:]], *([count] for count in self._counts())
        return self._template.pieces(*first, *map(pieces_of, self._lists.values()), [b"%d" % self._entries])

    def _counts(self) -> tuple[bytes, bytes]:
        """How many tokens are reasoning, and how many there are."""
        return b"%d" % (0 if self._reasoning is None else self._reasoning.count), b"%d" % self._tokens


def pieces_of(elements: Sequence[bytes]) -> Iterator[bytes]:
    """A list as JSON, of elements as JSON."""
    for number, each in enumerate(elements):
        yield b"," if number else b"["
        yield each
    yield b"]"


class GenerateFormatter:
    """Formats a stream as SGLang does."""

    def __init__(self, group: RequestGroup, body: GenerateBody, tokenizer: Tokenizer, *, began: float) -> None:
        self._group, self._body = group, body
        self._unfinished = [request.returned for request in body.requests]
        self._streams: dict[tuple[int, int], SampleStream] = {}
        self._builders: list[EntryBuilder] = []
        first = 0
        for running, request in zip(group.requests, body.requests, strict=True):
            index = first if body.is_list else None
            self._builders.append(EntryBuilder(running, request, body, tokenizer, began=began, first_index=index))
            first += request.returned

    def begin(self) -> Iterable[Event]:
        return ()

    def end(self) -> Iterable[Event]:
        return ()

    def format(self, number: int, delta: Delta) -> Sequence[Event]:
        request = self._body.requests[number]
        if request.beams is not None:
            return () if delta.completion is None else self._searched(number, delta.completion)
        stream = self._streams.get((number, delta.index)) or self._open(number, delta.index)
        stream.add(delta)
        if delta.finish_reason is not None:
            return [self._last(number, stream, delta)]
        return [stream.event()] if stream.unsent_tokens >= request.stream_interval else ()

    def _searched(self, number: int, completion: Completion) -> Sequence[Event]:
        """The events of a beam search that is over."""
        entries, first = [*self._builders[number].entries(completion)], completion.samples[0]
        if first.finish_reason == "error":
            entries[0] |= envelope(of_stop(first.stop))
        return entries

    def _open(self, number: int, index: int) -> SampleStream:
        """The stream of a sample whose first delta has come: by now the prompt was read and has its logprobs."""
        builder = self._builders[number]
        later = builder.template(index, Sent(prompt=True)) if self._body.delta else None
        reasoning = builder.reasoning.new()
        stream = SampleStream(builder.template(index), builder.logprobs, later=later, reasoning=reasoning)
        self._streams[number, index] = stream
        return stream

    def _last(self, number: int, stream: SampleStream, delta: Delta) -> Event:
        """The event of a sample that has ended."""
        running = self._group.requests[number]
        # This sample has ended, so nothing changes it any more, even while others of its request go on.
        sample = running.request.samples[delta.index].freeze()
        event = self._builders[number].finished(sample, stream.sent)
        self._unfinished[number] -= 1
        if self._body.return_effective_params and not self._unfinished[number]:
            event["effective_params"] = effective(running)
        if delta.finish_reason == "error":
            event |= envelope(of_stop(delta.stop))
        return pieces(event) if stream.is_long else event
