"""Hard masks: tokens that nothing can revive, by id (SPEC.md S-P2)."""

from __future__ import annotations

import numpy as np

from tirage.operators.operator import Operation, Step
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    ids = row.edit_ids[step.a : step.b]
    row.x[ids] = -np.inf
    row.masked[ids] = True


BAN = Operation("BAN", run=_run, edit=True, lists=True)
"""Forbid the row's edit ids [a, b)."""
