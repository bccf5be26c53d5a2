"""Tail-free sampling: the ranks before the law's curve flattens out (SPEC.md S-O13).

Source: Trenton Bricken's proposal as KoboldAI and text-generation-webui ship it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step, counted
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    order = row.ranked()
    row.keep_prefix(order, prefix(row.w()[order], step.a, step.b), ties=False)


def prefix(ranked: NDArray[np.uint64], e: int, s: int) -> int:
    """How many of the weights uint64 [n], the largest first, stay: up to where the curvature exceeds E / 2^s of all."""
    curvature = np.abs(np.diff(ranked.astype(np.int64), n=2)) if ranked.size > 2 else np.zeros(0, np.int64)
    reached = np.cumsum(curvature)
    if not reached.size or not reached[-1]:
        return ranked.size
    return int(np.searchsorted(reached, e * int(reached[-1]) >> s, side="right")) + 1


TFS = Operation("TFS", "e:word s:int", run=_run)


def _lower(*, tfs: float) -> Step | None:
    e, s = numbers.scaled_fraction(tfs)
    return None if e >= 1 << s else Step(TFS, e, s)


def _note(moment: Moment) -> str:
    left = counted(moment.left, "most likely token")
    return f"the {left}, before more than {moment.params.tfs:g} of the curvature is passed"


OPERATOR = Operator(
    name="tfs",
    rule="S-O13",
    fields={
        "tfs": param(
            1.0,
            Float(low=0.0, high=1.0),
            "tail-free sampling: keep the most likely tokens up to where this share of the law's curvature is passed",
            source="KoboldAI, text-generation-webui",
            off=1.0,
            stage="tfs",
        )
    },
    examples={"tfs": (0.95, 0.5, 0.1, 0.0, 0.999)},
    gentle={"tfs": 0.97},
    operations=(TFS,),
    lower=_lower,
    note=_note,
)
