"""Which NumPy path draws which row: Numba kernels when they are ready, plain NumPy until then and for the rest.

Both give the same bits, so the choice is invisible (S-W: every sum is an integer sum).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.backends import Drawn, Process, Rows
from tirage.backends.numpy import outcome


def draw(
    logits: NDArray[np.float32],
    rows: Rows,
    processes: Sequence[Process | None] | None = None,
) -> Drawn:
    """One token for each row of float32 logits [B, V]; `processes` are the rows' custom processors, if any."""
    out = Drawn.empty(rows)
    for r in range(rows.count):
        process = processes[r] if processes is not None else None
        outcome.draw_row(outcome.outcome(outcome.request_of(logits, rows, r, process)), rows, r, out)
    return out
