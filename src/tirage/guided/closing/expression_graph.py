"""Grammar rules as a graph of numbered nodes, as the recogniser needs them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from functools import lru_cache

from tirage.guided.closing.boolean_automaton import NEVER, BooleanAutomaton, ByteAutomaton
from tirage.guided.regular.charset import Ranges
from tirage.guided.regular.expression import (
    ANY_TEXT,
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
)
from tirage.workers.cancel import checkpoint

ByteRanges = tuple[tuple[int, int], ...]


RecognizerItem = tuple[int, int, int | None]
"""What is left of the expression of a node, as (node, at, high): from byte `at` of a text on, from part `at` of a
sequence on, or `at` to `high` more repetitions.

There are hundreds of thousands, and the interpreter stops every thread while it looks for garbage. It passes over exact
tuples of numbers, and over tuples of those, which is why neither these nor what holds them are classes or lists.
"""


class ExpressionGraph:
    """The expressions of the rules as numbered nodes; equal expressions share a node.

    `automaton` makes one of an expression without rules; `automata` are those of terminals and intersections.
    """

    def __init__(self, rules: Mapping[str, Expression], automaton: Callable[[Expression], ByteAutomaton]) -> None:
        self._automaton = automaton
        self.automata: dict[int, BooleanAutomaton] = {}
        self.kinds: list[Expression | bytes | ByteRanges] = []
        self._parts: list[tuple[int, ...]] = []
        self._numbers: dict[object, int] = {}
        self._chars: dict[int, tuple[ByteRanges, ...]] = {}
        self._roots: dict[str, int] = {}
        for name in rules:
            self._roots[name] = self._add(("rule", name), RuleReference(name), ())
        bodies = {name: self._node(body) for name, body in rules.items()}
        for name, body in bodies.items():
            self._parts[self._roots[name]] = (body,)
        self._size_tails: dict[int, tuple[int, ...]] = {}
        self._end_tails: dict[int, tuple[int, ...]] = {}
        self._sizes = self._all_sizes()
        self._rule_ends: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._tail_ends: dict[int, tuple[int, ...]] = {}
        self._longest: dict[int, int] = {}

    def rule(self, name: str) -> int:
        """The node of a rule."""
        return self._roots[name]

    def _add(self, key: object, kind: Expression | bytes | ByteRanges, parts: tuple[int, ...]) -> int:
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
                return self._add((type(node).__name__, inside), node, inside)
            case Terminal(part):
                return self._node(part) if isinstance(part, LiteralText | Terminal) else self._automatic(part)
            case Intersection() | Complement():
                return self._automatic(node)

    def _automatic(self, node: Expression) -> int:
        """The node of an expression that is followed by an automaton of its own."""
        number = self._add(("automaton", node), Terminal(node), ())
        if number not in self.automata:
            parts = node.parts if isinstance(node, Intersection) else (node,)
            kept = [self._automaton(part) for part in parts if not isinstance(part, Complement)]
            left_out = [self._automaton(part.part) for part in parts if isinstance(part, Complement)]
            self.automata[number] = BooleanAutomaton(kept or [self._automaton(ANY_TEXT)], left_out)
        return number

    def is_byte(self, item: RecognizerItem) -> bool:
        """Whether an item begins with a byte, so that there is nothing to expand."""
        node, _, high = item
        return (node in self.automata and high is not None) or isinstance(self.kinds[node], (bytes, Chars, tuple))

    def expand(self, item: RecognizerItem) -> list[tuple[RecognizerItem, ...]]:
        """The alternatives that an item without a first byte stands for, each a sequence of items."""
        node, at, _ = item
        kind, parts = self.kinds[node], self._parts[node]
        match kind:
            case Sequence():
                rest = ((node, at + 1, None),) if at + 1 < len(parts) else ()
                return [(self._item(parts[at]), *rest)] if parts else [()]
            case Repeat():
                return self._repeated(item, parts[0])
            case Terminal():
                # `high` marks an item that is to go on by a byte, although it could end here.
                ends = self.automata[node].complete(at)
                return [*([()] if ends else []), ((node, at, 1),)]
        return [(self._item(part),) for part in parts]

    def _item(self, node: int) -> RecognizerItem:
        kind = self.kinds[node]
        return (node, kind.low, kind.high) if isinstance(kind, Repeat) else (node, 0, None)

    def _repeated(self, item: RecognizerItem, part: int) -> list[tuple[RecognizerItem, ...]]:
        node, low, high = item
        # A part that may be empty satisfies any minimum.
        low = 0 if low and not self._sizes[part] else low
        following: list[tuple[RecognizerItem, ...]] = [] if low else [()]
        if high is None or high > 0:
            again = node, max(0, low - 1), None if high is None else high - 1
            following.append((self._item(part), *(() if high == 1 else (again,))))
        return following

    def branches(self, item: RecognizerItem) -> list[tuple[int, int, tuple[RecognizerItem, ...]]]:
        """The first bytes of an item, as ranges, each with the items that are left after them."""
        node, at, _ = item
        kind = self.kinds[node]
        if node in self.automata:
            return [(low, high, ((node, after, None),)) for low, high, after in self.automata[node].spans(at)]
        if isinstance(kind, bytes):
            return [(kind[at], kind[at], () if at + 1 == len(kind) else ((node, at + 1, None),))]
        rows: tuple[ByteRanges, ...] = self._chars[node] if isinstance(kind, Chars) else (kind,)  # type: ignore[assignment]
        return [
            (*row[0], ((self._add(("bytes", row[1:]), row[1:], ()), 0, None),) if len(row) > 1 else ()) for row in rows
        ]

    def shape(self, item: RecognizerItem) -> tuple[object, tuple[float, ...]]:
        """The shape of an item and its counts: with the same shape, counts at least as large let as much follow."""
        node, at, high = item
        if isinstance(self.kinds[node], Repeat):
            return node, (-at, math.inf if high is None else high)
        if node in self.automata:
            shape, counts = self.automata[node].shape(at)
            return (node, high, shape), counts
        return (node, at), ()

    def least(self, item: RecognizerItem) -> int:
        """The length in bytes of the shortest text that an item matches."""
        node, at, _ = item
        kind = self.kinds[node]
        if node in self.automata:
            return self.automata[node].min_bytes(at)
        if isinstance(kind, tuple):
            return len(kind)
        if isinstance(kind, bytes):
            return len(kind) - at
        if isinstance(kind, Repeat):
            return at * self._sizes[self._parts[node][0]]
        if isinstance(kind, Sequence):
            return self._tail(node, at, self._size_tails, self._sizes.__getitem__)
        return self._sizes[node]

    def width(self, item: RecognizerItem) -> int:
        """The number of stacks of the automaton that follows an item; 1 without one."""
        node, at, _ = item
        return self.automata[node].width(at) if node in self.automata else 1

    @property
    def terminals(self) -> dict[int, bytes | Expression]:
        """The nodes of terminals and literal texts, with the expression of a terminal or the bytes of a text."""
        terminals = {node: kind.part for node, kind in enumerate(self.kinds) if isinstance(kind, Terminal)}
        return {node: kind for node, kind in enumerate(self.kinds) if isinstance(kind, bytes)} | terminals

    def set_min_token_ends(self, node: int, ends: int) -> None:
        """See `Recognizer.set_min_token_ends`."""
        self._rule_ends[node] = ends
        self._ends.clear()
        self._end_tails.clear()

    def set_longest(self, node: int, size: int) -> None:
        """See `Recognizer.set_longest`."""
        self._longest[node] = size

    def set_tail_ends(self, node: int, ends: tuple[int, ...]) -> None:
        """See `Recognizer.set_tail_ends`."""
        self._tail_ends[node] = ends

    def ends_after_token(self, item: RecognizerItem) -> int:
        """A lower bound on the tokens that end inside any text of an item that begins where a token does."""
        node, at, _ = item
        return self._tail_ends[node][at] if node in self._tail_ends else self.ends(item)

    def ends(self, item: RecognizerItem) -> int:
        """A lower bound on the tokens that end inside any text of an item."""
        node, at, _ = item
        kind, parts = self.kinds[node], self._parts[node]
        if isinstance(kind, bytes) and at:
            return 0
        if node in self.automata and at:
            return self._ends_by_length(item)
        if isinstance(kind, Repeat):
            return at * self._ends_of(parts[0])
        if isinstance(kind, Sequence):
            return self._tail(node, at, self._end_tails, self._ends_of)
        return self._ends_of(node)

    def _ends_by_length(self, item: RecognizerItem) -> int:
        """As many tokens as the bytes of the shortest text need, and one less, which may end after it."""
        return max(0, -(-self.least(item) // self._longest.get(item[0], NEVER)) - 1)

    def _ends_of(self, node: int) -> int:
        kind = self.kinds[node]
        if isinstance(kind, RuleReference) or node in self._rule_ends:
            return self._rule_ends.get(node, 0)
        if node not in self._ends:
            parts = self._parts[node]
            alike = isinstance(kind, Alternatives)
            least = min((self._ends_of(part) for part in parts), default=0) if alike else 0
            self._ends[node] = self.ends(self._item(node)) if parts and not alike else least
        return self._ends[node]

    def _tail(self, node: int, at: int, known: dict[int, tuple[int, ...]], size: Callable[[int], int]) -> int:
        """The sum over the parts of a sequence from one of them on."""
        if node not in known:
            sizes = [size(part) for part in reversed(self._parts[node])]
            known[node] = tuple(itertools.accumulate(sizes, initial=0))[::-1]
        return known[node][at]

    def _all_sizes(self) -> list[int]:
        """The length of the shortest text that each node matches; NEVER for one that matches none.

        The least length that is not settled is right, as no node is shorter than a part that it needs (Knuth 1977).
        """
        sizes = [NEVER] * len(self.kinds)
        users: list[list[int]] = [[] for _ in self.kinds]
        for node, parts in enumerate(self._parts):
            for part in {*parts}:
                users[part].append(node)
        missing = [
            len({*parts}) if isinstance(kind, Sequence) else 0
            for kind, parts in zip(self.kinds, self._parts, strict=True)
        ]
        found = [(size, node) for node in range(len(sizes)) if (size := self._size(node, sizes)) < NEVER]
        heapq.heapify(found)
        while found:
            checkpoint()
            size, node = heapq.heappop(found)
            if sizes[node] < NEVER:
                continue
            sizes[node] = size
            for user in users[node]:
                missing[user] -= 1
                if missing[user] <= 0 and sizes[user] == NEVER:
                    heapq.heappush(found, (self._size(user, sizes), user))
        return sizes

    def _size(self, node: int, sizes: list[int]) -> int:
        kind, parts = self.kinds[node], [sizes[part] for part in self._parts[node]]
        match kind:
            case bytes():
                return len(kind)
            case Chars():
                return min(map(len, self._chars[node]), default=NEVER)
            case Repeat():
                return min(NEVER, kind.low * parts[0]) if kind.low else 0
            case Sequence():
                return min(NEVER, sum(parts))
            case Terminal():
                return self.automata[node].min_bytes(0)
        return min(parts, default=NEVER)


@lru_cache(maxsize=4096)
def spellings(ranges: Ranges) -> tuple[ByteRanges, ...]:
    """The UTF-8 encodings of a set of characters, as sequences of byte ranges; each combination is a character."""
    rows: list[ByteRanges] = []
    for low, high in ranges:
        for start, end in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)):
            if max(low, start) <= min(high, end):
                rows += rectangles(max(low, start), min(high, end))
    return tuple(rows)


def alphabet(node: Expression) -> frozenset[int]:
    """The bytes that texts of an expression without rules consist of, and perhaps more."""
    match node:
        case LiteralText(text):
            return frozenset(text.encode())
        case Chars(ranges):
            rows = (one for row in spellings(ranges) for one in row)
            return frozenset(byte for low, high in rows for byte in range(low, high + 1))
        case Sequence(parts) | Alternatives(parts):
            return frozenset().union(*map(alphabet, parts))
        case Intersection(parts):
            return frozenset(range(256)).intersection(*map(alphabet, parts))
        case Repeat(part) | Terminal(part):
            return alphabet(part)
    return frozenset(range(256))


def rectangles(low: int, high: int) -> list[ByteRanges]:
    """The encodings of a range of characters that have equally many bytes, as sequences of byte ranges."""
    for bits in (6, 12, 18):
        rest = (1 << bits) - 1
        if high < 0x80 or low >> bits == high >> bits:
            continue
        if low & rest:
            return rectangles(low, low | rest) + rectangles((low | rest) + 1, high)
        if high & rest != rest:
            return rectangles(low, (high & ~rest) - 1) + rectangles(high & ~rest, high)
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))]
