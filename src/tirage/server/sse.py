"""Answers that end early when their client leaves: event streams, and JSON that takes its time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tirage.engine import Completion, Delta
from tirage.server import errors
from tirage.server.request_group import RequestGroup

_log = logging.getLogger("tirage.server")
# What a stream keeps for a client that reads slowly; beyond it the engine puts deltas together.
_BUFFER_BYTES = 256 * 1024
# Answers of more tokens and log-probabilities than this are put into words in a thread.
_LONG = 2000
# So many members of a list are encoded at once: numbers, or log-probabilities of as many tokens.
_PIECE = 16
DONE = b"data: [DONE]\n\n"

Event = Mapping[str, Any] | bytes
"""An event of a stream: an object that is sent as JSON, or the JSON itself."""


class EventFormatter(Protocol):
    """How a route words a stream. An object of its own for every request."""

    def begin(self) -> Iterable[Event]:
        """Events before the first delta."""
        ...

    def say(self, number: int, delta: Delta) -> Iterable[Event]:
        """Events for a delta of the ticket `number`."""
        ...

    def end(self) -> Iterable[Event]:
        """Events after the last delta; `[DONE]` follows by itself."""
        ...


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dump(value: Any) -> bytes:
    """Strict JSON; a number that JSON cannot write is a ValueError."""
    return _encode(value).encode()


class JsonTemplate:
    """An event made ahead of which only some members change: those called `holes`, None in `event`, in its order."""

    def __init__(self, event: Mapping[str, Any], holes: Iterable[str]) -> None:
        rest, self._parts = dump(event), list[bytes]()
        for name in holes:
            # No text can hold this: a quotation mark within one is escaped.
            before, _, rest = rest.partition(dump(name) + b":null")
            self._parts.append(before + dump(name) + b":")
        self._rest = rest

    def fill(self, *values: bytes) -> bytes:
        """The event with the JSON of each hole."""
        return b"".join([each for pair in zip(self._parts, values, strict=True) for each in pair]) + self._rest


def frame(event: Event) -> bytes:
    """An event as it goes over the wire."""
    return b"data: " + (event if isinstance(event, bytes) else dump(event)) + b"\n\n"


class EventStream(Response):
    """The events of a visit. What is ready together is written together; a client that leaves aborts the visit."""

    media_type = "text/event-stream"

    def __init__(
        self, visit: RequestGroup, speaker: EventFormatter, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        self._visit, self._speaker = visit, speaker
        self._unsent, self._over = bytearray(), False
        self._came, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._visit:
            gone = asyncio.create_task(disconnected(receive))
            pump = asyncio.create_task(self._pump())
            writer = asyncio.create_task(self._write(send))
            try:
                await asyncio.wait({gone, writer}, return_when=asyncio.FIRST_COMPLETED)
                if writer.done():
                    writer.result()
            finally:
                # First of all: a task that is cancelled ends its calls too, but cannot say why.
                self._visit.abort()
                for task in (gone, pump, writer):
                    task.cancel()
                await asyncio.gather(gone, pump, writer, return_exceptions=True)

    async def _pump(self) -> None:
        """Turns deltas into bytes, as long as the writer keeps up."""
        try:
            self._add(self._speaker.begin())
            async for number, delta in self._visit.deltas():
                self._add(self._speaker.say(number, delta))
                if len(self._unsent) > _BUFFER_BYTES:
                    self._room.clear()
                    await self._room.wait()
            self._add(self._speaker.end())
        except Exception as error:
            self._add([errors.envelope(errors.of(error))])
        self._unsent += DONE
        self._over = True
        self._came.set()

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._unsent += frame(event)
            self._came.set()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        more = True
        while more:
            await self._came.wait()
            self._came.clear()
            body, self._unsent = bytes(self._unsent), bytearray()
            more = not self._over
            self._room.set()
            await send({"type": "http.response.body", "body": body, "more_body": more})


class JsonAnswer(Response):
    """A visit's completions as one JSON object, made by `make`; a client that leaves aborts the visit."""

    media_type = "application/json"

    def __init__(
        self,
        visit: RequestGroup,
        make: Callable[[Sequence[Completion]], Any],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers(dict(headers or {}))
        self._visit, self._make = visit, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._visit:
            gone = asyncio.create_task(disconnected(receive))
            results = asyncio.create_task(self._visit.completions())
            try:
                await asyncio.wait({gone, results}, return_when=asyncio.FIRST_COMPLETED)
                if results.done():
                    await self._send(results.result(), scope, receive, send)
            finally:
                # First of all: a task that is cancelled ends its calls too, but cannot say why.
                self._visit.abort()
                for task in (gone, results):
                    task.cancel()
                await asyncio.gather(gone, results, return_exceptions=True)

    async def _send(self, completions: Sequence[Completion], scope: Scope, receive: Receive, send: Send) -> None:
        if self._visit.reason == "timeout":
            raise errors.late()
        long = sum(map(weight, completions)) > _LONG
        body = await asyncio.to_thread(self._long_body, completions) if long else self._body(completions)
        response = Response(body, headers=dict(self.headers), media_type=self.media_type)
        await response(scope, receive, send)

    def _body(self, completions: Sequence[Completion]) -> bytes:
        return dump(self._make(completions))

    def _long_body(self, completions: Sequence[Completion]) -> bytes:
        return b"".join(pieces(self._make(completions)))


def weight(completion: Completion) -> int:
    """About how many values an answer has: its tokens, their log-probabilities, and hidden states."""
    scored = [*(completion.prompt_logprobs or ()), *(completion.logprobs or ())]
    wide = next((entry for entry in reversed(scored) if entry is not None), None)
    each = 1 if wide is None else 1 + len(wide.top) + len(wide.given)
    states = 0 if completion.hidden_states is None else completion.hidden_states.size
    return each * completion.usage.total_tokens + states


def is_nested(value: Any) -> bool:
    """Whether a value is an object, or a list of lists or objects."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], (list, dict)))


def pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value bit by bit: no other thread runs while the encoder is at one of them."""
    if isinstance(value, dict):
        yield b"{"
        for index, (key, each) in enumerate(value.items()):
            yield (b"," if index else b"") + dump(key) + b":"
            yield from pieces(each)
        yield b"}"
    elif isinstance(value, list) and value and is_nested(value[0]):
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
    """Returns when the client has gone."""
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()
