"""JSON schemas as grammars: read, combined type by type, and written as rules over expressions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tirage.guided.json_schema.document import Document
from tirage.guided.json_schema.emission import grammar_of
from tirage.guided.json_schema.grammar import ROOT, SchemaGrammar
from tirage.guided.json_schema.json_text import has_surrogates, parse_json
from tirage.guided.json_schema.json_tokens import json_tokens
from tirage.guided.json_schema.places import Path, fail, show
from tirage.recently_used import RecentlyUsed

__all__ = ["ROOT", "SchemaGrammar", "as_text", "compile_schema", "forget_schemas", "read_schema"]

_KEPT: RecentlyUsed[SchemaGrammar] = RecentlyUsed(most=64, size=1 << 17)
"""The grammars of the schemas used most recently, by the characters of their texts."""


def read_schema(source: Mapping[str, Any] | str, *, closed: bool = False) -> str:
    """The schema as JSON text, once it is known that it can be enforced.

    `closed` forbids properties that are not named, in every object that the schema describes. Raises GrammarError as
    `compile_schema` does, and for parts that would forbid each other's properties.
    """
    text = as_text(source)
    if closed:
        text = json.dumps(closed_schema(parse_json(text, exact=False)), ensure_ascii=False)
    compile_schema(text)
    return text


def as_text(source: Mapping[str, Any] | str | None) -> str:
    """The JSON text of a schema that is given as text or as a mapping; that of `{}` for None."""
    return source if isinstance(source, str) else json.dumps(source or {}, ensure_ascii=False)


def compile_schema(text: str, whitespace: str = "", *, strict: bool = False) -> SchemaGrammar:
    """The grammar of the JSON texts that satisfy a schema; `whitespace` is the pattern of it between JSON tokens.

    `strict` refuses unknown keywords and formats. Raises GrammarError with the path for invalid JSON, for a keyword
    that has an invalid value or cannot be enforced exactly, for a reference that leaves the schema or points nowhere,
    and for a schema that no value satisfies.
    """
    key = text, whitespace, strict
    found = _KEPT.find(key)
    if found is None:
        found = _compile(text, whitespace, strict)
        _KEPT.put(key, found, len(text))
    return found


def forget_schemas() -> None:
    """Forgets the grammars of the schemas that were compiled last."""
    _KEPT.clear()


def _compile(text: str, whitespace: str, strict: bool) -> SchemaGrammar:
    schema = parse_json(text)
    if not isinstance(schema, (bool, dict)):
        fail((), f"must be an object or true, got {show(schema)}")
    document = Document(schema, strict=strict, has_surrogates=has_surrogates(text))
    return grammar_of(document, json_tokens(whitespace))


def closed_schema(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in every object that it describes; its dicts are changed in place.

    Raises GrammarError where parts of a schema would forbid each other's properties.
    """
    for path, inner in Document(schema).schemas() if isinstance(schema, dict) else ():
        if isinstance(inner, dict):
            close(inner, path)
    return schema


def close(schema: dict[str, Any], path: Path) -> None:
    """Forbids properties that one schema does not name, in place."""
    if "allOf" in schema or ("$ref" in schema and "properties" in schema):
        key = "allOf" if "allOf" in schema else "$ref"
        fail((*path, key), "cannot go with disable_additional_properties, each part would forbid the others'")
    types = schema.get("type", ())
    describes = "object" in ([types] if isinstance(types, str) else types)
    if describes or "properties" in schema or "patternProperties" in schema:
        schema.setdefault("additionalProperties", False)
