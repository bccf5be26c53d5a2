"""A row of a draw as the engine passes it on, with what its list of the most likely tokens was ordered by."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tirage.compiled_params import compiled
from tirage.draw import Draw
from tirage.engine.entry_lists import listed_ids
from tirage.params import SamplingParams


class DrawnRow(NamedTuple):
    """A Draw and the index of a row in it.

    `top_logits` float32 [n] are those of the tokens that its top list has, where it was ordered by them.
    """

    drawn: Draw
    row: int
    top_logits: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, drawn: Draw, row: int, logits: Any, params: SamplingParams) -> DrawnRow:
        """The row of a draw from logits [B, V], of a request with these parameters; those of NumPy alone are read."""
        if drawn.top_token_ids is None or not isinstance(logits, np.ndarray) or not lists_by_logits(params):
            return cls(drawn, row)
        return cls(drawn, row, logits[row, listed_ids(drawn, row)])


def lists_by_logits(params: SamplingParams) -> bool:
    """Whether the list of the most likely tokens is ordered by the model's own logits (S-L5)."""
    mode = params.logprobs_mode
    return mode == "raw" or (mode == "processed" and compiled(params.unwrapped).keeps_logits)
