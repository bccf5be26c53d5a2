"""Checks of every HTTP request before a route sees it: host, origin, content type and size."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import time
from collections.abc import Callable, Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirage.engine import Tenant
from tirage.server import errors
from tirage.server.client import CLIENT, Client
from tirage.server.connection import transfer_coding, unknown_coding
from tirage.server.cors import AllowedOrigins
from tirage.server.errors import Refusal, respond
from tirage.server.options import Limits, Options
from tirage.server.pending_bodies import PendingBodies
from tirage.server.request_ids import ID_HEADER, request_id

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
# After a refusal the rest of a body is read for this long, so that the client can read the answer.
_LINGER_S = 2.0

Record = Callable[[Scope, int, float], None]


class RequestMiddleware:
    """ASGI middleware: request ids, Host, Origin and CORS, type and size of bodies, and errors.

    Calls `record(scope, status, seconds)` after every answer; status 499 is a client that left before one began.
    """

    def __init__(self, app: ASGIApp, *, options: Options, record: Record) -> None:
        self._app, self._limits, self._record = app, options.limits, record
        self._hosts = {"localhost", options.host.lower(), *(host.lower() for host in options.allowed_host)}
        self._origins = AllowedOrigins(options.cors_origin)
        self._bodies = PendingBodies(options.limits.max_pending_body)
        self._root = options.root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        strip_root(scope, self._root)
        began, status = time.perf_counter(), 499
        scope["tirage.id"] = request_id(scope["headers"])
        own = [*id_headers(scope), *self._origins.headers(scope["headers"])]

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            await self._serve(scope, receive, answer)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("extensions", {}).get("tirage.connection")
        client = Client(lambda: connection is not None and connection.disconnected)
        CLIENT.set(client)
        # The tenant is known by the time that a body is read.
        body = LimitedBody(receive, self._limits, lambda count: self._bodies.reserve(tenant_in(scope), count))
        try:
            check_head(scope, self._limits)
            self._check_host(scope)
            self._check_origin(scope)
        except Refusal as refusal:
            await refuse(refusal, scope, receive, send)
            return
        if (preflight := self._origins.preflight(scope)) is not None:
            await preflight(scope, receive, send)
            return
        try:
            await self._run(scope, body, lingering(receive, send, lambda: body.cut))
        finally:
            client.finish()
            self._bodies.release(tenant_in(scope), body.received)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application; answers with an envelope if it fails before it has answered."""
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # The time for open requests is over after a signal.
            if started:
                raise
            await respond(closing())(scope, receive, send)
        except Exception as error:
            refusal = errors.of(error)
            if started:
                raise
            await respond(refusal)(scope, receive, send)

    def _check_host(self, scope: Scope) -> None:
        values = header(scope, b"host")
        if not values and scope["http_version"] == "1.0":
            return
        found = _HOST.fullmatch(values[0].decode("latin-1")) if len(values) == 1 else None
        if found is None:
            raise Refusal(400, "the Host header must be given once, as a name or an address")
        name = found[1].rstrip(".").lower()
        if name not in self._hosts and "*" not in self._hosts and not is_address(name):
            raise Refusal(403, f"host {name!r} is not served here; the operator can allow it with --allowed-host")

    def _check_origin(self, scope: Scope) -> None:
        """Raises Refusal for pages of other origins, even for requests that need no CORS preflight."""
        values = header(scope, b"origin")
        if not values:
            return
        origin, host = values[0].decode("latin-1"), b"".join(header(scope, b"host")).decode("latin-1")
        same = origin.lower() in {f"http://{host}".lower(), f"https://{host}".lower()}
        if len(values) > 1 or not (same or self._origins.allows(origin)):
            raise Refusal(403, "pages of this origin are not served; the operator can allow it with --cors-origin")


def strip_root(scope: Scope, root: str | None) -> None:
    """Takes the operator's root path off a path whose proxy has left it on, so that all that follows sees one form."""
    if root is None:
        return
    scope["root_path"] = root
    # Each time that it is there: the router would take off another one, which the keys and budgets had not seen.
    while scope["path"].startswith(f"{root}/"):
        scope["path"] = scope["path"].removeprefix(root)
    scope["raw_path"] = scope["path"].encode("utf-8", "surrogateescape")


class LimitedBody:
    """The body of a request, with limits on its size and on the time it takes; raises Refusal beyond them.

    `received` is the number of bytes so far. `cut` says that the body was refused before its end.
    """

    def __init__(self, receive: Receive, limits: Limits, reserve: Callable[[int], None]) -> None:
        self._receive, self._limits, self._reserve = receive, limits, reserve
        self._deadline = asyncio.get_running_loop().time() + limits.body_timeout
        self._complete, self.cut, self.received = False, False, 0

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.cut = True
            raise Refusal(408, "the body of the request took too long", headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            self._complete = not message.get("more_body", False)
        return message

    def _count(self, count: int) -> None:
        self.cut = True
        if self.received + count > self._limits.max_body:
            raise too_large(self._limits)
        self._reserve(count)
        self.cut = False
        self.received += count


def tenant_in(scope: Scope) -> Tenant:
    """The tenant that authentication has found; the unnamed one before it."""
    return scope.get("tirage.tenant", Tenant())


def id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The headers that tell the id of a request; Anthropic's clients read `request-id`."""
    names = (ID_HEADER, b"request-id") if errors.is_anthropic(scope["path"]) else (ID_HEADER,)
    return [(name, scope["tirage.id"].encode()) for name in names]


def header(scope: Scope, name: bytes) -> list[bytes]:
    """The values of a header."""
    return [value for key, value in scope["headers"] if key == name]


def is_address(name: str) -> bool:
    """Whether a host is an IP address, for which no DNS answer can be forged."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def check_head(scope: Scope, limits: Limits) -> None:
    """Raises Refusal for a body that is compressed or coded, not JSON, or too large by its Content-Length."""
    if (coding := transfer_coding(scope["headers"])) not in (b"", b"chunked"):
        raise unknown_coding(coding)
    if header(scope, b"content-encoding"):
        raise Refusal(415, "the body must not be compressed; leave Content-Encoding out")
    length = header(scope, b"content-length")
    if length and int(length[0]) > limits.max_body:
        raise too_large(limits)
    has_body = bool(header(scope, b"transfer-encoding")) or (length != [] and length[0].strip(b"0") != b"")
    if scope["method"] in _WITH_BODY and has_body and not is_json(header(scope, b"content-type")):
        raise Refusal(415, "the body must be JSON; send Content-Type: application/json")


def is_json(types: Sequence[bytes]) -> bool:
    """Whether the content type is JSON in UTF-8; parameters but `charset` mean nothing."""
    kind, *parameters = b"".join(types).lower().split(b";")
    pairs = [parameter.partition(b"=") for parameter in parameters]
    charsets = {value.strip(b' \t"') for name, _, value in pairs if name.strip() == b"charset"}
    return len(types) == 1 and kind.strip() == b"application/json" and charsets <= {b"utf-8", b"utf8"}


def too_large(limits: Limits) -> Refusal:
    """The answer to a body beyond the limit."""
    text = f"the body must be at most {limits.max_body} bytes; the operator can raise it with --max-body"
    return Refusal(413, text, headers={"connection": "close"})


def closing() -> Refusal:
    """The answer to a request that the server's end cuts off."""
    return Refusal(503, "the server is closing", headers={"connection": "close"})


async def refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request that no route will see."""
    refusal.headers.setdefault("connection", "close")
    await respond(refusal)(scope, receive, lingering(receive, send, lambda: True))


def lingering(receive: Receive, send: Send, cut: Callable[[], bool]) -> Send:
    """A `send` that delays the end of an answer for a moment, to read the rest of a body that was cut.

    A client that is still sending when its connection is closed would not see the answer.
    """

    async def hold(message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and cut():
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while (await receive()).get("more_body", False):
                        pass
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return hold
