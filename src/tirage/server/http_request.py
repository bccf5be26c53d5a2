"""What a route needs of its HTTP request: the body, the tenant, and the parts of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from fastapi import Request

from tirage.engine import Tenant
from tirage.errors import nearest
from tirage.server.errors import Refusal
from tirage.server.media import MediaLoader
from tirage.server.options import Options
from tirage.server.request_group import RequestGroup
from tirage.server.request_manager import RequestManager
from tirage.server.strict_json import parse_object
from tirage.workers.quick_switching import quickly

# A body that is parsed within a millisecond is not worth a thread; checking its fields may take longer than that.
_SMALL = 64 * 1024
_SHORT = 4 * 1024
T = TypeVar("T")


def manager_of(request: Request) -> RequestManager:
    """The request manager; raises Refusal 503 while the model is loading or the server is closing."""
    health = request.app.state.health
    if request.app.state.manager is None or not health.accepts_requests:
        headers = {"retry-after": "1", "connection": "close"}
        raise Refusal(503, f"the server takes no requests now, it is {health.phase}", headers=headers)
    return request.app.state.manager


def options_of(request: Request) -> Options:
    """The operator's settings."""
    return request.app.state.options


def tenant_of(request: Request) -> Tenant:
    """The tenant of a request: the same for the same key, and the unnamed one without a key."""
    return request.scope.get("tirage.tenant", Tenant())


def admin_of(request: Request) -> bool:
    """Whether the request has the admin key."""
    return request.scope.get("tirage.admin", False)


def media_of(request: Request) -> MediaLoader:
    """The loader of images and audio; it exists as soon as the request manager does."""
    return request.app.state.media


async def read_json(request: Request) -> dict[str, Any]:
    """The body, a JSON object; raises ParamsError for anything else."""
    body, depth = await request.body(), options_of(request).limits.max_json_depth
    if len(body) > _SMALL:
        return await asyncio.to_thread(quickly, parse_object, body, depth=depth)
    return parse_object(body, depth=depth)


async def in_worker_thread(request: Request, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """The function's result, computed in a thread unless the request's body is short."""
    if len(await request.body()) > _SHORT:
        return await asyncio.to_thread(quickly, function, *arguments, **options)
    return function(*arguments, **options)


async def read_known(request: Request, known: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The known fields of the body, and the names of the others where these are ignored.

    Raises Refusal 400 for one that is not known where they are not, and ParamsError for what is no JSON object.
    """
    body = await read_json(request)
    unknown = tuple(name for name in body if name not in known)
    if unknown and not is_lenient(request):
        hint = nearest(unknown[0], known) or "; leave it out"
        raise Refusal(400, f"field must be a known name, got {unknown[0]!r:.64}{hint}", param=unknown[0][:64])
    return {name: value for name, value in body.items() if name in known}, unknown


def is_lenient(request: Request) -> bool:
    """Whether unknown fields are ignored, because the operator or the client wants it."""
    ignore = request.headers.get("x-tirage-unknown-fields", "").strip().lower() == "ignore"
    return ignore or options_of(request).ignore_unknown_fields


def unknown_header(names: Iterable[object]) -> dict[str, str]:
    """The header that lists the fields that were ignored; none when there are none."""
    found = listed(names)
    return {"x-tirage-ignored-fields": found} if found else {}


def ignored_header(names: Iterable[object], group: RequestGroup) -> dict[str, str]:
    """The headers that list the ignored fields, and what is ignored in a schema; none of them when there is nothing."""
    constraints = (running.request.constraint for running in group.requests)
    ignored = {place: None for each in constraints if each is not None for place in each.grammar.ignored}
    in_schema = listed(ignored)
    return unknown_header(names) | ({"x-tirage-ignored-in-schema": in_schema} if in_schema else {})


def listed(names: Iterable[object]) -> str:
    """The names with commas between them, made safe for a header."""
    text = ", ".join(str(name).encode("ascii", "replace").decode() for name in names)
    return "".join(c if c.isprintable() else "?" for c in text)[:1000]
