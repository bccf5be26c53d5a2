"""What Ray Serve's HTTP proxies add: an end that clients can read where a replica, or Serve itself, gave none.

A proxy loads `middleware` when RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it as it starts.
"""

from __future__ import annotations

from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirage.server.errors import Refusal, anthropic_envelope, envelope, is_anthropic, respond
from tirage.server.sse import CHUNKS, DONE, StreamStyle, named

_OWN_STATUSES = frozenset({404, 408, 429, 503})
_RETRY = {"retry-after": "1"}


class ProxyAnswers:
    """ASGI middleware of a proxy: every answer ends, and errors have our form.

    A stream whose replica has gone ends with an error event and `[DONE]`, a request that was not answered yet with 503,
    and a text of Serve's own, such as that the queue is full, is put into the envelope of errors.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        await self._app(scope, receive, answer.send)
        if answer.text is not None:
            headers = _RETRY if answer.status == 503 else {}
            await respond(Refusal(answer.status, answer.text.decode(errors="replace"), headers=headers))(
                scope, receive, send
            )
        elif not answer.status:
            await respond(gone())(scope, receive, send)
        elif answer.streams and not answer.ended:
            await send({"type": "http.response.body", "body": last_events(scope["path"]), "more_body": False})


class _Answer:
    """An answer on its way: what has been sent of it. `text` collects one of Serve's own, which is not sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self.streams, self.ended = 0, False, False
        self.text: bytes | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            kind = content_type(message)
            self.streams = kind.startswith(b"text/event-stream")
            if self.status in _OWN_STATUSES and kind.startswith(b"text/plain"):
                self.text = b""
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
            if self.text is not None:
                self.text += message.get("body", b"")
        if self.text is None:
            await self._send(message)


def content_type(message: Message) -> bytes:
    """The content type of an answer that begins; empty without one."""
    return dict(message.get("headers", ())).get(b"content-type", b"")


def last_events(path: str) -> bytes:
    """What ends a stream of this path whose replica has gone."""
    if is_anthropic(path):
        return StreamStyle(head=named).frame(anthropic_envelope(gone(), ""))
    return CHUNKS.frame(envelope(gone())) + DONE


def gone() -> Refusal:
    """The error of a request whose replica ended before the answer did."""
    text = "the replica that ran the request has ended; send the request again"
    return Refusal(503, text, code="replica_ended", headers=_RETRY)


def middleware() -> list[Any]:
    """The middleware of a proxy, as Ray Serve asks for it."""
    return [Middleware(ProxyAnswers)]
