"""The completion of the fewest tokens: a shortest path over the states of a machine, one token a step."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from operator import ge
from threading import Lock, get_ident
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tirage.cancel import checkpoint, holding
from tirage.guided.ending.machine import DEAD, UNKNOWN, HardError, Machine
from tirage.guided.ending.outline import outline_of
from tirage.guided.reduction import in_order
from tirage.guided.trie import Trie
from tirage.guided.vocabulary import Vocabulary
from tirage.params import GuidedDecodingParams

FUEL, LATER, TANK = 2_000_000, 300_000, 1_000_000
"""Work of a search before a text begins, of one inside it, and of all inside it: nodes of the tree looked at,
`_LEVEL` for each step from nodes to those below, `_STATE` and `_STACK` for each state met and each of its stacks. A
million take about a quarter second. What is known already counts too: other texts change no answer."""
LESSON, LESSONS = 100_000, 600_000
"""Work for what is learned of one rule, and of all."""
_STATE, _STACK, _LEVEL, _BYTE, _FAR = 300, 100, 300, 4, 1 << 30
# So many nodes are worth a look at which of them lead anywhere.
_MANY = 500
# Answers and openings that are kept of one constraint.
_KEPT = 32
# How long a search that has not begun leaves the machine to one that has.
_ASIDE_S = 0.001
T = TypeVar("T")
HARD: list[int] = [-1]
"""Stands for an answer that was not found with the work allowed."""
Frontier = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpelling:
    """The tokens that may be used: the tree of all, the token at each of its nodes (-1 for none), the longest size."""

    trie: Trie
    tokens: NDArray[np.int64]
    longest: int

    @classmethod
    def of(cls, trie: Trie, tokens: tuple[bytes, ...], unusable: frozenset[int]) -> TokenSpelling:
        """All tokens but the unusable ones."""
        usable = np.ones(len(tokens), bool)
        usable[[i for i in unusable if i < len(tokens)]] = False
        sizes = np.array([len(token) for token in tokens])
        return cls(trie, trie.tokens_at(usable), int(max(sizes[usable], default=0)))


def firsts(values: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The distinct values, all >= 0, in ascending order, each with where it comes first."""
    if not values.size:
        return []
    at = np.full(int(values.max()) + 1, -1)
    at[values[::-1]] = np.arange(len(values))[::-1]
    found = np.flatnonzero(at >= 0)
    return list(zip(found.tolist(), at[found].tolist(), strict=True))


class FewestSearch:
    """One search from a state of a machine; see `fewest`."""

    def __init__(
        self,
        machine: Machine,
        spelling: TokenSpelling,
        most: int,
        fuel: int,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine, self._spelling, self._most, self._fuel = machine, spelling, most, fuel
        self._give_way = give_way
        self.spent = 0
        self._order = itertools.count()
        self._met: set[int] = set()
        self._ended = False
        self._queue: list[tuple[int, int, int, int]] = []
        self._best: dict[int, int] = {}
        self._came: dict[int, tuple[int, int]] = {}
        # For each shape the tokens and counts of its states: one with as few and more room makes others idle.
        self._rooms: dict[object, list[tuple[int, tuple[float, ...]]]] = {}

    def run(self, start: int, shunned: frozenset[int] = frozenset()) -> list[int] | None:
        """The tokens, of which the first begins with no shunned byte; None when every completion needs too many."""
        first = self._children(np.zeros(1, np.int64), np.array([start]))
        kept = ~np.isin(self._spelling.trie.spelled[first[0]], sorted(shunned))
        self._reach(start, 0)
        while self._queue:
            _, _, used, state = heapq.heappop(self._queue)
            used = -used
            if used > self._best[state]:
                continue
            if self._machine.complete(state):
                return self._way(start, state)
            for following, token in self.moves(state, None if used else (first[0][kept], first[1][kept])):
                if self._reach(following, used + 1):
                    self._came[following] = state, token
        return None

    def inside(self, start: int) -> int:
        """At most the number of tokens that end inside the text of a state, before its last byte, wherever tokens begin
        and end around it; as near to that as the work allowed."""
        found, bound = self._most, 0
        if self._machine.complete(start):
            return 0
        self._reach(start, 0)
        try:
            while self._queue and bound < found:
                _, _, used, state = heapq.heappop(self._queue)
                self._ended = False
                if -used <= self._best[state]:
                    for following, _ in self.moves(state, None if used else self._anywhere(start)):
                        self._reach(following, 1 - used)
                found = min(found, -used) if self._ended else found
                bound = max(bound, min(found, self._queue[0][0] - 1 if self._queue else found))
        except HardError:
            pass
        return bound

    def _anywhere(self, start: int) -> Frontier:
        """The nodes that can be reached by the first byte of a text which begins inside a token."""
        by_byte = self._spelling.trie.by_byte
        nodes = np.concatenate([by_byte[byte] for byte in range(256) if self._machine.step(start, byte) != DEAD])
        return nodes, np.full(len(nodes), start)

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
        if self._machine.complete(state):
            return 0
        least = self._machine.least_bytes(state)
        return max(self._machine.least_ends(state) + 1, -(-least // max(1, self._spelling.longest)))

    def _is_idle(self, state: int, used: int) -> bool:
        shape, counts = self._machine.shape(state)
        rooms = self._rooms.setdefault(shape, [])
        self.spent += len(rooms) * len(counts)
        if any(n <= used and all(map(ge, other, counts)) for n, other in rooms):
            return True
        rooms.append((used, counts))
        return False

    def moves(self, state: int, frontier: Frontier | None = None) -> list[tuple[int, int]]:
        """The states after one token, each with a token that leads there: of several a shortest one, first by its
        bytes. The `frontier` are the nodes after the first byte, where not every token may come."""
        found: dict[int, int] = {}
        nodes, states = self._stepped(*(frontier or self._children(np.zeros(1, np.int64), np.array([state]))))
        while nodes.size:
            ends = np.flatnonzero(self._spelling.tokens[nodes] >= 0)
            for one, at in firsts(states[ends]):
                found.setdefault(one, int(self._spelling.tokens[nodes[ends[at]]]))
            nodes, states = self._stepped(*self._children(*self._open(nodes, states, {state, *found})))
        return sorted(found.items(), key=lambda move: move[1])

    def _children(self, nodes: NDArray[np.int64], states: NDArray[np.int64]) -> Frontier:
        children, parent = self._spelling.trie.below(nodes)
        return children, states[parent]

    def _open(self, nodes: NDArray[np.int64], states: NDArray[np.int64], known: set[int]) -> Frontier:
        """Without the nodes below which nothing leads from a known state to another one."""
        if len(nodes) < _MANY:
            return nodes, states
        kept = np.ones(len(nodes), bool)
        for one in (each for each, _ in firsts(states) if each in known):
            here = np.flatnonzero(states == one)
            kept[here] = (self._spelling.trie.below_bytes[nodes[here]] & ~self._machine.loops(one)).any(axis=1)
        return nodes[kept], states[kept]

    def _stepped(self, nodes: NDArray[np.int64], states: NDArray[np.int64]) -> Frontier:
        """The nodes whose byte may come in the state before them, and the states after it."""
        spelled, table = self._spelling.trie.spelled[nodes], self._machine.table
        unknown = np.flatnonzero(table[states, spelled] == UNKNOWN)
        for pair in set((states[unknown] * 256 + spelled[unknown]).tolist()):
            self._machine.step(pair >> 8, pair & 255)
        after = self._machine.table[states, spelled].astype(np.int64)
        kept = np.flatnonzero(after != DEAD)
        nodes, states = nodes[kept], after[kept]
        # Counted so that it is the same whatever the machine knows already.
        present = {one for one, _ in firsts(states)}
        self._ended = self._ended or any(map(self._machine.complete, present))
        fresh = present - self._met
        self._met |= fresh
        checkpoint()
        self._give_way()
        self.spent += _LEVEL + len(after) + sum(_STATE + _STACK * self._machine.width(one) for one in fresh)
        if self.spent > self._fuel:
            raise HardError
        return nodes, states

    def _way(self, start: int, state: int) -> list[int]:
        tokens: list[int] = []
        while state != start:
            state, token = self._came[state]
            tokens.append(token)
        return tokens[::-1]


class Shortest:
    """What searches for one constraint need, made when first asked for and shared by all its texts, from any thread."""

    def __init__(self, guided: GuidedDecodingParams, backend: str, vocabulary: Vocabulary) -> None:
        self._guided, self._backend, self._vocabulary = guided, backend, vocabulary
        # Half a second for a large vocabulary, once: better in the thread that asks than between the engine's steps.
        self._trie = vocabulary.trie
        self._ready: dict[frozenset[int], tuple[Machine, TokenSpelling] | None] = {}
        self._openings: dict[object, Any] = {}
        self.answers: dict[object, list[int] | None] = {}
        # Machines grow while they are searched. Those that wait are texts in the middle, and with them every other one.
        self._lock, self._preparing, self._opening, self._waiting = Lock(), Lock(), Lock(), set[int]()

    @property
    def worn(self) -> bool:
        """Whether it holds so much that a new one should take over."""
        return len(self._ready) > 4 or any(ready is not None and ready[0].worn for ready in self._ready.values())

    def ready(self, unusable: frozenset[int]) -> tuple[Machine, TokenSpelling]:
        """The machine of the constraint's outline, and the tokens without the unusable ones; HardError without one."""
        with holding(self._preparing) if unusable not in self._ready else contextlib.nullcontext():
            if unusable not in self._ready:
                self._ready[unusable] = self._prepared(unusable)
        ready = self._ready[unusable]
        if ready is None:
            raise HardError
        return ready

    def opened(self, key: object, make: Callable[[], T]) -> T:
        """What `make` gives, made once for all texts that begin with the same key."""
        with holding(self._opening):
            if key not in self._openings:
                keep(self._openings, key, make())
            return self._openings[key]

    @contextlib.contextmanager
    def searching(self, *, begun: bool) -> Iterator[Callable[[], None]]:
        """Has the machines to itself; the search calls what it is given between steps.

        A search before a text begins then leaves them to one inside a text, for which a step of the engine waits.
        """
        if not begun:
            with holding(self._lock):
                yield self._give_way
            return
        self._waiting.add(get_ident())
        with self._lock:
            self._waiting.discard(get_ident())
            yield lambda: None

    def _give_way(self) -> None:
        if self._waiting:
            self._lock.release()
            time.sleep(_ASIDE_S)
            self._lock.acquire()

    def _prepared(self, unusable: frozenset[int]) -> tuple[Machine, TokenSpelling] | None:
        outline = outline_of(self._guided, backend=self._backend)
        if outline is None:
            return None
        spelling = TokenSpelling.of(self._trie, self._vocabulary.tokens, unusable)
        try:
            machine = Machine(outline.rules, outline.root)
            teach(machine, spelling, in_order(outline.rules, outline.root)[:-1])
        except HardError:
            return None
        return machine, spelling


def keep(known: dict[object, Any], key: object, value: Any) -> None:
    """Adds a value; of too many the oldest is dropped."""
    known[key] = value
    while len(known) > _KEPT:
        known.pop(next(iter(known)))


def teach(machine: Machine, spelling: TokenSpelling, rules: list[str]) -> None:
    """Finds out how many tokens end inside the texts of each rule, those first that others refer to."""
    left = LESSONS
    for rule in rules:
        if not left:
            return
        search = FewestSearch(machine, spelling, _FAR, min(left, LESSON))
        machine.learn(rule, search.inside(machine.start_of(rule)))
        left = max(0, left - search.spent)


class Place:
    """A place in one text, from which the completion of the fewest tokens can be found.

    All places of a text, its forks included, share the work that may be done for it.
    """

    def __init__(self, shortest: Shortest, unusable: frozenset[int]) -> None:
        self._shortest, self._unusable = shortest, unusable
        self._state, self._begun = 0, False
        # The tokens not yet looked at, the last one first: the ones before it, and it.
        self._ahead: tuple[Any, bytes] | None = None
        self._tank = [TANK]

    def advance(self, spelled: bytes) -> None:
        """Moves past the bytes of a token; they are looked at when an answer is asked for."""
        self._ahead, self._begun = (self._ahead, spelled), True

    def fork(self) -> Place:
        """An independent one at the same place."""
        return copy(self)

    def another(self) -> Place:
        """The place in another text that has not begun either."""
        other = copy(self)
        other._tank = [TANK]
        return other

    def prepare(self) -> None:
        """Makes what searches need, so that none inside a text has to."""
        with contextlib.suppress(HardError):
            self._shortest.ready(self._unusable)

    def fewest(self, most: int, shunned: frozenset[int] = frozenset()) -> list[int] | None:
        """The fewest tokens that complete the text, from no shunned byte on; None when that takes more than `most`.

        HardError when no answer is found with the work allowed, and where the text has left the outline.
        """
        machine, spelling = self._shortest.ready(self._unusable)
        with self._shortest.searching(begun=self._begun) as give_way:
            if not self._begun:
                return self._first(
                    FewestSearch(machine, spelling, most, FUEL, give_way), (self._unusable, most, shunned)
                )
            self._catch_up(machine)
            search = FewestSearch(machine, spelling, most, min(LATER, self._tank[0]))
            try:
                return search.run(self._state, shunned)
            finally:
                self._tank[0] -= search.spent

    def _first(self, search: FewestSearch, key: tuple[frozenset[int], int, frozenset[int]]) -> list[int] | None:
        """The answer before the text begins, which all texts of the constraint share."""
        answers = self._shortest.answers
        if key not in answers:
            try:
                keep(answers, key, search.run(0, key[2]))
            except HardError:
                keep(answers, key, HARD)
        if answers[key] is HARD:
            raise HardError
        return answers[key]

    def _catch_up(self, machine: Machine) -> None:
        tokens: list[bytes] = []
        while self._ahead is not None:
            self._ahead, spelled = self._ahead
            tokens.append(spelled)
        for byte in b"".join(reversed(tokens)):
            self._state = DEAD if self._state == DEAD else machine.step(self._state, byte)
            self._tank[0] -= _BYTE * (1 if self._state == DEAD else machine.width(self._state))
            if self._tank[0] < 0:
                self._state = DEAD
        if self._state == DEAD:
            raise HardError
