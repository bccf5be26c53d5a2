"""One step of several rows, draw and forward pass, in which the error of one row leaves the others alone."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import find, known
from tirage.draw import Draw
from tirage.engine.drawn_row import DrawnRow
from tirage.engine.sample import GrowingSample, masks_of
from tirage.engine.sequence import RunningSequence, SequenceGroup
from tirage.errors import ModelError, ParamsError
from tirage.models import BatchPrefillModel, ExtendModel, StepModel
from tirage.sampling import draw_batch
from tirage.sampling_batch import SamplingBatch

Logits = NDArray[np.float32]
CHECK_S = 0.05
"""The time that a step spends on searches whether constraints can still be closed; the other rows are put off."""
MAX_CLOSING_PATHS = 4
"""Closing paths of a constraint that one draw tries when other parameters forbid their tokens."""
_FLOAT32 = np.dtype(np.float32)
_LOGIT_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_log = logging.getLogger("tirage")


def draw(
    batch: SamplingBatch, sequences: Sequence[RunningSequence], logits: Logits, *, may_put_off: bool = False
) -> list[DrawnRow | BaseException | None]:
    """For each sequence its row of a Draw, or the error that prevented it; `advance` adds the token to its history.

    `batch` holds the sampling rows of the sequences, in their order; `logits` are float32 [B, V]. Where it
    `may_put_off` rows, there is None for those whose searches would take too long now: the next draw of the same logits
    gives their token, as it does of a row that is not advanced.
    """
    samples, late = [each.sample for each in sequences], set[int]()
    try:
        drawn = draw_together(batch, logits, samples, put_off=late if may_put_off else None)
        rows: list[DrawnRow | BaseException] = [
            DrawnRow.of(drawn, index, logits, sample.params) for index, sample in enumerate(samples)
        ]
    except BaseException as error:
        _log.warning("a draw failed and is repeated row by row: %s: %s", type(error).__name__, error)
        late.clear()
        rows = [draw_alone(each, logits[index]) for index, each in enumerate(sequences)]
    return [None if index in late else row for index, row in enumerate(rows)]


def draw_together(
    batch: SamplingBatch, logits: Logits, samples: Sequence[GrowingSample], *, put_off: set[int] | None = None
) -> Draw:
    """One token per row of logits float32 [B, V], within the masks of the samples, as `masked_draws` has it."""
    if not any(sample.may_mask for sample in samples):
        return draw_rows(batch, logits, None)
    steps = masked_draws(samples, batch.vocab_size, put_off=put_off)
    masks = next(steps)
    while True:
        try:
            masks = steps.send(draw_rows(batch, logits, masks))
        except StopIteration as end:
            return end.value


def masked_draws(
    samples: Sequence[GrowingSample], vocab_size: int, *, put_off: set[int] | None = None
) -> Generator[NDArray[np.int32] | None, Draw, Draw]:
    """The masks int32 [B, ceil(V / 32)] to draw under, each after it was sent the draw before; gives the last draw.

    A token after which a constraint could not be closed in time is not taken: its row is drawn again with nothing but
    the first token of its closing path allowed. Where other parameters forbid that token, other closing paths are
    tried, and when none is left the row is drawn under its constraint alone. The other rows draw the same token again.
    To `put_off` are added the rows for which there was no time to find that out.
    """
    masks = masks_of(samples, vocab_size)
    drawn = yield masks
    if masks is None:
        return drawn
    late = rows_to_close(samples, drawn, put_off)
    for row in late:
        masks[row] = samples[row].closing_mask(vocab_size)
    drawn = (yield masks) if late else drawn
    for attempt in range(1, MAX_CLOSING_PATHS + 1):
        stuck = [row for row, each in enumerate(samples) if each.is_stuck(drawn, row) and row not in (put_off or ())]
        if not stuck:
            break
        for row in stuck:
            masks[row] = samples[row].next_closing_mask(vocab_size, last=attempt == MAX_CLOSING_PATHS)
        drawn = yield masks
    return drawn


def rows_to_close(samples: Sequence[GrowingSample], drawn: Draw, put_off: set[int] | None) -> list[int]:
    """The rows after whose token a constraint could not be closed in time; adds those to `put_off` that must wait."""
    late, searched, deadline = list[int](), 0, time.perf_counter() + CHECK_S
    # Those that are behind go first.
    for row in sorted(range(len(samples)), key=lambda row: len(samples[row].token_ids)):
        token_id, sample = int(drawn.token_ids[row]), samples[row]
        needs_search = not sample.is_checked(token_id)
        if put_off is not None and needs_search and searched and time.perf_counter() > deadline:
            put_off.add(row)
            continue
        searched += needs_search
        if not sample.can_close_after(token_id):
            late.append(row)
    return late


def draw_rows(batch: SamplingBatch, logits: Any, masks: NDArray[np.int32] | None) -> Draw:
    """The Draw, in NumPy, of checked logits float32 [B, V] of any library and masks int32 [B, ceil(V / 32)]."""
    if isinstance(logits, np.ndarray):
        return draw_batch(find(logits), logits, batch, masks)
    backend = find(logits)
    drawn = draw_batch(backend, logits, batch, backend.as_mask(masks, logits.shape))
    found = {each.name: getattr(drawn, each.name) for each in dataclasses.fields(drawn)}
    arrays = {name: backend.to_numpy(value) for name, value in found.items() if known(value)}
    return dataclasses.replace(drawn, **arrays)


def draw_alone(sequence: RunningSequence, logits: Logits) -> DrawnRow | BaseException:
    """The draw of one sequence from its logits float32 [V], or its error: the token is the same as in the batch."""
    try:
        alone = SamplingBatch.of([sequence.sampling_row], logits.shape[-1])
        drawn = draw_together(alone, logits[None], [sequence.sample])
        return DrawnRow.of(drawn, 0, logits[None], sequence.sample.params)
    except BaseException as error:
        return error


def advance(sequence: RunningSequence, row: DrawnRow | BaseException) -> DrawnRow | BaseException:
    """The row, whose token, if any, is now in the sequence's history; an error when the history is full."""
    token = -1 if isinstance(row, BaseException) else int(row.drawn.token_ids[row.row])
    if token < 0:
        return row
    try:
        sequence.sampling_row.history.check_room()
    except ParamsError as error:
        return error
    sequence.sampling_row.append(token)
    return row


def decode(model: StepModel, token_ids: Sequence[int], rows: Sequence[Any]) -> tuple[Logits, dict[int, BaseException]]:
    """Logits float32 [B, V] after one more id per row, and the errors by row; such rows have NaN.

    When the pass of all rows fails, each row is tried alone.
    """
    shape = (len(rows), model.vocab_size)
    try:
        logits = model.decode(token_ids, rows)
    except BaseException as error:
        if len(rows) == 1:
            return np.full(shape, np.nan, np.float32), {0: error}
        _log.warning("a step of %d rows failed and is repeated row by row: %s", len(rows), describe(error))
        return decode_each(model, token_ids, rows)
    try:
        return as_matrix(logits, shape, "decode"), {}
    except ModelError as error:
        return np.full(shape, np.nan, np.float32), dict.fromkeys(range(len(rows)), error)


def decode_each(
    model: StepModel, token_ids: Sequence[int], rows: Sequence[Any]
) -> tuple[Logits, dict[int, BaseException]]:
    """What `decode` gives, logits float32 [B, V] and errors by row, with a pass for each row."""
    each = [decode(model, [token_id], [row]) for token_id, row in zip(token_ids, rows, strict=True)]
    errors = {index: failed[0] for index, (_, failed) in enumerate(each) if failed}
    return np.concatenate([logits for logits, _ in each]), errors


def extend(model: StepModel, row: Any, token_ids: Sequence[int]) -> Logits:
    """Logits float32 [V] after more ids of one row, read in one pass by a model that can.

    Raises ModelError for logits of another shape or type.
    """
    if isinstance(model, ExtendModel):
        return as_matrix(model.extend_row(row, token_ids), (1, model.vocab_size), "extend_row")[0]
    logits = np.empty((1, model.vocab_size), np.float32)
    for token_id in token_ids:
        logits = as_matrix(model.decode([token_id], [row]), (1, model.vocab_size), "decode")
    return logits[0]


def prefill(model: StepModel, row: Any, *, score: bool) -> Logits:
    """Logits float32 [k, V] of the next chunk of a row's prompt.

    With `score` there is one row for each of its tokens, else one after the last token of the prompt and none before.
    Raises ModelError for logits of another shape or type.
    """
    before = row.left
    logits = model.prefill_chunk(row)
    # A model may return logits before the end of the prompt or none; they are not looked at.
    rows = before - row.left if score else None if row.left else 1
    return as_matrix(logits, (rows, model.vocab_size), "read")


def read_chunk(model: StepModel, row: Any) -> Logits:
    """Logits float32 [V] after a row's prompt once its last chunk is read, [0] before; a copy, kept for any time.

    Raises what `prefill` does.
    """
    logits = prefill(model, row, score=False)
    return np.empty(0, np.float32) if row.left else logits[-1].copy()


def read_token(model: StepModel, row: Any, token_id: int) -> Logits:
    """Logits float32 [V] after one more id of a row, a copy; raises ModelError for another shape or type."""
    return as_matrix(model.decode([token_id], [row]), (1, model.vocab_size), "decode")[0].copy()


def prefill_chunk(model: StepModel, group: SequenceGroup) -> None:
    """Prefills the next chunk of a request's prompt, and keeps what is wanted of it; raises what `prefill` does."""
    logits = prefill(model, group.row, score=group.prompt_logprobs is not None)
    if group.prompt_logprobs is not None:
        group.prompt_logprobs.add(logits)
    if group.row.hidden is not None:
        group.hidden_states.append(group.row.hidden)
    if not group.row.left:
        # A copy, so that the logits of the other tokens of a scored prompt can be freed.
        group.logits = logits[-1].copy()
        if group.prompt_logprobs is not None:
            group.request.prompt_logprobs = group.prompt_logprobs.entries


def close_row(model: StepModel, row: Any, *, reuse: bool) -> None:
    """Gives a row back to the model, which may keep its prefix with `reuse`; an error is written to the log."""
    try:
        model.close(row, reuse=reuse)
    except BaseException as error:
        _log.error("a row could not be closed: %s", describe(error), exc_info=error)


def prefill_batch(model: BatchPrefillModel, rows: Sequence[Any], *, vocab_size: int) -> Logits | None:
    """Logits float32 [B, V] after the prompts of rows; None if their pass failed, and each is to be tried alone.

    Raises ModelError for logits of another shape or type.
    """
    try:
        logits = model.prefill_batch(rows)
    except BaseException as error:
        _log.warning("a prefill of %d prompts failed and is repeated one by one: %s", len(rows), describe(error))
        return None
    return as_matrix(logits, (len(rows), vocab_size), "prefill_batch")


def as_matrix(logits: Any, shape: tuple[int | None, int], name: str) -> Logits:
    """A model's logits as float32 [k, V] of the given shape, where None is any number of rows.

    Raises ModelError, which names the model's method `name`, for another shape and for a dtype that is no float.
    """
    if type(logits) is np.ndarray and logits.shape == shape and logits.dtype == _FLOAT32:
        return logits
    array = np.asarray(logits)
    if array.ndim != 2 or array.shape[1] != shape[1] or shape[0] not in (None, len(array)):
        wanted = ", ".join("k" if size is None else str(size) for size in shape)
        raise ModelError(f"{name} must give logits of shape [{wanted}], got {list(array.shape)}")
    if array.dtype == _FLOAT32:
        return array
    # Checked last, because NumPy builds the name anew each time.
    if array.dtype.name not in _LOGIT_TYPES:
        raise ModelError(f"{name} must give float32 logits, got {array.dtype}")
    return array.astype(np.float32)


def describe(error: BaseException) -> str:
    """An error in one line: its class and its message."""
    return f"{type(error).__name__}: {error}"
