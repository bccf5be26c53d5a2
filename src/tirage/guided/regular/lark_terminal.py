"""Expressions as terminals of llguidance's Lark, in which `&` and `~` stand between and before parts."""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring

from tirage.guided.regular.charset import EVERY, Ranges
from tirage.guided.regular.expression import (
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
    count,
    spell,
    spell_text,
)

_ANY = r"(?s:.)"
# No text matches /a/ & /b/, so every one matches its complement. After a complement's part `(?s:.)*` would do as well,
# but the library would not see that nothing is left over, and look for it until it gives up.
_EVERYTHING = "~(/a/ & /b/)"


Names = Mapping[Expression, str]
"""What stands for expressions that are terminals of their own."""
_NO_NAMES: Names = {}


def lark_terminal(node: Expression, names: Names = _NO_NAMES) -> str:
    """The right side of a Lark terminal that matches the same texts; what has a name inside it is not written again.

    Classes list what they hold, never what they leave out. ValueError if the expression refers to rules, or nothing
    matches it.
    """
    if is_plain(node) and not (isinstance(node, Sequence) and any(part in names for part in node.parts)):
        text = regex(node)
        return f"/{text}/" if text else '""'
    match node:
        case Sequence(parts):
            return " ".join(_part(part, names) for part in parts)
        case Alternatives(parts) if parts:
            return " | ".join(_part(part, names) for part in parts)
        case Repeat(part, low, high):
            return _part(part, names) + count(low, high)
        case Intersection(parts):
            return _intersection(parts, names)
        case Complement():
            return _intersection((node,), names)
        case Terminal(part):
            return lark_terminal(part, names)
    raise ValueError(f"{type(node).__name__} cannot be part of a terminal")


def _part(node: Expression, names: Names) -> str:
    if isinstance(node, LiteralText):
        # A string takes the library less time than a regular expression.
        return encode_basestring(node.text)
    return names.get(node) or f"({lark_terminal(node, names)})"


def _intersection(parts: tuple[Expression, ...], names: Names) -> str:
    shown: list[str] = []
    left_out: list[str] = []
    for part in parts:
        if isinstance(part, Complement):
            left_out.append(f"~({_open_ended(part.part, names)})")
        else:
            shown.append(_part(part, names))
    # A complement alone would hold bytes that are no UTF-8.
    return " & ".join([*(shown or [f"(/{_ANY}*/)"]), *left_out])


def _open_ended(node: Expression, names: Names) -> str:
    """What a complement leaves out: an end that may be any text may be any bytes, which says the same."""
    match node:
        case Repeat(Chars(ranges), 0, None) if ranges == EVERY:
            return _EVERYTHING
        case Sequence(parts) if parts:
            return " ".join([*(_part(part, names) for part in parts[:-1]), f"({_open_ended(parts[-1], names)})"])
        case Alternatives(parts) if {*map(type, parts)} == {LiteralText}:
            # Several strings take the library longer than a regular expression of them.
            return f"/{regex(node)}/"
        case Alternatives(parts) if parts:
            return " | ".join(_open_ended(part, names) for part in parts)
    return _part(node, names)


def is_plain(node: Expression) -> bool:
    """Whether an expression is a regular expression without intersections and complements."""
    match node:
        case LiteralText():
            return True
        case Chars(ranges):
            return bool(ranges)
        case Sequence(parts):
            return all(map(is_plain, parts))
        case Alternatives(parts):
            return bool(parts) and all(map(is_plain, parts))
        case Repeat(part):
            return is_plain(part)
        case Terminal(part):
            return is_plain(part)
        case Intersection() | Complement() | RuleReference():
            return False


def regex(node: Expression) -> str:
    """A plain expression in the syntax of Rust's regex crate, safe between slashes."""
    match node:
        case LiteralText(text):
            return spell_text(text)
        case Chars(ranges):
            return spell_class(ranges)
        case Sequence(parts):
            return "".join(f"(?:{regex(part)})" if isinstance(part, Alternatives) else regex(part) for part in parts)
        case Alternatives(parts):
            return "|".join(map(regex, parts))
        case Repeat(part, low, high):
            single = isinstance(part, Chars) or (isinstance(part, LiteralText) and len(part.text) == 1)
            return (regex(part) if single else f"(?:{regex(part)})") + count(low, high)
        case Terminal(part):
            return regex(part)
    raise ValueError(f"{type(node).__name__} cannot be part of a regular expression")


def spell_class(ranges: Ranges) -> str:
    """A class of characters by what it holds."""
    if ranges == EVERY:
        return _ANY
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return spell(chr(ranges[0][0]))
    shown = (spell(chr(low)) if low == high else f"{spell(chr(low))}-{spell(chr(high))}" for low, high in ranges)
    return f"[{''.join(shown)}]"
