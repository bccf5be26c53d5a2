"""The models of a server: the base model, and its adapters, which requests choose by name like models."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.server.errors import Refusal
from tirage.server.http_request import manager_of, options_of
from tirage.server.request_manager import RequestManager

router = APIRouter(tags=["openai"])
_STARTED = int(time.time())


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The list of models."""
    return JSONResponse({"object": "list", "data": list(listed(manager_of(request)).values())})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """One model; raises Refusal 404 for an unknown name."""
    found = listed(manager_of(request)).get(name)
    if found is None:
        known = options_of(request).model_name
        text = f"model must be one of this server's, got {name!r:.80}; use {known!r}"
        raise Refusal(404, text, type="invalid_request_error", param="model", code="model_not_found")
    return JSONResponse(found)


def listed(manager: RequestManager) -> dict[str, dict[str, Any]]:
    """The models by name, as OpenAI, vLLM and SGLang list them; `root` is the base's name, never a path."""
    base = manager.options.model_name
    more = {"object": "model", "created": _STARTED, "owned_by": "tirage", "root": base}
    more |= {"max_model_len": manager.llm.model.max_length}
    names = [base, *adapters_of(manager)]
    return {name: {"id": name, **more, "parent": None if name == base else base} for name in names}


def adapters_of(manager: RequestManager) -> list[str]:
    """The names of the adapters: those that the server was started with, then those that were loaded since."""
    return manager.adapters.names
