"""One turn of several rows, draw and forward pass, in which a row that fails does not take the others along."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.batch import Batch
from tirage.draw import Draw
from tirage.engine.sample import GrowingSample, masks_of
from tirage.errors import ModelError
from tirage.models import StepModel

Logits = NDArray[np.float32]
DrawnRow = tuple[Draw, int]
DETOURS = 4
"""Ways to the end of a constraint that one draw tries when other parameters forbid them."""
_LOGIT_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_log = logging.getLogger("tirage")


def draw(batch: Batch, logits: Logits, samples: Sequence[GrowingSample]) -> list[DrawnRow | BaseException]:
    """For each row of the batch its place in a Draw, or what kept it from being drawn; the histories advance."""
    try:
        drawn = draw_together(batch, logits, samples)
        rows: list[DrawnRow | BaseException] = [(drawn, index) for index in range(len(samples))]
        batch.advance(drawn)
    except BaseException as error:
        _log.warning("a draw failed and is repeated row by row: %s: %s", type(error).__name__, error)
        rows = [draw_alone(batch, slot, logits[i], samples[i]) for i, slot in enumerate(batch.slots)]
        batch.advance([-1 if isinstance(row, BaseException) else int(row[0].token_ids[0]) for row in rows])
    return rows


def draw_together(batch: Batch, logits: Logits, samples: Sequence[GrowingSample]) -> Draw:
    """One token per row of the batch, within what the text of each sample lets come.

    A token after which a constraint could no longer be closed in time is not taken: its row is drawn again with the
    first token of its way to the end alone. Where other parameters forbid that token, another way is looked for, and
    without one the row is drawn under its constraint alone. The other rows draw the same again.
    """
    masks = masks_of(samples, batch.vocab_size)
    drawn = batch.sample(logits, mask=masks)
    if masks is None:
        return drawn
    late = [row for row, each in enumerate(samples) if not each.keeps(int(drawn.token_ids[row]))]
    for row in late:
        masks[row] = samples[row].closing_mask(batch.vocab_size)
    drawn = batch.sample(logits, mask=masks) if late else drawn
    for attempt in range(1, DETOURS + 1):
        stuck = [row for row, each in enumerate(samples) if each.is_stuck(drawn, row)]
        if not stuck:
            break
        for row in stuck:
            masks[row] = samples[row].other_mask(batch.vocab_size, last=attempt == DETOURS)
        drawn = batch.sample(logits, mask=masks)
    return drawn


def draw_alone(batch: Batch, slot: int, logits: Logits, growing: GrowingSample) -> DrawnRow | BaseException:
    """`draw` for one row: the same token as in company."""
    try:
        alone = Batch(batch.vocab_size, 1)
        prompt_ids, output_ids = batch.history(slot)
        alone.add(growing.row_params, prompt_ids, output_ids=output_ids, sample_index=growing.index)
        return draw_together(alone, logits[None], [growing]), 0
    except BaseException as error:
        return error


def decode(model: StepModel, token_ids: Sequence[int], rows: Sequence[Any]) -> tuple[Logits, dict[int, BaseException]]:
    """Logits [B, V] after one more id per row, and the errors of the rows that the model could not continue.

    When the joined pass fails, each row is tried alone.
    """
    shape = (len(rows), model.vocab_size)
    try:
        logits = model.decode(token_ids, rows)
    except BaseException as error:
        if len(rows) == 1:
            return np.full(shape, np.nan, np.float32), {0: error}
        _log.warning("a step of %d rows failed and is repeated row by row: %s", len(rows), named(error))
        return decode_each(model, token_ids, rows)
    try:
        return as_matrix(logits, shape, "decode"), {}
    except ModelError as error:
        return np.full(shape, np.nan, np.float32), dict.fromkeys(range(len(rows)), error)


def decode_each(
    model: StepModel, token_ids: Sequence[int], rows: Sequence[Any]
) -> tuple[Logits, dict[int, BaseException]]:
    """`decode` for rows that cannot share a pass."""
    each = [decode(model, [token_id], [row]) for token_id, row in zip(token_ids, rows, strict=True)]
    errors = {index: failed[0] for index, (_, failed) in enumerate(each) if failed}
    return np.concatenate([logits for logits, _ in each]), errors


def read(model: StepModel, row: Any, *, score: bool) -> Logits:
    """Logits [k, V] of the next piece of a row's prompt: with `score` of all its tokens, else of the last, if any.

    Raises ModelError for logits of another shape or type.
    """
    before = row.left
    logits = model.prefill_chunk(row)
    # Before the end of a prompt there may be none.
    rows = before - row.left if score else None if row.left else 1
    return as_matrix(logits, (rows, model.vocab_size), "read")


def as_matrix(logits: Any, shape: tuple[int | None, int], name: str) -> Logits:
    """A model's logits as float32 of that shape, None for any number of rows; ModelError for others."""
    array = np.asarray(logits)
    if array.ndim != 2 or array.shape[1] != shape[1] or shape[0] not in (None, len(array)):
        wanted = ", ".join("k" if size is None else str(size) for size in shape)
        raise ModelError(f"{name} must give logits of shape [{wanted}], got {list(array.shape)}")
    if array.dtype.name not in _LOGIT_TYPES:
        raise ModelError(f"{name} must give float32 logits, got {array.dtype}")
    return array.astype(np.float32, copy=False)


def named(error: BaseException) -> str:
    """An error as one line: its class and its message."""
    return f"{type(error).__name__}: {error}"
