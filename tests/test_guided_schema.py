"""JSON schemas: every keyword is enforced as the standard says, or refused by name with its path."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from guided_cases import PERSON, SCHEMAS, compiled, satisfies, texts
from test_guided import over_bytes, takes

import tirage
from tirage import GrammarError, ParamsError
from tirage.guided import Grammar, supported
from tirage.guided.json_schema import as_text, compile_schema
from tirage.guided.json_schema.json_tokens import string
from tirage.guided.supported_docs import renewed

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
STRING, INTEGER, NULL, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "null"}, {"type": "object"}
A_INTEGER = {"type": "object", "properties": {"a": INTEGER}}
TREE = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}

CASES: list[tuple[dict[str, Any], str]] = [
    (case, text)
    for case, lines in [
        ({"type": "integer"}, "0|-1|12|1.5|true|null|\"1\"|[]|{}"),
        ({"type": "number"}, "0|-1.25|1e5|-0|3E-2|false|\"1\"|null"),
        ({"type": "string"}, "\"\"|\"a\\nb\"|\"é☃\"|1|null|[]"),
        ({"type": "boolean"}, "true|false|0|null|\"true\""),
        ({"type": "null"}, "null|0|\"\"|false"),
        ({"type": "array"}, "[]|[1,\"a\",[null]]|{}|\"\""),
        ({"type": "object"}, "{}|{\"a\":{\"b\":[1]}}|[]|null"),
        ({"type": ["integer", "string"]}, "1|\"a\"|null|true|[]"),
        ({"enum": [1, "a", None, [2], {"b": 3}]}, "1|\"a\"|null|[2]|{\"b\":3}|2|\"b\"|[]|{}"),
        ({"enum": [0]}, "0|false|\"0\""),
        ({"enum": [True]}, "true|1"),
        ({"type": "string", "enum": ["a", 1]}, "\"a\"|1"),
        ({"enum": ["a", "bb", "ccc"], "minLength": 2}, "\"a\"|\"bb\"|\"ccc\""),
        ({"enum": [1, 2, 3], "minimum": 2}, "1|2|3"),
        ({"const": {"k": ["é", 1.5]}}, "{\"k\":[\"é\",1.5]}|{\"k\":[\"é\"]}|{}"),
        ({"const": "a/b\"c"}, "\"a/b\\\"c\"|\"a\""),
        ({"type": "string", "minLength": 2}, "\"\"|\"a\"|\"ab\"|\"é☃\"|\"a\\n\""),
        ({"type": "string", "maxLength": 2}, "\"\"|\"ab\"|\"abc\"|\"é☃\"|\"\\n\\n\\n\""),
        ({"maxLength": 1}, "\"a\"|\"ab\"|12|null"),
        ({"type": "string", "pattern": "^a+$"}, "\"a\"|\"aaa\"|\"\"|\"ba\"|\"ab\""),
        ({"type": "string", "pattern": "b"}, "\"b\"|\"abc\"|\"ac\"|\"\""),
        ({"type": "string", "pattern": "^\\d{2}"}, "\"12\"|\"123x\"|\"1x\""),
        ({"type": "string", "pattern": "^a|b$"}, "\"ax\"|\"xb\"|\"xay\""),
        ({"minimum": 3, "type": "number"}, "3|3.5|2.99|1e1|-4"),
        ({"maximum": -1, "type": "integer"}, "-1|-20|0|1"),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 5, "type": "number"}, "3|3.01|4|4.99|5"),
        ({"minimum": 3, "maximum": 10, "type": "integer"}, "2|3|9|10|11|100"),
        ({"multipleOf": 3, "type": "integer"}, "0|3|9|10|-6|-5"),
        ({"minimum": 1}, "0|1|\"a\"|null"),
        ({"items": INTEGER}, "[]|[1,2]|[1,\"a\"]|\"x\"|3"),
        ({"type": "array", "minItems": 1, "maxItems": 2, "items": NULL}, "[]|[null]|[null,null]|[null,null,null]"),
        ({"type": "array", "prefixItems": [INTEGER, STRING]}, "[]|[1]|[1,\"a\"]|[\"a\"]|[1,2]|[1,\"a\",null]"),
        ({"type": "array", "prefixItems": [INTEGER], "items": False}, "[]|[1]|[1,1]"),
        ({"type": "array", "prefixItems": [INTEGER], "items": STRING}, "[1]|[1,\"a\"]|[1,1]"),
        (A_INTEGER, "{}|{\"a\":1}|{\"a\":\"x\"}|{\"b\":\"x\"}|{\"a\":1,\"b\":null}"),
        ({"properties": {"a": INTEGER}}, "{\"a\":1}|{\"a\":\"x\"}|[1]|\"x\""),
        (A_INTEGER | {"required": ["a"]}, "{}|{\"a\":1}|{\"b\":1}"),
        ({"type": "object", "required": ["z"]}, "{}|{\"z\":null}|{\"y\":1}"),
        (A_INTEGER | {"additionalProperties": False}, "{}|{\"a\":1}|{\"b\":1}|{\"a\":1,\"b\":1}"),
        (A_INTEGER | {"additionalProperties": STRING}, "{\"a\":1,\"b\":\"x\"}|{\"b\":1}|{\"a\":\"x\"}"),
        ({"type": "object", "additionalProperties": NULL}, "{}|{\"x\":null}|{\"x\":1}"),
        ({"type": "object", "patternProperties": {"^a": INTEGER}}, "{\"ab\":1}|{\"ab\":\"x\"}|{\"b\":\"x\"}"),
        ({"patternProperties": {"^a": INTEGER}, "additionalProperties": False, **OBJECT}, "{\"a\":1}|{\"b\":1}"),
        ({"type": "object", "minProperties": 1}, "{}|{\"a\":1}"),
        ({"type": "object", "maxProperties": 1}, "{}|{\"a\":1}|{\"a\":1,\"b\":1}"),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 6}]}, "2|3|6|7|\"a\""),
        ({"allOf": [{"properties": {"a": NULL}}, {"required": ["a"]}], "type": "object"}, "{}|{\"a\":null}|{\"a\":1}"),
        ({"anyOf": [INTEGER, {"type": "string", "maxLength": 1}]}, "1|\"a\"|\"ab\"|null"),
        ({"anyOf": [{"minLength": 3}, {"maxLength": 1}], "type": "string"}, "\"a\"|\"ab\"|\"abc\""),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, "{\"a\":1}|{\"b\":1}|{\"c\":1}|{}"),
        ({"oneOf": [INTEGER, NULL]}, "1|null|\"a\""),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "\"a\"|\"b\"|\"c\""),
        (TREE, "[]|[[],[[]]]|[1]|{}"),
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": NULL}}, "null|1"),
        ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, "null|1"),
        ({"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": STRING}}, "\"a\"|\"ab\"|1"),
        ({"type": "array", "items": {"$ref": "#"}, "maxItems": 1}, "[]|[[]]|[[],[]]|[1]"),
        ({"type": "string", "format": "date"}, "\"2024-02-29\"|\"2024-13-01\"|\"x\"|\"2024-1-1\""),
        ({"type": "string", "format": "ipv4"}, "\"1.2.3.4\"|\"256.1.1.1\"|\"1.2.3\""),
        ({"type": "string", "format": "uuid"}, "\"12345678-1234-1234-1234-123456789abc\"|\"1234\""),
        ({}, "1|\"a\"|null|[{\"a\":[]}]"),
        ({"title": "t", "description": "d", "default": 1, "x-mine": {"not": 1}, "type": "null"}, "null|1"),
    ]
    for text in lines.split("|")
]  # fmt: skip
B_NULL = {"properties": {"b": NULL}}
NEWER: list[tuple[dict[str, Any], str]] = [
    (case, text)
    for case, lines in [
        ({"not": {"type": ["integer", "array"]}}, '1|1.5|[]|{}|null|"a"'),
        ({"not": {"enum": [1, "a", [1]]}}, '1|2|"a"|"b"|[1]|[2]|[]'),
        ({"not": {"const": {"a": 1}}}, '{"a":1}|{"a":2}|{"a":1,"b":1}|{}'),
        ({"not": {"properties": {"a": INTEGER}, "required": ["a"]}}, '{}|{"a":1}|{"a":"x"}|{"b":1}|1'),
        ({"not": {"items": NULL}}, "[]|[null]|[1]|[null,1]|1"),
        ({"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"maxLength": 1}}, '3|2|"a"|"ab"|null'),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{}|{"b":1}|{"a":1}|{"a":1,"b":1}'),
        ({"dependentRequired": {"a": ["b"]}}, '{}|{"b":1}|{"a":1}|{"b":1,"a":1}|1'),
        ({"dependentSchemas": {"a": B_NULL}}, '{}|{"b":1}|{"a":1}|{"b":1,"a":1}|{"b":null,"a":1}'),
        ({"type": "object", "propertyNames": {"pattern": "^a", "maxLength": 2}}, '{}|{"a":1}|{"ab":1,"a":1}|{"b":1}'),
        ({"type": "array", "contains": NULL}, "[]|[null]|[1]|[1,null]|[null,1]|[1,null,2]"),
        (
            {"type": "array", "contains": NULL, "minContains": 2, "maxContains": 2},
            "[null]|[null,null]|[null,1,null]|[null,null,null]|[1,null,null,2]",
        ),
        ({"type": "array", "items": {"enum": [1, 2, None]}, "uniqueItems": True}, "[]|[1]|[1,1]|[2,null,1]|[1,2,1]"),
        (
            {"type": "object", "properties": {"a": NULL}, "allOf": [B_NULL], "unevaluatedProperties": False},
            '{}|{"a":null}|{"a":null,"b":null}|{"b":null}|{"c":null}',
        ),
        (
            {"type": "array", "allOf": [{"prefixItems": [NULL]}], "unevaluatedItems": INTEGER},
            '[]|[null]|[null,1]|[null,"a"]|[1]',
        ),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, '1|2|1.5|2.5|3|"a"'),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, '{}|{"a":1}|{"b":1}|{"a":1,"b":1}'),
        (
            {
                "type": "object",
                "minProperties": 2,
                "additionalProperties": False,
                "properties": dict.fromkeys("abc", NULL),
            },
            '{}|{"a":null}|{"a":null,"c":null}|{"a":null,"b":null,"c":null}',
        ),
        ({"const": 9007199254740993}, "9007199254740993|9007199254740992|9007199254740994"),
        ({"enum": [18446744073709551615, 0.1]}, "18446744073709551615|18446744073709552000|0.1|0.2"),
        ({"type": "string", "pattern": r'^[^"\\]+$'}, r'"b\"b"|"bb"|"\\"|""'),
        ({"type": "string", "pattern": '^[^<>"]$'}, r'"\""|"a"|"<"'),
    ]
    for text in lines.split("|")
]
"""Cases of keywords that draft 7 has not, and of patterns and constants that were once held wrongly."""
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
NARROWER = ["1e1"]
"""Texts that are valid but not allowed: with a bound, numbers are written without an exponent."""


@pytest.mark.parametrize(("schema", "text"), CASES + NEWER, ids=[f"{json.dumps(s)[:50]} {t}" for s, t in CASES + NEWER])
def test_a_text_is_allowed_only_if_the_standard_allows_it(schema: dict[str, Any], text: str) -> None:
    expected = satisfies(schema)(text) and text not in NARROWER
    assert takes(over_bytes(json=schema), text) == expected


def of_draft_7() -> dict[str, list[str]]:
    """The cases that mean something in draft 7, where references stand alone: schema as text -> texts."""
    found: dict[str, list[str]] = {}
    for schema, text in CASES:
        alone = "$ref" not in schema or set(schema) <= {"$ref", "$defs"}
        if alone and "prefixItems" not in schema and "$anchor" not in json.dumps(schema):
            older = json.dumps({"$schema": DRAFT_7} | schema).replace("$defs", "definitions")
            found.setdefault(older, []).append(text)
    return found


@pytest.mark.parametrize("schema", of_draft_7(), ids=lambda schema: schema[55:110])
def test_draft_7_is_read_as_draft_7(schema: str) -> None:
    checker = jsonschema.Draft7Validator.FORMAT_CHECKER
    validator = jsonschema.Draft7Validator(json.loads(schema), format_checker=checker)
    texts = [text for text in of_draft_7()[schema] if text not in NARROWER and '"uuid"' not in schema]
    grammar = over_bytes(json=schema)
    assert {text: takes(grammar, text) for text in texts} == {
        text: validator.is_valid(json.loads(text)) for text in texts
    }


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (A_INTEGER | {"additionalProperties": STRING}, '{"\\u0061":"x"}'),
        (A_INTEGER | {"additionalProperties": STRING}, '{"a":1,"a":"x"}'),
        ({"type": "object", "patternProperties": {"^a": NULL}}, '{"\\u0061":1}'),
        ({"properties": {"a/b": INTEGER}}, '{"a\\/b":"x"}'),
        ({"type": "string"}, '"\\ud800"'),
        ({"type": "string", "maxLength": 1}, '"\\u0061\\u0061"'),
    ],
)
def test_no_spelling_of_a_string_slips_past_its_schema(schema: dict[str, Any], text: str) -> None:
    assert not takes(over_bytes(json=schema), text)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["x@", "y"]},
        {"const": "@"},
        {"const": {"x@": ["@", 1]}},
        {"type": "string", "pattern": "^x?@$"},
        {"properties": {"x@": {"enum": ["@", 'a"@']}, 'q"@': {}}},
        {"properties": {"x@": NULL}, "required": ["x@"], "additionalProperties": False},
        {"patternProperties": {"^[q@]+$": NULL}},
        {"propertyNames": {"enum": ["x@", "y"]}},
        {"not": {"const": "@"}},
    ],
)
def test_del_is_written_as_an_ordinary_character(schema: dict[str, Any]) -> None:
    strings = [f'"{text}"' for text in ("x@", "@", "y", "*", "x*", 'a\\"@', "\\@")]
    values = ["null", '["@",1]', *strings]
    texts = [*values, *(f"{{{name}:{value}}}" for name in (*strings, '"q\\"@"') for value in values)]
    found: list[list[bool]] = []
    for char in "z\x7f":
        grammar = over_bytes(json=json.loads(json.dumps(schema).replace("@", json.dumps(char)[1:-1])))
        spelled = [text.replace("@", char).replace("*", f"\\u{ord(char):04x}") for text in texts]
        found.append([takes(grammar, text) for text in spelled])
    assert found[0] == found[1]
    assert {True, False} == {*found[0]}


def test_a_tuple_is_written_as_its_draft_does() -> None:
    tuples = {"type": "array", "items": [INTEGER, NULL], "additionalItems": STRING}
    for schema in (tuples, {"$schema": DRAFT_7} | tuples):
        grammar = over_bytes(json=schema)
        cases = {"[]": True, "[1,null]": True, "[null]": False, '[1,null,"a"]': True, "[1,null,2]": False}
        assert {text: takes(grammar, text) for text in cases} == cases
        validator = jsonschema.Draft7Validator(schema)
        assert {text: validator.is_valid(json.loads(text)) for text in cases} == cases


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": {"a": {"not": {"additionalProperties": NULL}}}},
            "#/properties/a/not/additionalProperties cannot be enforced inside of not",
        ),
        ({"items": {"anyOf": [{}, {"uniqueItems": True}]}}, "#/items/anyOf/1/uniqueItems is a keyword that cannot"),
        ({"type": "array", "contains": NULL, "unevaluatedItems": NULL}, "#/unevaluatedItems cannot be enforced beside"),
        ({"type": "strnig"}, "#/type must be one or several of string, integer"),
        ({"type": []}, "#/type must be one or several"),
        ({"minLength": -1}, "#/minLength must be an integer of at least 0, got -1"),
        ({"maxItems": 1.5}, "#/maxItems must be an integer of at least 0, got 1.5"),
        ({"required": "a"}, '#/required must be a list of strings, got "a"'),
        ({"properties": {"a": 3}}, "#/properties must be an object whose values are schemas"),
        ({"anyOf": []}, "#/anyOf must be a non-empty list of schemas, got []"),
        ({"enum": []}, "#/enum must be a non-empty list, got []"),
        ({"multipleOf": 0}, "#/multipleOf must be a number above 0 of at most 400 digits, got 0"),
        ({"multipleOf": 123457}, "schema at # cannot be enforced: multipleOf must be simpler, got 123457"),
        (f'{{"minimum": {10**500}}}', "#/minimum must be a number of at most 400 digits"),
        ({"minimum": True}, "#/minimum must be a number of at most 400 digits, got true"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "schema cannot be enforced: no value satisfies it"),
        ({"type": "string", "minLength": 3, "maxLength": 1}, "schema cannot be enforced: no value satisfies it"),
        ({"minProperties": 2}, "#/minProperties must be at most one more than the number of required properties, 0"),
        (
            {"$ref": "#/$defs/nope", "$defs": {"node": {}}},
            "#/$ref must point to a schema, got '#/$defs/nope'; did you mean",
        ),
        ({"$ref": "#/enum", "enum": [1]}, "#/$ref must point to a schema"),
        ({"$schema": DRAFT_2020, "items": [NULL]}, "#/items must be one schema in draft 2020-12; use prefixItems"),
        ({"prefixItems": [NULL], "items": [NULL]}, "#/items must be one schema in draft 2020-12; use prefixItems"),
        ({"$ref": "http://x.org/y"}, "#/$ref must be a reference into the schema itself"),
        ({"$ref": "file:y.json"}, "nothing is fetched"),
        ({"$ref": "#"}, "# must not lead back to itself through references alone"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "must not lead back to itself"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
            "must not lead back",
        ),
        ({"properties": {"a": {"$id": 1}}}, "#/properties/a/$id must be a string, got 1"),
        ({"properties": {"a": {"$schema": "x"}}}, "#/properties/a/$schema must be draft 2020-12, 2019-09, 7, 6 or 4"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "#/$schema must be draft 2020-12, 2019-09, 7, 6 or 4"),
        ('{"enum": ["\\ud800"]}', '#/enum must hold no surrogate, got "\\ud800"'),
        ('{"enum": ["a\\uDc00"]}', '#/enum must hold no surrogate, got "a\\udc00"'),
        (
            {"oneOf": [{"items": NULL}, {"uniqueItems": True}]},
            "#/oneOf/1/uniqueItems cannot be enforced inside of not, or beside an alternative of oneOf",
        ),
        (
            {"properties": {"p": {"type": "string", "pattern": "(a)\\1"}}},
            "schema at #/properties/p/pattern is a pattern that cannot be enforced: it must",
        ),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "schema cannot be enforced: no value satisfies it"),
        ("{", "schema must be valid JSON: Expecting property name enclosed in double quotes (line 1, column 2)"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"type": "null", "type": "string"}', "must not name a property twice in one object, got 'type'"),
        ("false", "schema cannot be enforced: no value satisfies it"),
        ("3", "schema at # must be an object or true, got 3"),
        (" ", "schema must be valid JSON: Expecting value"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_path(schema: Any, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        over_bytes(json=schema)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_keywords_and_formats_are_listed_or_refused() -> None:
    schema = {"properties": {"a/b~": {"minLenght": 1, "format": "colour", "title": "t", "x-mine": 1}}, "nullable": True}
    places = ("#/properties/a~1b~0/minLenght", "#/properties/a~1b~0/format", "#/nullable")
    assert over_bytes(json=schema).ignored == places
    for unknown, message in (
        ({"items": {"minLenght": 1}}, "#/items/minLenght is not a known keyword; did you mean 'minLength'"),
        ({"format": "colour"}, "#/format must be one of date, date-time"),
        (
            {"$schema": DRAFT_7, "$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {}}},
            "#/maxLength must not stand beside $ref",
        ),
    ):
        assert over_bytes(json=unknown).ignored
        with pytest.raises(GrammarError) as caught:
            over_bytes(json=unknown, strict_schema=True)
        assert message in str(caught.value)


def test_every_keyword_that_is_said_to_be_enforced_has_a_case() -> None:
    written = json.dumps([schema for schema, _ in CASES + NEWER] + SCHEMAS)
    without_case = {name for name in supported()["keywords"] if f'"{name}"' not in written}
    of_documents = {"$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$schema"}
    assert without_case == {"additionalItems", "definitions", "dependencies"} | of_documents, "other tests show these"


def test_the_page_lists_what_is_supported() -> None:
    page = (Path(__file__).parents[1] / "docs" / "guided.md").read_text(encoding="utf-8")
    assert page == renewed(page), "run python -m tirage.guided.supported_docs docs/guided.md"
    assert set(supported()) == {
        "modes", "backends", "keywords", "formats", "annotations", "refused", "structural_tags", "xgrammar"
    }  # fmt: skip
    assert tirage.guided.supported() == supported()
    assert supported()["backends"] == {"llguidance": True, "xgrammar": True}
    assert all(f"`{mode}`" in page for mode in supported()["modes"])


def test_annotations_decide_nothing() -> None:
    noise = dict.fromkeys(supported()["annotations"], "anything") | {"x-guidance": {"lenient": True}}
    grammar = over_bytes(json=noise | {"items": noise}, strict_schema=True)
    assert takes(grammar, "[1]")
    assert grammar.ignored == ()


def compiled_or_refused(schema: dict[str, Any], reason: str) -> Grammar | None:
    try:
        return over_bytes(json=schema)
    except GrammarError as error:
        if reason in str(error):
            return None
        raise


@pytest.mark.parametrize(
    "names", list(itertools.product(["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]))
)
def test_bounds_of_numbers_are_exact(names: tuple[str, str]) -> None:
    values = ["-2.5", "-1", "-0.5", "0", "0.25", "1", "2.25", "10"]
    texts = [*values, "-2", "-0.49", "0.3", "0.0", "1.0", "1.01", "2", "2.26", "2.250", "9.99", "10.01", "11", "-3"]
    for low, high in itertools.combinations(values, 2):
        schema = {"type": "number", names[0]: json.loads(low), names[1]: json.loads(high)}
        grammar, check = compiled_or_refused(schema, "whole number"), satisfies(schema)
        if grammar is None:
            continue
        wrong = [text for text in texts if takes(grammar, text) and not check(text)]
        missing = [text for text in texts if check(text) and not takes(grammar, text)]
        assert (wrong, [text for text in missing if not text.endswith("0")]) == ([], [])


def test_the_order_of_properties_is_kept() -> None:
    schema = {"type": "object", "properties": {"b": NULL, "a": NULL}, "required": ["a", "b"]}
    assert takes(over_bytes(json=schema), '{"b":null,"a":null}')
    assert not takes(over_bytes(json=schema), '{"a":null,"b":null}')


def test_closing_objects_reaches_those_inside_and_refuses_what_it_cannot_close() -> None:
    grammar = over_bytes(json={"type": "array", "items": A_INTEGER}, disable_additional_properties=True)
    assert takes(grammar, '[{"a":1},{}]')
    assert not takes(grammar, '[{"b":1}]')
    with pytest.raises(GrammarError, match="#/allOf cannot go with disable_additional_properties"):
        over_bytes(json={"allOf": [A_INTEGER, OBJECT]}, disable_additional_properties=True)


def test_schemas_as_text_and_as_mappings_are_one() -> None:
    assert compile_schema(json.dumps(PERSON)) is compile_schema(as_text(PERSON))
    assert takes(over_bytes(json="true"), "[1]")
    assert takes(over_bytes(json={}), "[1]")
    with pytest.raises(ParamsError, match="exactly one"):
        over_bytes(json={}, regex="a")


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_random_texts_satisfy_their_schema(schema: dict[str, Any]) -> None:
    check = satisfies(schema)
    outcomes = [(ended, not ended or check(text)) for text, ended in texts(compiled(json=schema), 4)]
    assert any(ended for ended, _ in outcomes)
    assert all(valid for _, valid in outcomes)


def test_schemas_that_are_just_a_type_are_written_once() -> None:
    once, often = (
        compile_schema(json.dumps({"type": "object", "required": ["z"], "properties": dict.fromkeys(names, OBJECT)}))
        for names in ("a", "abcdefg")
    )
    assert len(often.rules) == len(once.rules)


def test_a_schema_that_has_a_name_is_not_merged_with_others_of_its_type() -> None:
    schema = {"properties": {"a": NULL, "b": {"$anchor": "here", "type": "null"}, "c": {"$ref": "#here"}}}
    grammar = over_bytes(json=schema | {"type": "object"})
    assert takes(grammar, '{"a":null,"b":null,"c":null}')
    assert not takes(grammar, '{"a":null,"c":1}')


def test_what_is_refused_of_a_plain_type_is_named_where_it_stands() -> None:
    schema = {"properties": {"a": NULL, "b": {"contains": NULL, "unevaluatedItems": NULL, "type": "array"}}}
    with pytest.raises(GrammarError, match="#/properties/b/unevaluatedItems cannot be enforced beside contains"):
        compile_schema(json.dumps(schema | {"type": "object"}))


def test_the_empty_name_is_a_name_like_others() -> None:
    grammar = over_bytes(json={"type": "object", "properties": {"": INTEGER}})
    assert takes(grammar, '{"":1,"a":"x"}')
    assert takes(grammar, '{"a":"x"}')
    assert not takes(grammar, '{"":"x"}')
    assert not takes(grammar, '{"a":1,"":"x"}')


def test_names_of_properties_do_not_pile_up_in_memory() -> None:
    before = string.cache_info().currsize
    names = [f"never {i}" for i in range(6000)]
    compile_schema(json.dumps({"type": "object", "properties": {name: {} for name in names}, "required": names}))
    assert string.cache_info().currsize <= max(before, string.cache_info().maxsize or 0) < 6000
