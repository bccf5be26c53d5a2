"""Processors of an operator that break in every way: a server under test imports them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

Args = Sequence[dict[str, Any]]


def sleeps(logits: np.ndarray, args: Args) -> np.ndarray:
    """Returns late: after `seconds`, or after a minute."""
    time.sleep(args[0].get("seconds", 60.0))
    return logits


def loops(logits: np.ndarray, args: Args) -> np.ndarray:
    """Never returns, and never waits for anything."""
    while logits is not None:
        pass
    return logits


def raises(logits: np.ndarray, args: Args) -> np.ndarray:
    """Fails."""
    raise KeyError("secret")


def exits(logits: np.ndarray, args: Args) -> np.ndarray:
    """Wants to end the server."""
    sys.exit(3)


def nan(logits: np.ndarray, args: Args) -> np.ndarray:
    """Returns what is no number."""
    return np.full_like(logits, np.nan)


def shape(logits: np.ndarray, args: Args) -> np.ndarray:
    """Returns too much."""
    return np.concatenate([logits, logits])


def quick(logits: np.ndarray, args: Args) -> np.ndarray:
    """Forbids token 5, and nothing else."""
    logits[:, 5] = -np.inf
    return logits


ALL = ("sleeps", "loops", "raises", "exits", "nan", "shape", "quick")
