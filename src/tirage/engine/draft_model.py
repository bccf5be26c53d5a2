"""Drafts by a smaller model, which draws its tokens with the parameters and the randomness of the sample's own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.drafts import Proposal
from tirage.engine.runner import as_matrix, describe, draw_rows, extend
from tirage.engine.sequence import RunningSequence
from tirage.models import Inputs, StepModel
from tirage.sampling_batch import SamplingBatch, SamplingRow

Logits = NDArray[np.float32]
_log = logging.getLogger("tirage")


@dataclass(slots=True, eq=False)
class DraftRow:
    """A sample's text in the draft model: `token_ids` have been read, the first `agreed` of them are the text's."""

    row: Any
    token_ids: list[int]
    agreed: int


class DraftModel:
    """Drafts by a model with the vocabulary of the sample's own; for the engine's thread.

    Each token is drawn at the step, with the seed and under the penalties with which the sample draws its own, so that
    equal laws give equal tokens. A sample whose draft fails has none.
    """

    def __init__(self, model: StepModel, *, vocab_size: int) -> None:
        self._model, self._vocab_size = model, vocab_size
        self._rows: dict[RunningSequence, DraftRow] = {}

    def propose(self, wanted: Sequence[tuple[RunningSequence, int]]) -> list[Proposal]:
        """For each sample a draft of at most so many tokens, which may be empty; there is one source, 0."""
        drafts: list[list[int]] = [[] for _ in wanted]
        for (sequence, count), draft in zip(wanted, drafts, strict=True):
            try:
                if not sequence.sample.params.logits_processors:
                    draft += self._draft(sequence, count)
            except BaseException as error:
                _log.warning("the draft model failed, a step goes on without a draft: %s", describe(error))
                self._close(sequence, reuse=False)
        return [(draft, 0) for draft in drafts]

    def forget(self, sequence: RunningSequence) -> None:
        """Frees the row of a sample that has ended."""
        self._close(sequence, reuse=True)

    def _close(self, sequence: RunningSequence, *, reuse: bool) -> None:
        kept = self._rows.pop(sequence, None)
        if kept is not None:
            self._model.close(kept.row, reuse=reuse)

    def _draft(self, sequence: RunningSequence, count: int) -> list[int]:
        """The draft of one sample; none while its prompt is being prefilled, and beyond the draft model's context."""
        text = sequence.sampling_row.history.tokens()
        count = sequence.drafts.rate(0).length(min(count, self._model.max_length - text.size))
        if count < 1:
            return []
        logits, draft = self._follow(sequence, text), list[int]()
        if logits is None:
            return []
        kept, row = self._rows[sequence], sequence.sampling_row
        state = dataclasses.replace(row, history=row.history.copy())
        batch = SamplingBatch.of([state], self._vocab_size)
        while (token_id := self._drawn(batch, logits, state)) >= 0:
            draft.append(token_id)
            if len(draft) == count:
                break
            logits = as_matrix(self._model.decode([token_id], [kept.row]), (1, self._model.vocab_size), "decode")[0]
            kept.token_ids.append(token_id)
        return draft

    def _drawn(self, batch: SamplingBatch, logits: Logits, state: SamplingRow) -> int:
        """The token that the sample would draw from these logits; -1 for none."""
        fitted = np.full((1, self._vocab_size), -np.inf, np.float32)
        width = min(self._vocab_size, logits.size)
        fitted[0, :width] = logits[:width]
        # A constraint has its say when the sample draws.
        mask = np.full((1, -(-self._vocab_size // 32)), -1, np.int32) if batch.guided else None
        token_id = int(draw_rows(batch, fitted, mask).token_ids[0])
        if token_id >= 0:
            state.append(token_id)
        return token_id

    def _follow(self, sequence: RunningSequence, text: NDArray[np.int32]) -> Logits | None:
        """Logits float32 [V] after a sample's text; None while its prompt is being prefilled, a chunk at a time."""
        kept = self._rows.get(sequence)
        if kept is None:
            inputs = Inputs(token_ids=tuple(text.tolist()), salt=sequence.group.request.inputs.salt)
            kept = self._rows[sequence] = DraftRow(self._model.open(inputs), text.tolist(), 0)
        if kept.row.left:
            logits = self._model.prefill_chunk(kept.row)
            if kept.row.left or len(kept.token_ids) < text.size:
                return None
            kept.agreed = text.size
            return as_matrix(logits, (1, self._model.vocab_size), "prefill")[0]
        self._take_back(kept, text)
        new = text[len(kept.token_ids) :].tolist()
        logits = extend(self._model, kept.row, new)
        kept.token_ids += new
        kept.agreed = text.size
        return logits

    def _take_back(self, kept: DraftRow, text: NDArray[np.int32]) -> None:
        """Takes back what the draft model has read and the text has not."""
        known = min(len(kept.token_ids), text.size - 1)
        while kept.agreed < known and kept.token_ids[kept.agreed] == text[kept.agreed]:
            kept.agreed += 1
        wrong = len(kept.token_ids) - kept.agreed
        if wrong:
            model: Any = self._model
            model.truncate_row(kept.row, wrong)
            del kept.token_ids[-wrong:]
