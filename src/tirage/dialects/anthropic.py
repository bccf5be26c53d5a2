"""Anthropic's Messages API: the sampling fields of `/v1/messages`, those of its own package, of vLLM and of SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.dialects.constraints import schema_mapping
from tirage.dialects.openai import top_p_zero
from tirage.dialects.table import Dialect, DialectError, FieldMapping, Fields, Inexpressible, listed, same
from tirage.dialects.unsupported import ANTHROPIC_MESSAGES
from tirage.fields.rules import BrokenRuleError, Custom, Float, Int
from tirage.params import GuidedDecodingParams, SamplingParams

_KINDS: Mapping[str, tuple[str, ...]] = {
    "enabled": ("type", "display", "budget_tokens"),
    "adaptive": ("type", "display"),
    "disabled": ("type",),
}
"""The kinds of `thinking` and the members of each; only `budget_tokens` is a parameter, the rest is the chat's."""


def _thinking(value: Any) -> Any:
    rule = 'an object of type "enabled" with budget_tokens, "adaptive" or "disabled"'
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in tuple(_KINDS) or not set(value) <= {*_KINDS[kind]}:
        raise BrokenRuleError(rule, value)
    if kind == "enabled":
        try:
            Int(low=1).check(value.get("budget_tokens"))
        except BrokenRuleError as broken:
            raise BrokenRuleError(broken.rule, broken.value, ".budget_tokens") from None
    return value


def _read_thinking(value: Any) -> Fields:
    return {"thinking_budget": (value or {}).get("budget_tokens")}


def _write_thinking(params: SamplingParams) -> Any:
    budget, most = params.thinking_budget, params.max_tokens
    if budget is None:
        return None
    if budget == 0 or (most is not None and budget >= most):
        raise Inexpressible
    return {"type": "enabled", "budget_tokens": budget}


def _output(value: Any) -> Any:
    rule = 'an object whose format is {"type": "json_schema", "schema": ...}'
    if not isinstance(value, Mapping):
        raise BrokenRuleError(rule, value)
    if value.get("effort") is not None:
        raise BrokenRuleError("left out: it is a variable of the chat's template", value["effort"], ".effort")
    match {name: inner for name, inner in value.items() if inner is not None}:
        case {"format": {"type": "json_schema", "schema": Mapping(), **rest}, **others} if not (rest or others):
            return value
    raise BrokenRuleError(rule, value)


def _read_output(value: Any) -> Fields:
    return {"guided_decoding": GuidedDecodingParams(json=value["format"]["schema"]) if value else None}


def _write_output(params: SamplingParams) -> Any:
    guided = params.guided_decoding
    if guided is None or guided.mode != "json":
        return None
    return {"format": {"type": "json_schema", "schema": schema_mapping(guided.to_dict()["json"])}}


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    budget, most = ours["thinking_budget"], ours["max_tokens"]
    if budget is not None and most is not None and budget >= most:
        place = "thinking.budget_tokens"
        raise DialectError(f"{place} must be less than max_tokens, {most}, got {budget}; raise max_tokens", place)
    return top_p_zero(given, ours)


def _object(name: str, check: Any, text: str, **entry: Any) -> FieldMapping:
    rule = Custom(text, check, lambda value: value, lambda plain: plain)
    return FieldMapping(name=name, rule=rule, default=None, **entry)


ANTHROPIC = Dialect.of(
    "Anthropic",
    "openai",
    [
        same("max_tokens", default=None, rule=Int(low=0, optional=True)),
        listed("stop_sequences", "stop"),
        same("temperature", rule=Float(low=1e-20, high=1.0, zero=True)),
        same("top_p", rule=Float(low=0.0, high=1.0)),
        same("top_k", default=None, rule=Int(low=0, optional=True), read=lambda k: k or 0, write=lambda k: k or None),
        _object(
            "thinking",
            _thinking,
            "an object with a type",
            into=_read_thinking,
            out_of=_write_thinking,
            ours=("thinking_budget",),
            meaning="for how many tokens at most the model thinks first",
        ),
        _object(
            "output_config",
            _output,
            "an object with a format",
            into=_read_output,
            out_of=_write_output,
            ours=("guided_decoding", "json"),
            meaning="a JSON schema of the answer",
        ),
    ],
    adjust=_adjust,
    unsupported=ANTHROPIC_MESSAGES,
)


def from_anthropic(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that the sampling fields of a request of Anthropic's Messages API ask for.

    `temperature`, `top_p` and `top_k` are taken as its older releases, vLLM and SGLang have them. Without `max_tokens`,
    which the API demands, the answer may fill the context; `top_p` 0 is greedy. Raises DialectError (a ParamsError)
    with Anthropic's name.
    """
    return ANTHROPIC.read(data).params


def to_anthropic(params: SamplingParams, *, lossy: bool = False) -> Any:
    """The sampling fields of a request of Anthropic's Messages API; those at its defaults are left out.

    The API demands a `max_tokens`; parameters without a limit write none. A field that it cannot express raises
    ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return ANTHROPIC.write(params, lossy=lossy)
