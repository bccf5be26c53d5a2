"""A request on its way through the scheduler, and one of its samples while it is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.beams import BeamSearch
from tirage.engine.logprobs import PromptScores
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample

Notify = Callable[[GrowingSample], None]


class SequenceGroup:
    """A request in the engine: what is still to start, its row while its prompt is read, and who wants to know.

    `notify` is called in the engine's thread with each sample that moved or ended; of a beam search with the best one
    after every step, and when it is over.
    """

    def __init__(self, request: EngineRequest, notify: Notify) -> None:
        self.request, self.notify = request, notify
        self.pending = deque(sample for sample in request.samples if sample.stop is None)
        self.row: Any = None
        self.logits: NDArray[np.float32] | None = None
        self.scores: PromptScores | None = None
        self.states: list[NDArray[np.float32]] = []
        self.search: BeamSearch | None = None

    def release(self) -> None:
        """Drops what a request that is over needs no more: its handle may live long, and refers to this."""
        self.notify, self.logits, self.scores, self.search, self.states = unheard, None, None, None, []

    @property
    def to_read(self) -> bool:
        """Whether there is any use in reading the prompt."""
        return bool(self.pending) or self.request.inputs.score

    def places(self, most: int) -> int:
        """Places that the request needs in order to begin: one, or all those of its beams, of `most` there are."""
        return 1 if self.request.beams is None else min(self.request.beams.beam_width, most)


def unheard(_: GrowingSample) -> None:
    """Tells nobody."""


class RunningSequence:
    """A sample in the batch: its row, and the logits its next token is drawn from."""

    __slots__ = ("job", "logits", "row", "sample", "states")

    def __init__(self, job: SequenceGroup, sample: GrowingSample, row: Any, logits: NDArray[np.float32]) -> None:
        self.job, self.sample, self.row, self.logits = job, sample, row, logits
        self.states = list(job.states)
