"""Intersections and complements as deterministic automata over bytes, whose states are made as texts reach them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

DEAD = -1
NEVER = 1 << 40
"""The length of a text that never ends."""
_STATES_EXPLORED, _EXPLORATIONS = 200, 2_000


class ByteAutomaton(Protocol):
    """A deterministic automaton over bytes; state 0 is the start of a text."""

    def step(self, state: int, byte: int) -> int:
        """The state after a byte; -1 when the byte may not come."""
        ...

    def complete(self, state: int) -> bool:
        """Whether a text may end in a state."""
        ...

    def min_bytes(self, state: int) -> int:
        """A lower bound on the bytes after which a text may end."""
        ...

    def width(self, state: int) -> int:
        """How many ways to go on are followed in a state, at least 1."""
        ...

    def starts(self, state: int) -> list[int]:
        """The first bytes of ranges that cover all bytes, each leading to one state."""
        ...

    def shape(self, state: int) -> tuple[object, tuple[float, ...]]:
        """The shape of a state and its counts: with the same shape, counts at least as large let as much follow."""
        ...


class BooleanAutomaton:
    """The texts that all of `kept` accept and none of `left_out`; its states are those of all of them together."""

    def __init__(self, kept: Sequence[ByteAutomaton], left_out: Sequence[ByteAutomaton]) -> None:
        self._kept, self._left_out = kept, left_out
        start: tuple[int, ...] = (0,) * (len(kept) + len(left_out))
        self._states = list[tuple[int, ...]]((start,))
        self._numbers: dict[tuple[int, ...], int] = {start: 0}
        self._spans: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self._alive: dict[int, bool] = {}
        self._explorations = _EXPLORATIONS

    def spans(self, state: int) -> tuple[tuple[int, int, int], ...]:
        """The bytes that may come, as ranges, each with the state after any of its bytes."""
        if state not in self._spans:
            pairs = zip((*self._kept, *self._left_out), self._states[state], strict=True)
            starts = sorted({start for one, place in pairs if place != DEAD for start in one.starts(place)})
            after = [(low, high - 1, self.step(state, low)) for low, high in pairwise([*starts, 256])]
            self._spans[state] = tuple([span for span in after if span[2] != DEAD])
        return self._spans[state]

    def step(self, state: int, byte: int) -> int:
        """The state after a byte; -1 when the byte may not come."""
        places = self._states[state]
        count = len(self._kept)
        kept = tuple(one.step(place, byte) for one, place in zip(self._kept, places[:count], strict=True))
        if DEAD in kept:
            return DEAD
        # A text that one of `left_out` no longer follows can never be left out by it.
        others = (
            DEAD if place == DEAD else one.step(place, byte)
            for one, place in zip(self._left_out, places[count:], strict=True)
        )
        return self._number((*kept, *others))

    def _number(self, places: tuple[int, ...]) -> int:
        if places not in self._numbers:
            self._numbers[places] = len(self._states)
            self._states.append(places)
        return self._numbers[places]

    def complete(self, state: int) -> bool:
        """Whether a text may end in a state."""
        places = self._states[state]
        count = len(self._kept)
        return all(one.complete(place) for one, place in zip(self._kept, places[:count], strict=True)) and not any(
            place != DEAD and one.complete(place) for one, place in zip(self._left_out, places[count:], strict=True)
        )

    def min_bytes(self, state: int) -> int:
        """A lower bound on the bytes after which a text may end, at least `NEVER` if it is known that it cannot."""
        if len(self._states[0]) > 1 and not self._is_alive(state):
            return NEVER
        return max(one.min_bytes(place) for one, place in zip(self._kept, self._states[state], strict=False))

    def width(self, state: int) -> int:
        """How many ways to go on all of them follow in a state, at least 1."""
        places = zip((*self._kept, *self._left_out), self._states[state], strict=True)
        return max(1, sum(one.width(place) for one, place in places if place != DEAD))

    def _is_alive(self, state: int) -> bool:
        """Whether an end can be reached from a state; taken for granted where that takes many steps to find out."""
        if state not in self._alive:
            self._explore(state)
        return self._alive[state]

    def _explore(self, start: int) -> None:
        queue, before = [(0, start)], {start: start}
        for _ in range(min(_STATES_EXPLORED, self._explorations)):
            self._explorations -= 1
            if not queue:
                self._alive.update(dict.fromkeys(before, False))
                return
            _, state = heapq.heappop(queue)
            if self._alive.get(state) or self.complete(state):
                self._mark_alive(state, before)
                return
            for after in dict.fromkeys(after for _, _, after in self.spans(state)):
                if after not in before and self._alive.get(after, True):
                    before[after] = state
                    places = zip(self._kept, self._states[after], strict=False)
                    heapq.heappush(queue, (max(one.min_bytes(place) for one, place in places), after))
        self._alive[start] = True

    def _mark_alive(self, state: int, before: dict[int, int]) -> None:
        self._alive[state] = True
        while before[state] != state:
            state = before[state]
            self._alive[state] = True

    def shape(self, state: int) -> tuple[object, tuple[float, ...]]:
        """The shape of a state and its counts: with the same shape, counts at least as large let as much follow."""
        places = self._states[state]
        shapes = [one.shape(place) for one, place in zip(self._kept, places, strict=False)]
        counts = tuple(count for _, each in shapes for count in each)
        return (tuple(shape for shape, _ in shapes), places[len(self._kept) :]), counts
