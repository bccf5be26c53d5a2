"""Parser of ECMA-262 regular expressions, the patterns of JSON schemas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from tirage.guided.regular.charset import Ranges, complement, merged
from tirage.guided.regular.unicode_properties import characters_of
from tirage.workers.cancel import checkpoint

DEPTH = 100
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_DOT = complement(((10, 10), (13, 13), (0x2028, 0x2029)))
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_HEX = frozenset("0123456789abcdefABCDEF")
_DECIMALS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character of a set, which may be empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concatenation:
    """One term after the other."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    """One of the alternatives."""

    alternatives: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    """A term repeated `low` to `high` times; None is no upper bound."""

    term: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """An assertion about the neighbours of a place: `^`, `$`, `\\b` or `\\B`."""

    sign: str


@dataclass(frozen=True, slots=True)
class Lookahead:
    """An assertion about the text that follows."""

    term: Node
    negative: bool


@dataclass(frozen=True, slots=True)
class Irregular:
    """A construct that no finite automaton follows, by its name, and where it stands."""

    name: str
    at: int


Node = CharClass | Concatenation | Disjunction | Quantified | Boundary | Lookahead | Irregular


class EcmaSyntaxError(ValueError):
    """A pattern that ECMA-262 does not allow; `at` is the index of the character."""

    def __init__(self, rule: str, at: int) -> None:
        super().__init__(rule)
        self.at = at


class UnknownPropertyError(EcmaSyntaxError):
    """A property of characters that ECMA-262 may know and `unicode_properties` does not."""


def parse_ecma(pattern: str) -> Node:
    """The syntax tree of a pattern, read with the flag `u` if it is valid so, else without.

    Without the flag, Annex B's leniency holds (`\\-` is a hyphen, `]` and `{` stand for themselves), but a character is
    a code point all the same. Raises EcmaSyntaxError for a pattern that is invalid in both.
    """
    try:
        return EcmaParser(pattern, unicode=True).parse()
    except UnknownPropertyError:
        # Without the flag it would be read as letters, which is not meant.
        raise
    except EcmaSyntaxError as strict:
        try:
            return EcmaParser(pattern, unicode=False).parse()
        except EcmaSyntaxError:
            raise strict from None


class EcmaParser:
    """A recursive-descent parser of one pattern; `unicode` is the flag `u`."""

    def __init__(self, pattern: str, *, unicode: bool) -> None:
        self._text, self._at, self._depth, self._unicode = pattern, 0, 0, unicode
        self._groups, self._names = count_groups(pattern)
        self._seen: set[str] = set()
        self._referred: list[tuple[str, int]] = []

    def parse(self) -> Node:
        """The syntax tree of the whole pattern; EcmaSyntaxError if it is invalid."""
        found = self._disjunction()
        if self._at < len(self._text):
            self._fail("this parenthesis closes no group")
        for name, at in self._referred:
            if name not in self._seen:
                self._fail(f"there is no group named {name!r}", at)
        return found

    def _disjunction(self) -> Node:
        alternatives = [self._concatenation()]
        while self._take("|"):
            alternatives.append(self._concatenation())
        return alternatives[0] if len(alternatives) == 1 else Disjunction(tuple(alternatives))

    def _concatenation(self) -> Node:
        terms: list[Node] = []
        while self._peek() not in {"", "|", ")"}:
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else Concatenation(tuple(terms))

    def _term(self) -> Node:
        checkpoint()
        start = self._at
        if (found := self._assertion()) is not None:
            # Annex B lets a look-ahead be repeated, and no other assertion.
            repeatable = isinstance(found, Lookahead) and not self._unicode
            return self._quantified(found) if repeatable else self._not_quantified(found, start)
        return self._quantified(self._atom())

    def _assertion(self) -> Node | None:
        for sign in ("^", "$", "\\b", "\\B"):
            if self._take(sign):
                return Boundary(sign)
        start = self._at
        for opening in ("(?=", "(?!", "(?<=", "(?<!"):
            if self._take(opening):
                inner = self._inside(start)
                return Irregular("look-behind", start) if "<" in opening else Lookahead(inner, opening == "(?!")
        return None

    def _not_quantified(self, found: Node, start: int) -> Node:
        if self._peek() in {"*", "+", "?"} or self._counts() is not None:
            self._fail("an assertion cannot be repeated", start)
        return found

    def _quantified(self, atom: Node) -> Node:
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self._peek()
        if sign in signs:
            self._at += 1
            low, high = signs[sign]
        elif (counts := self._counts()) is not None:
            low, high = counts
        else:
            return atom
        self._take("?")
        if self._peek() in {"*", "+", "?"} or self._counts() is not None:
            self._fail("there is nothing to repeat")
        return Quantified(atom, low, high)

    def _counts(self) -> tuple[int, int | None] | None:
        """The bounds of `{m}`, `{m,}` or `{m,n}` here, taken; None if there is none, and nothing is taken."""
        start = self._at
        if self._take("{") and (low := self._decimals()):
            high = (self._decimals() or None) if self._take(",") else low
            if self._take("}"):
                if high is not None and int(high) < int(low):
                    self._fail("the counts of a repetition must go upward", start)
                return int(low), None if high is None else int(high)
        self._at = start
        return None

    def _decimals(self) -> str:
        start = self._at
        while self._peek() in _DECIMALS:
            self._at += 1
        if self._at - start > 9:
            self._fail("a number must have at most 9 digits", start)
        return self._text[start : self._at]

    def _atom(self) -> Node:
        start, letter = self._at, self._peek()
        match letter:
            case ".":
                self._at += 1
                return CharClass(_DOT)
            case "(":
                return self._group()
            case "[":
                self._at += 1
                return self._class(start)
            case "\\":
                self._at += 1
                return self._escape(start)
            case "*" | "+" | "?":
                self._fail("there is nothing to repeat")
            case "{" if self._unicode or self._counts() is not None:
                self._fail("there is nothing to repeat, or the brace needs a backslash", start)
            case "]" | "}" if self._unicode:
                self._fail("this bracket needs a backslash")
        self._at += 1
        return one(letter)

    def _group(self) -> Node:
        start = self._at
        self._take("(")
        if self._take("?<"):
            name = self._group_name(start)
            self._seen.add(name)
        elif self._take("?") and not self._take(":"):
            self._fail("a group must begin with (?:, (?=, (?! or (?<name>", start)
        return self._inside(start)

    def _inside(self, start: int) -> Node:
        """What a group holds, up to its closing parenthesis."""
        self._depth += 1
        if self._depth > DEPTH:
            self._fail(f"groups must be nested at most {DEPTH} levels deep", start)
        found = self._disjunction()
        if not self._take(")"):
            self._fail("this group is never closed", start)
        self._depth -= 1
        return found

    def _group_name(self, start: int) -> str:
        end = self._text.find(">", self._at)
        name = self._text[self._at : max(end, self._at)]
        if not name.replace("$", "_").isidentifier():
            self._fail("a group's name must be an identifier", start)
        self._at = end + 1
        return name

    # --- escapes -----------------------------------------------------------------------------------------------------

    def _escape(self, start: int) -> Node:
        """What an escape outside a class stands for; the backslash is taken."""
        letter = self._peek()
        if letter == "k" and (self._unicode or self._names):
            self._at += 1
            if not self._take("<"):
                self._fail("\\k must be followed by the name of a group", start)
            self._referred.append((self._group_name(start), start))
            return Irregular("back-reference", start)
        if letter in _DECIMALS - {"0"}:
            number = self._decimals()
            if int(number) <= self._groups:
                return Irregular("back-reference", start)
            if self._unicode:
                self._fail(f"there is no group {number}", start)
            self._at = start + 1
        found = self._class_escape(start)
        return CharClass(found) if isinstance(found, tuple) else one(found)

    def _class_escape(self, start: int) -> Ranges | str:
        """The set, or the single character, of an escape that is allowed in a class too; the backslash is taken."""
        letter = self._peek()
        self._at += 1
        if letter.lower() in _CLASSES and letter:
            found = _CLASSES[letter.lower()]
            return complement(found) if letter.isupper() else found
        if letter in {"p", "P"} and self._unicode:
            found = self._property(start)
            return negated(found) if letter == "P" else found
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        match letter:
            case "c":
                return self._control(start)
            case "x":
                return self._hexadecimal(2, start) or "x"
            case "u":
                return self._code_point(start) or "u"
            case "0" if self._peek() not in _DECIMALS:
                return "\0"
        if letter in _DECIMALS and not self._unicode:
            return self._octal(letter)
        if not letter or (self._unicode and letter not in _SYNTAX):
            self._fail(f"unknown escape \\{letter}", start)
        return letter

    def _property(self, start: int) -> Ranges:
        end = self._text.find("}", self._at)
        name = self._text[self._at + 1 : max(end, self._at)]
        if self._peek() != "{" or end < 0:
            self._fail("\\p must be followed by the name of a property in braces", start)
        if (found := characters_of(name)) is None:
            raise UnknownPropertyError(f"\\p{{{name}}} is not known here; list its characters as ranges", start)
        self._at = end + 1
        return found

    def _control(self, start: int) -> str:
        letter = self._peek()
        if letter in _LETTERS:
            self._at += 1
            return chr(ord(letter) % 32)
        if self._unicode:
            self._fail("\\c must be followed by a letter", start)
        # Annex B: the backslash stands for itself, and the c comes next.
        self._at -= 1
        return "\\"

    def _hexadecimal(self, digits: int, start: int) -> str | None:
        """The character of so many hexadecimal digits; None, without the flag, if there are fewer."""
        found = self._text[self._at : self._at + digits]
        if len(found) == digits and _HEX.issuperset(found):
            self._at += digits
            return chr(int(found, 16))
        if self._unicode:
            self._fail(f"expected {digits} hexadecimal digits", start)
        return None

    def _code_point(self, start: int) -> str | None:
        if self._unicode and self._take("{"):
            end = self._text.find("}", self._at)
            found = self._text[self._at : max(end, self._at)]
            if not found or not _HEX.issuperset(found) or int(found, 16) > 0x10FFFF:
                self._fail("\\u{...} must hold a code point up to 10FFFF", start)
            self._at = end + 1
            return chr(int(found, 16))
        first = self._hexadecimal(4, start)
        if first is None or not "\ud800" <= first <= "\udbff" or not self._text.startswith("\\u", self._at):
            return first
        here = self._at
        self._at += 2
        second = self._text[self._at : self._at + 4]
        if len(second) == 4 and _HEX.issuperset(second) and 0xDC00 <= int(second, 16) <= 0xDFFF:
            self._at += 4
            return chr(0x10000 + (ord(first) - 0xD800 << 10) + int(second, 16) - 0xDC00)
        self._at = here
        return first

    def _octal(self, first: str) -> str:
        """Annex B's octal escapes: at most three digits, at most 377; 8 and 9 stand for themselves."""
        if first in "89":
            return first
        digits = first
        while self._peek() in frozenset("01234567") and len(digits) < (3 if first in "0123" else 2):
            digits += self._peek()
            self._at += 1
        return chr(int(digits, 8))

    # --- classes -----------------------------------------------------------------------------------------------------

    def _class(self, start: int) -> Node:
        """A class; its opening bracket is taken."""
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._class_atom(start)
            if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in {"]", ""}:
                ranges.extend(as_set(low))
                continue
            self._at += 1
            ranges.extend(self._range(low, self._class_atom(start), start))
        found = merged(ranges)
        return CharClass(negated(found) if is_negated else found)

    def _range(self, low: Ranges | str, high: Ranges | str, start: int) -> Ranges:
        if isinstance(low, str) and isinstance(high, str):
            if low > high:
                self._fail(f"a range must go upward, got {low}-{high}", start)
            return ((ord(low), ord(high)),)
        if self._unicode:
            self._fail("a range must go from one character to another", start)
        return (*as_set(low), (45, 45), *as_set(high))

    def _class_atom(self, start: int) -> Ranges | str:
        escape, letter = self._at, self._peek()
        if not letter:
            self._fail("this class is never closed", start)
        self._at += 1
        if letter != "\\":
            return letter
        for sign, meant in (("b", "\b"), ("-", "-")):
            if self._take(sign):
                return meant
        if not self._unicode and self._peek() == "c":
            after = self._text[self._at + 1 : self._at + 2]
            if after and (after in _DECIMALS or after == "_"):
                self._at += 2
                return chr(ord(after) % 32)
        if not self._unicode and self._peek() == "k" and self._names:
            self._fail("\\k cannot stand in a class", escape)
        return self._class_escape(escape)

    # --- text --------------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _fail(self, rule: str, at: int | None = None) -> NoReturn:
        raise EcmaSyntaxError(rule, self._at if at is None else at)


negated = lru_cache(maxsize=256)(complement)
"""The characters that are not in a set, remembered for the large sets of Unicode's properties."""


def one(letter: str) -> CharClass:
    """The class of a single character."""
    return CharClass(as_set(letter))


def as_set(found: Ranges | str) -> Ranges:
    """A set of characters, given as one or as a single character; a surrogate is none."""
    return merged([(ord(found), ord(found))]) if isinstance(found, str) else found


def count_groups(pattern: str) -> tuple[int, bool]:
    """How many groups capture, and whether one of them has a name."""
    at = groups = 0
    named = inside = False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif inside or letter == "[":
            inside = letter != "]"
        elif letter == "(":
            name = pattern.startswith("(?<", at) and pattern[at + 3 : at + 4] not in {"=", "!"}
            groups += name or not pattern.startswith("(?", at)
            named = named or name
        at += 1
    return groups, named
