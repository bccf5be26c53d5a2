"""Random schemas against jsonschema: what a grammar allows is valid, and most of what is valid is allowed."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
from test_guided import over_bytes, takes

from tirage import GrammarError
from tirage.guided.json_schema.keywords import ENFORCED

DRAFTS: dict[str, Any] = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema.Draft7Validator,
}
NAMES = ["a", "b", "ab", "é"]
VALUES: list[Any] = [0, 1, -3, 7, 2.5, -0.25, 100, "", "a", "ab", "abc", "é", "2024-02-29", None, True, False, [], {}]
PATTERNS = ["^a", "b$", "^[a-c]*$", "a.c", "^(ab|é)+$"]


class Maker:
    """Draws schemas, and values that mostly come near to satisfying them."""

    def __init__(self, seed: int, *, newer: bool) -> None:
        self._rng, self._newer = random.Random(seed), newer

    def schema(self, depth: int = 3) -> Any:
        rng = self._rng
        kinds = [self._number, self._string, self._constant, self._types]
        if depth:
            kinds += [self._array, self._object, self._object, self._combined, self._referring, self._conditional]
        found = rng.choice(kinds)(depth - 1)
        return found | {"title": "t"} if rng.random() < 0.1 else found

    def _number(self, _: int) -> dict[str, Any]:
        rng = self._rng
        found: dict[str, Any] = {"type": rng.choice(["integer", "number"])}
        if rng.random() < 0.6:
            found[rng.choice(["minimum", "exclusiveMinimum"])] = rng.choice([-5, -1, 0, 0.5, 3])
        if rng.random() < 0.6:
            found[rng.choice(["maximum", "exclusiveMaximum"])] = rng.choice([4, 6.5, 20, 100])
        if found["type"] == "integer" and rng.random() < 0.2:
            found["multipleOf"] = rng.choice([2, 5])
        return found

    def _string(self, _: int) -> dict[str, Any]:
        rng, found = self._rng, dict[str, Any](type="string")
        if rng.random() < 0.5:
            found["minLength"] = rng.randint(0, 2)
        if rng.random() < 0.5:
            found["maxLength"] = rng.randint(2, 4)
        if rng.random() < 0.3:
            found |= {"pattern": rng.choice(PATTERNS)}
        return {"type": "string", "format": "date"} if rng.random() < 0.1 else found

    def _constant(self, _: int) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.3:
            return {"const": rng.choice(VALUES)}
        return {"enum": rng.sample(VALUES[:15], rng.randint(1, 4))}

    def _types(self, _: int) -> dict[str, Any]:
        return {"type": self._rng.sample(["string", "integer", "null", "boolean", "array"], self._rng.randint(1, 3))}

    def _array(self, depth: int) -> dict[str, Any]:
        rng, found = self._rng, dict[str, Any](type="array")
        if rng.random() < 0.3:
            prefix, rest = ("prefixItems", "items") if self._newer else ("items", "additionalItems")
            found[prefix] = [self.schema(depth) for _ in range(rng.randint(1, 2))]
            if rng.random() < 0.6:
                found[rest] = rng.choice([False, self.schema(depth)])
        elif rng.random() < 0.8:
            found["items"] = self.schema(depth)
        if rng.random() < 0.4:
            found["minItems"] = rng.randint(0, 2)
        if rng.random() < 0.4:
            found["maxItems"] = rng.randint(2, 3)
        if rng.random() < 0.2:
            found["contains"] = self.schema(min(depth, 1))
            if self._newer and rng.random() < 0.5:
                found |= {"minContains": rng.randint(0, 2), "maxContains": rng.randint(1, 3)}
        if rng.random() < 0.2:
            found |= {"uniqueItems": True, "items": self._constant(0)}
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        rng, found = self._rng, dict[str, Any](type="object")
        names = rng.sample(NAMES, rng.randint(0, 3))
        if names:
            found["properties"] = {name: self.schema(depth) for name in names}
            found["required"] = [name for name in names if rng.random() < 0.5]
        elif rng.random() < 0.3:
            found["patternProperties"] = {rng.choice(["^a", "b$"]): self.schema(depth)}
        if rng.random() < 0.5:
            found["additionalProperties"] = rng.choice([False, True, self.schema(depth)])
        if rng.random() < 0.3:
            found |= {"minProperties": rng.randint(0, 2), "maxProperties": rng.randint(1, 3)}
        if rng.random() < 0.15:
            found["propertyNames"] = rng.choice([self._string(0), {"enum": ["a", "ab"]}, {"not": {"const": "b"}}])
        if rng.random() < 0.15:
            needed = rng.choice([["a"], ["ab", "b"], self.schema(min(depth, 1))])
            newer = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
            found[newer if self._newer else "dependencies"] = {rng.choice(NAMES): needed}
        return found

    def _combined(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        key = rng.choice(["anyOf", "anyOf", "allOf", "oneOf"])
        return {key: [self.schema(depth) for _ in range(rng.randint(1, 2))]}

    def _conditional(self, depth: int) -> dict[str, Any]:
        """A schema and its negation, conditions, and what no other schema has evaluated."""
        rng = self._rng
        if rng.random() < 0.3:
            return {"not": self.schema(depth)}
        if not self._newer or rng.random() < 0.4:
            parts = {key: self.schema(min(depth, 1)) for key in ("then", "else") if rng.random() < 0.7}
            return {"if": self.schema(min(depth, 1)), **parts}
        shape = rng.choice([self._object, self._array])
        key = rng.choice(["anyOf", "oneOf", "allOf"])
        kind = "unevaluatedProperties" if shape == self._object else "unevaluatedItems"
        found = shape(depth) | {key: [shape(min(depth, 1)) for _ in range(2)]}
        return found | {kind: rng.choice([False, self._number(0)])}

    def _referring(self, depth: int) -> dict[str, Any]:
        key = "$defs" if self._newer else "definitions"
        if depth < 2:
            return self._number(depth)
        inner = {"$ref": f"#/properties/b/{key}/x"}
        listed = {"a": inner, "b": {key: {"x": self.schema(depth)}, "type": "array", "items": inner}}
        return {"type": "object", "properties": listed}

    def value(self, schema: Any, depth: int = 4) -> Any:
        """A value that the schema may or may not allow."""
        rng = self._rng
        if not isinstance(schema, dict) or not depth or rng.random() < 0.08:
            return rng.choice(VALUES)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for key in ("anyOf", "allOf", "oneOf"):
            if key in schema:
                return self.value(rng.choice(schema[key]), depth - 1)
        kind = schema.get("type")
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        match kind:
            case "object":
                return self._members(schema, depth)
            case "array":
                return self._items(schema, depth)
            case "string":
                return rng.choice(["", "a", "ab", "abc", "abcde", "é", "éab", "2024-02-29", "2024-13-01", "axc"])
            case "integer":
                return rng.choice([-5, -1, 0, 1, 2, 3, 5, 6, 10, 19, 20, 99, 100])
            case "number":
                return rng.choice([-5, 0, 0.5, 0.75, 3, 6.5, 6.75, 19.5, 100, -1.25])
        return rng.choice(VALUES)

    def _members(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        rng = self._rng
        listed = schema.get("properties", {})
        required = schema.get("required", [])
        found = {
            name: self.value(one, depth - 1) for name, one in listed.items() if name in required or rng.random() < 0.6
        }
        if rng.random() < 0.4:
            found[rng.choice([*NAMES, "z"])] = self.value(schema.get("additionalProperties"), depth - 1)
        return found

    def _items(self, schema: dict[str, Any], depth: int) -> list[Any]:
        inner = schema.get("items", True)
        prefix = schema.get("prefixItems", inner if isinstance(inner, list) else [])
        rest = schema.get("additionalItems", True) if isinstance(inner, list) else inner
        count = self._rng.randint(0, 3)
        return [self.value(prefix[i] if i < len(prefix) else rest, depth - 1) for i in range(count)]


def disagreements(name: str, seed: int, outcomes: Counter[str]) -> list[tuple[Any, str]]:
    """Texts that a random schema's grammar allows and the standard does not."""
    maker = Maker(seed, newer="2020" in name)
    schema = {"$schema": name} | maker.schema()
    try:
        grammar = over_bytes(json=json.dumps(schema))
    except GrammarError:
        outcomes["refused"] += 1
        return []
    kind = DRAFTS[name]
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    wrong = []
    for _ in range(12):
        value = maker.value(schema)
        text = json.dumps(value, ensure_ascii=False)
        valid = validator.is_valid(value)
        allowed = takes(grammar, text)
        outcomes["allowed" if allowed else "valid, but not allowed" if valid else "neither"] += 1
        if allowed and not valid:
            wrong.append((schema, text))
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTS, ids=["2020-12", "7"])
@pytest.mark.parametrize(("count", "first"), [(120, 0), pytest.param(4000, 1000, marks=pytest.mark.exhaustive)])
def test_nothing_is_allowed_that_the_standard_forbids(name: str, count: int, first: int) -> None:
    outcomes: Counter[str] = Counter()
    wrong = [one for seed in range(first, first + count) for one in disagreements(name, seed, outcomes)]
    assert wrong == []
    # Other orders of properties and other spellings of numbers are valid too; most of what is valid is allowed.
    assert outcomes["refused"] < count // 3, outcomes
    assert outcomes["allowed"] > 2 * outcomes["valid, but not allowed"], outcomes
    assert outcomes["neither"] > count, outcomes


def test_random_schemas_hold_every_keyword_of_value() -> None:
    seen = json.dumps([Maker(seed, newer=bool(seed % 2)).schema() for seed in range(1500)])
    missing = [key for key in ENFORCED if f'"{key}"' not in seen]
    decide_nothing = {"$anchor", "$dynamicAnchor", "$recursiveAnchor", "$id", "$schema"}
    assert set(missing) == decide_nothing | {"$dynamicRef", "$recursiveRef"}


def test_a_grammar_that_allows_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    anything = over_bytes(json={})
    monkeypatch.setitem(globals(), "over_bytes", lambda **_: anything)
    outcomes: Counter[str] = Counter()
    assert [one for seed in range(20) for one in disagreements(next(iter(DRAFTS)), seed, outcomes)]
