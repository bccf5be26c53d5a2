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
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal, of_stop
from tirage.server.http_request import (
    ignored_header,
    in_worker_thread,
    is_lenient,
    manager_of,
    media_of,
    read_json,
    tenant_of,
)
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.routes.sglang_request import (
    BODY,
    GENERATE,
    SAMPLING_FIELDS,
    GenerateBody,
    GenerateRequest,
    read_body,
)
from tirage.server.routes.sglang_shapes import EntryBuilder
from tirage.server.routes.sglang_stream import GenerateFormatter
from tirage.server.sse import EventStream, JsonAnswer
from tirage.text import Tokenizer

router = APIRouter(tags=["SGLang"])

_FIELD_NAMES = {
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
"""The engine's name of a field, and SGLang's."""


@router.post("/generate", operation_id="generate", openapi_extra=BODY)
@router.put("/generate", operation_id="generate_by_put", openapi_extra=BODY)
async def generate(raw_request: Request) -> Response:
    """One entry per prompt and sample, or their growth as server-sent events."""
    began, manager, plain = time.perf_counter(), manager_of(raw_request), await read_json(raw_request)
    lenient, tenant = is_lenient(raw_request), tenant_of(raw_request)
    body = await in_worker_thread(raw_request, read_body, plain, manager.options, lenient=lenient)
    media = await load_media(raw_request, body)
    repeats = body.stream and not body.delta
    inputs = [engine_input_of(*pair, repeats=repeats) for pair in zip(body.requests, media, strict=True)]
    try:
        group = await manager.submit(inputs, tenant=tenant, rid=body.rid, stream=body.stream)
    except GrammarError as error:
        raise grammar_refusal(error) from None
    except Refusal as refusal:
        raise with_source(refusal, body) from None
    except DialectError:
        raise
    except ParamsError as error:
        raise translated(error, body) from None
    check_fit(group, body)
    headers, tokenizer = ignored_header(body.ignored, group), manager.llm.tokenizer
    if body.stream:
        return EventStream(group, GenerateFormatter(group, body, tokenizer, began=began), headers=headers)

    def build(completions: Sequence[Completion]) -> Any:
        return answer(group.requests, body, completions, tokenizer, began=began)

    return JsonAnswer(group, build, headers=headers)


async def load_media(raw_request: Request, body: GenerateBody) -> list[tuple[Any, ...]]:
    """The images and audio of each prompt, in the order of `GenerateRequest.media`."""
    loaded = iter(await media_of(raw_request).load([item for request in body.requests for item in request.media]))
    return [tuple(next(loaded) for _ in request.media) for request in body.requests]


def engine_input_of(request: GenerateRequest, media: Sequence[Any], *, repeats: bool = False) -> EngineInput:
    """The engine input of one prompt, with its loaded images and audio; `repeats` where each event shows all so far."""
    pairs = list(zip(media, request.media, strict=True))
    images, audio = ([each for each, item in pairs if item.kind == kind] for kind in ("image", "audio"))
    return EngineInput(
        prompt=replace(request.prompt, images=images, audio=audio),
        params=request.params,
        beams=request.beams,
        hidden_states=request.return_hidden_states,
        repeats_logprobs=repeats,
        cache_salt=request.cache_salt,
        rid=request.rid,
    )


def check_fit(group: RequestGroup, body: GenerateBody) -> None:
    """Aborts the group and raises DialectError when a prompt turns out to be too long or too short for its request."""
    for running, request in zip(group.requests, body.requests, strict=True):
        if (error := beyond_context(running, request) or beyond_prompt(running, request)) is not None:
            group.abort()
            raise error


def beyond_context(running: RunningRequest, request: GenerateRequest) -> DialectError | None:
    """The error for more tokens than the context has room for, when the request itself says how many."""
    wanted, most = running.request.params.max_tokens, running.request.limit
    if not request.has_limit or wanted is None or wanted <= most:
        return None
    place = f"{request.where}max_new_tokens"
    return DialectError(
        f"{place} must be at most {most}, what the prompt of {running.request.prompt_tokens} "
        f"tokens leaves of the model's context, got {wanted}; ask for fewer or shorten the prompt",
        place,
    )


def beyond_prompt(running: RunningRequest, request: GenerateRequest) -> DialectError | None:
    """The error for log-probabilities of the prompt that would begin after its end."""
    length = running.request.inputs.length
    if request.start is None or request.start <= length:
        return None
    return DialectError(
        f"logprob_start_len must be at most the prompt's {length} tokens, got {request.start}; -1 is for outputs only",
        "logprob_start_len",
    )


def with_source(refusal: Refusal, body: GenerateBody) -> Refusal:
    """The refusal with the name of the field that held the prompt."""
    if refusal.param != "prompt":
        return refusal
    message = body.source + refusal.message.removeprefix("prompt")
    return Refusal(refusal.status, message, param=body.source, code=refusal.code, headers=refusal.headers)


def translated(error: ParamsError, body: GenerateBody) -> DialectError:
    """The engine's error with SGLang's field names."""
    message = str(error)
    for ours, theirs in _FIELD_NAMES.items():
        if re.match(rf"{ours}\b(?!_)", message):
            name = body.source if theirs == "text" else theirs
            return DialectError(name + message[len(ours) :], name)
    if (own := message.partition(" ")[0]) in SAMPLING_FIELDS:
        return DialectError(message, f"sampling_params.{own}")
    return GENERATE.translated(error, "sampling_params.")


_CONSTRAINTS = {"json": "json_schema", "schema": "json_schema", "grammar": "ebnf"}


def grammar_refusal(error: GrammarError) -> Refusal:
    """The refusal of a constraint that cannot be enforced, with the name of its field."""
    word, space, rest = str(error).partition(" ")
    name = _CONSTRAINTS.get(word, word)
    param = f"sampling_params.{name}" if name in GENERATE.entries else None
    return Refusal(400, f"{name}{space}{rest}", param=param, code="invalid_grammar")


def answer(
    running: Sequence[RunningRequest],
    body: GenerateBody,
    completions: Sequence[Completion],
    tokenizer: Tokenizer,
    *,
    began: float,
) -> Any:
    """The entries of all prompts in their order, each made as it is read, or that of one sample of one prompt alone.

    Raises Refusal, with the reason of the first, when every sample has failed.
    """
    pairs = list(zip(body.requests, completions, strict=True))
    samples = [sample for request, completion in pairs for sample in completion.samples[: request.returned]]
    if all(sample.finish_reason == "error" for sample in samples):
        raise of_stop(samples[0].stop)
    entries = (
        entry
        for one, (request, completion) in zip(running, pairs, strict=True)
        for entry in EntryBuilder(one, request, body, tokenizer, began=began).entries(completion)
    )
    return entries if body.is_list else next(entries)
