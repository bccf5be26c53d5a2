"""Aborting requests, and what only the operator may do."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.fields.rules import Bool, shown
from tirage.server.errors import Refusal
from tirage.server.http_request import admin_of, manager_of, options_of, read_known, tenant_of, unknown_header
from tirage.server.options import check_limit
from tirage.server.routes.fields import Field, json_body, object_schema, read_fields, structured, table
from tirage.server.threads import in_thread

# The engine flushes between two steps.
_FLUSH_S = 30.0

router = APIRouter(tags=["control"])
admin_router = APIRouter(tags=["control"])

_RID = {"type": "string", "minLength": 1}
_RIDS = structured({"anyOf": [_RID, {"type": "array", "items": _RID, "minItems": 1}]})
ABORT = table([
    Field("rid", _RIDS, None, "the id of a request, or a list of ids"),
    Field("abort_all", Bool(), False, "abort everyone's requests", remedy="leave it out for false"),
])


@router.post("/abort_request", openapi_extra=json_body(object_schema(ABORT)))
async def abort_request(request: Request) -> Response:
    """Aborts the requests with exactly this `rid` (or these) and the same key; the answer says which there were.

    `abort_all` aborts everyone's requests and needs the admin key.
    """
    manager = manager_of(request)
    body, unknown = await read_known(request, ABORT)
    fields = read_fields(ABORT, body)
    if fields["abort_all"]:
        check_admin(request)
        return JSONResponse({"aborted": manager.abort_all(), "not_found": []}, headers=unknown_header(unknown))
    names, tenant = rids_of(fields["rid"], request), tenant_of(request)
    aborted = [name for name in names if manager.abort(name, tenant=tenant)]
    missed = [name for name in names if name not in aborted]
    return JSONResponse({"aborted": aborted, "not_found": missed}, headers=unknown_header(unknown))


@admin_router.post("/flush_cache")
async def flush_cache(request: Request) -> Response:
    """Drops the cached prefixes; needs the admin key, and no body or an empty object.

    Raises Refusal 503 when the engine does not answer.
    """
    check_admin(request)
    unknown = (await read_known(request, ()))[1] if await request.body() else ()
    try:
        await asyncio.wait_for(in_thread(manager_of(request).llm.engine.flush), _FLUSH_S)
    except TimeoutError:
        raise Refusal(503, "the model's loop does not answer; see /health") from None
    return JSONResponse({"success": True}, headers=unknown_header(unknown))


def rids_of(rid: Any, request: Request) -> list[str]:
    """The ids in `rid`, each once; raises Refusal for anything else."""
    names = [rid] if isinstance(rid, str) else rid
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        got = "none" if rid is None else shown(rid)
        raise Refusal(
            400, f"rid must be a non-empty text, or a list of them, got {got}; name what to stop", param="rid"
        )
    limits = options_of(request).limits
    check_limit(limits, "max_prompts", len(names), "number of rid entries")
    check_limit(limits, "max_rid", max(len(name) for name in names), "rid characters")
    return list(dict.fromkeys(names))


def check_admin(request: Request) -> None:
    """Raises Refusal 403 without the admin key."""
    if not admin_of(request):
        raise Refusal(403, "this needs the admin key; the operator sets it with --admin-key")
