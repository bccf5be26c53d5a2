"""The JSON Schema keywords: the values that each may have, which hold schemas, and which are annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

TYPE_NAMES = ("string", "integer", "number", "boolean", "null", "array", "object")
_TYPE_NAMES = frozenset(TYPE_NAMES)
_ONLY_TEXT, _SCHEMA_KINDS = frozenset({str}), frozenset({bool, dict})
DIGITS = 400
"""Most digits of a number, before and after the point."""


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number whose digits can be written out."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return False
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return exact.is_finite() and abs(exact.adjusted()) < DIGITS and len(exact.as_tuple().digits) < DIGITS


def _is_count(value: Any) -> bool:
    return is_number(value) and value == int(value) and value >= 0


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TYPE_NAMES
    if not value or not _is_names(value):
        return False
    return _TYPE_NAMES.issuperset(value) and len(set(value)) == len(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and _ONLY_TEXT.issuperset(map(type, value))


def _is_schema(value: Any) -> bool:
    return isinstance(value, (bool, dict))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _SCHEMA_KINDS.issuperset(map(type, value))


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and _SCHEMA_KINDS.issuperset(map(type, value.values()))


def _is_dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_schema(each) or _is_names(each) for each in value.values())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


Form = tuple[str, Callable[[Any], bool]]
_COUNT: Form = ("an integer of at least 0", _is_count)
_BOUND: Form = (f"a number of at most {DIGITS} digits", is_number)
_EXCLUSIVE: Form = (
    f"a number of at most {DIGITS} digits, or true or false beside the bound in draft 4",
    lambda value: isinstance(value, bool) or is_number(value),
)
_SCHEMA: Form = ("a schema", _is_schema)
_SCHEMAS: Form = ("a non-empty list of schemas", _is_schemas)
_NAMED: Form = ("an object whose values are schemas", _is_named)
_TEXT: Form = ("a string", _is_text)
_SWITCH: Form = ("true or false", lambda value: isinstance(value, bool))

ENFORCED: Mapping[str, Form] = {
    "type": (f"one or several of {', '.join(TYPE_NAMES)}", _is_type),
    "enum": ("a non-empty list", lambda value: isinstance(value, list) and bool(value)),
    "const": ("a JSON value", lambda value: True),
    "properties": _NAMED,
    "required": ("a list of strings", _is_names),
    "additionalProperties": _SCHEMA,
    "patternProperties": _NAMED,
    "propertyNames": _SCHEMA,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "dependentRequired": (
        "an object whose values are lists of strings",
        lambda value: isinstance(value, dict) and all(map(_is_names, value.values())),
    ),
    "dependentSchemas": _NAMED,
    "dependencies": ("an object whose values are schemas or lists of strings", _is_dependencies),
    "unevaluatedProperties": _SCHEMA,
    "items": (
        "a schema, or a list of schemas before draft 2020-12",
        lambda value: _is_schema(value) or _is_schemas(value) or value == [],
    ),
    "prefixItems": _SCHEMAS,
    "additionalItems": _SCHEMA,
    "unevaluatedItems": _SCHEMA,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "uniqueItems": _SWITCH,
    "contains": _SCHEMA,
    "minContains": _COUNT,
    "maxContains": _COUNT,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": _TEXT,
    "format": _TEXT,
    "minimum": _BOUND,
    "maximum": _BOUND,
    "exclusiveMinimum": _EXCLUSIVE,
    "exclusiveMaximum": _EXCLUSIVE,
    "multipleOf": (f"a number above 0 of at most {DIGITS} digits", lambda value: is_number(value) and value > 0),
    "allOf": _SCHEMAS,
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "not": _SCHEMA,
    "if": _SCHEMA,
    "then": _SCHEMA,
    "else": _SCHEMA,
    "$ref": _TEXT,
    "$dynamicRef": _TEXT,
    "$recursiveRef": ("#", lambda value: value == "#"),
    "$defs": _NAMED,
    "definitions": _NAMED,
    "$anchor": _TEXT,
    "$dynamicAnchor": _TEXT,
    "$recursiveAnchor": _SWITCH,
    "$schema": _TEXT,
    "$id": _TEXT,
}
"""Keyword -> the rule for its value, in words, and the check of that rule."""

SINGLE = frozenset({
    "additionalProperties", "propertyNames", "unevaluatedProperties", "items", "additionalItems", "unevaluatedItems",
    "contains", "not", "if", "then", "else",
})  # fmt: skip
"""Keywords whose value is a schema; `items` may be a list of them."""
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
MAPS = frozenset({
    "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"
})  # fmt: skip
"""Keywords whose value is an object of schemas."""

ANNOTATIONS = frozenset({
    "$comment", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated",
    "description", "discriminator", "example", "examples", "externalDocs", "readOnly", "title", "writeOnly", "xml",
})  # fmt: skip
"""Keywords that do not affect validation; neither do those that begin with `x-`."""

REFUSED: Mapping[str, str] = {
    "$dynamicRef": "where several schemas have the anchor",
    "$recursiveRef": "where several schemas have the anchor",
    "$ref": "out of the schema",
    "contains": "with more than 2,000 states of counting",
    "dependentSchemas": "where the schema is refused",
    "minProperties": "of more than one above the required properties, where others may come",
    "multipleOf": "with more than 1,000 states",
    "not": "of members, items or combinations that are no finite case: see below",
    "oneOf": "of alternatives that overlap, where `not` would be refused",
    "pattern": "with back-references or look-behind",
    "unevaluatedItems": "beside `contains`",
    "uniqueItems": "unless the items are of a few values, or differ by their place",
}
"""Keywords that cannot always be enforced -> what of them is refused, by name and path."""

NOTED_FORMATS = frozenset({
    "binary", "byte", "char", "commonmark", "decimal", "double", "float", "html", "int16", "int32", "int64", "int8",
    "json", "markdown", "media-range", "password", "uint8",
})  # fmt: skip
"""Formats, of OpenAPI's registry and others in use, that describe a value's purpose and do not restrict it."""

DRAFTS = {
    "json-schema.org/draft/2020-12/schema": 2020,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/schema": 2020,
}
"""The drafts that `$schema` may name, without URL scheme and final `#`."""


def is_annotation(key: str) -> bool:
    """Whether a keyword does not affect validation."""
    return key in ANNOTATIONS or key.startswith("x-")
