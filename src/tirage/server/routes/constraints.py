"""`/check_constraint`: whether a constraint can be enforced, before a request uses it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.dialects import DialectError
from tirage.errors import GrammarError, ParamsError
from tirage.server.http_request import in_worker_thread, manager_of, read_known, tenant_of, unknown_header
from tirage.server.routes.chat import read_chat
from tirage.server.routes.fields import json_body, object_schema
from tirage.server.routes.openai_request import CHAT, read_request
from tirage.server.routes.openai_submit import refusal_of

router = APIRouter(tags=["text"])

_CONSTRAINTS = {name: entry for name, entry in CHAT.openai.entries.items() if "guided_decoding" in entry.ours}
_TOOLS = {name: CHAT.fields[name] for name in ("tools", "tool_choice", "parallel_tool_calls")}
_NAMES = (*_CONSTRAINTS, *_TOOLS)
_MESSAGES = [{"role": "user", "content": "a"}]


@router.post("/check_constraint", openapi_extra=json_body(object_schema(_CONSTRAINTS, _TOOLS)))
async def check_constraint(request: Request) -> Response:
    """Compiles the constraint that a chat with these fields would have.

    The answer lists the places of a schema that decide nothing. Raises DialectError without a constraint, and Refusal,
    the one that the chat would get.
    """
    manager = manager_of(request)
    body, unknown = await read_known(request, _NAMES)
    asked = {**body, "messages": _MESSAGES, "max_tokens": 1}
    chat = await in_worker_thread(request, read_request, CHAT, asked, manager.options, manager.llm, lenient=False)
    found = await read_chat(chat, request)
    guided = found.engine_input.params.guided_decoding
    if guided is None:
        raise DialectError(
            "response_format must be given, or another constraint or tools that are forced or strict, got none",
            "response_format",
        )
    try:
        [prepared] = await manager.prepare([found.engine_input], tenant=tenant_of(request))
    except (ParamsError, GrammarError) as error:
        refusal = refusal_of(error, chat, "response_format")
        refusal.message = found.tools.reworded(refusal.message)
        raise refusal from error
    ignored: list[Any] = [] if prepared.constraint is None else list(prepared.constraint.grammar.ignored)
    return JSONResponse({"valid": True, "mode": guided.mode, "ignored": ignored}, headers=unknown_header(unknown))
