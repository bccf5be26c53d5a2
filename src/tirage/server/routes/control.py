"""Stopping requests, and what only the operator may do."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.fields.rules import shown
from tirage.server.errors import Refusal
from tirage.server.http_request import admin_of, check_names, flag_of, manager_of, options_of, read_json, tenant_of
from tirage.server.openapi import TRUE_OR_FALSE, fields_of, json_body
from tirage.server.options import check_limit
from tirage.server.threads import in_thread

# The loop does it between two steps.
_FLUSH_S = 30.0

router = APIRouter(tags=["control"])
admin_router = APIRouter(tags=["control"])

_RID = {"type": "string", "minLength": 1}
_ABORT = json_body({
    "rid": {"anyOf": [_RID, {"type": "array", "items": _RID, "minItems": 1}]},
    "abort_all": TRUE_OR_FALSE,
})


@router.post("/abort_request", openapi_extra=_ABORT)
async def abort_request(request: Request) -> Response:
    """Stops the requests with exactly this `rid` (or these) that came with the same key; says which there were.

    `abort_all` stops everyone's, and needs the admin key.
    """
    desk, body = manager_of(request), await read_json(request)
    check_names(body, fields_of(_ABORT))
    if flag_of(body, "abort_all", default=False):
        check_admin(request)
        return JSONResponse({"aborted": desk.abort_all(), "not_found": []})
    names, tenant = names_of(body.get("rid"), request), tenant_of(request)
    aborted = [name for name in names if desk.abort(name, tenant=tenant)]
    return JSONResponse({"aborted": aborted, "not_found": [name for name in names if name not in aborted]})


@admin_router.post("/flush_cache")
async def flush_cache(request: Request) -> Response:
    """Drops the prefixes kept for later requests. Needs the admin key."""
    check_admin(request)
    try:
        await asyncio.wait_for(in_thread(manager_of(request).llm.engine.flush), _FLUSH_S)
    except TimeoutError:
        raise Refusal(503, "the model's loop does not answer; see /health") from None
    return JSONResponse({"success": True})


def names_of(rid: Any, request: Request) -> list[str]:
    """The names in a body's `rid`, each once."""
    names = [rid] if isinstance(rid, str) else rid
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise Refusal(
            400, f"rid must be a non-empty text, or a list of them, got {shown(rid)}; name what to stop", param="rid"
        )
    limits = options_of(request).limits
    check_limit(limits, "max_prompts", len(names), "rid")
    check_limit(limits, "max_rid", max(len(name) for name in names), "rid")
    return list(dict.fromkeys(names))


def check_admin(request: Request) -> None:
    """Refusal 403 without the admin key."""
    if not admin_of(request):
        raise Refusal(403, "this needs the admin key; the operator sets it with --admin-key")
