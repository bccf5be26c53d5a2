"""What finished requests leave for later prompts with the same beginning: their tokens, and the keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST = 16
"""The fewest tokens that are worth keeping."""
MOST = 256
"""The most requests of which something is kept; a prompt is compared with each."""


@dataclass(slots=True, eq=False)
class KeptSequence:
    """The tokens int32 [T] of a finished request, its salt, and the `size` in bytes of its keys and values.

    They are in the context under `sequence`, in `state` uint8 [size], or in both.
    """

    token_ids: NDArray[np.int32]
    salt: str
    size: int
    sequence: int | None
    state: NDArray[np.uint8] | None = None


class KeptSequences:
    """Kept sequences within a budget of bytes; the least recently used one goes first."""

    def __init__(self, budget: int) -> None:
        self._budget, self._used = budget, 0
        self._kept: list[KeptSequence] = []

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self._kept)

    def find(self, token_ids: Sequence[int], salt: str) -> tuple[KeptSequence, int] | None:
        """The sequence with the longest common beginning, and its length; None if none has enough in common.

        Of equals, one in the context; it counts as used.
        """
        wanted, best, found = np.asarray(token_ids, np.int32), (SHORTEST, False), None
        for each in self._kept:
            if each.salt == salt and (fit := (common(each.token_ids, wanted), each.sequence is not None)) >= best:
                best, found = fit, each
        if found is None:
            return None
        self._kept.remove(found)
        self._kept.append(found)
        return found, best[0]

    def add(self, kept: KeptSequence) -> list[KeptSequence]:
        """Adds a sequence; gives those that must go: what it continues, and the oldest beyond the budget."""
        gone = [
            each
            for each in self._kept
            if each.salt == kept.salt and common(each.token_ids, kept.token_ids) == len(each.token_ids)
        ]
        for each in gone:
            self.remove(each)
        self._kept.append(kept)
        self._used += kept.size
        while self._used > self._budget or len(self._kept) > MOST:
            gone.append(self.remove(self._kept[0]))
        return gone

    def remove(self, kept: KeptSequence) -> KeptSequence:
        """Takes out a sequence and gives it."""
        self._kept.remove(kept)
        self._used -= kept.size
        return kept

    def take_oldest(self) -> KeptSequence:
        """Takes out the least recently used sequence, one in the context if there is one."""
        return self.remove(next(iter(self.resident), self._kept[0]))

    def take_all(self) -> list[KeptSequence]:
        """Takes out all sequences."""
        return [self.remove(each) for each in list(self._kept)]

    @property
    def resident(self) -> list[KeptSequence]:
        """Those in the context, the least recently used one first."""
        return [each for each in self._kept if each.sequence is not None]


def common(first: NDArray[np.int32], second: NDArray[np.int32]) -> int:
    """The length of the common beginning of two arrays [T]."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length
