"""What an expression with intersections and complements matches: whether a text, and whether any text at all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from tirage.guided.regular.charset import EVERY, LAST, Ranges, holds
from tirage.guided.regular.expression import (
    Alternatives,
    Chars,
    Complement,
    Expression,
    Intersection,
    LiteralText,
    Repeat,
    Sequence,
    Terminal,
)
from tirage.guided.regular.position_automaton import PositionAutomaton
from tirage.workers.cancel import checkpoint

STEPS = 120_000
"""Most positions that the searches for one schema may look at."""
POSITIONS = 4_000
"""Most positions of characters in one part without intersections."""
State = Hashable
_START = -1
_ANY = Chars(EVERY)


class LanguageError(ValueError):
    """Raised where a search would take too many steps, or an expression is not of a form that can be searched."""


@dataclass(slots=True)
class SearchSteps:
    """How many positions searches may still look at."""

    left: int = STEPS

    def take(self, count: int) -> None:
        """Counts looks at positions; raises LanguageError when none is left."""
        checkpoint()
        self.left -= count
        if self.left < 0:
            raise LanguageError("too many steps")


class Acceptor(Protocol):
    """An automaton over code points; None is the state from which nothing can be matched."""

    start: State

    def step(self, state: State, point: int) -> State:
        """The state after one more character."""
        ...

    def accepts(self, state: State) -> bool:
        """Whether the text so far matches."""
        ...

    def edges(self, state: State) -> Iterator[Ranges]:
        """Sets of characters such that characters in the same ones lead to the same state."""
        ...


class PositionAcceptor:
    """An expression without intersections and complements, by its position automaton.

    It remembers its steps: beside other automata the same ones are taken over and over.
    """

    def __init__(self, node: Expression) -> None:
        self._automaton = PositionAutomaton.of(node)
        self.start: State = frozenset({_START})
        self._following: dict[State, set[int]] = {}
        self._steps: dict[tuple[State, int], State] = {}

    def _after(self, state: State) -> set[int]:
        assert isinstance(state, frozenset)
        found = self._following.get(state)
        if found is None:
            automaton = self._automaton
            found = set[int]().union(*(automaton.first if p == _START else automaton.after[p] for p in state))
            self._following[state] = found
        return found

    def step(self, state: State, point: int) -> State:
        """See `Acceptor`."""
        if state is None:
            return None
        key = (state, point)
        if key not in self._steps:
            sets = self._automaton.sets
            self._steps[key] = frozenset(p for p in self._after(state) if holds(sets[p], point)) or None
        return self._steps[key]

    def accepts(self, state: State) -> bool:
        """See `Acceptor`."""
        if state is None:
            return False
        assert isinstance(state, frozenset)
        return self._automaton.empty if _START in state else not self._automaton.last.isdisjoint(state)

    def edges(self, state: State) -> Iterator[Ranges]:
        """See `Acceptor`."""
        if state is not None:
            yield from {self._automaton.sets[p] for p in self._after(state)}


@dataclass(slots=True)
class CountAcceptor:
    """A number of characters of one set; the state is how many there are, no higher than what matters."""

    ranges: Ranges
    low: int
    high: int | None
    start: State = 0

    def step(self, state: State, point: int) -> State:
        """See `Acceptor`."""
        if state is None or not holds(self.ranges, point):
            return None
        assert isinstance(state, int)
        if self.high is not None:
            return state + 1 if state < self.high else None
        return min(state + 1, self.low)

    def accepts(self, state: State) -> bool:
        """See `Acceptor`."""
        return isinstance(state, int) and state >= self.low

    def edges(self, state: State) -> Iterator[Ranges]:
        """See `Acceptor`."""
        if state is not None:
            yield self.ranges


class ConstantAcceptor:
    """Some texts; the state is what has been read of them."""

    start: State = ""

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self._following: dict[str, set[str]] = {"": set()}
        for one in texts:
            for i, char in enumerate(one):
                self._following.setdefault(one[:i], set()).add(char)

    def step(self, state: State, point: int) -> State:
        """See `Acceptor`."""
        if not isinstance(state, str) or chr(point) not in self._following.get(state, ()):
            return None
        return state + chr(point)

    def accepts(self, state: State) -> bool:
        """See `Acceptor`."""
        return state in self._texts

    def edges(self, state: State) -> Iterator[Ranges]:
        """See `Acceptor`."""
        if isinstance(state, str):
            for char in sorted(self._following.get(state, ())):
                yield ((ord(char), ord(char)),)


class CombinedAcceptor:
    """Several automata side by side: all of them have to match, or any."""

    def __init__(self, parts: list[Acceptor], *, every: bool) -> None:
        self._parts, self._every = parts, every
        self.start: State = tuple(part.start for part in parts)

    def step(self, state: State, point: int) -> State:
        """See `Acceptor`."""
        if state is None:
            return None
        assert isinstance(state, tuple)
        found = tuple(part.step(one, point) for part, one in zip(self._parts, state, strict=True))
        dead = [one is None and not isinstance(part, OppositeAcceptor) for part, one in self._pairs(found)]
        return None if (any(dead) if self._every else all(dead)) else found

    def _pairs(self, state: tuple[State, ...]) -> Iterator[tuple[Acceptor, State]]:
        return zip(self._parts, state, strict=True)

    def accepts(self, state: State) -> bool:
        """See `Acceptor`."""
        if state is None:
            return False
        assert isinstance(state, tuple)
        found = (part.accepts(one) for part, one in self._pairs(state))
        return all(found) if self._every else any(found)

    def edges(self, state: State) -> Iterator[Ranges]:
        """See `Acceptor`."""
        if state is not None:
            assert isinstance(state, tuple)
            for part, one in self._pairs(state):
                yield from part.edges(one)


class OppositeAcceptor:
    """The texts that another automaton does not match."""

    def __init__(self, part: Acceptor) -> None:
        self._part, self.start = part, part.start

    def step(self, state: State, point: int) -> State:
        """See `Acceptor`; here None is the state from which everything is matched."""
        return self._part.step(state, point)

    def accepts(self, state: State) -> bool:
        """See `Acceptor`."""
        return not self._part.accepts(state)

    def edges(self, state: State) -> Iterator[Ranges]:
        """See `Acceptor`."""
        return self._part.edges(state)


class SequenceAcceptor:
    """One automaton after the other; a state is the places where the text may stand, each with its part's state."""

    def __init__(self, parts: list[Acceptor]) -> None:
        self._parts = parts
        self.start: State = frozenset(self._places(0, parts[0].start))

    def _places(self, index: int, state: State) -> Iterator[tuple[int, State]]:
        """A place, and the starts of the parts after it if nothing more need be read before them."""
        yield index, state
        while index + 1 < len(self._parts) and self._parts[index].accepts(state):
            index, state = index + 1, self._parts[index + 1].start
            yield index, state

    def step(self, state: State, point: int) -> State:
        """See `Acceptor`."""
        if state is None:
            return None
        assert isinstance(state, frozenset)
        found: set[tuple[int, State]] = set()
        for index, one in state:
            part = self._parts[index]
            after = part.step(one, point)
            if after is not None or isinstance(part, OppositeAcceptor):
                found.update(self._places(index, after))
        return frozenset(found) or None

    def accepts(self, state: State) -> bool:
        """See `Acceptor`."""
        if state is None:
            return False
        assert isinstance(state, frozenset)
        last = len(self._parts) - 1
        return any(index == last and self._parts[last].accepts(one) for index, one in state)

    def edges(self, state: State) -> Iterator[Ranges]:
        """See `Acceptor`."""
        if state is not None:
            assert isinstance(state, frozenset)
            for index, one in state:
                yield from self._parts[index].edges(one)


@lru_cache(maxsize=1024)
def acceptor(node: Expression) -> Acceptor:
    """An automaton of an expression.

    Raises LanguageError for one with too many positions, and for an intersection or complement that is repeated.
    """
    match node:
        case Terminal(part):
            return acceptor(part)
        case Intersection(parts):
            return CombinedAcceptor([acceptor(part) for part in parts], every=True)
        case Complement(part):
            return OppositeAcceptor(acceptor(part))
        case Alternatives(parts) if all(isinstance(part, LiteralText) for part in parts):
            return ConstantAcceptor(frozenset(part.text for part in parts if isinstance(part, LiteralText)))
        case Alternatives(parts) if any(map(is_combined, parts)):
            return CombinedAcceptor([acceptor(part) for part in parts], every=False)
        case Sequence(parts) if any(map(is_combined, parts)):
            return SequenceAcceptor([acceptor(part) for part in parts])
        case Repeat(Chars(ranges), low, high):
            return CountAcceptor(ranges, low, high)
    if size(node) > POSITIONS or is_combined(node):
        raise LanguageError("too large")
    return PositionAcceptor(node)


def size(node: Expression) -> int:
    """The number of positions of characters in an expression, with repetitions written out."""
    match node:
        case LiteralText(text):
            return len(text)
        case Sequence(parts) | Alternatives(parts) | Intersection(parts):
            return sum(map(size, parts))
        case Repeat(part, low, high):
            return size(part) * max(1, low if high is None else high)
        case Complement(part) | Terminal(part):
            return size(part)
    return 1


def is_combined(node: Expression) -> bool:
    """Whether an expression has an intersection or a complement anywhere."""
    match node:
        case Intersection() | Complement():
            return True
        case Sequence(parts) | Alternatives(parts):
            return any(map(is_combined, parts))
        case Repeat(part) | Terminal(part):
            return is_combined(part)
    return False


def matches(node: Expression, text: str) -> bool:
    """Whether an expression matches a whole text; raises LanguageError as `acceptor` does."""
    automaton = acceptor(node)
    state = automaton.start
    for char in text:
        state = automaton.step(state, ord(char))
    return automaton.accepts(state)


def some_length(node: Expression) -> int | None:
    """The length of one of the shortest texts of an expression; None where its form does not show that it has any."""
    match node:
        case LiteralText(text):
            return len(text)
        case Chars(ranges):
            return 1 if ranges else None
        case Sequence(parts):
            lengths = known_lengths(parts)
            return sum(lengths) if len(lengths) == len(parts) else None
        case Alternatives(parts):
            return min(known_lengths(parts), default=None)
        case Repeat(part, low):
            found = some_length(part) if low else 0
            return None if found is None else low * found
        case Intersection(parts):
            return _length_within(parts)
        case Terminal(part):
            return some_length(part)
    return None


def known_lengths(parts: tuple[Expression, ...]) -> list[int]:
    """What `some_length` says of some expressions, without those of which it says None."""
    return [found for found in map(some_length, parts) if found is not None]


def _length_within(parts: tuple[Expression, ...]) -> int | None:
    """`some_length` of what one part matches within the lengths that all others allow."""
    bounds = [part for part in parts if isinstance(part, Repeat) and part.part == _ANY]
    others = [part for part in parts if part not in bounds]
    found = some_length(others[0]) if len(others) == 1 else None
    is_within = found is not None and all(b.low <= found and (b.high is None or found <= b.high) for b in bounds)
    return found if is_within else None


def weight(state: State) -> int:
    """The number of positions in a state."""
    return sum(map(weight, state)) if isinstance(state, tuple) else len(state) if isinstance(state, frozenset) else 1


def is_empty(node: Expression, steps: SearchSteps) -> bool:
    """Whether an expression matches no text at all.

    Raises LanguageError when that is not known after all `steps`, and as `acceptor` does.
    """
    automaton = acceptor(node)
    if automaton.accepts(automaton.start):
        return False
    seen = {automaton.start}
    # Depth first, one character of each class at a time: where there is a text, one is mostly found at once.
    waiting = [(automaton.start, representatives(automaton.edges(automaton.start)))]
    while waiting:
        state, points = waiting[-1]
        point = next(points, None)
        if point is None:
            waiting.pop()
            continue
        steps.take(weight(state))
        after = automaton.step(state, point)
        if automaton.accepts(after):
            return False
        if after not in seen:
            seen.add(after)
            waiting.append((after, representatives(automaton.edges(after))))
    return True


def representatives(sets: Iterator[Ranges]) -> Iterator[int]:
    """One character of each class of characters that are in the same sets."""
    starts = {0}
    for ranges in sets:
        for low, high in ranges:
            starts |= {low, high + 1}
    return iter(sorted(point for point in starts if point <= LAST and not 0xD800 <= point <= 0xDFFF))
