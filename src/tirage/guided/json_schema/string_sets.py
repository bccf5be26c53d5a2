"""Sets of strings as expressions over their characters, which are not yet spelled in JSON."""

from __future__ import annotations

from tirage.guided.json_schema.values import Strings
from tirage.guided.regular.charset import EVERY
from tirage.guided.regular.expression import (
    ANY_TEXT,
    Alternatives,
    Chars,
    Complement,
    Expression,
    Repeat,
    choice,
    intersection,
    text,
)

EVERY_STRING = Strings()


def string_expression(one: Strings) -> Expression:
    """The strings of a set."""
    if one == EVERY_STRING:
        return ANY_TEXT
    if one.values is not None:
        return choice(list(map(text, one.values)))
    length = [Repeat(Chars(EVERY), one.low, one.high)] if one.low or one.high is not None else []
    excluded = [Complement(each) for each in one.not_patterns]
    if one.not_values:
        excluded.append(Complement(Alternatives(tuple(map(text, one.not_values)))))
    return intersection([*one.patterns, *length, *excluded])
