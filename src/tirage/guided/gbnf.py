"""Parser of GBNF, llama.cpp's notation for context-free grammars."""

from __future__ import annotations

from typing import NoReturn

from tirage.errors import GrammarError, nearest
from tirage.guided.regular.charset import EVERY, complement, merged
from tirage.guided.regular.expression import (
    EMPTY,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    choice,
    sequence,
)
from tirage.workers.cancel import checkpoint

DEPTH = 64
Rules = dict[str, Expression]
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"} | {c: c for c in "\\\"'[]^-/"}
_HEX = {"x": 2, "u": 4, "U": 8}
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def read_gbnf(source: str) -> Rules:
    """The rules of a grammar by name, in the order in which they are written; `root` is one of them.

    Raises GrammarError with line and column for a syntax error, a rule that is defined twice or not at all, and more
    than 64 levels of nested groups.
    """
    return GbnfParser(source).rules()


class GbnfParser:
    """A recursive-descent parser over the text of a grammar."""

    def __init__(self, source: str) -> None:
        self._text, self._at, self._depth = source, 0, 0
        self._used: dict[str, int] = {}

    def rules(self) -> Rules:
        """Every rule by name; raises GrammarError as `read_gbnf` does."""
        rules: Rules = {}
        self._space(newlines=True)
        while self._peek():
            start = self._at
            name = self._name()
            if name in rules:
                self._fail(f"rule {name!r} is defined twice", start)
            self._space()
            self._expect("::=")
            self._space(newlines=True)
            rules[name] = self._alternatives(nested=False)
            if self._peek() and self._peek() not in "\r\n":
                self._fail(f"expected the end of the rule, got {self._peek()!r}")
            self._space(newlines=True)
        self._check_names(rules)
        return rules

    def _check_names(self, rules: Rules) -> None:
        for name, at in self._used.items():
            if name not in rules:
                self._fail(f"rule {name!r} is not defined{nearest(name, rules)}", at)
        if "root" not in rules:
            self._fail("there must be a rule named root", len(self._text))

    def _alternatives(self, *, nested: bool) -> Expression:
        parts = [self._sequence(nested)]
        while self._peek() == "|":
            self._at += 1
            self._space(newlines=True)
            parts.append(self._sequence(nested))
        return choice(parts)

    def _sequence(self, nested: bool) -> Expression:
        parts: list[Expression] = []
        while (item := self._item()) is not None:
            self._space(newlines=nested)
            parts.append(self._repeated(item))
            self._space(newlines=nested)
        return sequence(parts)

    def _item(self) -> Expression | None:
        checkpoint()
        match self._peek():
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                self._at += 1
                return Chars(EVERY)
            case "<" | "!":
                self._fail("tokens are not supported in a grammar; use text")
            case letter if letter in _NAME and letter:
                start = self._at
                name = self._name()
                self._used.setdefault(name, start)
                return RuleReference(name)
        return None

    def _group(self) -> Expression:
        start, self._depth = self._at, self._depth + 1
        if self._depth > DEPTH:
            self._fail(f"groups must be nested at most {DEPTH} levels deep")
        self._at += 1
        self._space(newlines=True)
        inner = self._alternatives(nested=True)
        if self._peek() != ")":
            self._fail("this group is never closed", start)
        self._at += 1
        self._depth -= 1
        return inner

    def _repeated(self, item: Expression) -> Expression:
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        while (sign := self._peek()) in {"*", "+", "?", "{"}:
            self._at += 1
            low, high = signs[sign] if sign in signs else self._counts()
            item = EMPTY if item == EMPTY or high == 0 else Repeat(item, low, high)
            self._space()
        return item

    def _counts(self) -> tuple[int, int | None]:
        """The bounds after the opening brace of `{m}`, `{m,}` and `{m,n}`."""
        start = self._at
        self._space()
        low = high = self._number()
        self._space()
        if self._peek() == ",":
            self._at += 1
            self._space()
            high = self._number() if self._peek().isdecimal() else None
            self._space()
        self._expect("}")
        if high is not None and high < low:
            self._fail(f"a repetition's end must not be below its start, got {low} and {high}", start)
        return low, high

    def _number(self) -> int:
        start = self._at
        while self._peek() and self._peek() in "0123456789":
            self._at += 1
        if not 0 < self._at - start <= 9:
            self._fail("expected a number of at most 9 digits", start)
        return int(self._text[start : self._at])

    def _literal(self) -> Expression:
        start = self._at
        self._at += 1
        text = ""
        while self._peek() != '"':
            text += self._char(start, '"')
        self._at += 1
        return LiteralText(text) if text else EMPTY

    def _class(self) -> Expression:
        start = self._at
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            low = high = self._char(start, "]")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._char(start, "]")
            if high < low:
                self._fail(f"a range must go upward, got {low}-{high}", start)
            ranges.append((ord(low), ord(high)))
        self._at += 1
        found = complement(merged(ranges)) if negated else merged(ranges)
        if not found:
            self._fail("a class must hold some character", start)
        return Chars(found)

    def _char(self, start: int, closing: str) -> str:
        """One character of a literal or class, with escapes resolved."""
        letter = self._peek()
        if letter in {"", "\n", "\r"}:
            self._fail(f"expected {closing!r}", start)
        self._at += 1
        if letter != "\\":
            return letter
        escape = self._peek()
        self._at += 1
        if escape in _HEX:
            return self._code(_HEX[escape])
        if escape not in _ESCAPES:
            self._fail(f"unknown escape \\{escape}", self._at - 2)
        return _ESCAPES[escape]

    def _code(self, digits: int) -> str:
        text = self._text[self._at : self._at + digits]
        if len(text) != digits or not all(c in "0123456789abcdefABCDEF" for c in text):
            self._fail(f"expected {digits} hexadecimal digits")
        point = int(text, 16)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            self._fail(f"U+{point:04X} is not a character that a text can hold")
        self._at += digits
        return chr(point)

    def _name(self) -> str:
        start = self._at
        while self._peek() and self._peek() in _NAME:
            self._at += 1
        if self._at == start:
            self._fail(f"expected the name of a rule, got {self._peek()!r}")
        return self._text[start : self._at]

    def _space(self, *, newlines: bool = False) -> None:
        while letter := self._peek():
            if letter == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif letter in " \t" or (newlines and letter in "\r\n"):
                self._at += 1
            else:
                return

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            self._fail(f"expected {text!r}, got {self._peek()!r}")
        self._at += len(text)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _fail(self, rule: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        place = f"line {line}, column {column}"
        raise GrammarError(f"grammar must be valid GBNF: {rule} ({place})", place=place)
