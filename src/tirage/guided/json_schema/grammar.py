"""The grammar of a schema: rules over expressions, exactly the JSON texts that satisfy it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tirage.guided.regular.expression import EMPTY, Expression

ROOT = "root"


@dataclass(frozen=True, slots=True, eq=False)
class SchemaGrammar:
    """The JSON texts that satisfy a schema.

    `rules` refer to each other by name, beginning with `ROOT`; what stands in a `Terminal` is regular. `ignored` are
    the places in the schema of keywords and formats that decide nothing; `space` may stand between the tokens of JSON.
    """

    rules: Mapping[str, Expression]
    ignored: tuple[str, ...] = ()
    space: Expression = EMPTY
