"""What the answers of OpenAI's two routes have in common: ids, adapters, extras that were asked for, headers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request

from tirage.dialects import DialectError
from tirage.errors import GrammarError, ParamsError, nearest
from tirage.server import errors
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.http_request import ignored_header, tenant_of
from tirage.server.replay import effective
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.request_manager import RequestManager
from tirage.server.routes.models import adapters_of
from tirage.server.routes.openai_request import OpenAIRequest
from tirage.server.routes.openai_shapes import Head

_ANY_MODEL = frozenset({"null", "default"})
"""What clients of FastDeploy and SGLang send for want of a name."""


def new_head(kind: str, visit: RequestGroup, desk: RequestManager) -> Head:
    """The beginning of an answer; its id is random and the server's own."""
    first = visit.tickets[0]
    fingerprint = f"fp_{first.model.fingerprint.rpartition(':')[2][:10]}"
    prompt = first.call.prompt
    adapter = first.call.adapter if prompt is None else prompt.adapter
    name = adapter or desk.options.model_name
    return Head(id=f"{kind}-{first.id}", created=int(time.time()), model=name, fingerprint=fingerprint)


def adapter_of(asked: OpenAIRequest, desk: RequestManager) -> str | None:
    """The adapter that was asked for: by `lora_path`, or as the model, also after a colon as SGLang has it.

    Where there are adapters, a model that is neither theirs nor the base is refused: it may be a misspelt adapter.
    """
    known, path = adapters_of(desk), asked.own["lora_path"]
    if path is not None:
        if path not in known:
            raise DialectError(f"lora_path must name an adapter of this server, got {path!r:.80}", "lora_path")
        return path
    name, base = asked.own["model"] or "", desk.options.model_name
    if not known or name in {"", base, *known}:
        return name if name in known else None
    before, _, after = name.partition(":")
    if before == base and after in known:
        return after
    if name in _ANY_MODEL:
        return None
    raise unknown_model(name, [base, *known])


def unknown_model(name: str, known: Sequence[str]) -> Refusal:
    """OpenAI's answer to the name of a model that is not there."""
    rule = f"model must be one of this server's ({', '.join(known)})"
    text = f"{rule:.600}, got {name!r:.80}{nearest(name, known) or '; GET /v1/models lists them'}"
    return Refusal(404, text, type="invalid_request_error", param="model", code="model_not_found")


async def admitted(
    calls: Sequence[EngineInput],
    asked: OpenAIRequest,
    desk: RequestManager,
    request: Request,
    *,
    prompt: str,
    worded: Callable[[str], str] = str,
) -> RequestGroup:
    """The running calls; a refusal names the field that the client sent.

    `prompt` is that of the prompt; `worded` has the client's words for what is said of a constraint.
    """
    options = {"tenant": tenant_of(request), "route": request.scope["path"], "rid": asked.rid}
    try:
        visit = await desk.admit(calls, stream=asked.own["stream"], **options)
    except (ParamsError, GrammarError) as error:
        refusal = spelled(error, asked, prompt)
        if isinstance(error, GrammarError):
            refusal.message = worded(refusal.message)
        raise refusal from error
    except Refusal as refusal:
        if refusal.param == "prompt":
            refusal.param = prompt
        raise
    check_room(visit, asked)
    return visit


def check_room(visit: RequestGroup, asked: OpenAIRequest) -> None:
    """Refusal for more tokens than the context has room for, where the request itself asks for them.

    FastDeploy takes such a number for what there is room for.
    """
    name = next((name for name in ("max_completion_tokens", "max_tokens") if name in asked.sources), None)
    if asked.fastdeploy or name is None:
        return
    for ticket in visit.tickets:
        wanted, room = ticket.request.params.max_tokens, ticket.request.limit
        if wanted is not None and wanted > room:
            visit.abort()
            raise Refusal(
                400,
                f"{name} must be at most {room}, what a prompt of {ticket.request.inputs.length} tokens leaves of the "
                f"context, got {wanted}; ask for fewer or shorten the prompt",
                param=name,
                code="context_length_exceeded",
            )


def spelled(error: ParamsError | GrammarError, asked: OpenAIRequest, prompt: str) -> Refusal:
    """The refusal of an error that speaks of our parameters, with the client's name of the one at fault."""
    refusal = errors.of(error)
    place = refusal.param or ""
    name = place.partition("[")[0]
    if isinstance(error, GrammarError):
        name, place = "guided_decoding", "tools" if asked.own.get("tools") else place
    found = next((theirs for theirs, ours in asked.sources.items() if name in ours), None)
    if found is not None:
        place = found + (f"[{place.partition('[')[2]}" if "[" in place else "")
    too_long = name == "prompt" and "must hold at most" in refusal.message
    code = "context_length_exceeded" if too_long else refusal.code
    param = prompt if name in {"prompt", "prompts"} else place or None
    return Refusal(refusal.status, refusal.message, param=param, code=code)


def headers_of(asked: OpenAIRequest) -> dict[str, str]:
    """The header that names the fields which were ignored."""
    return ignored_header(asked.ignored)


def extras_of(asked: OpenAIRequest, tickets: Sequence[RunningRequest]) -> dict[str, Any]:
    """What the answer holds besides OpenAI's keys because the request asked for it."""
    if not asked.own["return_effective_params"]:
        return {}
    return {"effective_params": [effective(ticket) for ticket in tickets]}
