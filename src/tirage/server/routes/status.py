"""Health checks, metrics, and information about the model and the server."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import tirage
from tirage.engine import Prompt
from tirage.params import SamplingParams
from tirage.processors import processor_names
from tirage.semantics import PRESETS
from tirage.server.engine_input import EngineInput
from tirage.server.http_request import admin_of, manager_of, options_of, tenant_of
from tirage.server.options import LIMIT_FLAGS, OPTION_FLAGS

SECRET = frozenset({"api_key", "admin_key", "ssl_keyfile_password"})
"""Settings that no route reveals."""
_PATHS = ("media_root", "chat_template", "lora_root", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
_PROBE_S = 5.0

router = APIRouter(tags=["status"])


@router.get("/health")
@router.head("/health", include_in_schema=False)
async def health(request: Request) -> Response:
    """200 when the model answers; 503 before that, and when the engine has work but makes no progress."""
    state = request.app.state.health
    left = {"abandoned_processor_calls": state.abandoned_calls} if state.abandoned_calls else {}
    told = {"status": state.phase, **preparation(request), **left}
    return JSONResponse(told, status_code=200 if state.alive else 503)


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """200 when the model has just drawn a token for this request, or is busy and makes progress."""
    manager, state = manager_of(request), request.app.state.health
    if not manager.llm.engine.progress().busy:
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        engine_input = EngineInput(prompt=Prompt(token_ids=[0]), params=params)
        try:
            async with (
                asyncio.timeout(_PROBE_S),
                await manager.submit([engine_input], tenant=tenant_of(request)) as group,
            ):
                await group.completions()
        except TimeoutError:
            return JSONResponse({"status": "stalled"}, status_code=503)
    return JSONResponse({"status": state.phase}, status_code=200 if state.alive else 503)


@router.get("/ready")
@router.head("/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """200 when a request would be accepted now; 503 while loading, draining, or with a full queue."""
    state, manager = request.app.state.health, request.app.state.manager
    phase = "full" if state.phase == "ready" and manager is not None and manager.full else state.phase
    return JSONResponse({"status": phase, **preparation(request)}, status_code=200 if phase == "ready" else 503)


def preparation(request: Request) -> dict[str, Any]:
    """What is being prepared, by lane; nothing before the model is loaded."""
    manager = request.app.state.manager
    if manager is None:
        return {}
    lanes = {
        lane.name: {"waiting": lane.waiting, "running": lane.running, "oldest_s": round(lane.oldest_s, 3)}
        for lane in manager.lanes
    }
    return {"preparation": lanes}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters and histograms in Prometheus' text format.

    Where there are several tenants, only the admin key sees what tells of their cache hits.
    """
    options = options_of(request)
    alone = not options.api_key and options.tenant_by == "key"
    page = request.app.state.metrics.page(cache=alone or admin_of(request))
    return Response(page, media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version() -> Response:
    """The version of tirage."""
    return JSONResponse({"version": tirage.__version__})


@router.get("/model_info")
@router.get("/get_model_info")
async def model_info(request: Request) -> Response:
    """What the model is, with SGLang's names for what SGLang reports."""
    manager, options = manager_of(request), options_of(request)
    llm = manager.llm
    return JSONResponse({
        "model_path": options.model_name,
        "tokenizer_path": options.model_name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "vocab_size": llm.model.vocab_size,
        "max_model_len": llm.model.max_length,
        "eos_token_ids": eos_ids(llm.generation_config.get("eos_token_id")),
        "has_chat_template": not llm.chat_template.is_plain,
        "generation_config": {
            k: v for k, v in llm.generation_config.items() if isinstance(v, (int, float, list, bool))
        },
        "adapters": manager.adapters.names,
        "logits_processors": list(processor_names()),
        "semantics": list(PRESETS),
    })


@router.get("/server_info")
@router.get("/get_server_info")
async def server_info(request: Request) -> Response:
    """The version, the settings without secrets, and the state of the engine."""
    manager, options = manager_of(request), options_of(request)
    settings: dict[str, Any] = {name: plain(getattr(options, name)) for name in OPTION_FLAGS if name not in SECRET}
    settings |= {name: getattr(options.limits, name) for name in LIMIT_FLAGS}
    settings["model"] = options.model_name
    settings["lora"] = [text.partition("=")[0] for text in options.lora]
    for name in _PATHS:
        settings[name] = getattr(options, name) is not None
    progress = manager.llm.engine.progress()
    engine = {name: getattr(progress, name) for name in ("waiting", "reading", "running", "started", "completed")}
    status = request.app.state.health.phase
    return JSONResponse({"version": tirage.__version__, "status": status, **settings, "engine": engine})


def eos_ids(value: Any) -> list[int]:
    """One id, several or none, as a list."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def plain(value: Any) -> Any:
    """A setting as a JSON value."""
    return list(value) if isinstance(value, tuple) else value
