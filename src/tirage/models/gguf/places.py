"""Where the sequences of a context stand in libllama's cache while each has cells of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise


class Places:
    """The place of each sequence, from 0; libllama calls a place a stream.

    Rows of a batch are computed together where their places follow one another, and apart where one between is missing.
    """

    def __init__(self, count: int) -> None:
        self._of = list(range(count))

    def resized(self, count: int) -> Places:
        """The same places for `count` sequences, of which the new ones have those at the end."""
        found = Places(count)
        found._of[: len(self._of)] = self._of
        return found

    def at(self, sequence: int) -> int:
        """The place of a sequence."""
        return self._of[sequence]

    def of(self, sequences: Sequence[int]) -> list[int]:
        """The places of some sequences."""
        return [self._of[each] for each in sequences]

    def exchange(self, first: int, second: int) -> None:
        """Gives two sequences the place of the other."""
        self._of[first], self._of[second] = self._of[second], self._of[first]

    def exchanges(self, sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The fewest pairs of sequences to exchange, one after the other, after which the places have no gap."""
        places = self.of(sequences)
        first = _densest(places, len(self._of))
        window = range(first, first + len(places))
        gaps = iter([place for place in window if place not in places])
        for sequence, place in zip(sequences, places, strict=True):
            if place not in window:
                yield sequence, self._of.index(next(gaps))


def are_neighbours(places: Sequence[int]) -> bool:
    """Whether each place is the one after the last."""
    return all(after == before + 1 for before, after in pairwise(places))


def _densest(places: Sequence[int], count: int) -> int:
    """The first of as many places in a row, of `count` in all, as hold most of those given; the lowest of equals."""
    width = len(places)
    held = {start: sum(start <= place < start + width for place in places) for start in sorted(places)}
    return min(max(held, key=lambda start: held[start]), count - width)
