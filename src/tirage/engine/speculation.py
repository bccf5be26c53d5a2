"""Speculation: the model reads drafts beyond the texts of samples in one pass, and draws go on along those that hold.

The tokens are drawn one after the other, each from the logits after the token before it, by the draws, masks and stops
of a step without drafts; a draft only has these logits ready sooner. So nothing but the model's caches has to be taken
back when a token is not the draft's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.engine.draft_model import DraftModel
from tirage.engine.draft_probe import check_drafts
from tirage.engine.drafts import Proposal
from tirage.engine.drawn_tokens import model_failed
from tirage.engine.progress import Meter
from tirage.engine.prompt_lookup import LOOKUP_COST, PromptLookup
from tirage.engine.runner import as_matrix, decode, describe
from tirage.engine.sequence import RunningSequence
from tirage.engine.speculative_config import SpeculativeConfig
from tirage.errors import ModelError, ParamsError
from tirage.models import SpeculativeModel, StepModel

Logits = NDArray[np.float32]
_log = logging.getLogger("tirage")


class Proposer(Protocol):
    """Where drafts come from."""

    def propose(self, wanted: Sequence[tuple[RunningSequence, int]]) -> list[Proposal]:
        """For each sample a draft of at most so many tokens, which may be empty, and its source."""
        ...

    def forget(self, sequence: RunningSequence) -> None:
        """Drops what is kept of a sample that has ended."""
        ...


class NoSpeculation:
    """An engine without drafts."""

    reads_ahead = False

    def __init__(self, model: StepModel) -> None:
        self._model = model

    def decode(
        self, token_ids: Sequence[int], rows: Sequence[Any], drawn: Sequence[RunningSequence]
    ) -> tuple[Logits, dict[int, BaseException]]:
        """What `runner.decode` gives, logits float32 [B, V] and errors by row."""
        return decode(self._model, token_ids, rows)

    def settle(self, sequence: RunningSequence) -> None:
        """Does nothing, as the sample has no draft."""

    def forget(self, sequence: RunningSequence) -> None:
        """Does nothing, as nothing is kept of the sample."""


class Speculation:
    """The drafts of the running samples of an engine; for the engine's thread.

    Raises ModelError for a model, or a draft model, that cannot take tokens back, and for a model whose logits after a
    draft are not those of single tokens (`check_drafts`), and ParamsError for drafts longer than the context.
    """

    reads_ahead = True

    def __init__(
        self, model: StepModel, config: SpeculativeConfig, *, meter: Meter, draft: StepModel | None = None
    ) -> None:
        check_model(model, "model")
        if config.num_speculative_tokens >= model.max_length:
            raise ParamsError(
                f"num_speculative_tokens must be below the model's context of {model.max_length} tokens, "
                f"got {config.num_speculative_tokens}"
            )
        check_drafts(model)
        self._model: Any = model
        self._config, self._meter = config, meter
        self._proposer = open_proposer(config, draft, model)

    def decode(
        self, token_ids: Sequence[int], rows: Sequence[Any], drawn: Sequence[RunningSequence]
    ) -> tuple[Logits, dict[int, BaseException]]:
        """What `runner.decode` gives, logits float32 [B, V] and errors by row.

        The first rows are those of `drawn`, whose drafts are read too. Where the pass with the drafts fails, the rows
        are decoded without.
        """
        drafts = self._propose(drawn) if len(rows) <= self._config.disable_by_batch_size else []
        found = self._read(token_ids, rows, drawn, drafts) if any(tokens for tokens, _ in drafts) else None
        return decode(self._model, token_ids, rows) if found is None else found

    def read_single(self, token_id: int, sequence: RunningSequence) -> Logits | None:
        """Logits float32 [1, V] after the token just drawn for the only sample, read with a draft beyond it.

        None where there is no draft, or its pass has failed: the model is yet to read the token. Raises what the model
        raises when it takes back a draft before, and ModelError for logits of another shape.
        """
        sequence.unread = [token_id]
        self._follow(sequence)
        if not sequence.unread:
            return sequence.logits[None]
        sequence.unread = []
        drafts = self._propose((sequence,))
        found = self._read((token_id,), (sequence.row,), (sequence,), drafts) if drafts[0][0] else None
        if found is None:
            return None
        logits, errors = found
        for error in errors.values():
            raise error
        return logits

    def _read(
        self, token_ids: Sequence[int], rows: Sequence[Any], drawn: Sequence[RunningSequence], drafts: list[Proposal]
    ) -> tuple[Logits, dict[int, BaseException]] | None:
        """What `decode` gives, of a pass with these drafts; None where it fails."""
        ahead = [tokens for tokens, _ in drafts] + [()] * (len(rows) - len(drafts))
        ids = [[token_id, *tokens] for token_id, tokens in zip(token_ids, ahead, strict=True)]
        starts = [0, *accumulate(map(len, ids))]
        try:
            found = self._model.extend_rows(ids, rows)
        except BaseException as error:
            _log.warning("a pass with drafts failed and is repeated without: %s", describe(error))
            return None
        shape = (starts[-1], self._model.vocab_size)
        try:
            logits = as_matrix(found, shape, "extend_rows")
        except ModelError as error:
            return np.full((len(rows), shape[1]), np.nan, np.float32), dict.fromkeys(range(len(rows)), error)
        for sequence, (tokens, source), start in zip(drawn, drafts, starts, strict=False):
            if tokens:
                sequence.drafts.begin(tokens, list(logits[start + 1 : start + 1 + len(tokens)]), source)
        self._meter.drafts += sum(bool(tokens) for tokens in ahead)
        self._meter.draft_tokens += sum(map(len, ahead))
        return logits[starts[:-1]], {}

    def settle(self, sequence: RunningSequence) -> None:
        """Goes on from the logits of the draft where it has the tokens that were drawn, and drops it where it has not.

        A sample that waits for the tokens that its constraint forces keeps its draft until they are known. One that
        the model cannot take back to its text ends.
        """
        if sequence.may_force or sequence.sample.stop is not None:
            return
        try:
            self._follow(sequence)
        except BaseException as error:
            sequence.sample.fail(model_failed(error))

    def _follow(self, sequence: RunningSequence) -> None:
        """Takes the unread tokens of a sample from its draft while they are the draft's, with the logits after them."""
        if sequence.drafts.draft is None:
            return
        before = sequence.drafts.draft.accepted
        logits = sequence.drafts.take(sequence.unread)
        if logits is not None:
            sequence.logits = logits
        self._meter.accepted_tokens += sequence.drafts.draft.accepted - before
        if sequence.unread or not sequence.drafts.unsettled:
            self.drop(sequence)

    def drop(self, sequence: RunningSequence) -> None:
        """Ends the draft of a sample: the model takes back what no draw has confirmed."""
        draft = sequence.drafts.end()
        if draft is not None and draft.ahead:
            self._model.truncate_row(sequence.row, len(draft.ahead))

    def forget(self, sequence: RunningSequence) -> None:
        """Drops what is kept of a sample that has ended, and the tokens in its row that it does not have."""
        for forget in (self.drop, self._proposer.forget):
            try:
                forget(sequence)
            except BaseException as error:
                _log.error("a draft could not be taken back: %s", describe(error), exc_info=error)

    def _propose(self, drawn: Sequence[RunningSequence]) -> list[Proposal]:
        """A draft for each sample, which may be empty."""
        most = self._config.num_speculative_tokens
        counts = [min(most, each.sample.tokens_left - 1, self._model.room_for_draft(each.row)) for each in drawn]
        wanted = [(each, count) for each, count in zip(drawn, counts, strict=True) if count > 0]
        proposed = iter(self._proposer.propose(wanted))
        return [next(proposed) if count > 0 else ((), 0) for count in counts]


def open_proposer(config: SpeculativeConfig, draft: StepModel | None, model: StepModel) -> Proposer:
    """Where drafts for a model come from. Raises ModelError for a draft model that cannot take tokens back."""
    if draft is None:
        cost = getattr(model, "draft_cost", LOOKUP_COST)
        return PromptLookup(most=config.prompt_lookup_max, fewest=config.prompt_lookup_min, cost=cost)
    check_model(draft, "draft model")
    return DraftModel(draft, vocab_size=model.vocab_size)


def check_model(model: Any, name: str) -> None:
    """Raises ModelError for a model whose rows cannot have drafts."""
    why = model.draft_refusal if isinstance(model, SpeculativeModel) else "it has no extend_rows and truncate_row"
    if why:
        raise ModelError(f"speculation must go with a {name} that reads drafts and gives tokens back, but {why}")
