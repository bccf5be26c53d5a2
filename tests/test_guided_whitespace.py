"""Whitespace between the tokens of JSON: skipped by the library's lexer, or part of its terminals; the same texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from guided_cases import SCHEMAS
from test_guided import BYTES, allowed, takes

from tirage.guided import Compiler
from tirage.guided.constraint import read_constraint
from tirage.guided.json_schema.lark import FEW_MEMBERS
from tirage.guided.llguidance_backend import ignores_once, lark_of
from tirage.params import GuidedDecodingParams

PATTERNS = (None, r"[ ]?", r"( |\n)*", r"[ \t]{1,3}", r"\n{0,2}[ ]*", r"(\r\n)?", " ")
OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "b": {}},
    "required": ["a"],
}
SPACES = ("", " ", "\n", "  ", "\t", " \n", "\r\n", "\n\n ", " " * 8, " " * 9)


def is_skipping(schema: Any, **options: Any) -> bool:
    return "%ignore" in lark_of(read_constraint(GuidedDecodingParams(json=schema, **options)))


@pytest.fixture
def without_skipping(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A compiler for a release of the library that knows no whitespace between terminals with bounds."""
    monkeypatch.setattr("tirage.guided.llguidance_backend.ignores_once", lambda: False)
    return Compiler(BYTES)


def spellings() -> Iterator[str]:
    """Texts of the object with one kind of whitespace between all tokens, at one place, and around the whole."""
    tokens = ["{", '"a"', ":", "[", "1", ",", "23", "]", ",", '"b"', ":", "{", "}", "}"]
    for space in SPACES:
        yield space.join(tokens)
        yield from ("".join([*tokens[:i], space, *tokens[i:]]) for i in range(len(tokens) + 1))
    yield '{"a":[1,2 3]}'
    yield '{"a":[- 1]}'
    yield '{"a" :[ ] }'


@pytest.mark.parametrize("pattern", PATTERNS)
def test_skipped_whitespace_allows_the_texts_of_whitespace_in_terminals(
    pattern: str | None, without_skipping: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    guided = GuidedDecodingParams(json=OBJECT, whitespace_pattern=pattern)
    one = without_skipping.compile(guided)
    monkeypatch.undo()
    other = Compiler(BYTES).compile(guided)
    found = [takes(one, text) for text in spellings()]
    assert [takes(other, text) for text in spellings()] == found
    assert True in found
    assert False in found


@pytest.mark.parametrize("schema", SCHEMAS)
def test_masks_are_the_same_in_both_forms(
    schema: Any, without_skipping: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    guided = GuidedDecodingParams(json=schema)
    one = without_skipping.compile(guided)
    monkeypatch.undo()
    other, rng = Compiler(BYTES).compile(guided), np.random.default_rng(5)
    for _ in range(6):
        first, second = one.matcher([0]), other.matcher([0])
        for _ in range(40):
            found = allowed(first)
            assert allowed(second) == found
            usual = [token for token in found if bytes([token]) in b'{}[],:" \n01ae'] or found
            if not usual:
                break
            token = int(rng.choice(usual))
            assert first.accept(token)
            assert second.accept(token)


def test_whitespace_is_skipped_where_that_says_the_same() -> None:
    knows = ignores_once()
    many = {"properties": {f"p{i}": {} for i in range(FEW_MEMBERS + 1)}}
    assert is_skipping(OBJECT) == is_skipping({}) == knows
    assert is_skipping(OBJECT, whitespace_pattern=" ?") == knows
    assert not is_skipping(OBJECT, whitespace_pattern=" ")
    assert not is_skipping(OBJECT, disable_any_whitespace=True)
    assert not is_skipping(many)
    assert not is_skipping({"items": {"type": "integer", "multipleOf": 7}})


def test_the_digits_of_a_multiple_stand_together() -> None:
    grammar = Compiler(BYTES).compile(GuidedDecodingParams(json={"items": {"multipleOf": 7, "minimum": 0}}))
    assert takes(grammar, "[ 14 , 21]")
    assert not takes(grammar, "[1 4]")
    assert not takes(grammar, "[14,2\n1]")


def test_many_members_in_any_order_of_whitespace() -> None:
    names = [f"name{i}" for i in range(2 * FEW_MEMBERS)]
    schema = {"properties": {name: {"type": "integer"} for name in names}, "additionalProperties": False}
    grammar = Compiler(BYTES).compile(GuidedDecodingParams(json=schema))
    assert takes(grammar, json.dumps(dict.fromkeys(names, 1), indent=2))
    assert not takes(grammar, json.dumps({**dict.fromkeys(names, 1), "x": 1}))
