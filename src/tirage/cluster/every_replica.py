"""Requests that concern every replica: one of them gets the request, asks the others, and answers for all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS = frozenset({"/abort_request", "/flush_cache", "/metrics"})
_OK = 200
# Longer than the engine may take to flush.
_PATIENCE_S = 35.0
_ID = b"x-request-id"


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    async def send(self, send: Send) -> None:
        """Sends the answer."""
        length = (b"content-length", str(len(self.body)).encode())
        kept = [each for each in self.headers if each[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status, "headers": [*kept, length]})
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request that has been read, with all that an application needs to answer it."""

    scope: Mapping[str, Any]
    body: bytes

    async def answered_by(self, app: ASGIApp) -> Answered:
        """What an application answers to it."""

        async def receive() -> Message:
            return {"type": "http.request", "body": self.body, "more_body": False}

        return await answered(app, dict(self.scope), receive)


class EveryReplica:
    """ASGI middleware of a replica: it passes requests on, and those for `PATHS` to all replicas.

    `handle` is that of the deployment. This replica answers first, so that what it refuses, such as a wrong key, goes
    no further. Of every answer the request's id is left to Ray Serve's proxy, which sends the same one.
    """

    def __init__(self, app: ASGIApp, handle: Any) -> None:
        self._app, self._handle = app, handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] not in PATHS:
            await self._app(scope, receive, without_id(send))
            return
        parts: list[bytes] = []

        async def keep() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        plain = {key: scope[key] for key in ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path",
                                             "query_string", "root_path", "headers", "client", "server")
                 if key in scope}  # fmt: skip
        own = await answered(self._app, dict(plain), keep)
        if own.status != _OK:
            await own.send(without_id(send))
            return
        request = Recorded(plain, b"".join(parts))
        found = await self._handle.broadcast("answer", request).results_async(
            timeout_s=_PATIENCE_S, return_exceptions=True
        )
        # A replica that ends in the meantime has nothing to stop, to drop or to tell.
        answers = dict(each for each in found if isinstance(each, tuple))
        await together(scope["path"], own, answers).send(without_id(send))


def without_id(send: Send) -> Send:
    """A `send` that leaves the header with the request's id out."""

    async def pass_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [each for each in message.get("headers", ()) if each[0] != _ID]}
        await send(message)

    return pass_on


async def answered(app: ASGIApp, scope: Scope, receive: Receive) -> Answered:
    """The whole answer of an application to a request."""
    start: Message = {}
    parts: list[bytes] = []

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        parts.append(message.get("body", b""))

    await app(scope, receive, collect)
    return Answered(start["status"], tuple(map(tuple, start["headers"])), b"".join(parts))


def together(path: str, own: Answered, answers: Mapping[str, Answered]) -> Answered:
    """The answer for all replicas, by their names: the first refusal, else what they have found together."""
    refused = next((each for each in answers.values() if each.status != _OK), None)
    if refused is not None:
        return refused
    if path == "/metrics":
        headers = ((b"content-type", CONTENT_TYPE_LATEST.encode()),)
        return Answered(_OK, headers, page({name: each.body.decode() for name, each in answers.items()}))
    if path == "/abort_request":
        return Answered(_OK, own.headers, aborted([own.body, *(each.body for each in answers.values())]))
    return own


def aborted(bodies: Sequence[bytes]) -> bytes:
    """The answers of several replicas to `/abort_request` as one: what any of them had is aborted."""
    answers = [json.loads(body) for body in bodies]
    found = dict.fromkeys(name for each in answers for name in each["aborted"])
    missing = [name for name in answers[0]["not_found"] if name not in found]
    return json.dumps({"aborted": list(found), "not_found": missing}).encode()


class Pages(Collector):
    """The metrics of several pages, each with the label `replica`, the page's name."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        """The metrics by name, with the series of all pages."""
        found: dict[str, Metric] = {}
        for replica, text in self._pages.items():
            for family in text_string_to_metric_families(text):
                metric = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.samples.append(sample._replace(labels={**sample.labels, "replica": replica}))
        yield from found.values()


def page(pages: Mapping[str, str]) -> bytes:
    """Pages in Prometheus' text format, by the names of their replicas, as one page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Pages(pages))
    return generate_latest(registry)
