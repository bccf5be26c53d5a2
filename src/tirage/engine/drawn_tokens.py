"""What a draw means for a sample: the token that it takes, or the error that ends it."""

from __future__ import annotations

import logging

from tirage.draw import Status
from tirage.engine.drawn_row import DrawnRow
from tirage.engine.logprobs import output_entry, token_logprob, token_record
from tirage.engine.runner import describe
from tirage.engine.sample import GrowingSample
from tirage.text import Stop, Tokenizer

_log = logging.getLogger("tirage")


def model_failed(error: BaseException) -> Stop:
    """The stop of a sample that the model could not continue."""
    return Stop(kind="model_failed", matched_text=describe(error))


def take_token(sample: GrowingSample, row: DrawnRow | BaseException, tokenizer: Tokenizer) -> None:
    """Adds the token of its row of a draw to a sample; ends it with an error when there is none or its text fails."""
    if isinstance(row, BaseException):
        _log.error("a draw failed: %s", describe(row), exc_info=row)
        sample.fail(model_failed(row))
        return
    drawn, index, _ = row
    status = int(drawn.status[index])
    if status != Status.ok:
        sample.fail(Stop(kind=Status(status).name))  # type: ignore[arg-type]  # statuses are kinds of stops
        return
    try:
        entry = output_entry(row, sample.params, tokenizer, offset=sample.offset)
        if entry is not None:
            sample.entries.append(entry)
        record = token_record(drawn, index, sample.params)
        if record is not None:
            sample.records.append(record)
    except BaseException as error:
        text_failed(sample, error)
        return
    accept_token(sample, int(drawn.token_ids[index]), token_logprob(drawn, index, sample.draw_params))


def accept_token(sample: GrowingSample, token_id: int, logprob: float) -> None:
    """Adds a token to a sample, and ends it with an error when its text fails."""
    try:
        sample.accept(token_id, logprob)
    except BaseException as error:
        text_failed(sample, error)


def text_failed(sample: GrowingSample, error: BaseException) -> None:
    """Ends a sample whose text could not be made."""
    _log.error("a text failed: %s", describe(error), exc_info=error)
    sample.fail(Stop(kind="text_failed", matched_text=describe(error)))
