"""`/explain`: the draw of one next token, stage by stage, under one or several sets of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects import DialectError
from tirage.errors import GrammarError, ParamsError
from tirage.fields.rules import Int, shown
from tirage.params import SamplingParams
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, read_known, tenant_of, unknown_header
from tirage.server.next_token import NextTokenQuestion
from tirage.server.options import Options, check_limit
from tirage.server.plugins import with_named
from tirage.server.routes.fields import Field, json_body, object_schema, read_fields, structured, table
from tirage.server.routes.generate import grammar_refusal
from tirage.server.routes.sglang_request import (
    FIELDS,
    GENERATE,
    SamplingObject,
    adapter_of,
    ids_of,
    prompt_of,
    read_sampling,
)
from tirage.server.sse import JsonParts, dump

router = APIRouter(tags=["text"])

MOST_PARAMS = 8
"""How many sets of parameters one request may have explained."""
FOLLOWED = 10
"""How many of the most likely tokens are followed unless a request says so, within the operator's limit."""
_SOURCES = ("text", "input_ids", "messages")
_OBJECT = object_schema(GENERATE.entries, GENERATE.unsupported)
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PARAMS = {"anyOf": [_OBJECT, {"type": "array", "items": _OBJECT, "minItems": 1, "maxItems": MOST_PARAMS}]}
EXPLAIN = table([
    Field("text", structured({"type": "string"}), None, "the prompt"),
    Field("input_ids", structured(_IDS), None, "token ids instead of text"),
    Field("messages", structured({"type": "array"}), None, "a chat instead of text, as on /v1/chat/completions"),
    Field("output_ids", structured(_IDS), None, "tokens of the answer that come before the one to explain"),
    Field("sampling_params", structured(_PARAMS), None, "those of /generate, or a list of several such objects"),
    FIELDS["semantics"],
    FIELDS["lora_path"],
    Field("follow", structured(_IDS), None, "further tokens to follow through the stages"),
    Field("top", Int(low=0, optional=True), None, "how many of the most likely tokens are followed through the stages"),
])


@router.post("/explain", openapi_extra=json_body(object_schema(EXPLAIN)))
async def explain(request: Request) -> Response:
    """Every stage of the draw of the next token; `explanations` has one entry for each set of parameters."""
    manager, lenient = manager_of(request), is_lenient(request)
    body, unknown = await read_known(request, EXPLAIN)
    question = await in_worker_thread(request, read_question, body, manager.options, lenient=lenient)
    try:
        ids, explanations = await request.app.state.explainer.explain(question, tenant=tenant_of(request))
    except GrammarError as error:
        raise grammar_refusal(error) from None
    except DialectError:
        raise
    except ParamsError as error:
        raise GENERATE.translated(error, "sampling_params.") from None
    commas = [b","] * (len(explanations) - 1)
    listed = [part for pair in zip(explanations, [*commas, b"]}"], strict=True) for part in pair]
    headers = unknown_header((*unknown, *question.ignored))
    return JsonParts([b'{"input_ids":%b,"explanations":[' % dump(list(ids)), *listed], headers=headers)


def read_question(body: Mapping[str, Any], options: Options, *, lenient: bool = False) -> NextTokenQuestion:
    """What a body asks; raises DialectError that names the first field that breaks a rule."""
    fields = read_fields({name: each for name, each in EXPLAIN.items() if not each.has_reader}, body)
    given = [name for name in _SOURCES if body.get(name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise DialectError(f"text must be given, or input_ids or messages instead, got {got}; give one", "text")
    name, adapter = given[0], adapter_of(fields["lora_path"])
    is_chat = name == "messages"
    sampling = read_params(body.get("sampling_params"), fields["semantics"], lenient=lenient)
    return NextTokenQuestion(
        prompt=None if is_chat else replace(prompt_of(name, body[name], name), adapter=adapter),
        messages=read_messages(body[name]) if is_chat else None,
        adapter=adapter,
        output_ids=read_ids(body, "output_ids"),
        params=tuple(params_of(each, options) for each in sampling),
        top=read_top(fields["top"], options),
        follow=read_follow(body, options),
        ignored=tuple(each.where + unknown for each in sampling for unknown in each.parsed.ignored),
    )


def read_ids(body: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The ids in a field, none for null; raises DialectError for anything but a list of integers."""
    value = body.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DialectError(f"{name} must be a list of token ids, got {shown(value)}; leave it out", name)
    return tuple(ids_of(value, name))


def read_top(value: int | None, options: Options) -> int:
    """How many of the most likely tokens are followed; raises ParamsError for more than logprobs may list."""
    if value is None:
        return min(FOLLOWED, options.limits.max_top_logprobs)
    check_limit(options.limits, "max_top_logprobs", value, "top")
    return value


def read_follow(body: Mapping[str, Any], options: Options) -> tuple[int, ...]:
    """The further tokens to follow; raises ParamsError for more than logprobs may name."""
    found = read_ids(body, "follow")
    check_limit(options.limits, "max_logprob_ids", len(found), "number of follow")
    return found


def read_messages(value: Any) -> Sequence[Mapping[str, Any]]:
    """The messages; raises DialectError for anything but objects whose contents are text."""
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise DialectError(f"messages must be a list of objects, got {shown(value)}; give a message", "messages")
    for index, message in enumerate(value):
        if not isinstance(message.get("content"), str):
            place = f"messages[{index}].content"
            got = shown(message.get("content"))
            raise DialectError(f"{place} must be a text, got {got}; /explain takes neither images nor audio", place)
    return value


def read_params(value: Any, semantics: str | None, *, lenient: bool) -> list[SamplingObject]:
    """Each object of `sampling_params`; raises DialectError for wrong ones, and for too many."""
    if not isinstance(value, list):
        return [read_one(value, "sampling_params.", semantics, lenient=lenient)]
    if not 0 < len(value) <= MOST_PARAMS:
        text = f"sampling_params must be an object or a list of 1 to {MOST_PARAMS}, got {len(value)} of them"
        raise DialectError(text, "sampling_params")
    return [read_one(each, f"sampling_params[{i}].", semantics, lenient=lenient) for i, each in enumerate(value)]


def read_one(value: Any, where: str, semantics: str | None, *, lenient: bool) -> SamplingObject:
    """One of these objects; raises DialectError for a beam search, in which nothing is drawn."""
    sampling = read_sampling(value, where, semantics, lenient=lenient)
    if sampling.own["beam_width"] is not None:
        place = f"{where}beam_width"
        raise DialectError(f"{place} must be null, got {sampling.own['beam_width']}: beams are not drawn", place)
    return sampling


def params_of(sampling: SamplingObject, options: Options) -> SamplingParams:
    """The parameters of an object; raises DialectError for a processor that is not enabled."""
    arguments = sampling.parsed.given.get("custom_params")
    return with_named(sampling.parsed.params, None, arguments, options, sampling.where)
