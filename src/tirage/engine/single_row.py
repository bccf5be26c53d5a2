"""The steps of an engine's only sample while nothing else waits: a step of all rows, less what several rows need.

After a forward pass the processor's caches hold weights, so every object and function that a step uses has to be read
from memory. That would be most of the time of a step of all rows with one row in it; this one uses far fewer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from tirage.backends.numpy.single_row import SingleDraw, single_draw
from tirage.engine.drawn_tokens import accept_token
from tirage.engine.logprobs import single_record
from tirage.engine.progress import Meter
from tirage.engine.runner import Logits, as_matrix, describe
from tirage.engine.sequence import RunningSequence, SequenceGroup
from tirage.engine.speculation import Speculation
from tirage.history import MAX_HISTORY
from tirage.models import SingleStepModel, StepModel
from tirage.sampling_batch import SamplingBatch

_log = logging.getLogger("tirage")


class SingleRow:
    """Moves a sample on by a token at a time, with the same tokens, text and counts as steps of all rows have.

    `logits` float32 [1, V] are those that the next token is drawn from, in place of the sequence's own; they are valid
    until the next call of the model. `tell` is
    called with the sequence when it has a token, before the model reads that; `fail` when the model cannot. With
    `speculation` the model may read drafts, along which a step draws further tokens.
    """

    __slots__ = (
        "_decode",
        "_draw",
        "_fail",
        "_history",
        "_meter",
        "_record",
        "_speculation",
        "_tell",
        "logits",
        "sequence",
    )

    def __init__(
        self,
        model: StepModel,
        sequence: RunningSequence,
        draw: SingleDraw,
        *,
        meter: Meter,
        tell: Callable[[RunningSequence], None],
        fail: Callable[[SequenceGroup, RunningSequence, BaseException], None],
        speculation: Speculation | None = None,
    ) -> None:
        self._draw, self._record, self._meter, self._speculation = draw.draw, draw.record, meter, speculation
        self._decode = model.decode_single if isinstance(model, SingleStepModel) else partial(decode_rows, model)
        self._tell, self._fail = tell, fail
        self.sequence, self._history = sequence, sequence.sampling_row.history
        self.logits = sequence.logits[None]

    @classmethod
    def of(cls, model: StepModel, sequence: RunningSequence, batch: SamplingBatch, **given: Any) -> SingleRow | None:
        """The steps of a running sample with a batch of its one row; None for one that needs steps of all rows."""
        sample = sequence.sample
        if sample.may_mask or sequence.may_force or sequence.group.request.inputs.hidden_states:
            return None
        if not sequence.is_drawable or type(sequence.logits) is not np.ndarray:
            return None
        draw = single_draw(batch)
        return None if draw is None else cls(model, sequence, draw, **given)

    def step(self) -> bool:
        """Draws a token, and others along its draft, until the model is to read one or the sample ends.

        False where nothing could be drawn. Then nothing has changed since the token before, and a step of all rows says
        what is wrong.
        """
        meter = self._meter
        began = at = meter.last_tick
        while True:
            token_id, logprob = self._next()
            if token_id < 0:
                return False
            sampled = perf_counter()
            self._take(token_id, logprob, sampled)
            told = perf_counter()
            ahead = self.sequence.sample.stop is None and self._read(token_id)
            meter.count_single(at, sampled, told)
            at = meter.last_tick
            if not ahead:
                break
        meter.count_single_step(began)
        return True

    def _take(self, token_id: int, logprob: float, sampled: float) -> None:
        """Gives the sample the token that was drawn at the time `sampled`, and passes it on."""
        sequence = self.sequence
        self._meter.between.add(sampled - sequence.drawn_at)
        sequence.drawn_at = sampled
        sequence.group.request.mark_token(sampled)
        self._history.append(token_id)
        if self._record is not None:
            sequence.sample.records.append(single_record(self._record(), logprob))
        accept_token(sequence.sample, token_id, logprob)
        self._tell(sequence)

    def _next(self) -> tuple[int, float]:
        """The next token and its log-probability; -1 where a step of all rows is needed."""
        history = self._history
        if history.length >= MAX_HISTORY:
            return -1, 0.0
        try:
            return self._draw(self.logits, history.length - history.prompt_length)
        except BaseException as error:
            _log.warning("a draw failed and is repeated: %s", describe(error))
            return -1, 0.0

    def _read(self, token_id: int) -> bool:
        """Has the model read the token just drawn; whether it had read it as a draft."""
        sequence, speculation, logits, known = self.sequence, self._speculation, None, False
        try:
            if speculation is not None:
                known = sequence.drafts.expects(token_id)
                logits = speculation.read_single(token_id, sequence)
            self.logits = self._decode(token_id, sequence.row) if logits is None else logits
        except BaseException as error:
            self._fail(sequence.group, sequence, error)
            return False
        return known


def decode_rows(model: StepModel, token_id: int, row: Any) -> Logits:
    """Logits float32 [1, V] after one more id of a row, from a batch of one."""
    return as_matrix(model.decode([token_id], [row]), (1, model.vocab_size), "decode")
