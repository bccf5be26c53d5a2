"""Locally typical sampling: the tokens whose surprise is nearest to the entropy (SPEC.md S-O4; arXiv:2202.00666)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mean_exponent, target_mass


def _run(row: RowState, step: Step) -> None:
    q, w = row.q(), row.w()
    distance = np.abs(q.astype(np.int64) - mean_exponent(q, w))
    order = np.argsort(distance, kind="stable")
    reached = np.cumsum(w[order])
    target = goal(step.a, step.b, int(reached[-1]))
    last = order[min(int(np.searchsorted(reached, np.uint64(target), side="left")), w.size - 1)]
    row.keep(distance <= distance[last])


def goal(p: int, exceed: int, total: int) -> int:
    """The mass that the nearest tokens must reach, of `total`; p in units of 2^-32."""
    return (p * total >> 32) + 1 if exceed else target_mass(p, total)


TYPICAL = Operation("TYPICAL", "p:word exceed:static", run=_run)


def _lower(*, typical_p: float, typical_rule: str) -> Step | None:
    p = numbers.mass_fraction(typical_p)
    return None if p == 1 << 32 else Step(TYPICAL, p, int(typical_rule == "gt"))


def _note(moment: Moment) -> str:
    return f"the most typical tokens that hold {moment.params.typical_p:g} of the mass"


OPERATOR = Operator(
    name="typical",
    rule="S-O4",
    fields={
        "typical_p": param(
            1.0,
            Float(low=0.0, high=1.0, open_low=True),
            "keep the most typical tokens whose mass reaches it",
            source="arXiv:2202.00666",
            off=1.0,
            stage="typical",
        )
    },
    examples={"typical_p": (0.9, 0.2, 0.5, 1e-12)},
    gentle={"typical_p": 0.98},
    operations=(TYPICAL,),
    lower=_lower,
    note=_note,
)
