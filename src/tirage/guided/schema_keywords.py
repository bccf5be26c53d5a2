"""The JSON Schema keywords that are enforced, ignored or refused, and the values that each may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
NOTED_FORMATS = frozenset({
    "binary", "byte", "char", "commonmark", "decimal", "double", "float", "html", "int16", "int32", "int64", "int8",
    "json", "markdown", "media-range", "password", "uint8",
})  # fmt: skip
"""Formats, of OpenAPI's registry and others in use, that describe a value's purpose and do not restrict it."""
LARGEST = 1 << 53
"""Larger bounds are not exact in the compilers, which store them as double-precision floats."""


def _is_count(value: Any) -> bool:
    return is_number(value) and value == int(value) and 0 <= value < 1 << 31


def _is_bound(value: Any) -> bool:
    return is_number(value) and abs(value) <= LARGEST


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(name in TYPES for name in names) and len(set(names)) == len(names)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, (bool, dict))


Form = tuple[str, Callable[[Any], bool]]
_COUNT: Form = ("an integer in [0, 2^31)", _is_count)
_BOUND: Form = ("a number in [-2^53, 2^53]", _is_bound)
_SCHEMA: Form = ("a schema", _is_schema)
_SCHEMAS: Form = ("a non-empty list of schemas", lambda v: isinstance(v, list) and bool(v) and all(map(_is_schema, v)))
_NAMED: Form = (
    "an object whose values are schemas",
    lambda v: isinstance(v, dict) and all(map(_is_schema, v.values())),
)
_TEXT: Form = ("a string", lambda value: isinstance(value, str))

ENFORCED: Mapping[str, Form] = {
    "type": (f"one or several of {', '.join(TYPES)}", _is_type),
    "enum": ("a non-empty list", lambda value: isinstance(value, list) and bool(value)),
    "const": ("a JSON value", lambda value: True),
    "properties": _NAMED,
    "required": ("a list of distinct strings", _is_names),
    "additionalProperties": _SCHEMA,
    "patternProperties": _NAMED,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "items": ("a schema, or a list of schemas before draft 2020-12", lambda v: _is_schema(v) or _SCHEMAS[1](v)),
    "prefixItems": _SCHEMAS,
    "additionalItems": _SCHEMA,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": _TEXT,
    "format": (f"one of {', '.join(FORMATS)}", lambda value: value in FORMATS),
    "minimum": _BOUND,
    "maximum": _BOUND,
    "exclusiveMinimum": _BOUND,
    "exclusiveMaximum": _BOUND,
    "multipleOf": ("a number in (0, 2^53]", lambda value: is_number(value) and 0 < value <= LARGEST),
    "allOf": _SCHEMAS,
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "$ref": ("a reference into the schema itself, such as #/$defs/name", lambda v: isinstance(v, str) and v[:1] == "#"),
    "$defs": _NAMED,
    "definitions": _NAMED,
    "$anchor": _TEXT,
}
"""Keyword -> the rule for its value, in words, and the check of that rule."""

ANNOTATIONS = frozenset({
    "$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "discriminator",
    "example", "examples", "readOnly", "title", "writeOnly",
})  # fmt: skip
"""Keywords that do not affect validation; neither do those that begin with `x-`."""

REFUSED: Mapping[str, str] = {
    "not": "describe what is allowed instead",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "dependentSchemas": "use anyOf",
    "dependentRequired": "use anyOf",
    "dependencies": "use anyOf",
    "uniqueItems": "bound the list with maxItems instead",
    "contains": "use items or prefixItems",
    "minContains": "use items or prefixItems",
    "maxContains": "use items or prefixItems",
    "contentSchema": "leave it out",
    "propertyNames": "use patternProperties",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $anchor",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $anchor",
    "$vocabulary": "leave it out",
    "nullable": 'use "type": ["string", "null"]',
    "id": "use $id at the top",
}
"""Keywords, of the standard or in common use, that cannot be enforced, and what to write instead."""

DRAFTS = {
    "json-schema.org/draft/2020-12/schema": 2020,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft-06/schema": 6,
}
"""The drafts that `$schema` may name, without URL scheme and final `#`."""
