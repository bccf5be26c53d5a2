"""Sequences of finished requests that stay in the KV cache, for later prompts with the same beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST = 16
"""The fewest tokens that are worth a sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptSequence:
    """A sequence of the context, its tokens int32 [T], the salt of its request, and its bytes."""

    sequence: int
    token_ids: NDArray[np.int32]
    salt: str
    size: int


class KeptSequences:
    """Kept sequences within a budget of bytes; the least recently used one goes first."""

    def __init__(self, budget: int) -> None:
        self._budget, self._used = budget, 0
        self._kept: OrderedDict[int, KeptSequence] = OrderedDict()

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self._kept)

    def find(self, token_ids: Sequence[int], salt: str) -> tuple[int, int] | None:
        """The sequence with the longest common beginning, and its length; None if none has enough in common."""
        wanted = np.asarray(token_ids, np.int32)
        found = [(common(each.token_ids, wanted), each.sequence) for each in self._kept.values() if each.salt == salt]
        length, sequence = max(found, default=(0, -1))
        if length < SHORTEST:
            return None
        self._kept.move_to_end(sequence)
        return sequence, length

    def add(self, kept: KeptSequence) -> list[int]:
        """Adds a sequence; gives those that must be freed: what it continues, and the oldest beyond the budget."""
        continued = [
            each.sequence
            for each in self._kept.values()
            if each.salt == kept.salt and common(each.token_ids, kept.token_ids) == len(each.token_ids)
        ]
        for sequence in continued:
            self._take(sequence)
        self._kept[kept.sequence] = kept
        self._used += kept.size
        freed = continued
        while self._used > self._budget:
            freed.append(self.take_oldest())
        return freed

    def take_oldest(self) -> int:
        """Removes the least recently used sequence and gives it."""
        return self._take(next(iter(self._kept)))

    def take_all(self) -> list[int]:
        """Removes all sequences and gives them."""
        return [self._take(sequence) for sequence in list(self._kept)]

    def _take(self, sequence: int) -> int:
        self._used -= self._kept.pop(sequence).size
        return sequence


def common(first: NDArray[np.int32], second: NDArray[np.int32]) -> int:
    """The length of the common beginning of two arrays [T]."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length
