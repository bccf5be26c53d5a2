"""JSON Schema of a rule and of a dialect, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.fields.rules import (
    Bias,
    Bool,
    Float,
    Ids,
    IdWords,
    Int,
    Json,
    OneOf,
    PatternRule,
    Rule,
    SequenceBias,
    Text,
    Texts,
)

_ID = {"type": "integer", "minimum": 0}
_LIST = {"type": "array", "items": {"type": "string", "minLength": 1}}


def schema_of(rule: Rule) -> dict[str, Any]:
    """The JSON Schema of the values that a rule takes, null aside; `{}` (anything) for rules made of functions."""
    if isinstance(rule, Bool):
        return {"type": "boolean"}
    if isinstance(rule, Int):
        return _integer(rule)
    if isinstance(rule, Float):
        return _number(rule)
    if isinstance(rule, (Text, PatternRule)):
        return {"type": "string", "minLength": 1}
    if isinstance(rule, OneOf):
        return {"enum": [value for value in rule.values if value is not None]}
    if isinstance(rule, Texts):
        return {"anyOf": [{"type": "string", "minLength": 1}, _LIST]} if rule.single else _LIST
    return _compound(rule)


def _compound(rule: Rule) -> dict[str, Any]:
    if isinstance(rule, Ids):
        return {"type": "array", "items": _ID}
    if isinstance(rule, IdWords):
        return {"type": "array", "items": {"anyOf": [_ID, {"type": "array", "items": _ID, "minItems": 1}]}}
    if isinstance(rule, SequenceBias):
        return {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}}
    if isinstance(rule, Bias):
        return {"type": "object", "additionalProperties": {"type": "number"}}
    if isinstance(rule, Json):
        return {"type": "object"}
    return {}


def _integer(rule: Int) -> dict[str, Any]:
    low = rule.low if rule.alias is None else min(rule.low, rule.alias)
    return {"type": "integer", "minimum": low, "maximum": rule.high}


def _number(rule: Float) -> dict[str, Any]:
    low = {"minimum": 0.0} if rule.zero else {"exclusiveMinimum" if rule.open_low else "minimum": rule.low}
    return {"type": "number", **low, "exclusiveMaximum" if rule.open_high else "maximum": rule.high}


def nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, with null besides; null is what leaving a field out is."""
    return {"anyOf": [dict(schema), {"type": "null"}]} if schema else {}
