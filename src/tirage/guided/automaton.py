"""Position automata of expressions: what may come after what, character by character."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from tirage.guided.charset import Ranges, common, first_bytes
from tirage.guided.expression import Alternatives, Chars, Expression, LiteralText, Repeat, Sequence

_overlap = lru_cache(maxsize=65536)(lambda one, other: bool(common(one, other)))


@dataclass(slots=True)
class PositionAutomaton:
    """Glushkov's automaton: a state per place of a character.

    `sets[p]` are the characters at place p, `after[p]` the places that may follow it; a text begins at a place in
    `first` and may end at one in `last`.
    """

    sets: list[Ranges]
    after: list[set[int]]
    first: set[int]
    last: set[int]
    empty: bool = False

    @classmethod
    def of(cls, node: Expression) -> PositionAutomaton:
        """The automaton of an expression without rules."""
        auto = cls([], [], set(), set())
        auto.first, auto.last, auto.empty = auto._add(node)
        return auto

    def _add(self, node: Expression) -> tuple[set[int], set[int], bool]:
        """Places for a node; returns where it begins, where it ends, and whether it may be empty."""
        match node:
            case LiteralText(text):
                return self._chain([self._place(((ord(c), ord(c)),)) for c in text])
            case Chars(ranges):
                return self._place(ranges)
            case Sequence(parts):
                return self._chain([self._add(part) for part in parts])
            case Alternatives(parts):
                ends = [self._add(part) for part in parts]
                return set().union(*(e[0] for e in ends)), set().union(*(e[1] for e in ends)), any(e[2] for e in ends)
            case Repeat(part, low, high):
                return self._repeat(part, low, high)
        raise ValueError("rules have no automaton")

    def _place(self, ranges: Ranges) -> tuple[set[int], set[int], bool]:
        self.sets.append(ranges)
        self.after.append(set())
        place = {len(self.sets) - 1}
        return place, set(place), False

    def _chain(self, parts: list[tuple[set[int], set[int], bool]]) -> tuple[set[int], set[int], bool]:
        first, last, empty = set[int](), set[int](), True
        for begins, ends, may_be_empty in parts:
            self._link(last, begins)
            first |= begins if empty else set()
            last = last | ends if may_be_empty else ends
            empty = empty and may_be_empty
        return first, last, empty

    def _repeat(self, part: Expression, low: int, high: int | None) -> tuple[set[int], set[int], bool]:
        # Copies beyond the least number may end the repetition but are never jumped over: fewer links, same texts.
        copies = [self._add(part) for _ in range(max(1, low if high is None else high))]
        for (_, ends, _), (begins, _, _) in pairwise(copies):
            self._link(ends, begins)
        if high is None:
            self._link(copies[-1][1], copies[-1][0])
        least = 0 if copies[0][2] else low
        last = set[int]().union(*(ends for _, ends, _ in copies[max(least, 1) - 1 :]))
        return copies[0][0], last, least == 0

    def _link(self, ends: set[int], begins: set[int]) -> None:
        for place in ends:
            self.after[place] |= begins

    def bytes_at(self, places: set[int]) -> int:
        """The bytes that can begin a character at these places, as bits."""
        bits = 0
        for place in places:
            bits |= first_bytes(self.sets[place])
        return bits


def extensions(one: PositionAutomaton, other: PositionAutomaton, budget: int) -> tuple[int, int]:
    """The bytes with which `other` goes on after some text of `one`, as bits, and the steps this took.

    They are what a lexer that prefers the longest match would read on with. Gives all bytes when it would
    take more than `budget` steps.
    """
    pairs = [(p, q) for p in one.first for q in other.first if _overlap(one.sets[p], other.sets[q])]
    seen, bits, steps = set(pairs), 0, len(one.first) * len(other.first)
    while pairs:
        p, q = pairs.pop()
        if p in one.last:
            bits |= other.bytes_at(other.after[q])
        steps += len(one.after[p]) * len(other.after[q])
        if steps > budget:
            return (1 << 256) - 1, steps
        for pair in ((a, b) for a in one.after[p] for b in other.after[q] if _overlap(one.sets[a], other.sets[b])):
            if pair not in seen:
                seen.add(pair)
                pairs.append(pair)
    return bits, steps
