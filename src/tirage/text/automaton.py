"""Many phrases looked for at once, in text that arrives piece by piece (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Letter = TypeVar("Letter", bound=Hashable)

START = 0
"""The node before any letter."""


class Automaton(Generic[Letter]):
    """Phrases of letters as one machine: a node stands for the longest beginning of a phrase that just went by.

    `complete[node]` is the index of the longest phrase that ends there, or -1. `claimed[node]` is how many of the
    last letters a phrase may still claim by going on. Neither depends on how the letters were cut into pieces.
    """

    def __init__(self, phrases: Iterable[Sequence[Letter]]) -> None:
        self.phrases = tuple(phrases)
        self.complete, self.claimed = [-1], [0]
        self._then: list[dict[Letter, int]] = [{}]
        self._back, self._depth = [START], [0]
        self._through: list[list[int]] = [[]]
        for index, phrase in enumerate(self.phrases):
            self._add(index, phrase)
        self._link()

    def _add(self, index: int, phrase: Sequence[Letter]) -> None:
        node = START
        for letter in phrase:
            if node != START:
                self._through[node].append(index)
            if letter not in self._then[node]:
                self._then[node][letter] = len(self._then)
                self._then.append({})
                self.complete.append(-1)
                self._depth.append(self._depth[node] + 1)
                self._through.append([])
            node = self._then[node][letter]
        self.complete[node] = index

    def _link(self) -> None:
        """Where each node falls back to, nearest nodes first: the longest shorter ending that begins a phrase."""
        self._back, self.claimed = [START] * len(self._then), [0] * len(self._then)
        waiting = deque([START])
        while waiting:
            node = waiting.popleft()
            back = self._back[node]
            if self.complete[node] < 0:
                self.complete[node] = self.complete[back]
            self.claimed[node] = self._depth[node] if self._then[node] else self.claimed[back]
            for letter, after in self._then[node].items():
                self._back[after] = START if node == START else self.step(back, letter)
                waiting.append(after)

    def step(self, node: int, letter: Letter) -> int:
        """The node after one more letter."""
        while letter not in self._then[node]:
            if node == START:
                return START
            node = self._back[node]
        return self._then[node][letter]

    def walk(self, node: int, letters: Iterable[Letter]) -> int:
        """The node after more letters."""
        for letter in letters:
            node = self.step(node, letter)
        return node

    def begun(self, node: int) -> list[tuple[int, int]]:
        """(phrase index, letters of it that went by), for every phrase that is begun and not complete."""
        found: list[tuple[int, int]] = []
        while node != START:
            found += [(index, self._depth[node]) for index in self._through[node]]
            node = self._back[node]
        return found
