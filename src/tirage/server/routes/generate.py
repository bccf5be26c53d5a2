"""`/generate`: SGLang's native route, as its clients know it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects.table import DialectError
from tirage.engine import Completion
from tirage.errors import GrammarError, ParamsError
from tirage.params import RequestOutputKind
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal, of_stop
from tirage.server.http_request import (
    ignored_header,
    in_worker_thread,
    is_lenient,
    manager_of,
    media_of,
    options_of,
    read_json,
    tenant_of,
)
from tirage.server.replay import effective
from tirage.server.request_manager import RequestGroup, RunningRequest
from tirage.server.routes.sglang_request import GENERATE, GenerateBody, GenerateRequest, body_schema, read_body
from tirage.server.routes.sglang_shapes import entry_of
from tirage.server.routes.sglang_stream import GenerateFormatter
from tirage.server.sse import EventStream, JsonAnswer
from tirage.text import Tokenizer

router = APIRouter(tags=["SGLang"])

_THEIRS = {
    "prompt token ids": "input_ids",
    "prompt embeds": "input_embeds",
    "prompt images": "image_data",
    "prompt audio": "audio_data",
    "prompt adapter": "lora_path",
    "adapter": "lora_path",
    "logprob_token_ids": "token_ids_logprob",
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "prompt": "text",
}
"""What the engine calls a field, and what SGLang's clients call it."""


_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": body_schema()}}}}


@router.post("/generate", operation_id="generate", openapi_extra=_BODY)
@router.put("/generate", operation_id="generate_by_put", openapi_extra=_BODY)
async def generate(request: Request) -> Response:
    """One entry per prompt and sample, or their growth as server-sent events."""
    began, desk, plain = time.perf_counter(), manager_of(request), await read_json(request)
    body = await in_worker_thread(request, read_body, plain, options_of(request), lenient=is_lenient(request))
    calls = [call_of(ask, media) for ask, media in zip(body.asks, await loaded(request, body), strict=True)]
    try:
        visit = await desk.admit(calls, tenant=tenant_of(request), route="/generate", rid=body.rid, stream=body.stream)
    except GrammarError as error:
        raise grammar_refusal(error) from None
    except Refusal as refusal:
        raise renamed(refusal, body) from None
    except DialectError:
        raise
    except ParamsError as error:
        raise translated(error, body) from None
    check_fit(visit, body)
    headers = ignored_header(body.ignored)
    spell = speller(desk.llm.tokenizer)
    if body.stream:
        return EventStream(visit, GenerateFormatter(visit, body, spell, began=began), headers=headers)
    return JsonAnswer(
        visit, lambda completions: answer(visit.tickets, body, completions, spell, began=began), headers=headers
    )


async def loaded(request: Request, body: GenerateBody) -> list[tuple[Any, ...]]:
    """The images and sounds of each prompt, in the order of `GenerateRequest.media`."""
    found = iter(await media_of(request).load([item for ask in body.asks for item in ask.media]))
    return [tuple(next(found) for _ in ask.media) for ask in body.asks]


def call_of(ask: GenerateRequest, media: Sequence[Any]) -> EngineInput:
    """The desk's call for one prompt."""
    kinds = {
        kind: [one for one, item in zip(media, ask.media, strict=True) if item.kind == kind]
        for kind in ("image", "audio")
    }
    prompt = replace(ask.prompt, images=kinds["image"], audio=kinds["audio"])
    # A stream that shows all so far puts it together itself: the engine would make the whole anew for every token.
    params = ask.params.replace(output_kind=RequestOutputKind.DELTA)
    return EngineInput(prompt=prompt, params=params, beams=ask.beams, hidden_states=ask.hidden_states, rid=ask.rid)


def speller(tokenizer: Tokenizer) -> Any:
    """A function from a token id to the token's own text."""
    return lambda token: tokenizer.token_bytes(token).decode("utf-8", "replace")


def check_fit(visit: RequestGroup, body: GenerateBody) -> None:
    """DialectError, and the end of the visit, when a prompt turns out to be too long or too short for its request."""
    for ticket, ask in zip(visit.tickets, body.asks, strict=True):
        if (error := no_room(ticket, ask) or no_start(ticket, ask)) is not None:
            visit.abort()
            raise error


def no_room(ticket: RunningRequest, ask: GenerateRequest) -> DialectError | None:
    """The error when the context has no room for the tokens that the request itself asks for."""
    wanted, request = ticket.request.params.max_tokens, ticket.request
    if not ask.limited or wanted is None or wanted <= request.limit:
        return None
    place = f"{ask.where}max_new_tokens"
    return DialectError(
        f"{place} must be at most {request.limit}, what the prompt of {request.inputs.length} "
        f"tokens leaves of the model's context, got {wanted}; ask for fewer or shorten the prompt",
        place,
    )


def no_start(ticket: RunningRequest, ask: GenerateRequest) -> DialectError | None:
    """The error when prompt log-probabilities would begin after the prompt."""
    length = ticket.request.inputs.length
    if ask.start is None or ask.start <= length:
        return None
    return DialectError(
        f"logprob_start_len must be at most the prompt's {length} tokens, got {ask.start}; -1 is for outputs only",
        "logprob_start_len",
    )


def renamed(refusal: Refusal, body: GenerateBody) -> Refusal:
    """The desk's refusal, with this route's name for the prompt."""
    if refusal.param != "prompt":
        return refusal
    message = body.source + refusal.message.removeprefix("prompt")
    return Refusal(refusal.status, message, param=body.source, code=refusal.code, headers=refusal.headers)


def translated(error: ParamsError, body: GenerateBody) -> DialectError:
    """The engine's error in the words of this route."""
    message = str(error)
    for ours, theirs in _THEIRS.items():
        if re.match(rf"{ours}\b(?!_)", message):
            name = body.source if theirs == "text" else theirs
            return DialectError(name + message[len(ours) :], name)
    return GENERATE.translated(error, "sampling_params.")


_CONSTRAINTS = {"json": "json_schema", "schema": "json_schema", "grammar": "ebnf"}


def grammar_refusal(error: GrammarError) -> Refusal:
    """The refusal of a constraint that cannot be enforced, with the name of its field."""
    word, space, rest = str(error).partition(" ")
    name = _CONSTRAINTS.get(word, word)
    known = name in GENERATE.entries
    param = f"sampling_params.{name}" if known else None
    return Refusal(400, f"{name}{space}{rest}", param=param, code="invalid_grammar")


def answer(
    tickets: Sequence[RunningRequest],
    body: GenerateBody,
    completions: Sequence[Completion],
    spell: Any,
    *,
    began: float,
) -> Any:
    """The entries of all prompts in order, one after another for each sample; a single one stands alone.

    When nothing came of the whole request, it is refused with the reason of the first.
    """
    asked = list(zip(tickets, body.asks, completions, strict=True))
    samples = [sample for _, ask, completion in asked for sample in completion.samples[: ask.answers]]
    if all(sample.finish_reason == "error" for sample in samples):
        raise of_stop(samples[0].stop)
    entries = []
    for ticket, ask, completion in asked:
        shown = completion.samples[: ask.answers]
        mine = [entry_of(ticket, ask, body, completion, one, spell, began=began) for one in shown]
        if body.effective:
            mine[0]["effective_params"] = effective(ticket, completion)
        entries += mine
    return entries if body.listed else entries[0]
