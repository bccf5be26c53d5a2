"""A search for many phrases at once, in text that arrives piece by piece (Aho and Corasick, 1975)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np

Phrase = TypeVar("Phrase", bytes, str)

START = 0
"""The node at the start of a text."""


class PhraseAutomaton(Generic[Phrase]):
    """An Aho-Corasick automaton: a node stands for the longest prefix of a phrase with which the text so far ends.

    A letter is a byte, or the code point of a character. `phrases` are sorted and distinct. `complete[node]` is the
    index of the longest phrase that ends at the node, or -1. A node takes 36 bytes. An automaton is immutable, so any
    number of texts can share it.
    """

    def __init__(self, phrases: Iterable[Phrase]) -> None:
        self.phrases: tuple[Phrase, ...] = tuple(sorted(set(phrases)))
        self.complete, self._depth, self._back = array("i", [-1]), array("i", [0]), array("i", [START])
        # The letter that leads to a node, its first child, and its next sibling.
        self._letter, self._child, self._sibling = array("i", [-1]), array("i", [START]), array("i", [START])
        # The phrases that begin with the prefix of a node are those with indices in [low, high), as phrases are sorted.
        self._low, self._high = array("i", [0]), array("i", [len(self.phrases)])
        for index, phrase in enumerate(self.phrases):
            self._add(index, phrase)
        self._link()

    @property
    def nbytes(self) -> int:
        """The size of the nodes in bytes."""
        return 9 * self.complete.itemsize * len(self.complete)

    def _add(self, index: int, phrase: bytes | str) -> None:
        node = START
        for letter in codes(phrase):
            # As phrases are sorted, only the child added last, which is the first in the list, can have this letter.
            child = self._child[node]
            if child == START or self._letter[child] != letter:
                child = self._append(node, letter, index)
            self._high[child] = index + 1
            node = child
        self.complete[node] = index

    def _append(self, parent: int, letter: int, index: int) -> int:
        node = len(self.complete)
        values = (-1, self._depth[parent] + 1, START, letter, START, self._child[parent], index, index)
        rows = (self.complete, self._depth, self._back, self._letter, self._child, self._sibling, self._low, self._high)
        for row, value in zip(rows, values, strict=True):
            row.append(value)
        self._child[parent] = node
        return node

    def _link(self) -> None:
        """Sets the failure link of each node, by depth: the longest proper suffix that is a prefix of a phrase."""
        for node in np.argsort(np.array(self._depth, np.int32), kind="stable").tolist():
            for child in self._children(node):
                back = START if node == START else self.step(self._back[node], self._letter[child])
                self._back[child] = back
                if self.complete[child] < 0:
                    self.complete[child] = self.complete[back]

    def _children(self, node: int) -> Iterator[int]:
        child = self._child[node]
        while child != START:
            yield child
            child = self._sibling[child]

    def step(self, node: int, letter: int) -> int:
        """The node after one more letter."""
        while True:
            child = self._child[node]
            while child != START and self._letter[child] != letter:
                child = self._sibling[child]
            if child != START or node == START:
                return child
            node = self._back[node]

    def walk(self, node: int, letters: Iterable[int]) -> int:
        """The node after more letters."""
        for letter in letters:
            node = self.step(node, letter)
        return node

    def claimed(self, node: int) -> int:
        """How many of the last letters may still be part of a phrase that is completed later."""
        while node != START and self._child[node] == START:
            node = self._back[node]
        return self._depth[node]

    def rests(self, node: int, longest: int) -> set[Phrase]:
        """What is missing of each phrase that has begun but is not complete, if it is at most `longest` letters."""
        found: set[Phrase] = set()
        while node != START:
            depth = self._depth[node]
            begun = self.phrases[self._low[node] : self._high[node]]
            found.update(phrase[depth:] for phrase in begun if depth < len(phrase) <= depth + longest)
            node = self._back[node]
        return found


def codes(phrase: bytes | str) -> Iterable[int]:
    """The letters of a phrase: its bytes, or the code points of its characters."""
    return phrase if isinstance(phrase, bytes) else map(ord, phrase)
