"""What models have in common that take text and token ids only, and models that prefill a prompt in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tirage.errors import ParamsError
from tirage.models.protocol import Inputs, Logits, StepModel


class TextOnly:
    """The part of a `StepModel` or a `BatchingModel` that refuses everything besides text and token ids.

    `described` is how its errors name the model.
    """

    described: ClassVar[str] = "this model"
    media_marks: Mapping[str, str] = {}
    sampling_rate: int | None = None

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for anything besides token ids."""
        given = {
            "prompt embeds": inputs.embeds is not None,
            "prompt images and audio": bool(inputs.media),
            "prompt adapter": inputs.adapter is not None,
            "return_hidden_states": inputs.hidden_states,
        }
        for name, present in given.items():
            if present:
                raise ParamsError(f"{name} must not be given, {self.described} takes text and token ids only")

    def read_media(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """Raises ParamsError, always."""
        name = next(name for name, items in given.items() if len(items))
        raise ParamsError(f"prompt {name} must not be given, {self.described} takes text and token ids only")


def prefill_whole(model: StepModel, token_ids: Sequence[int]) -> tuple[Logits, Any]:
    """Logits float32 [V] after the last id, and the row of `model` that continues from there."""
    row = model.open(Inputs(token_ids=tuple(token_ids)))
    logits = model.prefill_chunk(row)
    while row.left:
        logits = model.prefill_chunk(row)
    return logits[-1], row


def score_whole(model: StepModel, token_ids: Sequence[int]) -> Logits:
    """Logits float32 [T, V] after each of the T ids, of a row of `model` that is closed again."""
    row = model.open(Inputs(token_ids=tuple(token_ids), score=True))
    parts = [model.prefill_chunk(row)]
    while row.left:
        parts.append(model.prefill_chunk(row))
    model.close(row, reuse=False)
    return np.concatenate(parts)
