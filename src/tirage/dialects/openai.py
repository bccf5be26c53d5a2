"""OpenAI: the sampling fields of `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from tirage.dialects.constraints import schema_mapping
from tirage.dialects.table import Dialect, DialectError, FieldMapping, Fields, Inexpressible, same
from tirage.fields.rules import Bias, Bool, BrokenRuleError, Custom, Float, Int, shown
from tirage.params import GuidedDecodingParams, SamplingParams

Route = Literal["chat", "completions"]

MOST_STOPS = 4
PENALTY = Float(low=-2.0, high=2.0)
TEMPERATURE = Float(low=1e-20, high=2.0, zero=True)
TOP_P = Float(low=0.0, high=1.0)


def _bias(value: Any) -> Any:
    checked = Bias().check(value)
    for token, bias in (checked or {}).items():
        if not -100 <= bias <= 100:
            raise BrokenRuleError("a number in [-100, 100]", bias, f"[{token}]")
    return checked


BIAS = Custom("a mapping from token id to a number in [-100, 100], or None", _bias, Bias().dump, Bias().load)


def written_bias(bias: Any) -> dict[str, float] | None:
    """The bias with text for keys, as JSON has them; raises Inexpressible for -inf, which JSON does not have."""
    if bias is None:
        return None
    if any(value == -float("inf") for value in bias.values()):
        raise Inexpressible
    return {str(key): value for key, value in bias.items()}


def top_p_zero(given: Mapping[str, Any], ours: Fields) -> Fields:
    """With `top_p` 0 only the likeliest token is left: greedy."""
    return {**ours, "top_p": 1.0, "temperature": 0.0} if ours.get("top_p") == 0.0 else ours


def few_stops(most: int) -> FieldMapping:
    """The entry of `stop` for an engine that takes at most `most`; more of them are read, but not written."""

    def write(params: SamplingParams) -> list[str] | None:
        if len(params.stop) > most:
            raise Inexpressible(f"stop must hold at most {most} strings, got {len(params.stop)}; leave some out")
        return list(params.stop) or None

    return replace(same("stop", default=None, read=lambda value: value or ()), out_of=write)


_FORMATS: Mapping[str, tuple[str, ...]] = {
    "text": (),
    "json_object": (),
    "json_schema": ("json_schema",),
}
_WITH_TAGS = {**_FORMATS, "structural_tag": ("structures", "triggers", "format")}
_SCHEMA_KEYS: Mapping[str, tuple[type, str]] = {
    "name": (str, "a text"),
    "description": (str, "a text"),
    "schema": (Mapping, "a JSON schema"),
    "strict": (bool, "a bool"),
}


def _response_format(formats: Mapping[str, tuple[str, ...]], value: Any) -> Any:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in formats:
        raise BrokenRuleError(
            'an object such as {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}', value
        )
    given = {name: inner for name, inner in value.items() if inner is not None}
    known = ("type", *formats[kind])
    for name in given:
        if name not in known:
            remedy = 'a schema goes with {"type": "json_schema"}' if "schema" in name else ""
            rule = f"left out where the type is {kind!r}, which has no such field"
            raise BrokenRuleError(rule, given[name], f".{name}", remedy=remedy)
    return {**given, "json_schema": _json_schema(value.get("json_schema"))} if kind == "json_schema" else given


def _format_rule(formats: Mapping[str, tuple[str, ...]]) -> Custom:
    return Custom("an object with a type", partial(_response_format, formats), lambda value: value, lambda plain: plain)


def _json_schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BrokenRuleError("an object with name and schema", value, ".json_schema")
    for name, inner in value.items():
        if name not in _SCHEMA_KEYS:
            raise BrokenRuleError(f"an object of {', '.join(_SCHEMA_KEYS)}", value, ".json_schema")
        kind, rule = _SCHEMA_KEYS[name]
        if inner is not None and not isinstance(inner, kind):
            raise BrokenRuleError(rule, inner, f".json_schema.{name}")
    return {name: inner for name, inner in value.items() if inner is not None}


def _read_format(value: Any) -> Fields:
    if value is None:
        return {}
    if value["type"] == "text":
        return {"guided_decoding": None}
    if value["type"] == "json_object":
        return {"guided_decoding": GuidedDecodingParams(json_object=True)}
    if value["type"] == "structural_tag":
        return {"guided_decoding": GuidedDecodingParams(structural_tag=json.dumps(value, ensure_ascii=False))}
    return {"guided_decoding": GuidedDecodingParams(json=value["json_schema"].get("schema", {}))}


def _write_format(params: SamplingParams) -> Any:
    guided = params.guided_decoding
    if guided is None or guided.mode not in {"json", "json_object"}:
        return None
    if guided.mode == "json_object":
        return {"type": "json_object"}
    schema = schema_mapping(guided.to_dict()["json"])
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}


RESPONSE_FORMAT = FieldMapping(
    name="response_format",
    rule=_format_rule(_FORMATS),
    default=None,
    into=_read_format,
    out_of=_write_format,
    ours=("guided_decoding", "json"),
    meaning="text, any JSON object, or JSON of a schema",
)
RESPONSE_FORMAT_WITH_TAGS = replace(
    RESPONSE_FORMAT,
    rule=_format_rule(_WITH_TAGS),
    meaning="text, any JSON object, JSON of a schema, or text with tags that hold such JSON",
)
"""As vLLM and FastDeploy have it."""


def _logprobs(value: Any) -> Any:
    return Bool().check(value) if isinstance(value, bool) else Int(low=0, high=20).check(value)


def _chat_logprobs(given: Mapping[str, Any], ours: Fields) -> Fields:
    asked, top = given.get("logprobs"), given.get("top_logprobs")
    if top and asked is not True:
        raise DialectError(
            f"top_logprobs must go with logprobs=true, got {top} and {shown(asked)}; set logprobs", "top_logprobs"
        )
    if asked is None or asked is False:
        return {**ours, "logprobs": None}
    return {**ours, "logprobs": (top or 0) if asked is True else asked}


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    return top_p_zero(given, _chat_logprobs(given, ours))


def _nothing(params: SamplingParams) -> None:
    return None


_SHARED = (
    same("temperature", rule=TEMPERATURE),
    same("top_p", rule=TOP_P),
    same("presence_penalty", rule=PENALTY),
    same("frequency_penalty", rule=PENALTY),
    same("seed"),
    same("n", rule=Int(low=1, high=128)),
    few_stops(MOST_STOPS),
    same("logit_bias", rule=BIAS, write=written_bias),
)

OPENAI = Dialect.of(
    "OpenAI",
    "openai",
    [
        *_SHARED,
        same("max_completion_tokens", "max_tokens", default=None),
        FieldMapping(
            name="max_tokens",
            rule=Int(low=0, optional=True),
            default=None,
            into=lambda value: {} if value is None else {"max_tokens": value},
            out_of=_nothing,
            ours=("max_tokens", "deprecated"),
            meaning="the older name of max_completion_tokens",
        ),
        FieldMapping(
            name="logprobs",
            rule=Custom(
                "true or false, or for completions an integer in [0, 20]", _logprobs, bool, lambda plain: plain
            ),
            default=False,
            into=lambda value: {},
            out_of=lambda params: params.logprobs is not None,
            ours=("logprobs",),
            meaning="report the log-probability of each token",
        ),
        FieldMapping(
            name="top_logprobs",
            rule=Int(low=0, high=20, optional=True),
            default=None,
            into=lambda value: {},
            out_of=lambda params: params.logprobs or None,
            ours=("logprobs", "top"),
            meaning="how many of the likeliest tokens to report",
        ),
        RESPONSE_FORMAT,
    ],
    adjust=_adjust,
)

OPENAI_COMPLETIONS = Dialect.of(
    "OpenAI completions",
    "openai",
    [
        *_SHARED,
        same("max_tokens", default=16, rule=Int(low=0)),
        same("logprobs", rule=Int(low=0, high=5, optional=True)),
        same("best_of", default=None, rule=Int(low=1, high=20, optional=True)),
    ],
    adjust=top_p_zero,
)

_ROUTES = {"chat": OPENAI, "completions": OPENAI_COMPLETIONS}


def from_openai(data: Mapping[str, Any], *, route: Route = "chat") -> SamplingParams:
    """The parameters that the sampling fields of an OpenAI request ask for.

    Absent fields take OpenAI's defaults: the answer of `chat` may fill the context, one of `completions` has 16
    tokens. `top_p` 0 is greedy. Raises DialectError (a ParamsError) with OpenAI's name.
    """
    return dialect_of(route).read(data).params


def to_openai(params: SamplingParams, *, route: Route = "chat", lossy: bool = False) -> Any:
    """The sampling fields of an OpenAI request; those at OpenAI's defaults are left out.

    A field that OpenAI's API cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return dialect_of(route).write(params, lossy=lossy)


def dialect_of(route: str) -> Dialect:
    """The dialect of one of OpenAI's two routes; DialectError for another name."""
    if route not in _ROUTES:
        raise DialectError(f"route must be one of {', '.join(_ROUTES)}, got {shown(route)}; leave it out for chat")
    return _ROUTES[route]
