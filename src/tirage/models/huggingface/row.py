"""The state of one request inside a Hugging Face model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tirage.models.protocol import Inputs


class HuggingFaceRow:
    """One request in flight; implements `tirage.models.CachedRow`.

    `length` positions are in its KV cache, which is in `cache`, or in `group` while the row is part of a batch. `left`
    prompt positions are still to be prefilled; `cached` were taken from the prefix cache. `hidden` float32 [k, hidden]
    are the last layer's states of the positions computed last, if the inputs ask for them.
    """

    __slots__ = (
        "cache", "cached", "closed", "drafted", "group", "hidden", "inputs", "left", "length", "next_position",
        "positions", "rope_length", "token_ids",
    )  # fmt: skip

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.token_ids: list[int] = list(inputs.token_ids)
        self.left, self.length, self.cached = inputs.length, 0, 0
        # Positions below this one use the rotary frequencies of a text of so many tokens.
        self.rope_length = inputs.length
        self.cache: Any = None
        self.group: Any = None
        # `drafted`: it has read drafts, so that its cache stays its own while it is the only row of a pass.
        self.closed = self.drafted = False
        # Position ids int64 [..., 1, T] of the prompt, if the model takes them, and those of the next token.
        self.positions: Tensor | None = None
        self.next_position: Tensor | None = None
        self.hidden: NDArray[np.float32] | None = None


def drop_caches(rows: Sequence[HuggingFaceRow]) -> None:
    """Drops the caches of rows after a failed step; the rows are prefilled again when they are next needed."""
    for row in rows:
        if row.group is not None:
            row.group.rows = [None if other is row else other for other in row.group.rows]
        row.cache = row.group = None
