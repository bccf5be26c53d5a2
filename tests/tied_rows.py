"""Rows of few different logits, of which a set ends among many that tie."""

from __future__ import annotations

import numpy as np
from adaptive_rows import ADAPTIVE_SETS, adaptive_rows
from numpy.typing import NDArray
from random_rows import FILTERS

from tirage.operators.min_p import MIN_P
from tirage.operators.mirostat import MIROSTAT
from tirage.operators.tfs import TFS
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL

TIED_SETS = 9900
"""Jobs of sets from that number on have such rows."""
_ORDERS = ((TOP_P, MIN_P), (TOP_K, TYPICAL), (MIROSTAT,), (TOP_P, TFS))


def tied_rows(
    number: int, rows: int, size: int, r: np.random.Generator
) -> tuple[NDArray[np.float32], list[list[tuple[int, ...]]]]:
    """Logits [rows, size] at one to four levels, some of them with a few others above; and a program for each row.

    From job `ADAPTIVE_SETS` on they are those of `adaptive_rows`.
    """
    if number >= ADAPTIVE_SETS:
        return adaptive_rows(number, rows, size, r)
    logits, programs = np.empty((rows, size), np.float32), []
    for row in logits:
        row[:] = r.choice([0.0, 0.7, 1.5, -1.0][: r.integers(1, 5)], size)
        above = r.choice(size, int(r.integers(0, 9)), replace=False)
        row[above] = r.uniform(1.5, 3, above.size)
        steps = [(int(op), *FILTERS[op](r)) for op in _ORDERS[number % 4]]
        if number % 4 == 1:
            steps[0] = (int(TOP_K), int(r.integers(10, size)), 0)
        programs.append(steps)
    return logits, programs
