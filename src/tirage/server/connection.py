"""HTTP connections with limits that uvicorn's protocol lacks: on slow and silent clients, and on oversized heads."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Iterable
from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tirage.server.cors import AllowedOrigins
from tirage.server.errors import Refusal, envelope
from tirage.server.options import Limits
from tirage.server.request_ids import ID_HEADER, request_id

_log = logging.getLogger("tirage.server")
# Limits on the head of a request; no known client needs more.
HEAD_BYTES = 64 * 1024
HEADERS = 100
# How many pipelined requests are read before reading pauses; while reading, a disconnect is noticed.
_AHEAD = 16
# How often the log may say that there are too many connections.
_TELL_S = 60.0
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class HeadError(Exception):
    """The head of a request is too large; the parser turns this into a refusal."""


class OpenConnections:
    """The connections of a server, of which at most `most` are open.

    `waiting` are those without a request: idle ones, and those whose head has not come yet, in the order of their wait.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting: dict[Connection, None] = {}
        self._told = -math.inf

    def close_waiting(self, new: Connection) -> bool:
        """Closes the one that has waited longest to make room for a new one; False when there is none."""
        found = next((each for each in self.waiting if each is not new), None)
        if found is None:
            return False
        del self.waiting[found]
        found.transport.abort()
        if time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            _log.warning("%d connections are open, and no more may be; those without a request are closed", self.most)
        return True


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection with limits on the size of heads and on the time that a client may take."""

    limits = Limits()
    open = OpenConnections(limits.max_connections)
    origins = AllowedOrigins(())

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    # Bytes received while a head was being read, those of its parsed headers, and bytes after it without effect.
    _head_bytes = _parsed = _useless = 0
    _in_head = True
    _unsent = 0
    # What is not answered yet: the current request, and those that the client has pipelined.
    _open: tuple[RequestResponseCycle, ...] = ()
    # What answers invalid bytes, once the requests before them are answered.
    _refusal: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open.waiting[self] = None
        if len(self.connections) > self.open.most and not self.open.close_waiting(self):
            refusal = Refusal(503, "the server has too many connections; try again later", headers={"retry-after": "1"})
            self._refuse(refusal)
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.waiting.pop(self, None)
        self._disarm()
        for cycle in self._open:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._refusal is not None:
            self._ignore(data)
            return
        if self._in_head:
            self._head_bytes += len(data)
            data = without_upgrade(data)
        else:
            self._useless += len(data)
        super().data_received(data)
        if (self._head_bytes if self._in_head else self._useless) > HEAD_BYTES:
            self._refuse(head_too_large())
        elif self._in_head and self._head_bytes and self._head_timer is None:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answers invalid HTTP and heads that are too large, which the parser does not tell apart."""
        too_large = max(self._head_bytes, self._parsed) > HEAD_BYTES or len(self.headers or ()) > HEADERS
        if too_large:
            self._refuse(head_too_large())
        elif (coding := transfer_coding(self.headers or ())) not in (b"", b"chunked"):
            self._refuse(unknown_coding(coding))
        else:
            self._refuse(Refusal(400, "the request is not valid HTTP/1.1"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._parsed = 0
        self.scope["extensions"] = {"tirage.connection": self}  # type: ignore[typeddict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; raises HeadError when there are too many, or too large ones."""
        # Trailers after a body are ignored: a proxy and our middleware have checked the headers without them.
        if self._in_head:
            super().on_header(name, value)
        self._parsed += len(name) + len(value)
        if len(self.headers) > HEADERS or self._parsed > HEAD_BYTES:
            raise HeadError

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.open.waiting.pop(self, None)
        self._head_timer = cancelled(self._head_timer)
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = without_chunks(self.cycle)  # type: ignore[method-assign]
        self._useless = 0
        self._open = (*self._unanswered, self.cycle)
        if 1 < len(self._open) <= _AHEAD:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._useless = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # The headers stay those of the request that was read; none of the next one have come.
        self._in_head, self._head_bytes, self.headers = True, 0, []
        self._rest_timer = cancelled(self._rest_timer)
        if len(self._open) <= _AHEAD:
            # A large body pauses reading at its end, and nobody asks for more of it.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        if self._refusal is not None and not self._unanswered and not self.transport.is_closing():
            self.transport.write(self._refusal)
            self.transport.close()
        super().on_response_complete()
        if not self._answering and self._in_head:
            self.open.waiting[self] = None
        if self.cycle.response_complete and not self._in_head and self._rest_timer is None:
            # No one reads the rest of this body any more, so no other timeout applies to it.
            self._rest_timer = self.loop.call_later(self.limits.body_timeout, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_timer = cancelled(self._stall_timer)

    @property
    def disconnected(self) -> bool:
        """Whether the client has left."""
        return self.transport.is_closing()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_timeout, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._in_head and not self._answering and not self.transport.is_closing():
            self._refuse(Refusal(408, "the head of the request took too long"))

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._open if not cycle.response_complete]

    def _watch_stall(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.limits.stall_timeout, self._check_stall)

    def _check_stall(self) -> None:
        """Aborts the connection of a client that has read nothing since the last check."""
        if self.transport.get_write_buffer_size() >= self._unsent:
            _log.info("a client stopped reading and was disconnected")
            self.transport.abort()
        else:
            self._watch_stall()

    def _disarm(self) -> None:
        self._head_timer = cancelled(self._head_timer)
        self._stall_timer = cancelled(self._stall_timer)
        self._rest_timer = cancelled(self._rest_timer)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that every answer has: the id of the request, and those for pages of allowed origins.

        The id is the one by which the application knows the request, the client's or a new one.
        """
        known, asked = None if self._in_head else self.scope.get("tirage.id"), self.headers or ()
        return [(ID_HEADER, (known or request_id(asked)).encode()), *self.origins.headers(asked)]

    def _refuse(self, refusal: Refusal) -> None:
        """Answers in place of the application, after the requests that came before, and closes.

        A request whose answer has begun before all of it has come gets no other.
        """
        self._disarm()
        response = plain_response(refusal, self._own_headers())
        if self._answering and not self._in_head:
            # The application waits for the rest of this body; nothing that it sends is written any more.
            self.cycle.disconnected = True
            self._open = tuple(cycle for cycle in self._open if cycle is not self.cycle)
            if self.pipeline:
                self.pipeline.popleft()
            if self.cycle.response_started:
                response = b""
        if self._unanswered:
            self._refusal = response
            return
        self.transport.write(response)
        self.transport.close()

    def _ignore(self, data: bytes) -> None:
        """Drops what comes after invalid bytes. A little is read, as reading notices a client that leaves."""
        self._useless += len(data)
        if self._useless > HEAD_BYTES:
            self.flow.pause_reading()


def without_chunks(cycle: RequestResponseCycle) -> Send:
    """The `send` of an answer to HTTP/1.0, which has no chunks: what has no length ends with the connection."""
    send_on, ends_with_connection = cycle.send, False

    async def send(message: Any) -> None:
        nonlocal ends_with_connection
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            ends_with_connection = b"content-length" not in names
            # None would let the cycle choose chunks.
            cycle.chunked_encoding = False if ends_with_connection else None
        elif ends_with_connection:
            # It counts down what a Content-Length has promised.
            cycle.expected_content_length = len(message.get("body", b""))
        await send_on(message)

    return send


def cancelled(timer: asyncio.TimerHandle | None) -> None:
    """None, after cancelling the timer if there is one."""
    if timer is not None:
        timer.cancel()


def without_upgrade(data: bytes) -> bytes:
    """The beginning of a request without its Upgrade header.

    A server may ignore the header, and this one has no other protocol; but the parser would not read the body.
    """
    if _UPGRADE.search(data, 0, HEAD_BYTES) is None:
        return data
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest


def transfer_coding(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The transfer codings of a request in lower case, joined by commas; empty without any."""
    return b", ".join(value.strip().lower() for name, value in headers if name == b"transfer-encoding")


def unknown_coding(coding: bytes) -> Refusal:
    """The answer to a body in a transfer coding that is not served."""
    text = f"Transfer-Encoding must be chunked, got {coding.decode('latin-1')[:64]!r}; send the body plain"
    return Refusal(501, text, headers={"connection": "close"})


def head_too_large() -> Refusal:
    """The answer to a head beyond the limits."""
    return Refusal(431, f"the head of a request must be at most {HEADERS} headers and {HEAD_BYTES} bytes")


def plain_response(refusal: Refusal, own: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A refusal as the bytes of a response that closes the connection, with headers of one's own."""
    body = json.dumps(envelope(refusal)).encode()
    headers: dict[str, Any] = {
        **refusal.headers,
        "content-type": "application/json",
        "content-length": len(body),
        "connection": "close",
        **{name.decode(): value.decode("latin-1") for name, value in own},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[refusal.status] + lines.encode("latin-1") + b"\r\n" + body
