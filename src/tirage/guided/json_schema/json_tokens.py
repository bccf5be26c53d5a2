"""The tokens of JSON that stand between values, with the whitespace that may surround them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tirage.guided.json_schema.json_numbers import integers, numbers
from tirage.guided.json_schema.json_strings import json_string, string_literal
from tirage.guided.reduction import nullable
from tirage.guided.regular.expression import (
    ANY_TEXT,
    Alternatives,
    Complement,
    Expression,
    Intersection,
    LiteralText,
    Terminal,
    choice,
    intersection,
    is_nothing,
    sequence,
)
from tirage.guided.regular.python_regex import read_pattern

ANY_NUMBER = Terminal(numbers())
ANY_INTEGER = Terminal(integers())
ANY_STRING = Terminal(json_string(ANY_TEXT))
NULL = Terminal(LiteralText("null"))
TRUE = Terminal(LiteralText("true"))
FALSE = Terminal(LiteralText("false"))


_LITERAL = frozenset({LiteralText})


class JsonTokens:
    """The brackets, commas and colons of JSON with whitespace around them, a pattern of which is given."""

    def __init__(self, whitespace: str) -> None:
        self.space = space = read_pattern(whitespace)
        self.is_space_optional = nullable(space, set())

        def spaced(*parts: str | Expression) -> Terminal:
            return Terminal(sequence([LiteralText(part) if isinstance(part, str) else part for part in parts]))

        self.open_object, self.close_object = spaced("{", space), spaced(space, "}")
        self.open_array, self.close_array = spaced("[", space), spaced(space, "]")
        self.empty_object, self.empty_array = spaced("{", space, "}"), spaced("[", space, "]")
        self.comma, self.colon = spaced(space, ",", space), spaced(space, ":", space)
        self.all = (
            self.open_object, self.close_object, self.open_array, self.close_array,
            self.empty_object, self.empty_array, self.comma, self.colon,
        )  # fmt: skip


@lru_cache(maxsize=16)
def json_tokens(whitespace: str) -> JsonTokens:
    """The tokens for one pattern of whitespace, read once."""
    return JsonTokens(whitespace)


@lru_cache(maxsize=256)
def strings(node: Expression) -> Terminal:
    """The JSON spelling of what an expression matches.

    Constants that it leaves out are left out with their quotes: then llguidance sees that all other beginnings may
    come, and masks of them are quick. It is remembered, since that of a format takes a while.
    """
    parts = node.parts if isinstance(node, Intersection) else (node,)
    left_out = [part.part for part in parts if isinstance(part, Complement) and is_constant(part.part)]
    if not left_out:
        return Terminal(json_string(node))
    rest = intersection([part for part in parts if not (isinstance(part, Complement) and is_constant(part.part))])
    return Terminal(Intersection((json_string(rest), *(Complement(spelled_constants(part)) for part in left_out))))


def spelled_constants(node: Expression) -> Expression:
    """The JSON spelling of a text or some texts, each as a whole."""
    return choice(list(map(json_string, node.parts))) if isinstance(node, Alternatives) else json_string(node)


def either(parts: Sequence[Expression]) -> Expression:
    """One of the parts, without those that match nothing; unlike `choice`, which hashes them all, it keeps doubles."""
    if len(parts) == 1:
        return parts[0]
    if Alternatives in map(type, parts):
        parts = [part for part in parts if not is_nothing(part)]
    return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))


def is_constant(node: Expression) -> bool:
    """Whether an expression is a text or some texts."""
    return isinstance(node, LiteralText) or (
        isinstance(node, Alternatives) and _LITERAL.issuperset(map(type, node.parts))
    )


@lru_cache(maxsize=4096)
def string(text: str) -> Terminal:
    """One string."""
    # Identifiers, as most names are, have no character to be escaped.
    return Terminal(LiteralText(f'"{text}"') if text.isidentifier() else string_literal(text))


def other_strings(texts: Sequence[str]) -> Terminal:
    """All strings but some, each of which is given once."""
    if not texts:
        return ANY_STRING
    parts: list[Expression] = []
    for text in texts:
        parts.append(string(text).part)
    listed = Alternatives(tuple(parts)) if len(parts) > 1 else parts[0]
    return Terminal(Intersection((ANY_STRING.part, Complement(listed))))
