"""The search for the completion of the fewest tokens: a shortest path over the states of a recognizer."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge

import numpy as np
from numpy.typing import NDArray

from tirage.guided.closing.boolean_automaton import DEAD
from tirage.guided.closing.budgets import WorkLimitError
from tirage.guided.closing.recognizer import UNKNOWN, Recognizer
from tirage.guided.trie import Trie
from tirage.workers.cancel import checkpoint

# The work of a level of the trie, of a state that is visited, and of each of its stacks; see `shortest_completion`.
_LEVEL_WORK, _STATE_WORK, _STACK_WORK = 300, 300, 100
# From this many nodes on, it pays to drop those that lead nowhere new.
_WORTH_PRUNING = 500
_NEVER = 1 << 20
Frontier = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class UsableTokens:
    """The tokens that a completion may use.

    `trie` holds all tokens; `tokens` int64 [nodes] is the usable token that ends at each of its nodes, -1 for none;
    `longest` is the length in bytes of the longest usable token; `text` uint16 [n] holds their bytes, with 256 between.
    """

    trie: Trie
    tokens: NDArray[np.int64]
    longest: int
    text: NDArray[np.uint16]

    @classmethod
    def of(cls, trie: Trie, tokens: tuple[bytes, ...], unusable: frozenset[int]) -> UsableTokens:
        """All tokens except the unusable ones."""
        usable = np.ones(len(tokens), bool)
        usable[[i for i in unusable if i < len(tokens)]] = False
        sizes = np.array([len(token) for token in tokens])
        ends = np.cumsum(sizes + 1) - 1
        text = np.full(int(sizes.sum()) + len(tokens), 256, np.uint16)
        inside = np.ones(len(text), bool)
        inside[ends] = False
        text[inside] = np.frombuffer(b"".join(tokens), np.uint8)
        text[np.repeat(~usable, sizes + 1)] = 256
        return cls(trie, trie.tokens_at(usable), int(max(sizes[usable], default=0)), text)

    def longest_run(self, alphabet: frozenset[int]) -> int:
        """The most bytes of an alphabet that stand in a row in one token."""
        known = np.zeros(257, bool)
        known[sorted(alphabet)] = True
        others = np.flatnonzero(~np.concatenate(([False], known[self.text], [False])))
        return max(1, int(np.diff(others).max()) - 1)

    def ends_inside(self, text: bytes) -> tuple[int, ...]:
        """For each byte of a text, the fewest tokens that end inside the text from there on if a token begins there."""
        fewest = [_NEVER] * len(text)
        for start in reversed(range(len(text))):
            node = 0
            for end in range(start, len(text)):
                node = self.trie.child(node, text[end])
                if node < 0:
                    break
                if end + 1 == len(text):
                    fewest[start] = 0
                elif self.tokens[node] >= 0:
                    fewest[start] = min(fewest[start], 1 + fewest[end + 1])
        return tuple(fewest)


def firsts(values: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The distinct values of int64 [N], all >= 0, in ascending order, each with the index of its first occurrence."""
    if not values.size:
        return []
    at = np.full(int(values.max()) + 1, -1)
    at[values[::-1]] = np.arange(len(values))[::-1]
    found = np.flatnonzero(at >= 0)
    return list(zip(found.tolist(), at[found].tolist(), strict=True))


class CompletionSearch:
    """One search for the completion of the fewest tokens, from a state of a recognizer: A* with one token a step.

    Only completions of at most `most` tokens are considered. Raises WorkLimitError when the work exceeds `limit`;
    `yield_lock` is called between steps.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        usable: UsableTokens,
        most: int,
        limit: int,
        yield_lock: Callable[[], None] = lambda: None,
    ) -> None:
        self._recognizer, self._usable, self._most, self._limit = recognizer, usable, most, limit
        self._yield_lock = yield_lock
        self.spent = 0
        self._order = itertools.count()
        self._visited: set[int] = set()
        self._saw_complete = False
        self._queue: list[tuple[int, int, int, int]] = []
        self._fewest: dict[int, int] = {}
        self._reached_from: dict[int, tuple[int, int]] = {}
        # For each shape, the tokens used and the counts of its states. A state dominates another that used at least as
        # many tokens and whose counts let less follow.
        self._dominators: dict[object, list[tuple[int, tuple[float, ...]]]] = {}

    def run(self, start: int, excluded: frozenset[int] = frozenset()) -> list[int] | None:
        """The tokens of the completion, the first of which begins with no excluded byte; None if all need too many."""
        first = self._children(np.zeros(1, np.int64), np.array([start]))
        kept = ~np.isin(self._usable.trie.spelled[first[0]], sorted(excluded))
        self._reach(start, 0)
        while self._queue:
            _, used, _, state = heapq.heappop(self._queue)
            used = -used
            if used > self._fewest[state]:
                continue
            if self._recognizer.complete(state):
                return self._path(start, state)
            for following, token in self.moves(state, None if used else (first[0][kept], first[1][kept])):
                if self._reach(following, used + 1):
                    self._reached_from[following] = state, token
        return None

    def inside(self, start: int) -> int:
        """A lower bound on the number of tokens that end inside the text of a state, before its last byte, wherever the
        tokens around it begin and end. The bound is as tight as the work allows."""
        found, bound = self._most, 0
        if self._recognizer.complete(start):
            return 0
        self._reach(start, 0)
        try:
            while self._queue and bound < found:
                _, used, _, state = heapq.heappop(self._queue)
                self._saw_complete = False
                if -used <= self._fewest[state]:
                    for following, _ in self.moves(state, None if used else self._anywhere(start)):
                        self._reach(following, 1 - used)
                found = min(found, -used) if self._saw_complete else found
                bound = max(bound, min(found, self._queue[0][0] - 1 if self._queue else found))
        except WorkLimitError:
            pass
        return bound

    def _anywhere(self, start: int) -> Frontier:
        """The nodes to which the first byte of the text can lead when the text begins inside a token."""
        by_byte = self._usable.trie.by_byte
        nodes = np.concatenate([by_byte[byte] for byte in range(256) if self._recognizer.step(start, byte) != DEAD])
        return nodes, np.full(len(nodes), start)

    def _reach(self, state: int, used: int) -> bool:
        """Queues a state unless it was reached with as few tokens, is too far from the end, or is dominated."""
        if used >= self._fewest.get(state, self._most + 1):
            return False
        needed = used + self._needs(state)
        if needed > self._most or self._is_idle(state, used):
            return False
        self._fewest[state] = used
        # Of equally promising states the one of the most tokens first: it is nearest to the end.
        heapq.heappush(self._queue, (needed, -used, next(self._order), state))
        return True

    def _needs(self, state: int) -> int:
        """A lower bound on the tokens that a completion needs."""
        if self._recognizer.complete(state):
            return 0
        least = self._recognizer.min_bytes(state)
        return max(self._recognizer.min_token_ends(state) + 1, -(-least // max(1, self._usable.longest)))

    def _is_idle(self, state: int, used: int) -> bool:
        shape, counts = self._recognizer.shape(state)
        known = self._dominators.setdefault(shape, [])
        self.spent += len(known) * len(counts)
        if any(n <= used and all(map(ge, other, counts)) for n, other in known):
            return True
        known.append((used, counts))
        return False

    def moves(self, state: int, frontier: Frontier | None = None) -> list[tuple[int, int]]:
        """The states after one token, each with the shortest token that leads there (of equal ones the first by bytes).

        `frontier` is the trie nodes of the first bytes, where not every token may come, int64 [N], and the state
        before each, int64 [N].
        """
        found: dict[int, int] = {}
        nodes, states = self._stepped(*(frontier or self._children(np.zeros(1, np.int64), np.array([state]))))
        while nodes.size:
            ends = np.flatnonzero(self._usable.tokens[nodes] >= 0)
            for one, at in firsts(states[ends]):
                found.setdefault(one, int(self._usable.tokens[nodes[ends[at]]]))
            nodes, states = self._stepped(*self._children(*self._open(nodes, states, {state, *found})))
        return sorted(found.items(), key=lambda move: move[1])

    def _children(self, nodes: NDArray[np.int64], states: NDArray[np.int64]) -> Frontier:
        children, parent = self._usable.trie.below(nodes)
        return children, states[parent]

    def _open(self, nodes: NDArray[np.int64], states: NDArray[np.int64], known: set[int]) -> Frontier:
        """The frontier without nodes below which nothing leads from a known state to another state."""
        if len(nodes) < _WORTH_PRUNING:
            return nodes, states
        kept = np.ones(len(nodes), bool)
        for one in (each for each, _ in firsts(states) if each in known):
            here = np.flatnonzero(states == one)
            kept[here] = (self._usable.trie.below_bytes[nodes[here]] & ~self._recognizer.loops(one)).any(axis=1)
        return nodes[kept], states[kept]

    def _stepped(self, nodes: NDArray[np.int64], states: NDArray[np.int64]) -> Frontier:
        """The nodes whose byte may come in the state before them, and the states after that byte."""
        spelled, table = self._usable.trie.spelled[nodes], self._recognizer.table
        unknown = np.flatnonzero(table[states, spelled] == UNKNOWN)
        for pair in set((states[unknown] * 256 + spelled[unknown]).tolist()):
            self._recognizer.step(pair >> 8, pair & 255)
        after = self._recognizer.table[states, spelled].astype(np.int64)
        kept = np.flatnonzero(after != DEAD)
        nodes, states = nodes[kept], after[kept]
        # Counted in such a way that it does not depend on what the recognizer has cached.
        present = {one for one, _ in firsts(states)}
        self._saw_complete = self._saw_complete or any(map(self._recognizer.complete, present))
        fresh = present - self._visited
        self._visited |= fresh
        checkpoint()
        self._yield_lock()
        self.spent += _LEVEL_WORK + len(after)
        self.spent += sum(_STATE_WORK + _STACK_WORK * self._recognizer.width(one) for one in fresh)
        if self.spent > self._limit:
            raise WorkLimitError
        return nodes, states

    def _path(self, start: int, state: int) -> list[int]:
        tokens: list[int] = []
        while state != start:
            state, token = self._reached_from[state]
            tokens.append(token)
        return tokens[::-1]
