"""A request inside the scheduler, and one of its samples while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.beams import BeamSearch
from tirage.engine.drafts import DraftState
from tirage.engine.fairness import FairnessKey
from tirage.engine.logprobs import PromptLogprobs
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample

Listener = Callable[[GrowingSample], None]
NO_LOGITS = np.empty(0, np.float32)


class SequenceGroup:
    """A request in the scheduler: how many samples are `unstarted`, the state of its prefill, and its listener.

    `listener` is called in the engine's thread with each sample that got a token or ended; for a beam search with the
    best hypothesis after every step, and once more at the end. Requests that were submitted together have one number,
    by which the scheduler shares its slots. `row` is the model's own object for the prompt, `logits`
    float32 [V] follow its last token, and `hidden_states` are float32 [T, hidden] per chunk of the prefill.
    """

    def __init__(self, request: EngineRequest, listener: Listener, *, number: int = 0) -> None:
        self.request, self.listener = request, listener
        self.key = FairnessKey(request.tenant, number)
        self.unstarted = request.sample_count if request.limit > 0 else 0
        self.row: Any = None
        self.logits: NDArray[np.float32] | None = None
        self.prompt_logprobs: PromptLogprobs | None = None
        self.hidden_states: list[NDArray[np.float32]] = []
        self.search: BeamSearch | None = None

    def release(self) -> None:
        """Drops what a finished request no longer needs: its stream may live long and refers to this object."""
        self.listener, self.logits, self.prompt_logprobs = ignore, None, None
        self.search, self.hidden_states = None, []

    @property
    def needs_prefill(self) -> bool:
        """Whether anything would be done with the logits of the prompt."""
        return bool(self.unstarted) or self.request.inputs.score

    def start_next(self) -> GrowingSample:
        """The sample that starts next, which is then no longer `unstarted`."""
        sample = self.request.start_next()
        self.unstarted -= 1
        return sample

    def slots(self, max_running: int) -> int:
        """The slots it needs to start: one, or one per beam of a search, but never more than `max_running`."""
        return 1 if self.request.beams is None else min(self.request.beams.beam_width, max_running)


def ignore(_: GrowingSample) -> None:
    """A listener that does nothing."""


class RunningSequence:
    """A sample that gets a token in every step in which it takes part.

    `drawn_at` is the `time.perf_counter()` of its last token, 0.0 before the first. `row` is the model's own object for
    its tokens, `sampling_row` what the sampler knows of it, and `logits` float32 [V] are those that its next token is
    drawn from, when there are no `unread` tokens, which the model has yet to read, and the sample does not wait for its
    constraint to say what it forces (`may_force`). `drafts` are what the model has read beyond the text.
    """

    __slots__ = (
        "drafts", "drawn_at", "group", "hidden_states", "logits", "may_force", "row", "sample", "sampling_row",
        "unread",
    )  # fmt: skip

    def __init__(self, group: SequenceGroup, sample: GrowingSample, row: Any, logits: NDArray[np.float32]) -> None:
        self.group, self.sample, self.row, self.logits = group, sample, row, logits
        self.sampling_row = group.request.sampling_row(sample.index)
        self.hidden_states = list(group.hidden_states)
        self.drawn_at = 0.0
        self.unread: list[int] = []
        self.drafts = DraftState()
        self.may_force = sample.may_force

    def take_drawn(self) -> None:
        """Notes that the sample got a token, which the model is to read, with what its constraint forces after it."""
        self.unread = self.sample.token_ids[-1:]
        self.may_force = self.sample.may_force
        if self.may_force:
            # It may rest before it gets others, which would keep those of the whole step.
            self.logits = NO_LOGITS

    def take_forced(self) -> int:
        """Adds the tokens that the constraint leaves no choice about to the sample and the history; gives how many."""
        forced, self.may_force = self.sample.take_forced(), False
        self.unread += forced
        for token_id in forced:
            self.sampling_row.append(token_id)
        return len(forced)

    @property
    def is_drawable(self) -> bool:
        """Whether its logits are those after its last token, forced ones included."""
        return not self.unread and not self.may_force

    @property
    def may_go_on(self) -> bool:
        """Whether it can draw another token in the same step, along its draft."""
        return self.is_drawable and self.sample.stop is None

    def keep_logits(self) -> None:
        """Copies the logits, if they are part of those of a whole step, which would otherwise stay as long as they."""
        if self.logits.base is not None:
            self.logits = self.logits.copy()
