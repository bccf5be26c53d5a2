"""Requests of many maxima at once, so that every two maxima of a route are in one that the server accepts.

Of the 164,000 pairs of maxima most are of two fields that each cost next to nothing. A request of 48 such fields
holds 1,128 of them. Where a request is refused, the fields that others exclude are found and left out; a pair that is
refused in every request is asked for alone, and is refused itself or is a request of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations

import numpy as np
from chaos.maxima import Maximum
from numpy.typing import NDArray

Accepts = Callable[[Sequence[Maximum]], bool]
Pair = tuple[int, int]
MOST = 48
"""Maxima in a request."""
REFUSALS = 4
"""How often one request is asked for anew, without what was refused in it."""


class Cover:
    """The requests for the maxima of one route; `accepts` says whether the server takes some of them together.

    `left` [N, N] are the pairs that no accepted request has had yet, and `refused` those that are refused as two, by
    the indices of the maxima. Those of the fields `apart` are in few requests: what the others cause shows in a stream,
    and they forbid one.
    """

    def __init__(self, maxima: Sequence[Maximum], accepts: Accepts, *, apart: Collection[str] = ()) -> None:
        self.maxima, self._accepts = maxima, accepts
        self._apart = np.array([each.growth.field.split(".")[-1] in apart for each in maxima], np.bool_)
        fields = [each.growth.field for each in maxima]
        names = sorted(set(fields))
        self._field = np.array([names.index(field) for field in fields], np.int64)
        self.left = self._field[:, None] != self._field[None, :]
        self.refused: set[Pair] = set()
        # Fields of which two maxima are refused are not tried together again but as pairs, until two are accepted.
        self._exclude = np.zeros((len(names), len(names)), np.bool_)
        self._agree = np.zeros((len(names), len(names)), np.bool_)
        self._refusals = np.zeros((len(fields), len(fields)), np.bool_)

    def requests(self) -> Iterator[list[Maximum]]:
        """The accepted requests, until no pair is left."""
        while (first := self._next_pair()) is not None:
            if not self._takes(first):
                self._refuse(first)
                continue
            chosen = self._accepted(self._choose(first))
            self._note(chosen)
            yield [self.maxima[index] for index in chosen]

    def had(self, names: Collection[str]) -> None:
        """Leaves out the pairs of a request that was accepted before, given by what a report calls its maxima."""
        chosen = [index for index, each in enumerate(self.maxima) if each.name in names]
        self._note(chosen)

    def _note(self, chosen: Sequence[int]) -> None:
        self.left[np.ix_(chosen, chosen)] = False
        self._agree[np.ix_(self._field[chosen], self._field[chosen])] = True

    @property
    def count_left(self) -> int:
        """The number of pairs that are left."""
        return int(self.left.sum()) // 2

    def _takes(self, chosen: Sequence[int]) -> bool:
        return self._accepts([self.maxima[index] for index in chosen])

    def _next_pair(self) -> Pair | None:
        """A pair that is left, of a maximum with the most of them; those of fields that exclude each other last."""
        usual = ~(self._apart[:, None] | self._apart[None, :])
        for left in (self.left & usual & ~self._excluded(), self.left & ~self._excluded(), self.left):
            counts = left.sum(axis=1)
            first = int(counts.argmax())
            if counts[first]:
                return first, int(np.where(left[first], counts, -1).argmax())
        return None

    def _excluded(self) -> NDArray[np.bool_]:
        """Pairs [N, N] that are refused, or whose fields exclude each other."""
        return (self._exclude & ~self._agree)[np.ix_(self._field, self._field)] | self._refusals

    def _choose(self, first: Pair) -> list[int]:
        """A pair and what may be asked for with it: next always what is in the most pairs that are left."""
        chosen = [*first]
        open_to = (self._field[:, None] != self._field[None, :]) & ~self._excluded()
        may = open_to[:, chosen].all(axis=1) & (~self._apart | self._apart[chosen].any())
        gains = self.left[:, chosen].sum(axis=1)
        while len(chosen) < MOST:
            best = int(np.where(may, gains, 0).argmax())
            # Where nothing is left beside those chosen, another pair may be.
            more = [best] if may[best] and gains[best] else self._pair_among(may, open_to)
            if not more:
                break
            for index in more:
                chosen.append(index)
                may &= open_to[:, index]
                gains += self.left[:, index]
        return chosen

    def _pair_among(self, may: NDArray[np.bool_], open_to: NDArray[np.bool_]) -> list[int]:
        """A pair that is left of two that may be chosen; empty for none."""
        places = np.flatnonzero(may)
        found = np.argwhere((self.left & open_to)[np.ix_(places, places)])
        return [int(places[index]) for index in found[0]] if len(found) else []

    def _accepted(self, chosen: list[int]) -> list[int]:
        """What is accepted of a request whose first two are, without what is refused beside those before it.

        After a few refusals the rest is left to later requests.
        """
        kept, rest = chosen[:2], chosen[2:]
        for _ in range(REFUSALS):
            if not rest or self._takes([*kept, *rest]):
                return [*kept, *rest]
            count = first_refused(rest, lambda part, kept=kept: self._takes([*kept, *part]))
            kept = [*kept, *rest[: count - 1]]
            self._blame(rest[count - 1], kept)
            rest = rest[count:]
        return kept

    def _blame(self, culprit: int, kept: Sequence[int]) -> None:
        """Notes which of those that are kept excludes another, if it is one of them."""
        count = first_refused(kept, lambda part: self._takes([*part, culprit]))
        pair = culprit, kept[count - 1]
        if count == 1 or not self._takes(pair):
            self._refuse(pair)

    def _refuse(self, pair: Pair) -> None:
        a, b = pair
        self.left[a, b] = self.left[b, a] = False
        self._refusals[a, b] = self._refusals[b, a] = True
        self.refused.add((min(pair), max(pair)))
        a, b = self._field[a], self._field[b]
        self._exclude[a, b] = self._exclude[b, a] = True


def first_refused(items: Sequence[int], takes: Callable[[Sequence[int]], bool]) -> int:
    """How many of the items are refused together at the fewest, where all of them are and none is not."""
    low, high = 0, len(items)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(items[:middle]) else (low, middle)
    return high


def narrowed(failing: Sequence[Maximum], fails: Callable[[Sequence[Maximum]], bool]) -> list[Maximum]:
    """A smaller part of a request that fails, none of whose halves, quarters and so on can be left out."""
    found, size = [*failing], len(failing) // 2
    while size:
        for start in range(0, len(found), size):
            less = [*found[:start], *found[start + size :]]
            if less and fails(less):
                found = less
                break
        else:
            size //= 2
        size = min(size, len(found) // 2)
    return found


def costly_pairs(maxima: Sequence[Maximum], *, costly: set[str], multiply: Sequence[str]) -> list[Pair]:
    """Pairs that are asked for alone as well: of two that are costly, or of one with a field that multiplies work."""
    found = []
    for (i, a), (j, b) in combinations(enumerate(maxima), 2):
        dear = [each.name in costly for each in (a, b)]
        many = [each.growth.field.split(".")[-1] in multiply for each in (a, b)]
        if a.growth.field != b.growth.field and (all(dear) or (any(dear) and any(many))):
            found.append((i, j))
    return found
