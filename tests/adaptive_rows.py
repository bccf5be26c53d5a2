"""Rows with adaptive-p whose target lies between the shares of some likely tokens, or at one of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from random_rows import FILTERS

from tirage.exact import numbers
from tirage.operators.adaptive_p import ADAPTIVE_P, ONE
from tirage.operators.min_p import MIN_P
from tirage.operators.smoothing import SMOOTH
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import XTC

ADAPTIVE_SETS = 9950
"""Jobs of sets from that number on have such rows."""
_BEFORE = (None, TOP_P, SMOOTH, XTC, MIN_P, TOP_K)


def adaptive_rows(
    number: int, rows: int, size: int, r: np.random.Generator
) -> tuple[NDArray[np.float32], list[list[tuple[int, ...]]]]:
    """Logits [rows, size] with a few likely tokens, and a program for each row.

    In half of the rows the first half is at -inf; every third job rounds its logits.
    """
    before, logits, programs = _BEFORE[number % len(_BEFORE)], np.empty((rows, size), np.float32), []
    for row in logits:
        row[:] = r.normal(0, float(r.uniform(0.2, 2)), size)
        row[r.choice(size, 6, replace=False)] += r.uniform(1, 6, 6)
        row[:] = np.round(row * 4) / 4 if number % 3 == 0 else row
        row[: int(r.choice([0, size // 2]))] = -np.inf
        shares = np.sort(np.exp(row.astype(np.float64)))[::-1]
        share = float(shares[r.integers(1, 8)] / shares.sum())
        target = share * float(r.choice([1.0, 1 + 2.0**-30, 0.97, 1.2])) if r.random() < 0.8 else 0.0
        programs.append([*_steps_before(before, size, r), (int(ADAPTIVE_P), round(min(target, 1.0) * ONE))])
    return logits, programs


def _steps_before(op: int | None, size: int, r: np.random.Generator) -> list[tuple[int, ...]]:
    """No step, or one that mostly leaves so many tokens that they are not listed."""
    if op is None:
        return []
    operands = {
        TOP_P: lambda: (int(r.uniform(0.9, 1) * 2**32), *FILTERS[TOP_P](r)[1:3], 0),
        SMOOTH: lambda: tuple(numbers.bits(np.float32(r.choice([0.0, 0.1, 0.3]))) for _ in range(2)),
        MIN_P: lambda: (numbers.ratio_threshold(float(r.uniform(1e-5, 1e-2))),),
        TOP_K: lambda: (int(r.integers(size // 4, size // 2)), 0),
        XTC: lambda: (1 << 32, *numbers.scaled_fraction(float(r.choice([0.02, 0.1]))), 0),
    }
    return [(int(op), *operands[op]())]
