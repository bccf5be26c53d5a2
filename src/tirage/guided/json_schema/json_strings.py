"""The JSON spelling of strings: what stands between the quotes, and the quotes.

Every character stands for itself, but the quote and the backslash, which a backslash precedes, and control characters:
`\\b`, `\\f`, `\\n`, `\\r`, `\\t`, and `\\u00XX` for the others. SPEC.md S-G11.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tirage.guided.regular.charset import Ranges, common, complement, holds
from tirage.guided.regular.expression import (
    ANY_TEXT,
    Alternatives,
    Chars,
    Complement,
    Expression,
    Intersection,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
    Terminal,
    chars,
    choice,
    sequence,
)

_CONTROL: Ranges = ((0, 0x1F),)
RAW: Ranges = complement((*_CONTROL, (0x22, 0x22), (0x5C, 0x5C)))
"""The characters that stand for themselves."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
"""Texts of such characters alone."""
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_LONG = [point for point in range(0x20) if chr(point) not in _SHORT]


def json_string(node: Expression) -> Expression:
    """The JSON spelling, with its quotes, of the strings that an expression without rules matches."""
    return sequence([LiteralText('"'), contents(node), LiteralText('"')])


def string_literal(text: str) -> Expression:
    """The JSON spelling of one string, with its quotes; ValueError for a surrogate, which UTF-8 cannot encode."""
    if _PLAIN.fullmatch(text):
        return LiteralText(f'"{text}"')
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(f"a string must hold no surrogate, got {text!r:.60}")
    return json_string(LiteralText(text)) if text else LiteralText('""')


def contents(node: Expression) -> Expression:
    """The JSON spelling of the strings that an expression matches, without quotes."""
    match node:
        case LiteralText(text):
            return node if _PLAIN.fullmatch(text) else sequence([spelled(((ord(c), ord(c)),)) for c in text])
        case Chars(ranges):
            return spelled(ranges)
        case Repeat(part, low, high):
            return Repeat(contents(part), low, high)
        case Sequence(parts):
            return sequence([contents(part) for part in parts])
        case Intersection(parts):
            return _intersection(parts)
        case Complement():
            return _intersection((node,))
        case Terminal(part):
            return contents(part)
        case RuleReference(name):
            raise ValueError(f"rule {name} has no spelling as a string")
    return choice([contents(part) for part in node.parts])


def _intersection(parts: tuple[Expression, ...]) -> Expression:
    """The spelling of what all parts match; of complements, only what is the spelling of some string."""
    positive = [contents(part) for part in parts if not isinstance(part, Complement)]
    negative = [Complement(_left_out(part.part)) for part in parts if isinstance(part, Complement)]
    return Intersection((*(positive or [contents(ANY_TEXT)]), *negative))


def _left_out(node: Expression) -> Expression:
    """The spelling of what a complement leaves out; an end that may be any string may be any text."""
    match node:
        case Sequence(parts) if parts:
            return sequence([*(contents(part) for part in parts[:-1]), _left_out(parts[-1])])
        case Alternatives(parts):
            return choice([_left_out(part) for part in parts])
    return node if node == ANY_TEXT else contents(node)


@lru_cache(maxsize=1024)
def spelled(ranges: Ranges) -> Expression:
    """The spelling of one character of a set inside a JSON string."""
    raw = ranges if ranges == RAW else common(ranges, RAW)
    short = "".join(letter for char, letter in _SHORT.items() if holds(ranges, ord(char)))
    long = [point for point in _LONG if holds(ranges, point)]
    parts: list[Expression] = []
    if len(raw) == 1 and raw[0][0] == raw[0][1]:
        parts.append(LiteralText(chr(raw[0][0])))
    elif raw:
        parts.append(Chars(raw))
    if short or long:
        parts.append(sequence([LiteralText("\\"), _escaped(short, long)]))
    return choice(parts)


def _escaped(short: str, long: list[int]) -> Expression:
    """What follows the backslash: one of the letters, or `u` and the number of a character, whose parts are shared.

    A library that reads an expression takes a third less time for it than for one alternative after another.
    """
    letters = [LiteralText(short) if len(short) == 1 else chars(short)] if short else []
    numbers = []
    for high in range(2):
        digits = "".join(f"{point & 15:x}{point & 15:X}" for point in long if point >> 4 == high)
        if digits:
            numbers.append(sequence([LiteralText(f"{high}"), chars(digits)]))
    return choice([*letters, *([sequence([LiteralText("u00"), choice(numbers)])] if numbers else [])])
