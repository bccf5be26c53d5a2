"""Python regular expressions as expressions, read by Python's own parser.

A pattern means what it means to `re.fullmatch` with `re.ASCII`: `\\d`, `\\w` and `\\s` are ASCII, `.` is every
character except the newline, and lazy repetition equals greedy. Lookaround and back-references are refused.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from tirage.errors import GrammarError
from tirage.guided.regular.charset import EVERY, Ranges, complement, fold_ascii, merged
from tirage.guided.regular.expression import (
    DIGIT,
    EMPTY,
    SPACE,
    WORD,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    choice,
    sequence,
)
from tirage.patterns import parse_pattern

DEPTH = 100
_CATEGORIES: dict[str, Ranges] = {
    "CATEGORY_DIGIT": DIGIT,
    "CATEGORY_NOT_DIGIT": complement(DIGIT),
    "CATEGORY_WORD": WORD,
    "CATEGORY_NOT_WORD": complement(WORD),
    "CATEGORY_SPACE": SPACE,
    "CATEGORY_NOT_SPACE": complement(SPACE),
}
_REFUSED = {
    "ASSERT": "lookahead or lookbehind",
    "ASSERT_NOT": "negative lookahead or lookbehind",
    "GROUPREF": "back-reference",
    "GROUPREF_EXISTS": "conditional group",
    "ATOMIC_GROUP": "atomic group",
    "POSSESSIVE_REPEAT": "possessive repetition",
    "AT": "anchor inside the pattern",
}
_OPENING, _CLOSING = {"AT_BEGINNING", "AT_BEGINNING_STRING"}, {"AT_END", "AT_END_STRING"}


def read_pattern(pattern: str) -> Expression:
    """The expression that a pattern stands for.

    Raises GrammarError, with the position if there is one, for a pattern that Python's `re` refuses, that is nested
    more than 100 levels deep, or that uses a construct that no finite automaton can match.
    """
    check_depth(pattern)
    try:
        with warnings.catch_warnings():
            # Python warns of sets whose meaning may change in a later version.
            warnings.simplefilter("ignore")
            parsed = parse_pattern(pattern, re.ASCII)
    except re.error as error:
        place = "" if error.pos is None else f"character {error.pos}"
        where = place and f" at {place}"
        message = f"regex must be a valid pattern, got {pattern[:60]!r}: {error.msg}{where}"
        raise GrammarError(message, place=place) from None
    except (OverflowError, ValueError, RecursionError) as error:
        raise GrammarError(f"regex must be a valid pattern, got {pattern[:60]!r}: {error}") from None
    return PatternReader(parsed.state.flags).top(list(parsed))


def check_depth(pattern: str) -> None:
    """Raises GrammarError for parentheses nested too deeply for the stack of the parser."""
    depth = position = 0
    while position < len(pattern):
        letter = pattern[position]
        depth += (letter == "(") - (letter == ")")
        if depth > DEPTH:
            place = f"character {position}"
            raise GrammarError(f"regex must be nested at most {DEPTH} levels deep, got more at {place}", place=place)
        position += 2 if letter == "\\" else 1


class PatternReader:
    """Turns the nodes of the parse tree into expressions, under the flags in force."""

    def __init__(self, flags: int) -> None:
        self._flags = flags

    def top(self, nodes: list[Any]) -> Expression:
        """The expression of a whole pattern; anchors at its two ends are redundant."""
        while nodes and str(nodes[0][0]) == "AT" and str(nodes[0][1]) in _OPENING:
            nodes = nodes[1:]
        while nodes and str(nodes[-1][0]) == "AT" and str(nodes[-1][1]) in _CLOSING:
            nodes = nodes[:-1]
        return self.read(nodes)

    def read(self, nodes: Any) -> Expression:
        """The expression of a list of nodes."""
        return sequence([self.node(str(kind), value) for kind, value in nodes])

    def node(self, kind: str, value: Any) -> Expression:
        """The expression of one node; GrammarError for a construct without a finite automaton."""
        match kind:
            case "LITERAL":
                return self._chars(((value, value),))
            case "NOT_LITERAL":
                return Chars(complement(self._fold(((value, value),))))
            case "ANY":
                return Chars(EVERY if self._flags & re.DOTALL else complement(((10, 10),)))
            case "IN":
                return self._class(value)
            case "BRANCH":
                return choice([self.read(part) for part in value[1]])
            case "SUBPATTERN":
                _, add, remove, part = value
                return PatternReader((self._flags | add) & ~remove).read(part)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat(*value)
        raise GrammarError(f"regex must not use a {_REFUSED.get(kind, kind)}; write the alternatives out")

    def _repeat(self, low: int, high: Any, part: Any) -> Expression:
        endless = str(high) == "MAXREPEAT"
        return self._times(self.read(part), int(low), None if endless else int(high))

    def _times(self, part: Expression, low: int, high: int | None) -> Expression:
        if part == EMPTY or high == 0:
            return EMPTY
        return part if (low, high) == (1, 1) else Repeat(part, low, high)

    def _class(self, items: Any) -> Expression:
        ranges: list[tuple[int, int]] = []
        negated = False
        for kind, value in items:
            match str(kind):
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    ranges.append((value, value))
                case "RANGE":
                    ranges.append(value)
                case _:
                    ranges.extend(_CATEGORIES[str(value)])
        found = self._fold(merged(ranges))
        return some(complement(found) if negated else found)

    def _chars(self, ranges: Ranges) -> Expression:
        folded = merged(self._fold(ranges))
        single = len(folded) == 1 and folded[0][0] == folded[0][1]
        return LiteralText(chr(folded[0][0])) if single else some(folded)

    def _fold(self, ranges: Ranges) -> Ranges:
        return fold_ascii(ranges) if self._flags & re.IGNORECASE else ranges


def some(ranges: Ranges) -> Chars:
    """A class of characters; GrammarError for the empty class."""
    if not ranges:
        raise GrammarError("regex must let every class match some character, got one that matches none; remove it")
    return Chars(ranges)
