"""From the arrays of a batch back to the rows that the host's kernels read: a program drawn without a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends.jax.program import TracedProgram, TracedStage, operands
from tirage.backends.jax.traced_history import BEYOND
from tirage.compiled_params import Program
from tirage.history import Counts
from tirage.operators import Step
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN


def lowered(program: TracedProgram, r: int) -> Program:
    """The steps of row r, with the arrays that BAN and ADD refer to."""
    ids, values, steps = [_known(program.tables["banned"][r])], [], []
    values.append(np.zeros(ids[0].size, np.float32))
    if ids[0].size:
        steps.append(Step(BAN, 0, ids[0].size))
    for stage, given, on in zip(program.stages, program.columns, program.on, strict=True):
        if stage.op == ADD:
            added, by = _added(program, stage, r)
            start = sum(part.size for part in ids)
            steps.append(Step(ADD, start, start + added.size))
            ids.append(added)
            values.append(by)
        elif on is None or on[r]:
            a, b, c, d, e = (*operands(stage, given, r), 0, 0, 0, 0, 0)[:5]
            steps.append(Step(stage.op, a, b, c, d, e))
    return Program(tuple(steps), np.concatenate(ids), np.concatenate(values))


def counts(program: TracedProgram, r: int) -> Counts:
    """The sparse counts of row r."""
    table = np.asarray(program.tables["counts"][r])
    kept = np.flatnonzero(table[0] != BEYOND)
    # A window lists an id once for each time it occurs.
    _, first = np.unique(table[0, kept], return_index=True)
    return Counts(table[:, kept[first]])


def listed(program: TracedProgram, name: str, r: int) -> NDArray[np.int32]:
    """The ids [n] of row r in a table that is padded with ids no row has."""
    return _known(program.tables[name][r])


def _known(ids: Any) -> NDArray[np.int32]:
    ids = np.asarray(ids)
    return ids[ids != BEYOND]


def _added(program: TracedProgram, stage: TracedStage, r: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    ids, values = (np.asarray(part[r]) for part in program.tables[f"added {stage.nth}"])
    kept = np.flatnonzero(ids != BEYOND)
    _, first = np.unique(ids[kept], return_index=True)
    return ids[kept[first]], values[kept[first]]
