"""The completion of the fewest tokens: a shortest path over the states of a machine, one token a step."""

from __future__ import annotations

import heapq
import itertools
from copy import copy
from dataclasses import dataclass
from operator import ge

import numpy as np
from numpy.typing import NDArray

from tirage.guided.machine import DEAD, UNKNOWN, HardError, Machine
from tirage.guided.outline import outline_of
from tirage.guided.trie import Trie
from tirage.guided.vocabulary import Vocabulary
from tirage.params import GuidedDecodingParams

FUEL = 3_000_000
"""Work of one search: nodes of the tree looked at, and `_STATE` for each state met."""
TANK = 4 * FUEL
"""Work of all searches for one text."""
_STATE = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """The tokens that may be used: the tree of all, the token at each of its nodes (-1 for none), the longest size."""

    trie: Trie
    tokens: NDArray[np.int64]
    longest: int

    @classmethod
    def of(cls, trie: Trie, tokens: tuple[bytes, ...], unusable: frozenset[int]) -> Spelling:
        """All tokens but the unusable ones."""
        usable = np.ones(len(tokens), bool)
        usable[[i for i in unusable if i < len(tokens)]] = False
        sizes = np.array([len(token) for token in tokens])
        return cls(trie, trie.tokens_at(usable), int(max(sizes[usable], default=0)))


class Search:
    """One search from a state of a machine; see `fewest`."""

    def __init__(self, machine: Machine, spelling: Spelling, most: int, fuel: int) -> None:
        self._machine, self._spelling, self._most, self._fuel = machine, spelling, most, fuel
        self.spent = 0
        self._order = itertools.count()
        self._met: set[int] = set()
        self._queue: list[tuple[int, int, int, int]] = []
        self._best: dict[int, int] = {}
        self._came: dict[int, tuple[int, int]] = {}
        # For each shape the counts of states reached, with their tokens: one with more room and as few makes others idle.
        self._rooms: dict[object, list[tuple[int, tuple[float, ...]]]] = {}

    def run(self, start: int, shunned: frozenset[int] = frozenset()) -> list[int] | None:
        """The tokens, of which the first begins with no shunned byte; None when every completion needs too many."""
        self._shunned = np.array(sorted(shunned), np.uint8)
        self._reach(start, 0)
        while self._queue:
            _, _, used, state = heapq.heappop(self._queue)
            used = -used
            if used > self._best[state]:
                continue
            if self._machine.complete(state):
                return self._way(start, state)
            for following, token in self.moves(state, first=not used):
                if self._reach(following, used + 1):
                    self._came[following] = state, token
        return None

    def _reach(self, state: int, used: int) -> bool:
        """Queues a state unless it was reached as cheaply, is too far from an end, or another one is as good."""
        if used >= self._best.get(state, self._most + 1):
            return False
        needed = used + self._needs(state)
        if needed > self._most or self._is_idle(state, used):
            return False
        self._best[state] = used
        heapq.heappush(self._queue, (needed, next(self._order), -used, state))
        return True

    def _needs(self, state: int) -> int:
        """At most as many tokens as a completion needs."""
        least = self._machine.least_bytes(state)
        return -(-least // self._spelling.longest) if self._spelling.longest else least

    def _is_idle(self, state: int, used: int) -> bool:
        shape, counts = self._machine.shape(state)
        rooms = self._rooms.setdefault(shape, [])
        if any(n <= used and all(map(ge, other, counts)) for n, other in rooms):
            return True
        rooms.append((used, counts))
        return False

    def moves(self, state: int, *, first: bool = False) -> list[tuple[int, int]]:
        """The states after one token, each with a token that leads there: of several a shortest one, first by its
        bytes."""
        trie = self._spelling.trie
        nodes, states = np.zeros(1, np.int64), np.array([state], np.int64)
        found: dict[int, int] = {}
        while nodes.size:
            children, parent = trie.below(nodes)
            if first and self._shunned.size:
                kept = ~np.isin(trie.spelled[children], self._shunned)
                children, parent = children[kept], parent[kept]
            first = False
            nodes, states = self._stepped(children, states[parent])
            ends = np.flatnonzero(self._spelling.tokens[nodes] >= 0)
            reached, index = np.unique(states[ends], return_index=True)
            for one, at in zip(reached.tolist(), ends[index].tolist(), strict=True):
                found.setdefault(one, int(self._spelling.tokens[nodes[at]]))
        return sorted(found.items(), key=lambda move: move[1])

    def _stepped(
        self, nodes: NDArray[np.int64], states: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The nodes whose byte may come in the state before them, and the states after it."""
        spelled, table = self._spelling.trie.spelled[nodes], self._machine.table
        unknown = np.flatnonzero(table[states, spelled] == UNKNOWN)
        for pair in np.unique(states[unknown] * 256 + spelled[unknown]).tolist():
            self._machine.step(pair >> 8, pair & 255)
        after = self._machine.table[states, spelled].astype(np.int64)
        self._spend(nodes, after)
        kept = np.flatnonzero(after != DEAD)
        return nodes[kept], after[kept]

    def _spend(self, nodes: NDArray[np.int64], after: NDArray[np.int64]) -> None:
        # Counted so that it is the same whatever the machine knows already.
        fresh = set(np.unique(after).tolist()) - self._met
        self._met |= fresh
        self.spent += len(nodes) + _STATE * len(fresh)
        if self.spent > self._fuel:
            raise HardError

    def _way(self, start: int, state: int) -> list[int]:
        tokens: list[int] = []
        while state != start:
            state, token = self._came[state]
            tokens.append(token)
        return tokens[::-1]


class Shortest:
    """The rules of one constraint and the tokens that may be used; made when first needed, shared by a request's texts."""

    def __init__(self, guided: GuidedDecodingParams, backend: str, vocabulary: Vocabulary) -> None:
        self._guided, self._backend, self._vocabulary = guided, backend, vocabulary
        self._machine: Machine | None = None
        self._known, self._spellings = True, dict[frozenset[int], Spelling]()

    @property
    def machine(self) -> Machine:
        """The machine of the constraint's outline; HardError when there is none."""
        if self._machine is None and self._known:
            self._known = False
            outline = outline_of(self._guided, backend=self._backend)
            self._machine = None if outline is None else Machine(outline.rules, outline.root)
        if self._machine is None:
            raise HardError
        return self._machine

    def spelling(self, unusable: frozenset[int]) -> Spelling:
        """The tokens without the unusable ones."""
        if unusable not in self._spellings:
            words = self._vocabulary
            self._spellings[unusable] = Spelling.of(words.trie, words.tokens, unusable)
        return self._spellings[unusable]


class Place:
    """A place in one text, from which the completion of the fewest tokens can be found.

    All places of a text, its forks included, share the work that may be done for it.
    """

    def __init__(self, shortest: Shortest, unusable: frozenset[int]) -> None:
        self._shortest, self._unusable = shortest, unusable
        self._state, self._ahead = 0, b""
        self._tank = [TANK]

    def advance(self, spelled: bytes) -> None:
        """Moves past the bytes of a token; they are looked at when an answer is asked for."""
        self._ahead += spelled

    def fork(self) -> Place:
        """An independent one at the same place."""
        return copy(self)

    def fewest(self, most: int, shunned: frozenset[int] = frozenset()) -> list[int] | None:
        """The fewest tokens that complete the text and begin with no shunned byte; None when that takes more than `most`.

        HardError when no answer is found with the work allowed, and where the text has left the outline.
        """
        machine = self._shortest.machine
        for byte in self._ahead:
            self._state = DEAD if self._state == DEAD else machine.step(self._state, byte)
        self._ahead = b""
        if self._state == DEAD or not self._tank[0]:
            raise HardError
        search = Search(machine, self._shortest.spelling(self._unusable), most, min(FUEL, self._tank[0]))
        try:
            return search.run(self._state, shunned)
        finally:
            self._tank[0] = max(0, self._tank[0] - search.spent)
