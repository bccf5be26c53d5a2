"""Sets of JSON values of one type, as the keywords of that type describe them.

The set of values of a schema is a `ValueSet`: for each type, sets of which any may hold the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, NamedTuple

from tirage.errors import GrammarError
from tirage.guided.json_schema.document import Node
from tirage.guided.json_schema.places import Path
from tirage.guided.regular.expression import Expression


class Condition(NamedTuple):
    """A schema that a value satisfies, or does not."""

    node: Node
    holds: bool


Conditions = frozenset[Condition]
"""What must be true of one value, all together."""
ANYTHING: Conditions = frozenset()


@dataclass(frozen=True, slots=True)
class RefusedValues:
    """Values that cannot be described exactly; `error` says why and is raised if they are needed."""

    error: GrammarError


@dataclass(frozen=True, slots=True)
class Null:
    """The value null."""


@dataclass(frozen=True, slots=True)
class Booleans:
    """True, False or both."""

    values: frozenset[bool] = frozenset({True, False})


class NumberBound(NamedTuple):
    """A bound of numbers; `is_open` excludes the bound itself."""

    value: int | Decimal
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers; where `values` is given, some of these and no others.

    `kind` tells integers from numbers with a fraction.
    """

    kind: Literal["number", "integer", "fraction"] = "number"
    low: NumberBound | None = None
    high: NumberBound | None = None
    multiples: tuple[int | Decimal, ...] = ()
    not_multiples: tuple[int | Decimal, ...] = ()
    values: tuple[int | Decimal, ...] | None = None
    not_values: tuple[int | Decimal, ...] = ()
    path: Path = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of `low` to `high` characters that match `patterns` and none of `not_patterns`.

    Where `values` is given, they are some of these and no others.
    """

    low: int = 0
    high: int | None = None
    patterns: tuple[Expression, ...] = ()
    not_patterns: tuple[Expression, ...] = ()
    values: tuple[str, ...] | None = None
    not_values: tuple[str, ...] = ()
    path: Path = field(default=(), compare=False)


class Contained(NamedTuple):
    """That from `low` to `high` items of an array satisfy `conditions`."""

    conditions: Conditions
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of `low` to `high` items: the first ones by their place, the `rest` alike.

    `evaluated` is how many of the first items the schema has evaluated, None for all.
    """

    prefix: tuple[Conditions, ...] = ()
    rest: Conditions = ANYTHING
    low: int = 0
    high: int | None = None
    contained: tuple[Contained, ...] = ()
    unique: bool = False
    evaluated: int | None = 0
    path: Path = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """What one schema says of the values of an object's members: by name, by pattern of the name, and of all others.

    `evaluates`: its names and patterns count as evaluated; `evaluates_all`: all others too.
    """

    named: Mapping[str, Conditions] = field(default_factory=dict)
    patterns: tuple[tuple[Expression, Conditions], ...] = ()
    others: Conditions = ANYTHING
    evaluates: bool = True
    evaluates_all: bool = False


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects: every one of `members` holds for their members.

    `names` are conditions on all names; for each of `some` at least one name satisfies it.
    """

    members: tuple[Members, ...] = ()
    required: tuple[str, ...] = ()
    names: Conditions = ANYTHING
    low: int = 0
    high: int | None = None
    some: tuple[Conditions, ...] = ()
    path: Path = field(default=(), compare=False)


Values = Null | Booleans | Numbers | Strings | Arrays | Objects | RefusedValues
ValueSet = Mapping[str, tuple[Values, ...]]
"""For each JSON type, sets of values of which any holds; a type that is not there has no value."""

EVERYTHING: ValueSet = {
    "null": (Null(),),
    "boolean": (Booleans(),),
    "number": (Numbers(),),
    "string": (Strings(),),
    "array": (Arrays(),),
    "object": (Objects(),),
}

NEVER: Conditions = frozenset({Condition(Node((), 0, "", None), holds=True)})
"""What no value satisfies."""
