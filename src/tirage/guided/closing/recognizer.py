"""A byte-level recogniser for grammar rules: a pushdown automaton made deterministic while it runs.

The configuration of a text is a set of stacks of expressions that are still to be matched. Each set gets a number, its
state, when it first occurs, so texts after which the same is left to match share a state. A recursive grammar has
infinitely many states; only those that are visited exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from tirage.guided.closing.boolean_automaton import DEAD, NEVER
from tirage.guided.closing.budgets import RemainingWork, WorkLimitError
from tirage.guided.closing.expression_graph import ExpressionGraph, RecognizerItem
from tirage.guided.regular.expression import Expression
from tirage.workers.cancel import checkpoint

MAX_STATES, MAX_STACKS, MAX_EXPANSIONS, MAX_DEPTH = 20_000, 250_000, 40_000, 1_000
"""Limits of one recognizer: states, stacks, stacks expanded in search of a first byte, and items of one stack.

The last is what a left-recursive rule runs into."""
UNKNOWN = -2


class Recognizer:
    """Follows texts under grammar rules; state 0 is the start of a text.

    `table` int32 [states, 256] is the state after each byte: DEAD when the byte may not come, UNKNOWN while nobody has
    asked. Raises WorkLimitError, from the constructor or any method, when the rules are ambiguous, nested or
    left-recursive beyond the limits.
    """

    def __init__(self, rules: Mapping[str, Expression], root: str) -> None:
        self._graph, self._expanded = ExpressionGraph(rules, lambda part: Recognizer({"": part}, "")), 0
        # A stack is its top item and the number of the stack below it; stack 0 is empty.
        self._stacks: list[tuple[RecognizerItem, int]] = [((-1, 0, None), 0)]
        self._numbers: dict[tuple[RecognizerItem, int], int] = {}
        self._min_bytes: list[int] = [0]
        self._depths: list[int] = [0]
        # A stack is split into its shape and its repetition counts: with the same shape, wider counts let more follow.
        self._shapes: list[int] = [0]
        self._shape_numbers: dict[object, int] = {}
        self._counts: list[tuple[float, ...]] = [()]
        # An automaton that a stack has on top may follow many stacks itself.
        self._stack_widths: list[int] = [0]
        self._widths: list[int] = []
        self._expansions: dict[int, tuple[tuple[int, ...], bool]] = {}
        self._states: list[tuple[tuple[int, ...], bool]] = []
        self._state_numbers: dict[tuple[tuple[int, ...], bool], int] = {}
        self._state_bytes: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._span_table: dict[int, tuple[tuple[int, int, tuple[int, ...]], ...]] = {}
        self.table = np.full((4, 256), UNKNOWN, np.int32)
        self.start_of(self._graph.rule(root))

    def step(self, state: int, byte: int) -> int:
        """The state after a byte; DEAD when the byte may not come."""
        following = int(self.table[state, byte])
        if following == UNKNOWN:
            low, high, stacks = next(one for one in self._spans(state) if one[0] <= byte <= one[1])
            following = self._state_of(stacks) if stacks else DEAD
            self.table[state, low : high + 1] = following
        return following

    def starts(self, state: int) -> list[int]:
        """The first bytes of ranges that cover all bytes, each leading to one state."""
        return [low for low, _, _ in self._spans(state)]

    def _spans(self, state: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """All 256 bytes as ranges, each with the stacks that any of its bytes leaves."""
        if state not in self._span_table:
            branches = [branch for stack in self._states[state][0] for branch in self._branches(stack)]
            starts = sorted({0, *(low for low, _, _ in branches), *(high + 1 for _, high, _ in branches)} - {256})
            self._span_table[state] = tuple([
                (start, end - 1, tuple([after for low, high, after in branches if low <= start <= high]))
                for start, end in itertools.pairwise([*starts, 256])
            ])
        return self._span_table[state]

    def complete(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._states[state][1]

    @property
    def is_full(self) -> bool:
        """Whether it is over half of a limit, so that a new one should take over."""
        met = len(self._states) / MAX_STATES, len(self._stacks) / MAX_STACKS, self._expanded / MAX_EXPANSIONS
        return max(met) > 0.5

    def width(self, state: int) -> int:
        """The number of stacks of a state, with those of the automata that they follow."""
        return self._widths[state]

    def min_bytes(self, state: int) -> int:
        """The length in bytes of the shortest completion."""
        if state not in self._state_bytes:
            least = min((self._min_bytes[stack] for stack in self._states[state][0]), default=NEVER)
            self._state_bytes[state] = 0 if self.complete(state) else least
        return self._state_bytes[state]

    def shortest_text(self, state: int, most: int, stacks: RemainingWork) -> bytes | None:
        """A shortest completion; None if it has more than `most` bytes, and where intersections led to no end.

        Raises WorkLimitError where its states have more `stacks` than are left: a text may have one for each of its
        bytes, of which the next byte then makes as many anew.
        """
        text, seen = bytearray(), {state}
        while not self.complete(state):
            checkpoint()
            stacks.left -= self.width(state)
            if stacks.left < 0:
                raise WorkLimitError
            if len(text) + self.min_bytes(state) > most:
                return None
            choices = [
                (min(map(self._min_bytes.__getitem__, stacks)), low) for low, _, stacks in self._spans(state) if stacks
            ]
            if not choices:
                return None
            text.append(min(choices)[1])
            state = self.step(state, text[-1])
            if state in seen:
                return None
            seen.add(state)
        return bytes(text)

    def min_token_ends(self, state: int) -> int:
        """A lower bound on the tokens that end before the last byte of any completion, where a token begins now."""
        if self.complete(state):
            return 0
        return min(map(self._ends_after_token, self._states[state][0]), default=0)

    def _ends_after_token(self, stack: int) -> int:
        item, rest = self._stacks[stack]
        return self._graph.ends_after_token(item) + self._ends_of(rest)

    @property
    def terminals(self) -> dict[int, bytes | Expression]:
        """The nodes of the terminals and literal texts in the rules, with their expressions and bytes."""
        return self._graph.terminals

    def rule(self, name: str) -> int:
        """The node of a rule."""
        return self._graph.rule(name)

    def set_min_token_ends(self, node: int, ends: int) -> None:
        """Records that at least `ends` tokens end inside every text of a node, wherever tokens begin around it."""
        self._graph.set_min_token_ends(node, ends)
        self._ends.clear()

    def set_longest(self, node: int, size: int) -> None:
        """Records that no token has more than `size` bytes in a row of which texts of a terminal consist."""
        self._graph.set_longest(node, size)

    def set_tail_ends(self, node: int, ends: tuple[int, ...]) -> None:
        """Records that at least `ends[i]` tokens end inside a literal text from byte i on if a token begins there."""
        self._graph.set_tail_ends(node, ends)

    def start_of(self, node: int) -> int:
        """The state in which one text of a node is still to come, and nothing after it."""
        return self._state_of([self._push((node, 0, None), 0)])

    def loops(self, state: int) -> NDArray[np.uint64]:
        """The bytes that leave the state as it is, as 256 bits, uint64 [4]."""
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
            self._ends[one] = self._graph.ends(item) + self._ends.get(rest, 0)
        return self._ends[chain[0]] if chain else self._ends.get(stack, 0)

    def shape(self, state: int) -> tuple[tuple[tuple[int, ...], bool], tuple[float, ...]]:
        """The shape of a state, and its repetition counts.

        Of two states of the same shape, one whose counts are all at least as large as the other's allows every text
        that the other allows.
        """
        stacks, complete = self._states[state]
        ordered = sorted((self._shapes[stack], self._counts[stack]) for stack in stacks)
        return (tuple(shape for shape, _ in ordered), complete), tuple(n for _, counts in ordered for n in counts)

    def _state_of(self, stacks: Iterable[int]) -> int:
        found: set[int] = set()
        complete = False
        for stack in set(stacks):
            expanded, ends = self._expand(stack)
            found.update(expanded)
            complete = complete or ends
        key = tuple(sorted(stack for stack in found if self._min_bytes[stack] < NEVER)), complete
        if not key[0] and not complete:
            return DEAD
        if key not in self._state_numbers:
            self._add_state(key)
        return self._state_numbers[key]

    def _add_state(self, key: tuple[tuple[int, ...], bool]) -> None:
        if len(self._states) == MAX_STATES:
            raise WorkLimitError
        if len(self._states) == len(self.table):
            self.table = np.vstack([self.table, np.full_like(self.table, UNKNOWN)])
        self._state_numbers[key] = len(self._states)
        self._states.append(key)
        self._widths.append(sum(map(self._stack_widths.__getitem__, key[0])))

    def _push(self, item: RecognizerItem, rest: int) -> int:
        stack = item, rest
        number = self._numbers.get(stack)
        if number is not None:
            return number
        if len(self._stacks) == MAX_STACKS or self._depths[rest] == MAX_DEPTH:
            raise WorkLimitError
        number = self._numbers[stack] = len(self._stacks)
        self._stacks.append(stack)
        self._depths.append(self._depths[rest] + 1)
        self._min_bytes.append(self._graph.least(item) + self._min_bytes[rest])
        self._stack_widths.append(self._graph.width(item))
        self._shape(item, rest)
        return number

    def _shape(self, item: RecognizerItem, rest: int) -> None:
        kind, counts = self._graph.shape(item)
        key = kind, self._shapes[rest]
        self._shapes.append(self._shape_numbers.setdefault(key, len(self._shape_numbers) + 1))
        self._counts.append((*counts, *self._counts[rest]))

    def _expand(self, stack: int) -> tuple[tuple[int, ...], bool]:
        """The stacks with a byte on top that a stack expands to, and whether it also expands to the empty stack."""
        if stack in self._expansions:
            return self._expansions[stack]
        seen, todo, found, empty = {stack}, [stack], set[int](), False
        while todo:
            self._expanded += 1
            if self._expanded > MAX_EXPANSIONS:
                raise WorkLimitError
            top = todo.pop()
            item, rest = self._stacks[top]
            if not top:
                empty = True
            elif self._graph.is_byte(item):
                found.add(top)
            else:
                following = [self._push_all(items, rest) for items in self._graph.expand(item)]
                todo.extend(one for one in following if one not in seen)
                seen.update(following)
        self._expansions[stack] = tuple(found), empty
        return self._expansions[stack]

    def _branches(self, stack: int) -> list[tuple[int, int, int]]:
        """The bytes that may come, as ranges, each with the stack that it leaves."""
        item, rest = self._stacks[stack]
        return [(low, high, self._push_all(items, rest)) for low, high, items in self._graph.branches(item)]

    def _push_all(self, items: tuple[RecognizerItem, ...], rest: int) -> int:
        for item in reversed(items):
            rest = self._push(item, rest)
        return rest
