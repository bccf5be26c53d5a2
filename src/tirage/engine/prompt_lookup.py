"""Prompt lookup: drafts from what followed the last n-gram of a text where the text or its prompt had it before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.engine.drafts import Proposal
from tirage.engine.sequence import RunningSequence

# The most tokens of the past that are searched: a search takes a microsecond for about ten thousand.
_SEARCHED = 1 << 17


class PromptLookup:
    """Drafts by prompt lookup, with n-grams of `most` tokens down to `fewest`. Source: Saxena 2023, Leviathan 2023."""

    def __init__(self, *, most: int, fewest: int) -> None:
        self._most, self._fewest = most, fewest

    def propose(self, wanted: Sequence[tuple[RunningSequence, int]]) -> list[Proposal]:
        """For each sample a draft of at most so many tokens, which may be empty; its source is the length matched."""
        return [self._look(sequence, count) for sequence, count in wanted]

    def _look(self, sequence: RunningSequence, count: int) -> Proposal:
        tokens = sequence.sampling_row.history.tokens()[-_SEARCHED:]
        found, matched = look_up(tokens, most=self._most, fewest=self._fewest)
        count = sequence.drafts.rate(matched).length(min(count, tokens.size - found)) if matched else 0
        return tokens[found : found + count].tolist(), matched

    def forget(self, sequence: RunningSequence) -> None:
        """Does nothing, as nothing is kept of a sample."""


def look_up(tokens: NDArray[np.int32], *, most: int, fewest: int) -> tuple[int, int]:
    """Where the text went on after the longest n-gram that it ends with and had before, and the n; (0, 0) for none.

    Among equally long ones the latest. `tokens` are int32 [T].
    """
    last = tokens.size - 1
    if last < fewest:
        return 0, 0
    # Positions of earlier tokens that end the n-gram; the latest come first.
    ends = np.flatnonzero(tokens[:last] == tokens[last])[::-1]
    best, matched = 0, 0
    for back in range(1, most + 1):
        if back >= fewest and ends.size:
            best, matched = int(ends[0]) + 1, back
        ends = ends[ends >= back]
        if not ends.size or back == most:
            break
        ends = ends[tokens[ends - back] == tokens[last - back]]
    return best, matched
