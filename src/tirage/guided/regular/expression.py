"""Expressions over characters: the syntax trees of patterns, choices and grammar rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tirage.guided.regular.charset import EVERY, Ranges, complement, merged

DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 13), (32, 32))


class HashedOnce:
    """An expression whose hash is worked out once, as that of a tree takes a walk through it."""

    __slots__ = ("_hash",)
    __match_args__: tuple[str, ...] = ()

    def hashed(self) -> int:
        """The hash of the class and the fields."""
        try:
            return self._hash
        except AttributeError:
            found = hash((type(self), *[getattr(self, name) for name in self.__match_args__]))
            object.__setattr__(self, "_hash", found)
            return found


@dataclass(frozen=True, slots=True)
class LiteralText:
    """Exactly these characters, at least one."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars(HashedOnce):
    """One character of a set; the empty set matches nothing."""

    ranges: Ranges
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class Sequence(HashedOnce):
    """One part after the other; without parts, the empty text."""

    parts: tuple[Expression, ...]
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class Alternatives(HashedOnce):
    """One of the parts; without parts, it matches nothing."""

    parts: tuple[Expression, ...]
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class Repeat(HashedOnce):
    """The part repeated `low` to `high` times; None is no upper bound."""

    part: Expression
    low: int
    high: int | None
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class Intersection(HashedOnce):
    """The texts that all of the parts match; no part refers to rules."""

    parts: tuple[Expression, ...]
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class Complement(HashedOnce):
    """The texts that the part does not match; it refers to no rules."""

    part: Expression
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class Terminal(HashedOnce):
    """What the part matches, which a lexer takes as one token; the part refers to no rules."""

    part: Expression
    __hash__ = HashedOnce.hashed


@dataclass(frozen=True, slots=True)
class RuleReference:
    """Whatever the rule of that name matches."""

    name: str


Expression = (
    LiteralText | Chars | Sequence | Alternatives | Repeat | RuleReference | Intersection | Complement | Terminal
)
EMPTY = Sequence(())
NOTHING = Alternatives(())
ANY_TEXT = Repeat(Chars(EVERY), 0, None)


def sequence(parts: list[Expression]) -> Expression:
    """The parts one after the other, with adjacent literal texts joined and empty parts dropped."""
    out: list[Expression] = []
    before: Expression | None = None
    for part in parts:
        if isinstance(part, LiteralText):
            if isinstance(before, LiteralText):
                before = out[-1] = LiteralText(before.text + part.text)
                continue
        elif isinstance(part, (Sequence, Alternatives)) and not part.parts:
            if isinstance(part, Alternatives):
                return NOTHING
            continue
        before = part
        out.append(part)
    return out[0] if len(out) == 1 else Sequence(tuple(out))


def is_nothing(part: Expression) -> bool:
    """Whether an expression is `NOTHING`, without comparing it."""
    return isinstance(part, Alternatives) and not part.parts


def choice(parts: list[Expression]) -> Expression:
    """One of the parts, with duplicates and parts that match nothing dropped."""
    distinct = tuple(part for part in dict.fromkeys(parts) if not is_nothing(part))
    return distinct[0] if len(distinct) == 1 else Alternatives(distinct)


def intersection(parts: list[Expression]) -> Expression:
    """What all of the parts match, with nested intersections, duplicates and parts that match any text dropped."""
    if len(parts) == 1:
        return parts[0]
    flat = [one for part in parts for one in (part.parts if isinstance(part, Intersection) else (part,))]
    distinct = tuple(part for part in dict.fromkeys(flat) if part != ANY_TEXT)
    if NOTHING in distinct:
        return NOTHING
    return distinct[0] if len(distinct) == 1 else Intersection(distinct) if distinct else ANY_TEXT


def complement_of(part: Expression) -> Expression:
    """What the part does not match."""
    if isinstance(part, Complement):
        return part.part
    return ANY_TEXT if part == NOTHING else NOTHING if part == ANY_TEXT else Complement(part)


def text(characters: str) -> Expression:
    """Exactly these characters."""
    return LiteralText(characters) if characters else EMPTY


def chars(characters: str, *ranges: tuple[str, str]) -> Chars:
    """One of the characters, or one in the ranges, which are given by their first and last character."""
    return Chars(merged([*((ord(c), ord(c)) for c in characters), *((ord(a), ord(b)) for a, b in ranges)]))


def optional(part: Expression) -> Expression:
    """The part or the empty text."""
    return EMPTY if part in (EMPTY, NOTHING) else Repeat(part, 0, 1)


def to_regex(node: Expression) -> str:
    """The expression as a regular expression, in the syntax that Rust's regex crate and xgrammar share.

    ValueError if the expression refers to rules, or has an intersection or complement in it.
    """
    match node:
        case LiteralText(characters):
            return spell_text(characters)
        case Chars(ranges):
            return spell_set(ranges)
        case Sequence(parts):
            return "".join(group(part) if isinstance(part, Alternatives) else to_regex(part) for part in parts)
        case Alternatives(parts):
            return "|".join(map(to_regex, parts))
        case Repeat(part, low, high):
            return group(part) + count(low, high)
        case Terminal(part):
            return to_regex(part)
        case RuleReference(name):
            raise ValueError(f"rule {name} cannot be part of a regular expression")
        case Intersection() | Complement():
            raise ValueError(f"{type(node).__name__} cannot be part of a regular expression")


def group(node: Expression) -> str:
    """The expression as a regular expression that can be repeated: in a group unless it is a single character."""
    single = isinstance(node, Chars) or (isinstance(node, LiteralText) and len(node.text) == 1)
    return to_regex(node) if single else f"(?:{to_regex(node)})"


_SIGNS: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def count(low: int, high: int | None) -> str:
    """The quantifier of a repetition: `*`, `+`, `?` or `{low,high}`."""
    return _SIGNS.get((low, high)) or f"{{{low},{'' if high is None else high}}}"


_UNESCAPED = re.compile("""[A-Za-z0-9 _"'<>%&,:;=@`~!]*""")
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


def spell_text(text: str) -> str:
    """A text, with the characters escaped that need it; most have none."""
    return text if _UNESCAPED.fullmatch(text) else "".join(map(spell, text))


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
