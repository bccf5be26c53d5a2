"""Position automata (Glushkov, 1961) of expressions: which characters may follow which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from tirage.guided.regular.charset import Ranges, common, first_bytes
from tirage.guided.regular.expression import Alternatives, Chars, Expression, LiteralText, Repeat, Sequence

_overlap = lru_cache(maxsize=65536)(lambda one, other: bool(common(one, other)))


@dataclass(slots=True)
class PositionAutomaton:
    """Glushkov's automaton, which has a state for each position of a character in an expression.

    `sets[p]` are the characters at position p, `after[p]` the positions that may follow it. A text begins at a position
    in `first` and may end at one in `last`; `empty` says whether the empty text matches.
    """

    sets: list[Ranges]
    after: list[set[int]]
    first: set[int]
    last: set[int]
    empty: bool = False

    @classmethod
    def of(cls, node: Expression) -> PositionAutomaton:
        """The automaton of an expression; ValueError if the expression refers to rules."""
        auto = cls([], [], set(), set())
        auto.first, auto.last, auto.empty = auto._add(node)
        return auto

    def _add(self, node: Expression) -> tuple[set[int], set[int], bool]:
        """Adds the positions of a node; returns where it may begin, where it may end, and whether it may be empty."""
        match node:
            case LiteralText(text):
                return self._chain([self._position(((ord(c), ord(c)),)) for c in text])
            case Chars(ranges):
                return self._position(ranges)
            case Sequence(parts):
                return self._chain([self._add(part) for part in parts])
            case Alternatives(parts):
                ends = [self._add(part) for part in parts]
                return set().union(*(e[0] for e in ends)), set().union(*(e[1] for e in ends)), any(e[2] for e in ends)
            case Repeat(part, low, high):
                return self._repeat(part, low, high)
        raise ValueError("rules have no automaton")

    def _position(self, ranges: Ranges) -> tuple[set[int], set[int], bool]:
        self.sets.append(ranges)
        self.after.append(set())
        position = {len(self.sets) - 1}
        return position, set(position), False

    def _chain(self, parts: list[tuple[set[int], set[int], bool]]) -> tuple[set[int], set[int], bool]:
        first, last, empty = set[int](), set[int](), True
        for begins, ends, may_be_empty in parts:
            self._link(last, begins)
            first |= begins if empty else set()
            last = last | ends if may_be_empty else ends
            empty = empty and may_be_empty
        return first, last, empty

    def _repeat(self, part: Expression, low: int, high: int | None) -> tuple[set[int], set[int], bool]:
        # Copies beyond the minimum may end the repetition but are never skipped: fewer links, the same texts.
        copies = [self._add(part) for _ in range(max(1, low if high is None else high))]
        for (_, ends, _), (begins, _, _) in pairwise(copies):
            self._link(ends, begins)
        if high is None:
            self._link(copies[-1][1], copies[-1][0])
        least = 0 if copies[0][2] else low
        last = set[int]().union(*(ends for _, ends, _ in copies[max(least, 1) - 1 :]))
        return copies[0][0], last, least == 0

    def _link(self, ends: set[int], begins: set[int]) -> None:
        for position in ends:
            self.after[position] |= begins

    def bytes_at(self, positions: set[int]) -> int:
        """The bytes that can begin a character at these positions, as the bits of a 256-bit integer."""
        bits = 0
        for position in positions:
            bits |= first_bytes(self.sets[position])
        return bits


def extensions(one: PositionAutomaton, other: PositionAutomaton, budget: int) -> tuple[int, int]:
    """The bytes with which `other` can continue after a text of `one`, as 256 bits, and the number of steps taken.

    With such a byte, a lexer that prefers the longest match would go on instead of ending the token. The result is all
    bytes when the search would take more than `budget` steps.
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
