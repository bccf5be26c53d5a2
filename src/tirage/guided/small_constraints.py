"""The constraints that are small enough to be compiled without a trial in a child process.

They are short, and use nothing that multiplies the work of the compiler. Such a constraint compiles in a few
milliseconds; tests/test_guided_small.py has the worst ones. SPEC.md S-G5.
"""

from __future__ import annotations

import json
from typing import Any

from tirage.guided.constraint import Constraint
from tirage.guided.expression import Alternatives, Expression, LiteralText, Repeat, RuleReference, Sequence
from tirage.guided.gbnf import read_gbnf
from tirage.guided.schema import walk

BYTES, SCHEMAS, WEIGHT = 4096, 128, 1024
"""Limits: bytes of a schema, schemas inside it, and positions in a pattern, choice or GBNF grammar."""
COUNT, NAMES = 1000, 256
"""Limits: counts in a schema, and names and alternatives in all its lists together."""

_PLAIN = frozenset({"type", "enum", "const", "properties", "required", "items", "prefixItems", "format", "$defs",
                    "definitions", "additionalProperties", "minimum", "maximum"})  # fmt: skip
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
_ALONE = frozenset({"anyOf", "$ref"})


def is_small(constraint: Constraint) -> bool:
    """Whether the constraint may be compiled without a trial."""
    match constraint.kind:
        case "json":
            return is_small_schema(constraint.text) and len(constraint.whitespace) < 64
        case "regex":
            return weight(constraint.expression) <= WEIGHT
        case "gbnf":
            return sum(map(weight, read_gbnf(constraint.text).values())) <= WEIGHT
    return False


def is_small_schema(text: str) -> bool:
    """Whether a schema in the form of `read_schema` is short and has no keyword that makes compilation expensive."""
    if len(text) > BYTES:
        return False
    inner = [schema for _, schema in walk(json.loads(text), ()) if isinstance(schema, dict)]
    names = sum(len(value) for schema in inner for value in schema.values() if isinstance(value, (list, dict)))
    return len(inner) <= SCHEMAS and names <= NAMES and all(map(is_plain, inner))


def is_plain(schema: dict[str, Any]) -> bool:
    """Whether one schema, without those inside it, has only keywords that compile in proportion to their size."""
    keys = set(schema) - {"$defs", "definitions"}
    if keys & _ALONE:
        return len(keys) == 1
    return keys <= _PLAIN | _COUNTS and all(schema[key] <= COUNT for key in keys & _COUNTS)


def weight(node: Expression) -> int:
    """The number of positions of characters in an expression, repetitions written out; a rule reference counts as 4."""
    match node:
        case LiteralText(text):
            return len(text)
        case Sequence(parts) | Alternatives(parts):
            return sum(map(weight, parts))
        case Repeat(part, low, high):
            return weight(part) * max(1, low + 1 if high is None else high)
        case RuleReference():
            return 4
    return 1
