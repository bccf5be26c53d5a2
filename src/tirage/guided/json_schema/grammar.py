"""The grammar of a schema: rules over expressions, exactly the JSON texts that satisfy it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tirage.guided.json_schema.json_tokens import JsonTokens
from tirage.guided.regular.expression import Expression

ROOT = "root"


@dataclass(frozen=True, slots=True, eq=False)
class SchemaGrammar:
    """The JSON texts that satisfy a schema.

    `rules` refer to each other by name, beginning with `ROOT`; what stands in a `Terminal` is regular. `tokens` are
    those of JSON with the whitespace around them, `members` is how many members all objects together name;
    `is_spaced`: between any two terminals there may be whitespace. `ignored` are the places in the schema of keywords
    and formats that decide nothing.
    """

    rules: Mapping[str, Expression]
    tokens: JsonTokens
    members: int
    is_spaced: bool
    ignored: tuple[str, ...] = ()
