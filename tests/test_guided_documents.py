"""Schemas that hold other documents, and spellings of today's keywords that tools still write."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jsonschema
import pytest

from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import BYTES, Compiler
from tirage.guided.json_schema import compile_schema, forget_schemas, read_schema
from tirage.guided.json_schema.json_text import _distinct
from tirage.guided.regular.charset import EVERY
from tirage.guided.regular.ecma_regex import read_ecma
from tirage.guided.regular.expression import Chars, Repeat, intersection
from tirage.guided.regular.regular_language import SearchSteps, is_empty, some_length

COMPILER = Compiler(BYTES)


def takes(schema: Any, value: Any) -> bool:
    """Whether the constraint lets this value come, written as compact JSON."""
    matcher = COMPILER.compile(GuidedDecodingParams(json=schema)).matcher()
    return all(map(matcher.accept, json.dumps(value, separators=(",", ":")).encode())) and matcher.complete


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


INNER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.org/inner",
    **closed(pair={"items": [{"$ref": "#/definitions/one"}, {"const": 2}], "type": "array", "additionalItems": False}),
    "definitions": {"one": {"const": 1}},
}
OUTER = {**closed(a=INNER, b={"$ref": "#/$defs/one"}), "$defs": {"one": {"const": "outer"}}}


def test_a_document_inside_another_keeps_its_draft_and_its_references() -> None:
    assert takes(OUTER, {"a": {"pair": [1, 2]}, "b": "outer"})
    for wrong in ({"pair": [2, 2]}, {"pair": [1, 2, 3]}, {"pair": ["outer", 2]}):
        assert not takes(OUTER, {"a": wrong, "b": "outer"})
    assert not takes(OUTER, {"a": {"pair": [1, 2]}, "b": 1})


def test_of_several_wrong_references_the_error_names_the_same_one_each_time() -> None:
    schema = '{"properties":{"x":{"$ref":"#/a"}},"allOf":[{"properties":{"x":{"$ref":"#/b"}}}]}'
    for attempt in range(50):
        forget_schemas()
        # Where objects lie in memory differs from attempt to attempt.
        kept = [object() for _ in range(attempt % 17)]
        with pytest.raises(GrammarError, match=r"^schema at #/properties/x/\$ref must point"):
            compile_schema(schema)
        del kept


def test_a_schema_keyword_below_the_top_is_read_there() -> None:
    newer = {"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}
    with pytest.raises(GrammarError, match="at #/properties/a/items must be one schema in draft 2020-12"):
        read_schema({"properties": {"a": newer}})
    with pytest.raises(GrammarError, match=r"at #/properties/a/\$schema must be draft 2020-12, .* got \"x\""):
        read_schema({"properties": {"a": {"$schema": "x"}}})


def test_a_name_of_a_property_is_no_keyword() -> None:
    schema = closed(**{"$id": {"const": 1}, "$schema": {"const": 2}, "format": {"const": 3}})
    assert takes(schema, {"$id": 1, "$schema": 2, "format": 3})


def test_two_anchors_of_one_name_are_refused() -> None:
    both = {"properties": {"a": {"$anchor": "x"}, "b": {"$ref": "#x"}, "c": {"$anchor": "x"}}}
    with pytest.raises(GrammarError, match=r"#/properties/c/\$anchor must be a name of its own"):
        read_schema(both)


SPELLED: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3, 2]),
    ({"type": "integer", "maximum": 3, "exclusiveMaximum": False}, [3], [4]),
    ({"type": "integer", "format": "int32"}, [1], ["1"]),
    ({"type": "string", "format": "json"}, ["{"], [1]),
    ({"type": ["integer", "null"], "format": "date"}, [1, None], ["2020-01-01"]),
    ({"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}},
        [{"a": 1}],
        [{"a": 2}],
    ),
    ({"type": "object", "propertyNames": True}, [{"a": 1}], [1]),
    (
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": {"const": 1},
        },
        [{"a": 1}, {"a": 1, "b": 1}, {}],
        [{"c": 1}, {"a": 2}],
    ),
    ({"type": "object", "properties": {"a": {"not": {}}, "b": {"const": 1}}}, [{"b": 1}, {}], [{"a": 1}]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), SPELLED, ids=lambda value: str(value)[:50])
def test_what_says_the_same_in_other_words_is_enforced(
    schema: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    assert all(takes(schema, value) for value in right)
    assert not any(takes(schema, value) for value in wrong)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"exclusiveMinimum": True}, "at #/exclusiveMinimum must be a number where there is no minimum"),
        ({"not": {"title": "t"}}, "cannot be enforced: no value satisfies it"),
        ({"uniqueItems": True}, "at #/uniqueItems is a keyword that cannot be enforced"),
        ({"not": {"uniqueItems": True}}, "at #/not/uniqueItems cannot be enforced inside of not"),
        # Another schema of the same type comes before the one that is named.
        (
            {"properties": {"a": {"type": "string"}}, "not": {"additionalProperties": {"type": "string"}}},
            "at #/not/additionalProperties cannot be enforced inside of not",
        ),
        (
            {"properties": {"a": {"type": "string"}}, "not": {"patternProperties": {"b": {"type": "string"}}}},
            "at #/not/patternProperties/b cannot be enforced inside of not",
        ),
        (
            {"not": {"items": [{"type": "string"}], "additionalItems": {"type": "string"}}},
            "at #/not/additionalItems cannot be enforced inside of not",
        ),
    ],
)
def test_what_would_not_be_enforced_is_refused_still(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=f"^schema {message}"):
        read_schema(schema)


@pytest.mark.parametrize(
    ("pattern", "lengths", "shortest"),
    [
        ("^a{2}b+$", (0, None), 3),
        ("^(?:abc|de|f{5})$", (0, 2), 2),
        ("^(?:abc|de|f{5})$", (3, None), None),
        ("^(?:abc|de|f{5})$", (6, None), None),
        ("^a(?!b)", (0, None), None),
        ("^(?:[]|ab)$", (1, 4), 2),
        ("x", (4, 4), None),
    ],
)
def test_texts_are_known_from_the_form_of_a_pattern_only_where_there_are_some(
    pattern: str, lengths: tuple[int, int | None], shortest: int | None
) -> None:
    """What is known agrees with a search, which decides where nothing is known from the form."""
    node = intersection([read_ecma(pattern), Repeat(Chars(EVERY), *lengths)])
    assert some_length(node) == shortest
    if shortest is not None:
        exactly = intersection([node, Repeat(Chars(EVERY), shortest, shortest)])
        assert not is_empty(exactly, SearchSteps())
    assert is_empty(node, SearchSteps()) == (lengths == (6, None))


def shape(kind: Any, **more: Any) -> dict[str, Any]:
    return closed(kind=kind, **more)


CIRCLE, BOX = shape({"const": "circle"}, r={"type": "integer"}), shape({"enum": ["box", "cube"]}, a={"type": "integer"})


def test_alternatives_that_a_property_tells_apart_are_held() -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/circle"}, BOX],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"circle": CIRCLE},
    }
    values = [
        {"kind": kind, name: 1} for kind in ("circle", "box", "cube", "ball") for name in ("r", "a")
    ]  # fmt: skip
    for value in values:
        assert takes(schema, value) == jsonschema.Draft202012Validator(schema).is_valid(value)


OPEN = {key: value for key, value in CIRCLE.items() if key != "type"}


@pytest.mark.parametrize(
    "others",
    [
        [CIRCLE, CIRCLE],
        [CIRCLE, shape({"enum": ["circle", "box"]})],
        [CIRCLE, {**BOX, "required": []}],
        [CIRCLE, shape({"const": 1})],
        [OPEN, {**OPEN, "properties": BOX["properties"]}],
        [CIRCLE, shape({"type": "string"})],
        [CIRCLE, {"$ref": "#"}],
    ],
    ids=str,
)
def test_alternatives_that_are_not_told_apart_stay_exclusive(others: list[Any]) -> None:
    try:
        written = json.loads(read_schema({"oneOf": others}))
    except GrammarError:
        return  # a reference to itself with nothing between
    assert "oneOf" in written
    assert "anyOf" not in written


def lines(work: Callable[[], Any]) -> int:
    """The lines of Python that some work runs: its cost, whatever else the machine does."""
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class Name(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_schema_is_searched_for_double_names_in_time_that_grows_with_its_size() -> None:
    for count in (1000, 4000):
        Name.compared = 0
        names: list[str] = [Name(f"n{i}") for i in (*range(count), count - 1)]
        with pytest.raises(GrammarError, match=f"must not name a property twice in one object, got 'n{count - 1}'"):
            _distinct([(name, {}) for name in names])
        assert Name.compared < 2 * count


@pytest.mark.parametrize("kind", ["properties", "enum", "required", "anyOf", "references"])
def test_the_work_on_a_schema_grows_with_its_size(kind: str) -> None:
    def text(count: int) -> str:
        names = [f"n{i}" for i in range(count)]
        made: dict[str, Any] = {
            "properties": {"properties": {name: {"type": "string"} for name in names}},
            "enum": {"enum": names},
            "required": {"required": names},
            "anyOf": {"anyOf": [{"const": name} for name in names]},
            "references": {"$defs": {name: {"items": {"$ref": f"#/$defs/{name}"}} for name in names}},
        }
        return json.dumps(made[kind])

    small, large = (lines(partial(read_schema, text(count))) for count in (200, 800))
    assert large < 6 * small
