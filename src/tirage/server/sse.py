"""Responses of running requests, which are aborted when the client disconnects: event streams, and whole JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tirage.engine import Completion, Delta, LogprobEntry, MadeWhenRead
from tirage.server import errors
from tirage.server.errors import Refusal
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.workers.quick_switching import quickly

_log = logging.getLogger("tirage.server")
# What a stream keeps for a client that reads slowly; beyond it the engine merges deltas.
_BUFFER_BYTES = 256 * 1024
# Answers of more tokens and log-probabilities than this are encoded in a thread.
_LONG = 2000
# How many elements of a list are encoded at once: numbers, or the log-probabilities of as many tokens.
_PIECE = 16
# How much of a long answer is sent at once.
_PART_BYTES = 64 * 1024
DONE = b"data: [DONE]\n\n"

Event = Mapping[str, Any] | bytes | Iterator[bytes]
"""An event of a stream: an object that is sent as JSON, or the JSON itself, in small pieces where it is long."""


class EventFormatter(Protocol):
    """Turns the deltas of one request into the events of its route."""

    def begin(self) -> Iterable[Event]:
        """Events before the first delta."""
        ...

    def format(self, number: int, delta: Delta) -> Iterable[Event]:
        """Events for a delta of the group's request `number`."""
        ...

    def end(self) -> Iterable[Event]:
        """Events after the last delta, without a final `[DONE]`."""
        ...


def _elements(value: Any) -> list[Any]:
    """The elements of a list that are made while they are encoded."""
    if isinstance(value, Iterator | MadeWhenRead):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_elements).encode


def dump_text(text: str) -> bytes:
    """A text as JSON: what `dump` gives, in a third of the time."""
    return encode_basestring(text).encode()


def dump(value: Any) -> bytes:
    """The value as strict JSON; ValueError for a number that JSON cannot hold."""
    return _encode(value).encode()


class JsonTemplate:
    """An event whose JSON is prepared in advance but for some members: `holes`, in their order, None in `event`."""

    def __init__(self, event: Mapping[str, Any], holes: Iterable[str]) -> None:
        rest, self._before = dump(event), list[bytes]()
        for name in holes:
            # No string can contain this: quotation marks within strings are escaped.
            member = dump(name) + b":"
            before, _, rest = rest.partition(member + b"null")
            self._before.append(before + member)
        self._last = rest
        self._format = b"%b".join(part.replace(b"%", b"%%") for part in (*self._before, rest))

    def fill(self, *values: bytes) -> bytes:
        """The event's JSON, with one value of JSON for each hole."""
        return self._format % values

    def pieces(self, *values: Iterable[bytes]) -> Iterator[bytes]:
        """The same in pieces, with those of a value for each hole."""
        for before, value in zip(self._before, values, strict=True):
            yield before
            yield from value
        yield self._last


def unnamed(event: Event) -> bytes:
    """What is sent before the JSON of an event."""
    return b"data: "


def named(event: Event) -> bytes:
    """What is sent before the JSON of an event where events have names: that of an object is its `type`."""
    assert isinstance(event, Mapping)
    return b"event: " + event["type"].encode() + b"\ndata: "


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStyle:
    """How a family of routes writes its streams: what begins an event, that of an error, and what follows the last."""

    head: Callable[[Event], bytes] = unnamed
    error: Callable[[Refusal], Event] = errors.envelope
    last: bytes = DONE

    def frame(self, event: Event) -> bytes:
        """An event as it is sent."""
        if isinstance(event, bytes):
            return self.head(event) + event + b"\n\n"
        # An object is asked for first, as that is told at once.
        data = dump(event) if isinstance(event, dict) or not isinstance(event, Iterator) else b"".join(event)
        return self.head(event) + data + b"\n\n"

    def frame_pieces(self, event: Event) -> Iterator[bytes]:
        """The same in small pieces; see `pieces`."""
        yield self.head(event)
        yield from event if isinstance(event, Iterator) else [event] if isinstance(event, bytes) else pieces(event)
        yield b"\n\n"


CHUNKS = StreamStyle()
"""Events without names and a final `[DONE]`, as on OpenAI's older routes and on SGLang's."""


class EventStream(Response):
    """The events of a request group. Events that are ready together are written together."""

    media_type = "text/event-stream"

    def __init__(
        self,
        group: RequestGroup,
        formatter: EventFormatter,
        *,
        headers: Mapping[str, str] | None = None,
        style: StreamStyle = CHUNKS,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._group, self._formatter, self._style = group, formatter, style
        self._unsent, self._ended = bytearray(), False
        # Roughly how many values of each sample no event has shown yet.
        self._untold: dict[tuple[int, int], int] = {}
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._group:
            disconnect = asyncio.create_task(disconnected(receive))
            pump = asyncio.create_task(self._pump())
            writer = asyncio.create_task(self._write(send))
            try:
                await asyncio.wait({disconnect, writer}, return_when=asyncio.FIRST_COMPLETED)
                if writer.done():
                    writer.result()
            finally:
                await abort_and_cancel(self._group, disconnect, pump, writer)

    async def _pump(self) -> None:
        """Turns deltas into bytes, as long as the writer keeps up."""
        try:
            self._add(self._formatter.begin())
            wide = [lists_any(each) for each in self._group.requests]
            async for number, delta in self._group.deltas():
                if wide[number]:
                    await self._add_wide(number, delta)
                else:
                    self._add(self._formatter.format(number, delta))
                if len(self._unsent) > _BUFFER_BYTES:
                    await self._room()
            await self._add_last()
        except Exception as error:
            self._add([self._style.error(errors.of(error))])
        self._unsent += self._style.last
        self._ended = True
        self._readable.set()

    async def _room(self) -> None:
        """Waits until the writer has taken what there is."""
        self._writable.clear()
        await self._writable.wait()

    async def _add_wide(self, number: int, delta: Delta) -> None:
        """Adds the events of a delta with logprobs; in a thread where they may hold many, as of many tokens."""
        key = number, delta.index
        fresh = 0 if key in self._untold else prompt_weight(self._group.requests[number])
        self._untold[key] = self._untold.get(key, 0) + fresh + delta_weight(delta)
        if self._untold[key] <= _LONG:
            events = [*self._formatter.format(number, delta)]
            is_long = any(isinstance(event, Iterator) for event in events)
            added = await self._add_long(lambda: events) if is_long else self._add(events)
        else:
            added = await self._add_long(lambda: self._formatter.format(number, delta))
        if added:
            self._untold[key] = 0

    async def _add_long(self, events: Callable[[], Iterable[Event]]) -> bool:
        """Adds events whose JSON is made in a thread, part by part as the writer sends them; whether there were any."""
        made = (piece for event in events() for piece in self._style.frame_pieces(event))
        parts, added = in_parts(made), False
        while part := await asyncio.to_thread(quickly, next, parts, b""):
            self._unsent += part
            added = True
            self._readable.set()
            if len(self._unsent) > _BUFFER_BYTES:
                await self._room()
        return added

    def _add(self, events: Iterable[Event]) -> bool:
        """Adds events; whether there were any."""
        before = len(self._unsent)
        for event in events:
            self._unsent += self._style.frame(event)
        if self._unsent:
            self._readable.set()
        return len(self._unsent) > before

    async def _add_last(self) -> None:
        """Adds the events after the last delta, which may hold the whole answer."""
        if sum(map(weight, await self._group.completions())) <= _LONG:
            self._add(self._formatter.end())
        else:
            await self._add_long(self._formatter.end)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        more = True
        while more:
            await self._readable.wait()
            self._readable.clear()
            body, self._unsent = bytes(self._unsent), bytearray()
            more = not self._ended
            self._writable.set()
            await send({"type": "http.response.body", "body": body, "more_body": more})


class JsonParts(Response):
    """JSON that is sent in parts.

    The server would copy a long body that comes at once, and that once more for a client that reads slowly.
    """

    media_type = "application/json"

    def __init__(self, parts: Sequence[bytes], *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={**(headers or {}), "content-length": str(sum(map(len, parts)))})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for number, part in enumerate(self._parts, start=1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(self._parts)})


class JsonAnswer(Response):
    """The completions of a request group as one JSON value, built by `build`.

    A list in it may be an iterator, or made when it is read: then no more than one of its elements is there at a time.
    `encoded` is called with the JSON, in parts, before it is sent.
    """

    media_type = "application/json"

    def __init__(
        self,
        group: RequestGroup,
        build: Callable[[Sequence[Completion]], Any],
        *,
        headers: Mapping[str, str] | None = None,
        encoded: Callable[[Sequence[bytes]], None] = lambda parts: None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers(dict(headers or {}))
        self._group, self._build, self._encoded = group, build, encoded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._group:
            disconnect = asyncio.create_task(disconnected(receive))
            results = asyncio.create_task(self._group.completions())
            try:
                await asyncio.wait({disconnect, results}, return_when=asyncio.FIRST_COMPLETED)
                if results.done():
                    await (await self._answer(results.result()))(scope, receive, send)
            finally:
                await abort_and_cancel(self._group, disconnect, results)

    async def _answer(self, completions: Sequence[Completion]) -> JsonParts:
        if self._group.reason == "timeout":
            raise errors.timed_out()
        long = sum(map(weight, completions)) > _LONG
        parts = await asyncio.to_thread(quickly, self._parts, completions) if long else [self._body(completions)]
        self._encoded(parts)
        return JsonParts(parts, headers=self.headers)

    def _body(self, completions: Sequence[Completion]) -> bytes:
        return dump(self._build(completions))

    def _parts(self, completions: Sequence[Completion]) -> list[bytes]:
        """The body of a long answer."""
        return [*in_parts(pieces(self._build(completions)))]


async def abort_and_cancel(group: RequestGroup, *tasks: asyncio.Task[Any]) -> None:
    """Ends a response: aborts what the engine still runs, then the tasks around it."""
    # In this order: a task that is cancelled aborts its requests too, but without a reason.
    group.abort()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def weight(completion: Completion) -> int:
    """Roughly how many values an answer has: tokens, log-probabilities and hidden states."""
    each = breadth([*(completion.prompt_logprobs or ()), *(completion.logprobs or ())])
    states = 0 if completion.hidden_states is None else completion.hidden_states.size
    return each * completion.usage.total_tokens + states


def lists_any(running: RunningRequest) -> bool:
    """Whether events of a request may show logprobs, of its prompt or of its tokens."""
    params = running.request.params
    return params.lists_logprobs or params.prompt_logprobs is not None


def delta_weight(delta: Delta) -> int:
    """Roughly how many values a delta has."""
    return breadth(delta.logprobs or ()) * len(delta.token_ids)


def prompt_weight(running: RunningRequest) -> int:
    """Roughly how many log-probabilities of its prompt the first event of a sample may show."""
    entries = running.request.prompt_logprobs or ()
    return breadth(entries) * len(entries)


def breadth(entries: Sequence[LogprobEntry | None]) -> int:
    """How many values there are of a token, by the last of some entries; 1 without any."""
    wide = next((entry for entry in reversed(entries) if entry is not None), None)
    return 1 if wide is None else 1 + len(wide.top) + len(wide.given)


def is_nested(value: Any) -> bool:
    """Whether a value is an object, or a list of lists or objects."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], (list, dict)))


def is_large(value: Any) -> bool:
    """Whether a member of an object is not encoded at once with the others."""
    if isinstance(value, list):
        return is_nested(value) or len(value) > _PIECE
    return isinstance(value, dict | Iterator | MadeWhenRead)


def in_parts(made: Iterable[bytes]) -> Iterator[bytes]:
    """What small pieces come to, in parts of about _PART_BYTES."""
    part = bytearray()
    for piece in made:
        part += piece
        if len(part) >= _PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value in small pieces: no other thread runs while the encoder works on one of them."""
    if isinstance(value, dict) and any(map(is_large, value.values())):
        yield b"{"
        for index, (key, each) in enumerate(value.items()):
            yield (b"," if index else b"") + dump(key) + b":"
            yield from pieces(each)
        yield b"}"
    elif isinstance(value, Iterator | MadeWhenRead) or (isinstance(value, list) and value and is_nested(value[0])):
        yield b"["
        for index, each in enumerate(value):
            yield b"," if index else b""
            yield from pieces(each)
        yield b"]"
    elif isinstance(value, list) and len(value) > _PIECE:
        slices = (value[start : start + _PIECE] for start in range(0, len(value), _PIECE))
        yield b"[" + b",".join(dump(each)[1:-1] for each in slices) + b"]"
    else:
        yield dump(value)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()
