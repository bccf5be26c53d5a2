"""Fresh memory that is full of rubbish: a server under test imports this module with its logits processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BYTE = int(os.environ["TIRAGE_TEST_POISON"])


def filled(array: np.ndarray) -> np.ndarray:
    """The array with the poison in every byte; numbers with a point are NaN, which nothing can outweigh."""
    if array.dtype.kind in "fc":
        array.fill(np.nan)
    elif array.dtype.kind in "iub" and array.flags.c_contiguous:
        array.view(np.uint8).fill(BYTE)
    return array


def poisoned(make: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """`np.empty` and the like, with poison."""
    return lambda *args, **options: filled(make(*args, **options))


def plain(logits: np.ndarray, args: Sequence[dict[str, Any]]) -> np.ndarray:
    """The logits as they are."""
    del args
    return logits


np.empty = poisoned(np.empty)
np.empty_like = poisoned(np.empty_like)
