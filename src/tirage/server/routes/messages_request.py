"""The bodies of Anthropic's Messages API, read as requests of a chat.

Sampling fields are those of chat completions, but for Anthropic's own names and for what a message has no place for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tirage.dialects import Dialect, DialectError, join, same
from tirage.dialects.fastdeploy import EXTRAS
from tirage.dialects.openai import TEMPERATURE, TOP_P, top_p_zero
from tirage.dialects.unsupported import ANTHROPIC_MESSAGES
from tirage.fields.rules import Int
from tirage.llm import LLM
from tirage.params import REASONING_PARSERS, GuidedDecodingParams, SamplingParams
from tirage.server.errors import NO_THREADS, Refusal
from tirage.server.options import Options
from tirage.server.routes.budgets import with_budget
from tirage.server.routes.fields import (
    ANY_LIST,
    ANY_OBJECT,
    ANYTHING,
    NOTED,
    SHORT_TEXT,
    Checked,
    Field,
    json_body,
    object_schema,
    only,
    table,
)
from tirage.server.routes.messages_conversion import chat_messages, refused
from tirage.server.routes.messages_tools import chat_tool_choice, chat_tools
from tirage.server.routes.openai_request import COMMON_FIELDS, MORE, OpenAIRequest, Route, read_request

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_DISPLAYS = (None, "summarized", "omitted")
_KEPT = frozenset({
    *("extra_body", "model", "stream", "rid", "request_id", "priority", "max_streaming_response_tokens"),
    *("stream_interval", "lora_path", "cache_salt", "custom_logit_processor", "custom_params", "session_id"),
})
"""The fields of chat completions that mean the same here."""
_NO_LOGPROBS = "a message has no token ids and no log-probabilities; /v1/chat/completions has them"
_DRAWN = "a message is drawn; /v1/chat/completions searches with beams, too"

METADATA = Checked(
    "an object with user_id, a text of at most 512 characters",
    lambda value: isinstance(value, dict) and set(value) <= {"user_id"} and is_short(value.get("user_id")),
    {"type": "object", "properties": {"user_id": {"type": ["string", "null"], "maxLength": 512}}},
)
BETAS = Checked(
    "a list of at most 64 texts of at most 512 characters",
    lambda value: isinstance(value, list) and len(value) <= 64 and all(map(SHORT_TEXT.holds, value)),
    {"type": "array", "maxItems": 64, "items": {"type": "string", "maxLength": 512}},
)

MESSAGES_FIELDS = table([
    *(each for each in COMMON_FIELDS if each.name in _KEPT),
    Field("messages", ANY_LIST, None, "the conversation; a last message of the assistant is continued"),
    Field("system", ANYTHING, None, "the system prompt: a text, or a list of blocks of text"),
    Field("tools", ANYTHING, None, "tools that the model may call"),
    Field("tool_choice", ANYTHING, None, "auto, any, none, or one tool"),
    Field("thinking", ANY_OBJECT, None, "whether the model thinks first, and for how many tokens at most"),
    Field("output_config", ANY_OBJECT, None, "a JSON schema of the answer, and the effort, a variable of the template"),
    Field("output_format", ANY_OBJECT, None, "the older name of output_config.format"),
    Field("chat_template_kwargs", ANY_OBJECT, None, "variables of the chat template (vLLM)"),
    Field("metadata", METADATA, None, NOTED),
    *(Field(name, SHORT_TEXT, None, NOTED) for name in ("user_profile_id", "workspace_id")),
    *(Field(name, only(*each.inert, because=each.reason), None) for name, each in ANTHROPIC_MESSAGES.items()),
    Field("betas", BETAS, None, NOTED),
    Field("n", only(1, because="an answer is one message"), 1),
    Field("stream_options", only(because="a stream always tells the usage"), None),
    *(
        Field(name, only(False, because=_NO_LOGPROBS), False)
        for name in ("logprobs", "return_token_ids", "temp_scaled_logprobs", "top_p_normalized_logprobs")
    ),
    *(Field(name, only(because=_NO_LOGPROBS), None) for name in ("prompt_logprobs", "logprob_token_ids")),
    Field("logprobs_mode", only("raw", because=_NO_LOGPROBS), None),
    Field("return_kept", only(False, because=_NO_LOGPROBS), False),
    Field("max_kept_ids", only(because=_NO_LOGPROBS), None),
    Field("use_beam_search", only(False, because=_DRAWN), False),
    *(Field(name, only(because=_DRAWN), None) for name in ("beam_width", "length_penalty", "early_stopping")),
    Field("user", only(because="send metadata.user_id"), None),
])

_ANTHROPIC = Dialect.of(
    "Anthropic",
    "openai",
    [
        same("max_tokens", default=None, rule=Int(low=0, optional=True)),
        same("stop_sequences", "stop", default=None, read=lambda value: value or ()),
        same("temperature", rule=TEMPERATURE),
        same("top_p", rule=TOP_P),
        same("seed"),
    ],
    adjust=top_p_zero,
)
MESSAGES = Route(
    name="messages",
    fields=MESSAGES_FIELDS,
    openai=join("messages", _ANTHROPIC, *MORE),
    fastdeploy=join("messages", EXTRAS, _ANTHROPIC, *MORE),
    adopts_defaults=True,
)
MESSAGES_BODY = json_body(
    object_schema(
        MESSAGES.openai.unsupported, MESSAGES.openai.entries, MESSAGES_FIELDS, required=["max_tokens", "messages"]
    )
)
COUNT_BODY = json_body(
    object_schema(MESSAGES.openai.unsupported, MESSAGES.openai.entries, MESSAGES_FIELDS, required=["messages"])
)


def is_short(value: Any) -> bool:
    """Whether a value is a text of at most 512 characters, or None."""
    return value is None or (isinstance(value, str) and len(value) <= 512)


def read_messages_request(
    body: Mapping[str, Any], options: Options, llm: LLM, *, lenient: bool, counting: bool = False
) -> OpenAIRequest:
    """The chat that a body describes; `fields` are those of chat completions, and beside them the body's `thinking`.

    With `counting` it need not have `max_tokens`. Raises DialectError with the name of a field that breaks its rule,
    and Refusal for a `thread`.
    """
    if body.get("thread") is not None:
        rule = f"thread must be left out: {ANTHROPIC_MESSAGES['thread'].reason}"
        raise Refusal(400, rule, param="thread", code=NO_THREADS)
    if not counting:
        check_most(body.get("max_tokens"))
    request = read_request(MESSAGES, body, options, llm, lenient=lenient)
    own, template = request.fields, llm.chat_template
    params, tags = (
        request.params,
        REASONING_PARSERS[request.params.reasoning_parser or options.reasoning_parser or "think"],
    )
    messages, continued = chat_messages(own["messages"], own["system"], template=template, tags=tags)
    choice, parallel = chat_tool_choice(own["tool_choice"])
    schema, effort = output_of(own["output_config"], own["output_format"])
    ignored = [] if effort is None or template.takes("reasoning_effort", effort) else ["output_config.effort"]
    fields = {
        **own,
        "messages": messages,
        "prompt_token_ids": None,
        "tools": chat_tools(own["tools"]),
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "chat_template_kwargs": {**thinking_variables(own["thinking"], llm), **(own["chat_template_kwargs"] or {})},
        "enable_thinking": None,
        "reasoning_effort": None if ignored else effort,
        "continue_final_message": continued,
        "add_generation_prompt": None,
        "reasoning_max_tokens": None,
        **separation(own["thinking"], params, options),
    }
    return replace(
        request,
        fields=fields,
        params=with_output(with_thinking(params, own["thinking"]), schema),
        ignored=(*request.ignored, *ignored),
        sources={**request.sources, **({} if schema is None else {"output_config.format": ("guided_decoding",)})},
    )


def check_most(value: Any) -> None:
    """Raises DialectError for a `max_tokens` that is no number of tokens; it has no default."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refused("max_tokens", "an integer >= 0", value, remedy="say how many tokens the answer may have")


def with_thinking(params: SamplingParams, thinking: Mapping[str, Any] | None) -> SamplingParams:
    """The parameters with the budget of `thinking`; raises DialectError for an object of any other form."""
    if thinking is None:
        return params
    kind = thinking.get("type")
    known = {"type", "display"} if kind == "adaptive" else {"type"}
    if kind == "enabled":
        known = {"type", "budget_tokens", "display"}
    if kind not in ("enabled", "adaptive", "disabled") or not known >= set(thinking):
        rule = 'an object of type "enabled" with budget_tokens, "adaptive" or "disabled"'
        raise refused("thinking", rule, dict(thinking), remedy="leave it out")
    if thinking.get("display") not in _DISPLAYS:
        raise refused("thinking.display", '"summarized" or "omitted"', thinking["display"], remedy="leave it out")
    if kind != "enabled":
        return params
    budget, most = thinking.get("budget_tokens"), params.max_tokens
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise refused("thinking.budget_tokens", "an integer of at least 1", budget)
    if most is not None and budget >= most:
        raise refused("thinking.budget_tokens", f"less than max_tokens, {most}", budget, remedy="raise max_tokens")
    return with_budget(params, "thinking.budget_tokens", budget)


def thinking_variables(thinking: Mapping[str, Any] | None, llm: LLM) -> dict[str, Any]:
    """The variables that turn thinking on or off in the chat template, as far as it has them."""
    if thinking is None:
        return {}
    on = thinking.get("type") != "disabled"
    return {name: on for name in ("enable_thinking", "thinking") if llm.chat_template.takes(name, on)}


def separation(thinking: Mapping[str, Any] | None, params: SamplingParams, options: Options) -> dict[str, Any]:
    """The fields that say whether thoughts are told apart from the answer, and whether they are shown.

    Where they are turned off, those that a model writes all the same are not shown, if it is known how it marks them.
    """
    if thinking is None:
        return {"separate_reasoning": None, "include_reasoning": True}
    if thinking.get("type") != "disabled":
        return {"separate_reasoning": True, "include_reasoning": True}
    known = params.reasoning_parser is not None or options.reasoning_parser is not None
    return {"separate_reasoning": None, "include_reasoning": not known}


def output_of(config: Mapping[str, Any] | None, older: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The schema of the answer and the effort; raises DialectError for an object of any other form."""
    given = config or {}
    if not set(given) <= {"format", "effort"}:
        raise refused("output_config", "an object of format and effort", dict(given), remedy="leave the rest out")
    wanted, effort = given.get("format"), given.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise refused("output_config.effort", f"one of {', '.join(_EFFORTS)}", effort, remedy="leave it out")
    if wanted is not None and older is not None:
        rule = "left out beside output_config.format"
        raise refused("output_format", rule, older, remedy="send output_config alone")
    name, found = ("output_config.format", wanted) if older is None else ("output_format", older)
    if found is None:
        return None, effort
    match found:
        case {"type": "json_schema", "schema": dict(schema), **rest} if not any(rest.values()):
            return schema, effort
    raise refused(name, 'an object of type "json_schema" with a schema', found, remedy="leave it out")


def with_output(params: SamplingParams, schema: dict[str, Any] | None) -> SamplingParams:
    """The parameters with the schema of the answer; raises DialectError where there is another constraint."""
    if schema is None:
        return params
    if params.guided_decoding is not None:
        rule = "output_config.format must stand alone, got another constraint too; leave one out"
        raise DialectError(rule, "output_config.format")
    return params.replace(guided_decoding=GuidedDecodingParams(json=schema))
