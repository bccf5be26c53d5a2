"""Locally typical sampling: the tokens whose surprise is nearest to the entropy (SPEC.md S-O4; arXiv:2202.00666)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mean_exponent, target_mass


def _with_ties(row: RowState, step: Step) -> None:
    distance, order, n = _nearest(row, step)
    row.keep(distance <= distance[order[n - 1]])


def _by_rank(row: RowState, step: Step) -> None:
    """Of tokens that are equally typical, those of the larger logit come first, then those of the lower id."""
    _, order, n = _nearest(row, step)
    row.keep_prefix(order, n, ties=False)


def most_typical(row: RowState, step: Step) -> NDArray[np.int64]:
    """Positions [n] into the ids of `row`, the most typical first; equally typical ones by rank."""
    return _nearest(row, step)[1]


def _nearest(row: RowState, step: Step) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Distances [n] to the mean exponent, the order [n] of the most typical, and how many of them hold the mass."""
    q, w = row.q(), row.w()
    distance = np.abs(q.astype(np.int64) - mean_exponent(q, w))
    ranked = row.ranked()
    order = ranked[np.argsort(distance[ranked], kind="stable")]
    reached = np.cumsum(w[order])
    target = goal(step.a, step.b, int(reached[-1]))
    return distance, order, min(int(np.searchsorted(reached, np.uint64(target), side="left")) + 1, w.size)


def goal(p: int, exceed: int, total: int) -> int:
    """The mass that the nearest tokens must reach, of `total`; p in units of 2^-32."""
    return (p * total >> 32) + 1 if exceed else target_mass(p, total)


TYPICAL = Operation("TYPICAL", "p:word exceed:static", run=_with_ties)
TYPICAL_BY_RANK = Operation("TYPICAL_BY_RANK", "p:word exceed:static", run=_by_rank)


def _lower(*, typical_p: float, typical_rule: str, typical_ties: str) -> Step | None:
    p = numbers.mass_fraction(typical_p)
    op = TYPICAL if typical_ties == "all" else TYPICAL_BY_RANK
    return None if p == 1 << 32 else Step(op, p, int(typical_rule == "gt"))


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
    operations=(TYPICAL, TYPICAL_BY_RANK),
    lower=_lower,
    note=_note,
)
