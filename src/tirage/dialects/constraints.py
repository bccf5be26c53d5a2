"""Fields that constrain the text, shared by the dialects: each is one mode of GuidedDecodingParams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tirage.dialects.table import FieldMapping, Fields, Inexpressible
from tirage.fields.rules import BrokenRuleError, Custom, Rule
from tirage.params import GuidedDecodingParams, SamplingParams, specs

_MODES = specs(GuidedDecodingParams)


def constraint(
    name: str,
    mode: str,
    *,
    rule: Rule | None = None,
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] | None = None,
    meaning: str = "",
) -> FieldMapping:
    """The entry of a field that is a constraint of the given mode; the empty string is no constraint, as null is."""
    checks = _optional(_MODES[mode].rule if rule is None else rule)

    def into(value: Any) -> Fields:
        if value is None or value == "":
            return {"guided_decoding": None} if value == "" else {}
        return {"guided_decoding": GuidedDecodingParams(**{mode: read(value)})}

    def out_of(params: SamplingParams) -> Any:
        guided = params.guided_decoding
        if guided is None or guided.mode != mode:
            return None
        value = _MODES[mode].rule.dump(getattr(guided, mode))
        return value if write is None else write(value)

    return FieldMapping(
        name=name,
        rule=checks,
        default=None,
        into=into,
        out_of=out_of,
        ours=("guided_decoding", mode),
        meaning=meaning or _MODES[mode].meaning,
    )


def _optional(rule: Rule) -> Rule:
    """The rule, and the empty string besides."""
    return Custom(rule.text, lambda value: value if value == "" else rule.check(value), rule.dump, rule.load)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        remedy = "send it as text, json.dumps(schema)" if isinstance(value, (dict, bool)) else ""
        raise BrokenRuleError("a JSON schema as a string of JSON", value, remedy=remedy)
    return value


SCHEMA_TEXT = Custom("a JSON schema as a string of JSON", _text, lambda value: value, lambda plain: plain)
"""The rule of a field that takes a schema as JSON text alone."""


def schema_text(schema: Any) -> str:
    """A schema as JSON text, its properties in the order given."""
    return schema if isinstance(schema, str) else json.dumps(schema)


def schema_mapping(schema: Any) -> Any:
    """A schema as a mapping; raises Inexpressible for text that is not JSON."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        raise Inexpressible from None
