"""The pipeline in plain NumPy, one row at a time, for any list of steps.

It serves `law` and `explain`, answers `sample` while the Numba kernels compile, draws what other paths do not run, and
is what they are tested against. Slow (it sorts), never wrong. What each step does stands in `operators/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.operators import FIRST_FILTER, LAST, OPERATIONS, Step
from tirage.operators.masks import BAN
from tirage.operators.row import OK, RowState
from tirage.operators.temperature import GREEDY
from tirage.operators.top_p import RULES, TOP_P

_ENDS = {GREEDY, *(op for operator in LAST for op in operator.operations)}
"""Operations that may stand behind every filter."""
Observer = Callable[[Step, RowState], None]


def run(row: RowState, steps: Iterable[Step], observe: Observer | None = None) -> RowState:
    """`row` after all `steps`; `observe` is called after each. A bad row stops early with its status."""
    entered = checked = False
    for step in steps:
        if not checked and step.op is not BAN:
            row.check_finite()
            checked = True
        if not entered and step.op >= FIRST_FILTER:
            row.enter()
            entered = True
        if row.status != OK:
            return row
        step.op.run(row, step)
        if observe is not None:
            observe(step, row)
    if not checked:
        row.check_finite()
    if not entered:
        row.enter()
    return row


def start(x: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> tuple[NDArray, NDArray]:
    """A copy of the logits [V] with the hard mask, bool [V], applied; and which tokens that mask took, bool [V]."""
    masked = np.zeros(x.size, bool) if allowed is None else ~allowed
    return np.where(masked, np.float32(-np.inf), x).astype(np.float32), masked


def steps_of(program: NDArray[np.int64]) -> Sequence[Step]:
    """The steps packed in one row [S, 6] of `SamplingMetadata.programs`; ParamsError for a filter behind a cut weight.

    No Semantics has one (S-O2), but a program that was not made of one may.
    """
    rows = (step for step in program.tolist() if step[0])
    steps = [Step(OPERATIONS[op], *operands) for op, *operands in rows]
    for before, step in pairwise(steps):
        if before.op.base is TOP_P and RULES[before.b] == "truncated" and step.op not in _ENDS:
            raise ParamsError(f"a truncated TOP_P must be the last filter of a program, got {step.op.name} behind it")
    return steps
