"""The body of `/v1/responses`: its own fields, and beside them those of chat completions that say the same here.

`read_responses` makes of it the request that chat completions would have read, so that one path runs both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tirage.dialects import Dialect, DialectError, join, same
from tirage.dialects.fastdeploy import EXTRAS
from tirage.dialects.openai import OPENAI, RESPONSE_FORMAT, top_p_zero
from tirage.dialects.table import FieldMapping, Fields
from tirage.fields.rules import Bool, BrokenRuleError, Custom, Int, OneOf, shown
from tirage.llm import LLM
from tirage.params import REASONING_PARSERS
from tirage.server.options import Options
from tirage.server.request_manager import RequestManager
from tirage.server.routes.fields import ANYTHING, METADATA, SHORT_TEXT, Checked, Field, only, read_fields, table
from tirage.server.routes.openai_request import CHAT_FIELDS, MORE, OpenAIRequest, Route, read_request, with_extra_body
from tirage.server.routes.reasoning import ReasoningTags, with_reasoning
from tirage.server.routes.responses_items import Message, PlacedItem, PlacedMessage, messages_of
from tirage.server.routes.responses_tools import chat_choice, chat_tools
from tirage.text import ChatTemplate

LOGPROBS = "message.output_text.logprobs"
INCLUDES = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What `include` may list. Without the first it changes nothing: reasoning is never encrypted, no tool runs here."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES = ("auto", "detailed")

_ELSEWHERE = {
    "messages": "send input",
    "max_tokens": "send max_output_tokens",
    "max_completion_tokens": "send max_output_tokens",
    "response_format": "send text.format",
    "logprobs": f'send include=["{LOGPROBS}"]',
    "reasoning_effort": "send reasoning.effort",
    "prompt_token_ids": "/v1/chat/completions takes token ids",
    "prompt_logprobs": "/v1/chat/completions reports them",
    "verbosity": "send text.verbosity",
    "response_max_tokens": "send max_output_tokens",
    "previous_input_messages": "send all items in input",
}
"""Fields of chat completions and of vLLM, with what says the same here."""
_NONE_HERE = {
    "conversation": "conversations are not kept; send previous_response_id, or all items",
    "prompt": "prompts are not kept; send instructions and input",
    "context_management": "nothing is compacted; send the items that shall count",
    "access_programs": "the model has no such option",
    "background_options": "a response ends with its connection; stream it",
    "image": "the model answers in text",
    "max_tool_calls": "no tool runs here; parallel_tool_calls=false keeps a response to one call",
}
_BEAMS = "/v1/chat/completions searches with beams"

RESPONSES_FIELDS = {
    **CHAT_FIELDS,
    **table([
        *(Field(name, only(because=reason)) for name, reason in {**_ELSEWHERE, **_NONE_HERE}.items()),
        Field("input", ANYTHING, None, "a text, or a list of items: messages, calls, their outputs, reasoning"),
        Field(
            "instructions",
            Checked("a text", lambda value: isinstance(value, str), {"type": "string"}),
            None,
            "a system message before the input; it is not carried over to the next response",
        ),
        Field("previous_response_id", SHORT_TEXT, None, "a response whose items come before the input"),
        Field("store", Bool(), None, "keep the response; true by default where the server keeps any"),
        Field("background", only(False, because="a response ends with its connection; stream it"), False),
        Field("reasoning", ANYTHING, None, "effort, a variable of the chat template, and summary"),
        Field("metadata", METADATA, None, "texts that the response repeats"),
        Field("truncation", only("disabled", because="no item is left out silently; shorten the input"), "disabled"),
        Field("enable_response_messages", only(False, because="return_token_ids reports the ids"), False),
        Field("n", only(1, because="a response has one answer; send further requests"), 1),
        Field("return_kept", only(False, because="a response has no records; use /v1/chat/completions"), False),
        Field("max_kept_ids", only(because="a response has no records; use /v1/chat/completions")),
        Field("use_beam_search", only(False, because=_BEAMS), False),
        *(Field(name, only(because=_BEAMS)) for name in ("beam_width", "length_penalty")),
        Field("early_stopping", only(False, because=_BEAMS), None),
        Field("continue_final_message", only(False, because="the answer is a new item"), False),
        Field("add_generation_prompt", only(True, because="the answer is a new item"), True),
    ]),
}  # fmt: skip
_REASONING = table([
    Field("effort", OneOf(EFFORTS), None, "how much the model reasons, if its template has a variable"),
    Field("summary", OneOf(_SUMMARIES), None, "the reasoning stands in the summary of its item"),
    Field("generate_summary", OneOf(_SUMMARIES), None, "the older name of summary"),
    Field("context", only("auto", because="the chat template says which earlier reasoning the model sees"), None),
    Field("mode", only("standard", because="there is one mode"), None),
])
_STREAM_OPTIONS = table([
    Field("include_obfuscation", only(False, because="nothing is added to hide lengths"), False),
])


def _check_text(value: Any) -> Any:
    """The rule of `text`; the format is checked in the form that chat completions have."""
    if not isinstance(value, Mapping):
        raise BrokenRuleError("an object of format and verbosity", value)
    unknown = next((name for name in value if name not in ("format", "verbosity")), None)
    if unknown is not None:
        raise BrokenRuleError("an object of format and verbosity", value, f".{shown(unknown)}")
    if value.get("verbosity") not in (None, "medium"):
        rule = "medium or left out: the model has no such option"
        raise BrokenRuleError(rule, value["verbosity"], ".verbosity")
    if value.get("format") is not None:
        try:
            RESPONSE_FORMAT.rule.check(_nested(value["format"]))
        except BrokenRuleError as broken:
            place = ".format" + broken.where.removeprefix(".json_schema")
            raise BrokenRuleError(broken.rule, broken.value, place, remedy=broken.remedy) from None
    return value


def _nested(given: Any) -> dict[str, Any]:
    """A format in the form of chat completions, which have a schema one level deeper."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise BrokenRuleError('an object such as {"type": "json_schema", "name": ..., "schema": ...}', given)
    rest = {name: value for name, value in given.items() if name != "type"}
    if kind != "json_schema":
        return {"type": kind, **rest}
    if rest.get("schema") is None:
        raise BrokenRuleError("a JSON schema", rest.get("schema"), ".schema")
    return {"type": kind, "json_schema": rest}


def _read_text(value: Any) -> Fields:
    given = None if value is None else value.get("format")
    return {} if given is None else RESPONSE_FORMAT.into(RESPONSE_FORMAT.rule.check(_nested(given)))


def _check_include(value: Any) -> Any:
    if not isinstance(value, list):
        raise BrokenRuleError(f"a list of {', '.join(INCLUDES)}", value)
    unknown = next((one for one in value if one not in INCLUDES), None)
    if unknown is not None:
        raise BrokenRuleError(f"a list of {', '.join(INCLUDES)}", unknown)
    return value


def _logprobs(given: Mapping[str, Any], ours: Fields) -> Fields:
    asked, top = LOGPROBS in (given.get("include") or ()), given.get("top_logprobs")
    if top and not asked:
        rule = f'top_logprobs must go with include=["{LOGPROBS}"]'
        raise DialectError(f"{rule}, got {top} without; list it, or leave top_logprobs out", "top_logprobs")
    return {**ours, "logprobs": (top or 0) if asked else None}


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    return top_p_zero(given, _logprobs(given, ours))


def _unchanged(value: Any) -> Any:
    return value


def _mapping(name: str, check: Any, ours: tuple[str, ...], meaning: str, into: Any = lambda value: {}) -> FieldMapping:
    """The entry of a field that is only read."""
    rule = Custom("", check, _unchanged, _unchanged)
    return FieldMapping(
        name=name, rule=rule, default=None, into=into, out_of=lambda params: None, ours=ours, meaning=meaning
    )


_TEXT = _mapping(
    "text", _check_text, ("guided_decoding", "json"), "format: text, any JSON object, or JSON of a schema", _read_text
)
_OWN = Dialect.of(
    "OpenAI",
    "openai",
    [
        same("max_output_tokens", "max_tokens", default=None),
        _mapping("include", _check_include, ("logprobs",), "what else the response holds"),
        _mapping(
            "top_logprobs",
            Int(low=0, optional=True).check,
            ("logprobs", "top"),
            "how many of the likeliest tokens to report",
        ),
        _TEXT,
    ],
)
_CHATS_OWN = ("max_completion_tokens", "max_tokens", "logprobs", "top_logprobs", "response_format")
_OPENAI = replace(OPENAI.without(*_CHATS_OWN), adjust=_adjust)

RESPONSES = Route(
    name="responses",
    fields=RESPONSES_FIELDS,
    openai=join("responses", _OPENAI, _OWN, *MORE).without("n", "prompt_logprobs"),
    fastdeploy=join("responses", EXTRAS, _OPENAI, _OWN, *MORE).without("n", "prompt_logprobs"),
    adopts_defaults=True,
    stream_options=_STREAM_OPTIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A request that was read: the fields of its `body`, and the items of its input.

    `effort` and `summary` are those of `reasoning`; with `summary` the reasoning stands in the summary of its item.
    """

    body: Mapping[str, Any]
    own: OpenAIRequest
    items: Sequence[Any]
    effort: str | None
    summary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOfItems:
    """The request that chat completions would have read, and the place of each of its messages in the client's own."""

    request: OpenAIRequest
    places: Sequence[str]


def read_responses(body: Mapping[str, Any], options: Options, llm: LLM, *, lenient: bool) -> ResponsesRequest:
    """The request in a body; raises DialectError with the name of a field that breaks its rule."""
    body = with_extra_body(body)
    own = read_request(RESPONSES, body, options, llm, lenient=lenient)
    effort, summary = read_reasoning(own.fields["reasoning"])
    items = read_input(own.fields["input"])
    return ResponsesRequest(body=body, own=own, items=items, effort=effort, summary=summary)


def read_input(value: Any) -> list[Any]:
    """The items of `input`, a text as the message of a user; raises DialectError for anything but a text or a list."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if not isinstance(value, list):
        raise DialectError(f"input must be a text or a list of items, got {shown(value)}; send one", "input")
    return value


def read_reasoning(value: Any) -> tuple[str | None, str | None]:
    """The effort and the summary that `reasoning` asks for; raises DialectError for others than can be had."""
    if not isinstance(value, (Mapping, type(None))):
        raise DialectError(f"reasoning must be an object of effort and summary, got {shown(value)}", "reasoning")
    given = read_fields(_REASONING, value or {}, where="reasoning.")
    unknown = next((name for name in value or {} if name not in _REASONING), None)
    if unknown is not None:
        known = ", ".join(_REASONING)
        raise DialectError(f"reasoning must be an object of {known}, got {shown(unknown)}; leave it out", "reasoning")
    return given["effort"], given["summary"] or given["generate_summary"]


def chat_of(
    request: ResponsesRequest, items: Sequence[Any], manager: RequestManager, *, before: Sequence[Any], lenient: bool
) -> ChatOfItems:
    """The chat of a request's `items` after those `before`; raises DialectError for wrong items and tools."""
    fields = request.own.fields
    llm, parser = manager.llm, request.own.params.reasoning_parser or manager.options.reasoning_parser
    tags = REASONING_PARSERS[parser or "think"]
    earlier = [PlacedItem("previous_response_id", item) for item in before]
    own = [PlacedItem(f"input[{index}]", item) for index, item in enumerate(items)]
    placed = messages_of([*earlier, *own], lenient=lenient)
    if fields["instructions"] is not None:
        placed = [PlacedMessage("instructions", {"role": "system", "content": fields["instructions"]}), *placed]
    if not placed:
        raise DialectError("input must hold an item that the model can read, got none", "input")
    changes = {
        "messages": [with_thoughts(message, llm.chat_template, tags) for _, message in placed],
        "tools": chat_tools(fields["tools"]),
        "tool_choice": chat_choice(fields["tool_choice"]),
        **thinking(request, llm),
    }
    return ChatOfItems(
        request=replace(request.own, fields={**fields, **changes}), places=[place for place, _ in placed]
    )


def with_thoughts(message: Message, template: ChatTemplate, tags: ReasoningTags) -> Message:
    """A message whose reasoning stands where the chat template looks for it."""
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return with_reasoning(rest, message["reasoning_content"], template, tags) if len(rest) < len(message) else message


def thinking(request: ResponsesRequest, llm: LLM) -> dict[str, Any]:
    """The template's variable for the effort: `reasoning_effort`, or else `enable_thinking`, which "none" turns off."""
    effort, takes = request.effort, llm.chat_template.takes
    if effort is None:
        return {}
    toggled = takes("enable_thinking", effort != "none") and not takes("reasoning_effort", effort)
    if toggled and request.own.fields["enable_thinking"] is None:
        return {"enable_thinking": effort != "none"}
    return {"reasoning_effort": effort}
