"""Whether a model reads drafts as it reads tokens one by one, found out on a few tokens before any text has drafts.

A cache that keeps a token that was taken back, or positions that do not advance within a pass, would change texts
unnoticed. Rounding moves logits by far less: bfloat16 by 2 % of the largest, float32 by a millionth.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.runner import as_matrix, close_row, decode, describe, prefill
from tirage.errors import ModelError
from tirage.models import Inputs, StepModel

_PROMPT, _TEXT, _REJECTED = (1, 2, 3), (4, 5, 6, 7), (3, 1)
_MOST_APART = 0.1
_log = logging.getLogger("tirage")


def check_drafts(model: StepModel) -> None:
    """Reads a text of four tokens one by one, and with drafts of which one is rejected: the logits must be the same.

    Logits may differ by a tenth of the largest. Raises ModelError where they do not, and for a pass that fails. A model
    with no room for these drafts is not asked.
    """
    if model.max_length < len(_PROMPT) + len(_TEXT) + len(_REJECTED):
        return
    rows: list[Any] = []
    try:
        expected = _one_by_one(model, _opened(model, rows))
        found = _with_drafts(model, _opened(model, rows))
    except Exception as error:
        raise ModelError(
            f"speculation must go with a model that reads drafts, but its pass failed: {describe(error)}"
        ) from error
    finally:
        for row in rows:
            close_row(model, row, reuse=False)
    if found is None:
        return
    apart = distance(found, expected)
    _log.info("drafts: logits of several tokens of a pass are within %.1e of the largest", apart)
    if not apart <= _MOST_APART:
        raise ModelError(
            "speculation must go with a model whose logits after a draft are those of single tokens, got logits that "
            f"differ by {apart:.2g} of the largest; leave speculation off, or mend extend_rows and truncate_row"
        )


def distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference of logits [k, V], as a share of the largest finite logit expected."""
    apart = np.abs(np.nan_to_num(found.astype(np.float64)) - np.nan_to_num(expected.astype(np.float64))).max()
    return float(apart / max(np.abs(expected[np.isfinite(expected)]).max(initial=0.0), np.finfo(np.float32).tiny))


def _opened(model: StepModel, rows: list[Any]) -> Any:
    """A row after the prompt of the probe, added to `rows`."""
    row = model.open(Inputs(token_ids=_ids(model, _PROMPT)))
    rows.append(row)
    while row.left:
        prefill(model, row, score=False)
    return row


def _ids(model: StepModel, token_ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(token_id % model.vocab_size for token_id in token_ids)


def _one_by_one(model: StepModel, row: Any) -> NDArray[np.float32]:
    found = []
    for token_id in _ids(model, _TEXT):
        logits, errors = decode(model, [token_id], [row])
        for error in errors.values():
            raise error
        found.append(np.array(logits[0]))
    return np.stack(found)


def _with_drafts(model: Any, row: Any) -> NDArray[np.float32] | None:
    """The logits of the same text where a wrong draft follows its first token; None where the row takes no drafts."""
    if model.room_for_draft(row) < len(_REJECTED):
        return None
    first, *others = _ids(model, _TEXT)
    parts = [_read(model, row, [first, *_ids(model, _REJECTED)])[:1]]
    model.truncate_row(row, len(_REJECTED))
    return np.concatenate([*parts, _read(model, row, others)])


def _read(model: Any, row: Any, token_ids: list[int]) -> NDArray[np.float32]:
    return np.array(as_matrix(model.extend_rows([token_ids], [row]), (len(token_ids), model.vocab_size), "extend_rows"))
