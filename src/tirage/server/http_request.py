"""What a route asks of the HTTP request that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fastapi import Request

from tirage.errors import nearest
from tirage.fields.rules import shown
from tirage.server.errors import Refusal
from tirage.server.media import MediaLoader
from tirage.server.options import Options
from tirage.server.request_manager import RequestManager
from tirage.server.strict_json import parse_object

# A body that parses within a millisecond is not worth a thread; understanding it may take longer than parsing it.
_SMALL = 64 * 1024
_SHORT = 4 * 1024
T = TypeVar("T")


def manager_of(request: Request) -> RequestManager:
    """The desk; Refusal 503 while the model is loading or the server is closing."""
    health = request.app.state.health
    if request.app.state.desk is None or not health.taking:
        headers = {"retry-after": "1", "connection": "close"}
        raise Refusal(503, f"the server takes no requests now, it is {health.phase}", headers=headers)
    return request.app.state.desk


def options_of(request: Request) -> Options:
    """The operator's settings."""
    return request.app.state.options


def tenant_of(request: Request) -> str:
    """Who asks: the same text for the same key, and "" where there are no keys."""
    return request.scope.get("tirage.tenant", "")


def admin_of(request: Request) -> bool:
    """Whether the request came with the admin key."""
    return request.scope.get("tirage.admin", False)


def id_of(request: Request) -> str:
    """The request's id, which its answer carries in `x-request-id`."""
    return request.scope.get("tirage.id", "")


def media_of(request: Request) -> MediaLoader:
    """What loads the images and sounds of requests; there is one as soon as there is a desk."""
    return request.app.state.media


async def read_json(request: Request) -> dict[str, Any]:
    """The body, a JSON object; ParamsError for anything else."""
    body, depth = await request.body(), options_of(request).limits.max_json_depth
    if len(body) > _SMALL:
        return await asyncio.to_thread(parse_object, body, depth=depth)
    return parse_object(body, depth=depth)


async def in_worker_thread(request: Request, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """What a function makes of a body that was read, in a thread unless the body is short."""
    if len(await request.body()) > _SHORT:
        return await asyncio.to_thread(function, *arguments, **options)
    return function(*arguments, **options)


def check_names(body: dict[str, Any], known: Iterable[str]) -> None:
    """Refusal 400 for a field that is none of the known ones."""
    for name in body:
        if name not in known:
            hint = nearest(name, known) or "; leave it out"
            raise Refusal(400, f"field must be a known name, got {name!r:.64}{hint}", param=name[:64])


def flag_of(body: dict[str, Any], name: str, *, default: bool) -> bool:
    """A true-or-false field; null is as absent."""
    value = default if body.get(name) is None else body[name]
    if not isinstance(value, bool):
        text = f"{name} must be true or false, got {shown(value)}; leave it out for {str(default).lower()}"
        raise Refusal(400, text, param=name)
    return value


def is_lenient(request: Request) -> bool:
    """Whether unknown fields are to be ignored, by the operator's or the client's wish."""
    asked = request.headers.get("x-tirage-unknown-fields", "").strip().lower() == "ignore"
    return asked or options_of(request).ignore_unknown_fields


def ignored_header(names: Iterable[object]) -> dict[str, str]:
    """The header that lists the fields which were ignored, whatever they were called; none when there are none."""
    text = ", ".join(str(name).encode("ascii", "replace").decode() for name in names)
    return {"x-tirage-ignored-fields": "".join(c if c.isprintable() else "?" for c in text)[:1000]} if text else {}
