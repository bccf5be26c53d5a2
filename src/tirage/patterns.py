"""Regular expressions matched one character at a time, in time bounded by the size of the pattern.

Python's `re` tries alternatives one after another and can take time exponential in the text. Here all alternatives
advance together (Thompson's construction), so a character costs at most one visit to each state, whatever the pattern.
What cannot be matched this way is refused by name: look-ahead, back-references, atomic groups. Syntax, flags and
character classes are Python's: its own parser and compiler are used for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from re import _compiler, _parser  # pyright: ignore[reportAttributeAccessIssue]  # no public module has them
from typing import Any

from tirage.recently_used import RecentlyUsed

MAX_STATES = 2000
"""Most states of an automaton: `a{1000}` needs 1000, `(a{1000}){1000}` a million."""

_COMPILED: RecentlyUsed[Pattern] = RecentlyUsed(most=64, size=8 * MAX_STATES)
"""The patterns used most recently; the largest take more than a megabyte each."""
# Characters whose result each test of a class caches; there may be thousands of them.
_REMEMBERED = 256

# Conditions on the next character that an assertion leaves open, as bits.
_WORD, _NO_WORD, _ASCII_WORD, _NO_ASCII_WORD, _LINE_END, _LAST_LINE_END, _END = (1 << bit for bit in range(7))
_NEEDS_A_CHARACTER = _WORD | _ASCII_WORD


class PatternError(ValueError):
    """Raised for a pattern that is invalid, too large, or needs unbounded work."""


@dataclass(slots=True, eq=False)
class _State:
    """A character to read (`reads`), an assertion to check (`asks`), or neither; then any of the states `then`."""

    then: list[int]
    reads: Callable[[str], bool] | None = None
    asks: tuple[str, Any] | None = None


@dataclass(slots=True, eq=False)
class Pattern:
    """A regular expression as an automaton whose state 0 accepts; `behind` are the patterns of its look-behinds."""

    source: str
    states: list[_State] = field(default_factory=lambda: [_State([])])
    first: int = 0
    behind: list[Pattern] = field(default_factory=list)
    _started: PatternMatcher | None = None

    def matcher(self) -> PatternMatcher:
        """A new matcher before any text. The start of the automaton is explored once per pattern."""
        if self._started is None:
            self._started = PatternMatcher(self)
        return self._started.copy()

    @property
    def size(self) -> int:
        """The number of states, with those of the look-behinds: a bound on the work per character."""
        return len(self.states) + sum(inner.size for inner in self.behind)


def parse_pattern(source: str, flags: int = 0) -> Any:
    """The parse tree that Python's `re` makes of a pattern: pairs of an operation and its arguments.

    Raises `re.error` for text that is not a regular expression, and RecursionError or OverflowError for one that
    Python cannot read.
    """
    return _parser.parse(source, flags)


def compile_pattern(source: str) -> Pattern:
    """The automaton of a regular expression in Python's syntax.

    Raises PatternError for text that is no regular expression, for look-ahead, back-references, atomic groups,
    possessive repeats and conditional groups, and for more than `MAX_STATES` states.
    """
    return _COMPILED.get(source, lambda: _compile(source), lambda pattern: pattern.size)


def _compile(source: str) -> Pattern:
    try:
        tree = parse_pattern(source)
        pattern = Pattern(source)
        pattern.first = _Builder(pattern).build(tree, tree.state.flags, 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"a regular expression that compiles ({error})") from None
    return pattern


class _Builder:
    """Turns a parse tree into states from the end to the start, so that the state after each part is known."""

    def __init__(self, pattern: Pattern, *, outer: _Builder | None = None) -> None:
        self._pattern, self._inside = pattern, outer is not None
        # The count of states is shared by a pattern and all its look-behinds, as are the tests of characters.
        self._counter: Iterator[int] = count() if outer is None else outer._counter
        self._readers: dict[tuple[str, int, int], Callable[[str], bool]] = {} if outer is None else outer._readers

    def build(self, tree: Any, flags: int, then: int) -> int:
        """The first state of a sequence of parse items that leads to `then`; PatternError if it cannot be built."""
        for op, value in reversed(list(tree)):
            then = self._item(str(op), op, value, flags, then)
        return then

    def _item(self, name: str, op: Any, value: Any, flags: int, then: int) -> int:
        if name in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
            return self._add([then], reads=self._reader(op, value, flags))
        if name == "BRANCH":
            return self._add([self.build(branch, flags, then) for branch in value[1]])
        if name == "SUBPATTERN":
            _, added, removed, tree = value
            # ASCII or UNICODE of a group replaces the flag of the pattern around it.
            kept = flags & ~(re.ASCII | re.UNICODE) if added & (re.ASCII | re.UNICODE) else flags
            return self.build(tree, (kept | added) & ~removed, then)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            low, high, tree = value
            return self._repeat(tree, flags, then, low=low, high=high)
        if name == "AT":
            return self._at(str(value), flags, then)
        if name in {"ASSERT", "ASSERT_NOT"} and value[0] < 0:
            return self._look_behind(value[1], flags, then, wanted=name == "ASSERT")
        if name == "FAILURE":
            return self._add([])
        raise PatternError(f"a regular expression without {_REFUSED.get(name, name)}")

    def _reader(self, op: Any, value: Any, flags: int) -> Callable[[str], bool]:
        """The test of a parse item: one for all repeats of it, and for all that are the same character."""
        key = str(op), value if isinstance(value, int) else id(value), flags
        if key not in self._readers:
            self._readers[key] = _reader(op, value, flags)
        return self._readers[key]

    def _add(
        self, then: list[int], *, reads: Callable[[str], bool] | None = None, asks: tuple[str, Any] | None = None
    ) -> int:
        if next(self._counter) >= MAX_STATES:
            raise PatternError(f"a regular expression of at most {MAX_STATES} states, repeats written out")
        self._pattern.states.append(_State(then, reads, asks))
        return len(self._pattern.states) - 1

    def _repeat(self, tree: Any, flags: int, then: int, *, low: int, high: Any) -> int:
        if high is _parser.MAXREPEAT:
            loop = self._add([then])
            self._pattern.states[loop].then.insert(0, self.build(tree, flags, loop))
            then = loop
        else:
            end = then
            for _ in range(int(high) - low):
                then = self._add([self.build(tree, flags, then), end])
        for _ in range(low):
            # The extra state makes repeats of the empty pattern count, too.
            then = self._add([self.build(tree, flags, then)])
        return then

    def _at(self, where: str, flags: int, then: int) -> int:
        if where == "AT_BEGINNING":
            return self._add([then], asks=("line" if flags & re.MULTILINE else "start", None))
        if where == "AT_BEGINNING_STRING":
            return self._add([then], asks=("start", None))
        if self._inside:
            raise PatternError("a regular expression whose look-behinds hold no $, \\Z, \\b or \\B")
        if where in {"AT_END", "AT_END_STRING"}:
            line = _LINE_END if flags & re.MULTILINE else _LAST_LINE_END
            return self._add([then], asks=("next", _END if where == "AT_END_STRING" else line))
        ascii_only = bool(flags & re.ASCII)
        return self._add([then], asks=("boundary", (where == "AT_BOUNDARY", ascii_only)))

    def _look_behind(self, tree: Any, flags: int, then: int, *, wanted: bool) -> int:
        inner = Pattern(self._pattern.source)
        inner.first = _Builder(inner, outer=self).build(tree, flags, 0)
        self._pattern.behind.append(inner)
        return self._add([then], asks=("behind", (len(self._pattern.behind) - 1, wanted)))


_REFUSED = {
    "ASSERT": "look-ahead",
    "ASSERT_NOT": "look-ahead",
    "GROUPREF": "back-references",
    "GROUPREF_EXISTS": "conditional groups",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repeats",
}


def _reader(op: Any, value: Any, flags: int) -> Callable[[str], bool]:
    """The test of a character against a parse item, which is a character or a class."""
    if str(op) == "LITERAL" and not flags & re.IGNORECASE:
        return chr(value).__eq__
    state = _parser.State()
    state.flags = flags
    compiled = _compiler.compile(_parser.SubPattern(state, [(op, value)]), flags)
    return lru_cache(maxsize=_REMEMBERED)(lambda letter: compiled.match(letter) is not None)


class PatternMatcher:
    """Finds a pattern in a text that arrives one character at a time.

    Matches are not empty. For `$` and `\\b`, the end of the text so far counts as the end of the text.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._behind = [PatternMatcher(inner) for inner in pattern.behind]
        self._position, self._previous = 0, ""
        # (state, needs) -> where the match began; the earliest match first, and only the earliest for each key.
        self._threads: dict[tuple[int, int], int] = {}
        self._seen: set[tuple[int, int]] = set()
        self._found: int | None = None
        self._enter(pattern.first, 0)
        self._seen.clear()

    def copy(self) -> PatternMatcher:
        """An independent matcher that has read the same text."""
        other = copy(self)
        other._behind = [behind.copy() for behind in self._behind]
        # `_threads` is replaced by every step, never modified; `_seen` is empty between steps.
        other._seen = set()
        return other

    @property
    def claimed_from(self) -> int:
        """The start of the earliest match that may still be completed; the current position if there is none."""
        return next(iter(self._threads.values()), self._position)

    def feed(self, letter: str) -> int | None:
        """Reads the next character; gives the start of the earliest match that ends with it, or None."""
        for behind in self._behind:
            behind.feed(letter)
        threads, self._threads = self._threads, {}
        self._position += 1
        self._previous, self._found = letter, None
        states = self._pattern.states
        for (number, needs), start in threads.items():
            reads = states[number].reads
            if reads is not None and (not needs or _meets(letter, needs)) and reads(letter):
                self._enter(states[number].then[0], start, _END if needs & _LAST_LINE_END else 0)
        found = self._found
        self._enter(self._pattern.first, self._position)
        self._seen.clear()
        return found

    def _enter(self, number: int, start: int, needs: int = 0) -> None:
        """Follows all transitions that read nothing, and keeps the states that wait for a character."""
        waiting = [(number, needs)]
        while waiting:
            thread = waiting.pop()
            if thread in self._seen:
                continue
            self._seen.add(thread)
            number, needs = thread
            state = self._pattern.states[number]
            if number == 0 and self._found is None and not needs & _NEEDS_A_CHARACTER:
                self._found = start
            if state.reads is not None:
                if not needs or _can_go_on(state.reads, needs):
                    self._threads[thread] = start
                continue
            asked = 0 if state.asks is None else self._ask(*state.asks)
            if asked is not None:
                waiting.extend((after, needs | asked) for after in reversed(state.then))

    def _ask(self, kind: str, detail: Any) -> int | None:
        """The conditions on the next character under which an assertion holds here; None if it fails already."""
        if kind == "start":
            return 0 if self._position == 0 else None
        if kind == "line":
            return 0 if self._position == 0 or self._previous == "\n" else None
        if kind == "next":
            return detail
        if kind == "behind":
            index, wanted = detail
            return 0 if (self._behind[index]._found is not None) is wanted else None
        boundary, ascii_only = detail
        word, no_word = (_ASCII_WORD, _NO_ASCII_WORD) if ascii_only else (_WORD, _NO_WORD)
        return no_word if _is_word(self._previous, ascii_only=ascii_only) is boundary else word


def _is_word(letter: str, *, ascii_only: bool) -> bool:
    return (letter.isalnum() or letter == "_") and (letter.isascii() or not ascii_only)


def _meets(letter: str, needs: int) -> bool:
    """Whether a character meets the conditions."""
    if needs & _END or (needs & (_LINE_END | _LAST_LINE_END) and letter != "\n"):
        return False
    word, ascii_word = _is_word(letter, ascii_only=False), _is_word(letter, ascii_only=True)
    refused = (_NO_WORD if word else _WORD) | (_NO_ASCII_WORD if ascii_word else _ASCII_WORD)
    return not needs & refused


def _can_go_on(reads: Callable[[str], bool], needs: int) -> bool:
    """Whether some character can meet the conditions and be read; if not, no text is held back for it."""
    if needs & _END:
        return False
    return not needs & (_LINE_END | _LAST_LINE_END) or (_meets("\n", needs) and reads("\n"))


def search(pattern: Pattern, text: str) -> tuple[int, int] | None:
    """Start and end of the match that ends first, the earliest start winning; None if there is no match."""
    matcher = PatternMatcher(pattern)
    for end, letter in enumerate(text, start=1):
        start = matcher.feed(letter)
        if start is not None:
            return start, end
    return None
