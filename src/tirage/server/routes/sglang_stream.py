"""Streams of `/generate`: each event is an entry with all the text so far, or with what is new.

Most of an event is the same every time, and a text that has been sent is sent again with a little more at its end.
So the constant parts are made once, and texts and lists grow as the JSON that they will be sent as.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tirage.engine import Completion, Delta
from tirage.server.errors import envelope, of_stop
from tirage.server.replay import effective
from tirage.server.request_group import RequestGroup
from tirage.server.routes.sglang_request import GenerateBody
from tirage.server.routes.sglang_shapes import Scores, closing, entry_of, finish, meta_of
from tirage.server.sse import Event, JsonTemplate, dump


class SampleStream:
    """What has come of one sample, as the JSON of its next event.

    `mold` makes the event of a text, token ids, their number and the lists of `scores`. With `new` an event shows what
    came after the one before, else everything.
    """

    def __init__(self, mold: JsonTemplate, scores: Scores | None, *, new: bool) -> None:
        self.tokens = self.fresh = 0
        self._mold, self._scores, self._new = mold, scores, new
        self._text, self._ids = bytearray(), bytearray()
        self._lists = {name: bytearray() for name in (() if scores is None else scores.names)}
        self._listed = 0

    def add(self, delta: Delta) -> None:
        """Takes a delta."""
        self._text += dump(delta.text)[1:-1]
        for token in delta.token_ids:
            self._ids += b",%d" % token
        self.tokens += len(delta.token_ids)
        self.fresh += len(delta.token_ids)
        if self._scores is not None and delta.logprobs:
            for name, values in self._scores.output(delta.logprobs).items():
                self._lists[name] += b"," + dump(values)[1:-1]
            self._listed += len(delta.logprobs)

    def event(self) -> bytes:
        """The event of a sample that goes on."""
        lists = [b"[%b]" % values[1:] for values in self._lists.values()]
        length = [] if self._scores is None else [b"%d" % self._listed]
        event = self._mold.fill(b'"%b"' % self._text, b"[%b]" % self._ids[1:], b"%d" % self.tokens, *length, *lists)
        self.fresh = 0
        if self._new:
            self._listed = 0
            for grown in (self._text, self._ids, *self._lists.values()):
                grown.clear()
        return event


class GenerateFormatter:
    """Words a stream as SGLang does."""

    def __init__(self, visit: RequestGroup, body: GenerateBody, spell: Any, *, began: float) -> None:
        self._tickets, self._body, self._spell, self._began = visit.tickets, body, spell, began
        self._running = [ask.answers for ask in body.asks]
        self._growth: dict[tuple[int, int], SampleStream] = {}
        self._before = [sum(ask.answers for ask in body.asks[:number]) for number in range(len(body.asks))]

    def begin(self) -> Iterable[Event]:
        return ()

    def end(self) -> Iterable[Event]:
        return ()

    def say(self, number: int, delta: Delta) -> Sequence[Event]:
        ask = self._body.asks[number]
        if ask.beams is not None:
            return () if delta.completion is None else [self._whole(number, delta.completion)]
        growth = self._growth.get((number, delta.index)) or self._open(number, delta.index)
        growth.add(delta)
        if delta.finish_reason is not None:
            return [self._last(number, growth, delta)]
        return [growth.event()] if growth.fresh >= ask.interval else ()

    def _open(self, number: int, index: int) -> SampleStream:
        """The growth of a sample whose first delta has come: its prompt has been read, and is known with its scores."""
        body, ask, ticket = self._body, self._body.asks[number], self._tickets[number]
        scores = Scores(ask, body, self._spell) if ask.logprobs else None
        chunk: dict[str, Any] = {"text": None, "output_ids": None, "meta_info": meta_of(ticket, ask, index, None)}
        holes = ["text", "output_ids", "completion_tokens"]
        if scores is not None:
            request = ticket.request
            first = request.prompt_ids[0] if request.prompt_ids else None
            holes += ["output_token_logprobs_length", *scores.names]
            chunk["meta_info"] |= dict.fromkeys(holes[3:]) | scores.input(request.prompt_logprobs or (), first)
        if body.listed:
            chunk["index"] = self._before[number] + index
        if body.prompt_ids:
            chunk["prompt_token_ids"] = list(ticket.request.prompt_ids)
        growth = self._growth[number, index] = SampleStream(JsonTemplate(chunk, holes), scores, new=body.delta)
        return growth

    def _last(self, number: int, growth: SampleStream, delta: Delta) -> Mapping[str, Any]:
        """The event of a sample that has ended: one like those before, with what is known only now."""
        ask, ticket = self._body.asks[number], self._tickets[number]
        chunk = json.loads(growth.event())
        # This sample has ended, so nothing changes it any more, whatever the others still do.
        sample = ticket.request.samples[delta.index].freeze()
        chunk["meta_info"]["finish_reason"] = finish(delta.finish_reason, delta.stop, sample.token_ids, ask.patterns)
        chunk["meta_info"] |= closing(sample, ticket.request.inputs.length, began=self._began)
        self._running[number] -= 1
        if self._body.effective and not self._running[number]:
            chunk["effective_params"] = effective(ticket)
        if delta.finish_reason == "error":
            chunk |= envelope(of_stop(delta.stop))
        return chunk

    def _whole(self, number: int, completion: Completion) -> dict[str, Any]:
        ask, ticket = self._body.asks[number], self._tickets[number]
        found = entry_of(ticket, ask, self._body, completion, completion.samples[0], self._spell, began=self._began)
        if self._body.effective:
            found["effective_params"] = effective(ticket, completion)
        return {**found, "index": self._before[number]} if self._body.listed else found
