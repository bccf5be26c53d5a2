"""Expressions over characters: the syntax trees of patterns, choices and grammar rules."""

from __future__ import annotations

from dataclasses import dataclass

from tirage.guided.charset import EVERY, Ranges, complement

DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 13), (32, 32))


@dataclass(frozen=True, slots=True)
class LiteralText:
    """Exactly these characters, at least one."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set; the empty set matches nothing."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other; without parts, the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of the parts; without parts, it matches nothing."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part repeated `low` to `high` times; None is no upper bound."""

    part: Expression
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class RuleReference:
    """Whatever the rule of that name matches."""

    name: str


Expression = LiteralText | Chars | Sequence | Alternatives | Repeat | RuleReference
EMPTY = Sequence(())


def sequence(parts: list[Expression]) -> Expression:
    """The parts one after the other, with adjacent literal texts joined and empty parts dropped."""
    out: list[Expression] = []
    for part in parts:
        if isinstance(part, LiteralText) and out and isinstance(out[-1], LiteralText):
            out[-1] = LiteralText(out[-1].text + part.text)
        elif part != EMPTY:
            out.append(part)
    return out[0] if len(out) == 1 else Sequence(tuple(out))


def choice(parts: list[Expression]) -> Expression:
    """One of the parts, with duplicates dropped."""
    distinct = tuple(dict.fromkeys(parts))
    return distinct[0] if len(distinct) == 1 else Alternatives(distinct)


def to_regex(node: Expression) -> str:
    """The expression as a regular expression, in the syntax that Rust's regex crate and xgrammar share.

    ValueError if the expression refers to rules.
    """
    match node:
        case LiteralText(text):
            return "".join(map(spell, text))
        case Chars(ranges):
            return spell_set(ranges)
        case Sequence(parts):
            return "".join(group(part) if isinstance(part, Alternatives) else to_regex(part) for part in parts)
        case Alternatives(parts):
            return "|".join(map(to_regex, parts))
        case Repeat(part, low, high):
            return group(part) + count(low, high)
        case RuleReference(name):
            raise ValueError(f"rule {name} cannot be part of a regular expression")


def group(node: Expression) -> str:
    """The expression as a regular expression that can be repeated: in a group unless it is a single character."""
    single = isinstance(node, Chars) or (isinstance(node, LiteralText) and len(node.text) == 1)
    return to_regex(node) if single else f"(?:{to_regex(node)})"


def count(low: int, high: int | None) -> str:
    """The quantifier of a repetition: `*`, `+`, `?` or `{low,high}`."""
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return signs.get((low, high)) or f"{{{low},{'' if high is None else high}}}"


_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def spell(char: str) -> str:
    """A character, escaped where a regular expression or a character class needs it."""
    if char.isascii() and (char.isalnum() or char in " _\"'<>%&,:;=@`~!"):
        return char
    if char in _NAMED:
        return _NAMED[char]
    if char.isascii() and char.isprintable():
        return "\\" + char
    point = ord(char)
    return f"\\x{point:02x}" if point < 0x80 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def spell_set(ranges: Ranges) -> str:
    """A character class."""
    if ranges == EVERY:
        return "(?:.|\\n)"
    # A class cannot be empty, and the complement of a long list of ranges is usually short.
    rest = complement(ranges)
    negated = len(rest) < len(ranges) and bool(rest)
    shown = rest if negated else ranges
    body = "".join(spell(chr(low)) if low == high else f"{spell(chr(low))}-{spell(chr(high))}" for low, high in shown)
    return f"[{'^' if negated else ''}{body}]"
