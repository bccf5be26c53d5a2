"""Rules followed byte by byte: what may still come, as a state that equals another exactly when the same may come.

A place in a text is a set of stacks of expressions still to be matched. Sets of stacks are numbered as they turn up, so
that texts after which the same is left to match share a state: the states of a deterministic automaton, without
end where rules refer to themselves, of which only those that are met are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tirage.guided.charset import Ranges
from tirage.guided.expression import Alternatives, Chars, Expression, LiteralText, Repeat, RuleReference, Sequence

STATES, STACKS, OPENED, DEPTH = 20_000, 250_000, 40_000, 1_000
"""States and stacks that one machine may meet, stacks that it may expand to find those that begin with a byte, and
items of one stack, at which a rule that begins with itself fails."""
DEAD, UNKNOWN = -1, -2
_ENDLESS = 1 << 40
Bytes = tuple[tuple[int, int], ...]


class HardError(Exception):
    """Rules, or a search over them, that would take more work than allowed."""


@dataclass(frozen=True, slots=True)
class MachineItem:
    """An expression from a place in it on: byte `at` of a text, part `at` of a sequence, `at` to `high` repetitions."""

    node: int
    at: int = 0
    high: int | None = None


class Machine:
    """The states of a text under rules; state 0 is its start.

    Raises HardError, now or from any method, when the rules are ambiguous, nested or left-recursive beyond the limits.
    """

    def __init__(self, rules: Mapping[str, Expression], root: str) -> None:
        self._nodes, self._expanded = Nodes(rules), 0
        # A stack is its first item and the number of the stack behind it; stack 0 is empty.
        self._stacks: list[tuple[MachineItem, int]] = [(MachineItem(-1), 0)]
        self._numbers: dict[tuple[MachineItem, int], int] = {}
        self._least: list[int] = [0]
        self._depths: list[int] = [0]
        # A stack without its counts, and those counts: with more room in them, more may follow.
        self._shapes: list[int] = [0]
        self._shape_numbers: dict[tuple[int, int, int], int] = {}
        self._counts: list[tuple[float, ...]] = [()]
        self._opened: dict[int, tuple[frozenset[int], bool]] = {}
        self._states: list[tuple[tuple[int, ...], bool]] = []
        self._state_numbers: dict[tuple[tuple[int, ...], bool], int] = {}
        self._bounds: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._split: dict[int, list[tuple[int, int, list[int]]]] = {}
        self.table = np.full((64, 256), UNKNOWN, np.int32)
        self.start_of(root)

    def step(self, state: int, byte: int) -> int:
        """The state after a byte, DEAD when it may not come."""
        following = int(self.table[state, byte])
        if following == UNKNOWN:
            low, high, stacks = next(one for one in self._spans(state) if one[0] <= byte <= one[1])
            following = self._state_of(stacks) if stacks else DEAD
            self.table[state, low : high + 1] = following
        return following

    def _spans(self, state: int) -> list[tuple[int, int, list[int]]]:
        """All bytes as spans after which the same stacks are left."""
        if state not in self._split:
            branches = [branch for stack in self._states[state][0] for branch in self._branches(stack)]
            starts = sorted({0, *(low for low, _, _ in branches), *(high + 1 for _, high, _ in branches)} - {256})
            self._split[state] = [
                (start, end - 1, [after for low, high, after in branches if low <= start <= high])
                for start, end in itertools.pairwise([*starts, 256])
            ]
        return self._split[state]

    def complete(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._states[state][1]

    @property
    def worn(self) -> bool:
        """Whether it has met so much that a new one should take over."""
        met = len(self._states) / STATES, len(self._stacks) / STACKS, self._expanded / OPENED
        return max(met) > 0.5

    def width(self, state: int) -> int:
        """The number of its stacks."""
        return len(self._states[state][0])

    def least_bytes(self, state: int) -> int:
        """The number of bytes in the shortest completion."""
        if state not in self._bounds:
            least = min((self._least[stack] for stack in self._states[state][0]), default=_ENDLESS)
            self._bounds[state] = 0 if self.complete(state) else least
        return self._bounds[state]

    def least_ends(self, state: int) -> int:
        """At most the number of tokens that end inside every completion, before its last byte; see `learn`."""
        if self.complete(state):
            return 0
        return min((self._ends_of(stack) for stack in self._states[state][0]), default=0)

    def learn(self, rule: str, ends: int) -> None:
        """Notes that inside every text of a rule, wherever tokens begin around it, so many of them end at least."""
        self._nodes.learn(rule, ends)
        self._ends.clear()

    def start_of(self, rule: str) -> int:
        """The state in which the text of one rule is still to come, and nothing after it."""
        return self._state_of([self._push(MachineItem(self._nodes.rule(rule)), 0)])

    def loops(self, state: int) -> NDArray[np.uint64]:
        """The bytes, as 256 bits, that change nothing here."""
        for low, _, _ in self._spans(state):
            self.step(state, low)
        return np.packbits(self.table[state] == state, bitorder="little").view(np.uint64)

    def _ends_of(self, stack: int) -> int:
        chain: list[int] = []
        while stack and stack not in self._ends:
            chain.append(stack)
            stack = self._stacks[stack][1]
        for one in reversed(chain):
            item, rest = self._stacks[one]
            self._ends[one] = self._nodes.ends(item) + self._ends.get(rest, 0)
        return self._ends[chain[0]] if chain else self._ends.get(stack, 0)

    def shape(self, state: int) -> tuple[tuple[tuple[int, ...], bool], tuple[float, ...]]:
        """The state without its counts, and the counts.

        Of two states with the same first part, the one of which no count is smaller lets everything follow that the
        other does.
        """
        stacks, complete = self._states[state]
        ordered = sorted((self._shapes[stack], self._counts[stack]) for stack in stacks)
        return (tuple(shape for shape, _ in ordered), complete), tuple(n for _, counts in ordered for n in counts)

    def _state_of(self, stacks: Iterable[int]) -> int:
        found: set[int] = set()
        complete = False
        for stack in set(stacks):
            opened, ends = self._open(stack)
            found |= opened
            complete = complete or ends
        key = tuple(sorted(stack for stack in found if self._least[stack] < _ENDLESS)), complete
        if not key[0] and not complete:
            return DEAD
        if key not in self._state_numbers:
            self._add_state(key)
        return self._state_numbers[key]

    def _add_state(self, key: tuple[tuple[int, ...], bool]) -> None:
        if len(self._states) == STATES:
            raise HardError
        if len(self._states) == len(self.table):
            self.table = np.vstack([self.table, np.full_like(self.table, UNKNOWN)])
        self._state_numbers[key] = len(self._states)
        self._states.append(key)

    def _push(self, item: MachineItem, rest: int) -> int:
        number = self._numbers.get((item, rest))
        if number is not None:
            return number
        if len(self._stacks) == STACKS or self._depths[rest] == DEPTH:
            raise HardError
        number = self._numbers[item, rest] = len(self._stacks)
        self._stacks.append((item, rest))
        self._depths.append(self._depths[rest] + 1)
        self._least.append(self._nodes.least(item) + self._least[rest])
        self._shape(item, rest)
        return number

    def _shape(self, item: MachineItem, rest: int) -> None:
        counted = isinstance(self._nodes.kinds[item.node], Repeat)
        key = item.node, -1 if counted else item.at, self._shapes[rest]
        self._shapes.append(self._shape_numbers.setdefault(key, len(self._shape_numbers) + 1))
        counts = (-item.at, np.inf if item.high is None else item.high) if counted else ()
        self._counts.append((*counts, *self._counts[rest]))

    def _open(self, stack: int) -> tuple[frozenset[int], bool]:
        """The stacks that this one stands for and that begin with a byte, and whether it may be empty."""
        if stack in self._opened:
            return self._opened[stack]
        seen, todo, found, empty = {stack}, [stack], set[int](), False
        while todo:
            self._expanded += 1
            if self._expanded > OPENED:
                raise HardError
            top = todo.pop()
            item, rest = self._stacks[top]
            if not top:
                empty = True
            elif self._nodes.is_byte(item):
                found.add(top)
            else:
                following = [self._piled(items, rest) for items in self._nodes.expand(item)]
                todo.extend(one for one in following if one not in seen)
                seen.update(following)
        self._opened[stack] = frozenset(found), empty
        return self._opened[stack]

    def _branches(self, stack: int) -> list[tuple[int, int, int]]:
        """The bytes that may come, as spans, each with the stack that it leaves."""
        item, rest = self._stacks[stack]
        return [(low, high, self._piled(items, rest)) for low, high, items in self._nodes.branches(item)]

    def _piled(self, items: tuple[MachineItem, ...], rest: int) -> int:
        for item in reversed(items):
            rest = self._push(item, rest)
        return rest


class Nodes:
    """Expressions with their parts replaced by numbers; equal ones share theirs."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self.kinds: list[Expression | bytes | Bytes] = []
        self._parts: list[tuple[int, ...]] = []
        self._numbers: dict[object, int] = {}
        self._by_id: dict[int, int] = {}
        self._chars: dict[int, tuple[Bytes, ...]] = {}
        self._roots: dict[str, int] = {}
        for name in rules:
            self._roots[name] = self._add(("rule", name), RuleReference(name), ())
        bodies = {name: self._node(body) for name, body in rules.items()}
        for name, body in bodies.items():
            self._parts[self._roots[name]] = (body,)
        self._size_tails: dict[int, list[int]] = {}
        self._end_tails: dict[int, list[int]] = {}
        self._sizes = self._all_sizes()
        self._learned: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def rule(self, name: str) -> int:
        """The number of a rule."""
        return self._roots[name]

    def _add(self, key: object, kind: Expression | bytes | Bytes, parts: tuple[int, ...]) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.kinds)
            self.kinds.append(kind)
            self._parts.append(parts)
        return self._numbers[key]

    def _node(self, node: Expression) -> int:
        match node:
            case RuleReference(name):
                return self._roots[name]
            case LiteralText(text):
                return self._add(("text", text), text.encode(), ())
            case Chars(ranges):
                number = self._add(("chars", ranges), node, ())
                self._chars[number] = spellings(ranges)
                return number
            case Repeat(part, low, high):
                inner = self._node(part)
                return self._add(("repeat", inner, low, high), node, (inner,))
            case Sequence(parts) | Alternatives(parts):
                inside = tuple(self._node(part) for part in parts)
                return self._add((type(node), inside), node, inside)

    def is_byte(self, item: MachineItem) -> bool:
        """Whether the item begins with a byte, so that there is nothing to expand."""
        return isinstance(self.kinds[item.node], (bytes, Chars, tuple))

    def expand(self, item: MachineItem) -> list[tuple[MachineItem, ...]]:
        """What an item that does not begin with a byte stands for: each a row of items."""
        kind, parts = self.kinds[item.node], self._parts[item.node]
        match kind:
            case Sequence():
                rest = (MachineItem(item.node, item.at + 1),) if item.at + 1 < len(parts) else ()
                return [(self._item(parts[item.at]), *rest)] if parts else [()]
            case Repeat():
                return self._repeated(item, parts[0])
        return [(self._item(part),) for part in parts]

    def _item(self, node: int) -> MachineItem:
        kind = self.kinds[node]
        return MachineItem(node, kind.low, kind.high) if isinstance(kind, Repeat) else MachineItem(node)

    def _repeated(self, item: MachineItem, part: int) -> list[tuple[MachineItem, ...]]:
        low, high = item.at, item.high
        # What may be empty is never needed a number of times.
        low = 0 if low and not self._sizes[part] else low
        following: list[tuple[MachineItem, ...]] = [] if low else [()]
        if high is None or high > 0:
            again = MachineItem(item.node, max(0, low - 1), None if high is None else high - 1)
            following.append((self._item(part), *(() if again.high == 0 else (again,))))
        return following

    def branches(self, item: MachineItem) -> list[tuple[int, int, tuple[MachineItem, ...]]]:
        """The first bytes of an item, as spans, each with what is left of it."""
        kind = self.kinds[item.node]
        if isinstance(kind, bytes):
            byte = kind[item.at]
            return [(byte, byte, () if item.at + 1 == len(kind) else (MachineItem(item.node, item.at + 1),))]
        rows: tuple[Bytes, ...] = self._chars[item.node] if isinstance(kind, Chars) else (kind,)  # type: ignore[assignment]
        return [
            (*row[0], (MachineItem(self._add(("bytes", row[1:]), row[1:], ())),) if len(row) > 1 else ())
            for row in rows
        ]

    def least(self, item: MachineItem) -> int:
        """The fewest bytes that an item matches."""
        kind = self.kinds[item.node]
        if isinstance(kind, tuple):
            return len(kind)
        if isinstance(kind, bytes):
            return len(kind) - item.at
        if isinstance(kind, Repeat):
            return item.at * self._sizes[self._parts[item.node][0]]
        if isinstance(kind, Sequence):
            return self._tail(item, self._size_tails, self._sizes.__getitem__)
        return self._sizes[item.node]

    def learn(self, rule: str, ends: int) -> None:
        """See Machine."""
        self._learned[self._roots[rule]] = ends
        self._ends.clear()
        self._end_tails.clear()

    def ends(self, item: MachineItem) -> int:
        """At most the number of tokens that end inside every text of an item."""
        kind, parts = self.kinds[item.node], self._parts[item.node]
        if isinstance(kind, Repeat):
            return item.at * self._ends_of(parts[0])
        if isinstance(kind, Sequence):
            return self._tail(item, self._end_tails, self._ends_of)
        return self._ends_of(item.node)

    def _ends_of(self, node: int) -> int:
        kind = self.kinds[node]
        if isinstance(kind, RuleReference):
            return self._learned.get(node, 0)
        if node not in self._ends:
            parts = self._parts[node]
            alike = min((self._ends_of(part) for part in parts), default=0) if isinstance(kind, Alternatives) else 0
            self._ends[node] = alike if isinstance(kind, Alternatives) else self.ends(self._item(node)) if parts else 0
        return self._ends[node]

    def _tail(self, item: MachineItem, known: dict[int, list[int]], size: Callable[[int], int]) -> int:
        """The sum of the parts of a sequence from a place in it on."""
        if item.node not in known:
            sizes = [size(part) for part in reversed(self._parts[item.node])]
            known[item.node] = [*itertools.accumulate(sizes, initial=0)][::-1]
        return known[item.node][item.at]

    def _all_sizes(self) -> list[int]:
        """The fewest bytes that each node matches, by making them smaller until nothing changes."""
        sizes, changed = [_ENDLESS] * len(self.kinds), True
        order = range(len(self.kinds))
        while changed:
            changed, order = False, order[::-1]
            for node in order:
                size = self._size(node, sizes)
                if size < sizes[node]:
                    sizes[node], changed = size, True
        return sizes

    def _size(self, node: int, sizes: list[int]) -> int:
        kind, parts = self.kinds[node], [sizes[part] for part in self._parts[node]]
        match kind:
            case bytes():
                return len(kind)
            case Chars():
                return min(map(len, self._chars[node]), default=_ENDLESS)
            case Repeat():
                return min(_ENDLESS, kind.low * parts[0]) if kind.low else 0
            case Sequence():
                return min(_ENDLESS, sum(parts))
        return min(parts, default=_ENDLESS)


@lru_cache(maxsize=4096)
def spellings(ranges: Ranges) -> tuple[Bytes, ...]:
    """The characters of a set in UTF-8: rows of ranges of bytes, of which every combination is a character."""
    rows: list[Bytes] = []
    for low, high in ranges:
        for start, end in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)):
            if max(low, start) <= min(high, end):
                rows += rectangles(max(low, start), min(high, end))
    return tuple(rows)


def rectangles(low: int, high: int) -> list[Bytes]:
    """Characters of equally many bytes as rows of ranges of bytes."""
    for bits in (6, 12, 18):
        rest = (1 << bits) - 1
        if high < 0x80 or low >> bits == high >> bits:
            continue
        if low & rest:
            return rectangles(low, low | rest) + rectangles((low | rest) + 1, high)
        if high & rest != rest:
            return rectangles(low, (high & ~rest) - 1) + rectangles(high & ~rest, high)
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))]
