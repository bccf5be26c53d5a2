"""Which samples get the tokens that their constraints force in a step, and which of these tokens the model reads then.

Both may take only a part of each step, so that 128 samples with long forced texts do not hold up the other rows. A
sample whose turn has not come rests; it gets the same tokens in a later step, which the model reads in the same passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tirage.engine.fairness import Turns, interleaved
from tirage.engine.sequence import RunningSequence

SLICE_S, READ_TOKENS = 0.02, 256
"""The time of a step for finding forced tokens, and how many the model reads in it; those of one sample in any case."""


class ForcedTurns:
    """The samples whose turn it is, for the engine's thread."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._find_turns, self._read_turns = Turns(), Turns()

    def to_find(self, running: Sequence[RunningSequence]) -> Iterator[RunningSequence]:
        """Those whose constraint is yet to say what it forces after their last token."""
        deadline = self._clock() + SLICE_S
        for sequence in in_turn([each for each in running if each.may_force], self._find_turns):
            yield sequence
            if self._clock() > deadline:
                return

    def to_read(self, running: Sequence[RunningSequence]) -> Iterator[RunningSequence]:
        """Those with several tokens that the model has not read."""
        left = READ_TOKENS
        for sequence in in_turn([each for each in running if len(each.unread) > 1], self._read_turns):
            left -= len(sequence.unread)
            yield sequence
            if left <= 0:
                return


def in_turn(sequences: Sequence[RunningSequence], turns: Turns) -> Iterator[RunningSequence]:
    """The sequences, those of each request in turn; what is taken from here is counted as a turn of its request."""
    for sequence in interleaved(sequences, lambda each: each.group.key, turns) if sequences else ():
        turns.take([sequence.group.key])
        yield sequence
