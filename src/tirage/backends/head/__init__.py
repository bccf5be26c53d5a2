"""Logits that are never whole: a model's head is computed block by block, as often as a draw needs it.

`tirage.torch.sample_hidden` draws from it. What a row needs of its logits decides how often its blocks are computed:
once for greedy and top-k, two or three times for top-p, min-p and the plain law. Other rows are computed whole, a few
at a time.
"""

from __future__ import annotations

from typing import Any

from tirage.backends.head.blocks import Head
from tirage.backends.head.draw import draw
from tirage.backends.torch.arrays import as_mask, from_numpy, to_numpy

__all__ = ["Head", "as_logits", "as_mask", "draw", "from_numpy", "to_numpy"]


def as_logits(logits: Any) -> Head:
    """The head itself, of logits [B, V], which was checked when it was made."""
    return logits
