"""Prompt lookup: drafts from what followed the last n-gram of a text where the text or its prompt had it before.

Records, tables and edits repeat a passage with other values in it. So when a text departs from the passage that its
draft came from, the passage is followed on behind the token that differs: n-grams would find it again only a few tokens
later, when the new value has left them. A value that differed once may well differ again, so a draft ends before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tirage.engine.drafts import Proposal
from tirage.engine.sequence import RunningSequence

LOOKUP_COST = 0.25
"""What a token of a draft adds to the time of a pass of a model that does not say; see `SpeculativeModel`."""
# The most tokens of the past that are searched: a search takes a microsecond for about ten thousand.
_SEARCHED = 1 << 17
# How many tokens of a passage the text may leave out at once, and how many it may have instead of one of them.
_LEFT_OUT, _CHANGED = 8, 8
# How many tokens a text has in common with a passage, the n-gram's included, before the passage is followed further
# than its first other token: a text that repeats nothing departs from each at once.
_SHARED = 3


@dataclass(slots=True)
class Passage:
    """An earlier part of a text that the text repeats: the token at `at` is expected after the first `read` ones.

    `changed` counts the latest tokens of the text that the passage does not have; 0 where the last is the passage's.
    `varied` are the places of all tokens of the text that were not those of the passage that it went along there.
    `shared` counts the tokens that both have in common, those of the n-gram included.
    """

    at: int
    read: int
    varied: set[int] = field(default_factory=set)
    changed: int = 0
    shared: int = _SHARED

    def follow(self, tokens: NDArray[np.int32]) -> bool:
        """Follows the `tokens` int32 [T] that are new; whether the text still repeats the passage."""
        for position, token_id in enumerate(tokens[self.read :].tolist(), start=self.read):
            if not self._step(tokens, token_id, position):
                return False
        self.read = tokens.size
        return self.at < self.read

    def _step(self, tokens: NDArray[np.int32], token_id: int, position: int) -> bool:
        near = tokens[self.at : min(self.at + 1 + _LEFT_OUT, position)]
        if not near.size or near[0] != token_id:
            self.varied.add(position)
        found = np.flatnonzero(near == token_id)
        if found.size:
            self.at, self.changed, self.shared = self.at + int(found[0]) + 1, 0, self.shared + 1
            return True
        # The first other token stands for the passage's own, and more are the rest of it.
        self.at += not self.changed
        self.changed += 1
        return self.shared >= _SHARED and self.changed <= _CHANGED and self.at < position

    @property
    def source(self) -> int:
        """The kind of a draft from here: -1 after a token of the passage, -2 after another, -3 after more."""
        return -1 - min(self.changed, 2)


def constant(varied: Collection[int], at: int, length: int) -> int:
    """How many of the `length` tokens at `at` a draft has: those before the first in `varied`, all if that is at `at`.

    Where a draft has to begin with a token that varies, it is tried as a whole.
    """
    return next((ahead for ahead in range(length) if at + ahead in varied), length) or length


class PromptLookup:
    """Drafts by prompt lookup, with n-grams of `most` tokens down to `fewest`. Source: Saxena 2023, Leviathan 2023.

    `cost` is what a token of a draft adds to a pass of the model, as a share of a pass of a single token.
    """

    def __init__(self, *, most: int, fewest: int, cost: float = LOOKUP_COST) -> None:
        self._most, self._fewest, self._cost = most, fewest, cost
        self._passages: dict[RunningSequence, Passage] = {}
        # The places of tokens that were not as expected, by sample; see `Passage`.
        self._varied: dict[RunningSequence, set[int]] = {}

    def propose(self, wanted: Sequence[tuple[RunningSequence, int]]) -> list[Proposal]:
        """For each sample a draft of at most so many tokens, which may be empty.

        Its source is the length of the n-gram, or that of a `Passage`; the one that was right more often goes first.
        """
        return [self._look(sequence, count) for sequence, count in wanted]

    def _look(self, sequence: RunningSequence, count: int) -> Proposal:
        tokens, varied = sequence.sampling_row.history.tokens(), self._varied.setdefault(sequence, set())
        rate = sequence.drafts.rate
        for source, at in sorted(self._places(sequence, tokens), key=lambda place: -rate(place[0]).rate):
            length = rate(source).length(min(count, tokens.size - at), cost=self._cost)
            if length:
                if source > 0:
                    self._passages[sequence] = Passage(at, tokens.size, varied, shared=source)
                return tokens[at : at + constant(varied, at, length)].tolist(), source
        return (), 0

    def _places(self, sequence: RunningSequence, tokens: NDArray[np.int32]) -> list[tuple[int, int]]:
        """Where a draft may begin, each place with its source."""
        skipped = max(tokens.size - _SEARCHED, 0)
        found, matched = look_up(tokens[skipped:], most=self._most, fewest=self._fewest)
        places = [(matched, found + skipped)] if matched else []
        passage = self._passages.get(sequence)
        if passage is not None:
            if not passage.follow(tokens):
                del self._passages[sequence]
            elif not matched or passage.at != found + skipped:
                places.append((passage.source, passage.at))
        return places

    def forget(self, sequence: RunningSequence) -> None:
        """Drops what is kept of a sample that has ended."""
        self._passages.pop(sequence, None)
        self._varied.pop(sequence, None)


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
