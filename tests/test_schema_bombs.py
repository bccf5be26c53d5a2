"""Schemas that would take much work or memory are refused, or taken, within few lines of Python and little memory."""

from __future__ import annotations

import json
import tracemalloc
from functools import partial
from typing import Any

import pytest
from test_guided_documents import lines

from tirage import GrammarError
from tirage.guided.json_schema import compile_schema, forget_schemas

REFUSED_LINES, LINES, BYTES = 3_000_000, 5_000_000, 50_000_000
"""Most lines of Python until a schema is refused, about 0.1 s, and read, and most memory meanwhile."""


def nested(key: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {key: schema if key == "items" else [schema, {"type": "null"}]}
    return schema


def choices(key: str, count: int) -> dict[str, Any]:
    """Many combinations of alternatives, each of which concerns another property."""
    parts = [{key: [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(count)]
    return {"type": "object", "allOf": parts}


def circle(count: int) -> dict[str, Any]:
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % count}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


BOMBS: dict[str, Any] = {
    "deep items": {},
    "deep allOf": nested("allOf", 60),
    "deep oneOf": nested("oneOf", 60),
    "circle": circle(100),
    "circle of items": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "items": {"$ref": "#/$defs/a"}},
    "enum": {"enum": list(range(30_000))},
    "names": {"enum": [f"name {i}" for i in range(10_000)], "pattern": "^name [0-9]+$"},
    "combinations": choices("anyOf", 30),
    "exclusive combinations": choices("oneOf", 30),
    "overlapping": {"oneOf": [{"required": [f"a{i}"]} for i in range(60)]},
    "not": {"not": choices("oneOf", 20)},
    "pattern": {"type": "string", "pattern": "^((a|b)*a(a|b){20})$", "maxLength": 200, "not": {"pattern": "(ab){9}$"}},
    "patterns": {"patternProperties": {f"{a}.*{b}": {"const": a} for a in "abcdefgh" for b in "xyz"}},
    "counted pattern": {"type": "string", "pattern": "^((.){50}){50}$", "allOf": [{"pattern": "^(.{7})*$"}]},
    "unique": {"type": "array", "items": {"enum": list(range(40))}, "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}, "minContains": 5000, "maxContains": 9000},
    "counted members": {"properties": {f"n{i}": {} for i in range(500)}, "maxProperties": 250},
    "digits": '{"minimum": 1e999999999}',
    "multiples": {"type": "integer", "multipleOf": 99_991},
}


def outcome(schema: Any) -> str:
    """Whether a schema is taken; a refusal is as good."""
    forget_schemas()
    try:
        compile_schema(schema)
    except GrammarError as error:
        return str(error)
    return "taken"


def text_of(name: str) -> str:
    given = BOMBS[name]
    if name != "deep items":
        return given if isinstance(given, str) else json.dumps(given)
    return '{"items":' * 10_000 + "{}" + "}" * 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_bomb_takes_little_work_and_memory(name: str) -> None:
    text = text_of(name)
    found = outcome(text)
    assert "\n" not in found
    assert lines(partial(outcome, text)) < (LINES if found == "taken" else REFUSED_LINES)
    tracemalloc.start()
    outcome(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < BYTES


def test_the_bombs_that_no_grammar_has_are_refused_by_name() -> None:
    for name, message in {
        "deep items": "schema must be nested at most 64 levels deep",
        "circle": "must not lead back to itself",
        "combinations": "must combine its parts in fewer than 10000 steps",
        "unique": "uniqueItems is a keyword that cannot be enforced unless the items are of a few values",
        "multiples": "multipleOf must be simpler",
        "digits": "#/minimum must be a number of at most 400 digits",
    }.items():
        assert message in outcome(text_of(name)), name
