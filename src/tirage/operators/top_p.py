"""Top-p, nucleus sampling: the shortest prefix that holds the mass p (SPEC.md S-O2; arXiv:1904.09751)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.weights import exponents, weights
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step, counted
from tirage.operators.row import RowState, mass, target_mass

RULES = ("lt", "le", "truncated")
"""Readings of "reaches p", by operand."""


def _run(row: RowState, step: Step) -> None:
    order = row.ranked()
    reached = np.cumsum(row.w()[order])
    judged = mass(weights(exponents(row.x[row.base], row.m, row.c))) if step.d else int(reached[-1])
    target = goal(step.a, step.b, judged)
    n = min(int(np.searchsorted(reached, np.uint64(target), side="left")) + 1, order.size)
    if RULES[step.b] == "truncated":
        _truncate(row, order, reached, n, target)
    row.keep_prefix(order, n, ties=bool(step.c))


def goal(p: int, rule: int, total: int) -> int:
    """The mass that the prefix must reach, of `total`; p in units of 2^-32."""
    # "le" keeps a token while the mass before it is <= floor(P * W): the prefix that reaches one more.
    return (p * total >> 32) + 1 if RULES[rule] == "le" else target_mass(p, total)


def _truncate(row: RowState, order: NDArray, reached: NDArray, n: int, target: int) -> None:
    before = int(reached[n - 2]) if n > 1 else 0
    row.trimmed = (int(row.ids[order[n - 1]]), min(target, int(reached[n - 1])) - before)


TOP_P = Operation("TOP_P", "p:word rule:static ties:static joint:static", run=_run)


def _lower(
    *, top_p: float, min_p: float, top_k: int, top_p_rule: str, top_p_scope: str, top_p_ties: str
) -> Step | None:
    p = numbers.mass_fraction(top_p)
    if p == 1 << 32:
        return None
    joint = {"joint": True, "joint_unless_min_p": not min_p, "joint_unless_top_k": not top_k}.get(top_p_scope, False)
    return Step(TOP_P, p, RULES.index(top_p_rule), int(top_p_ties == "all"), int(joint))


def _note(moment: Moment) -> str:
    left, p = moment.left, moment.params.top_p
    text = f"the {counted(left, 'most likely token')} reach{'es' if left == 1 else ''} {p:g} of the mass"
    if moment.row.trimmed is None:
        return text
    return f"{text}; the last keeps only its share below {p:g}"


OPERATOR = Operator(
    name="top_p",
    rule="S-O2",
    fields={
        "top_p": param(
            1.0,
            Float(low=0.0, high=1.0, open_low=True),
            "keep the shortest prefix of the most likely tokens whose mass reaches it",
            source="arXiv:1904.09751",
            off=1.0,
            stage="top_p",
        )
    },
    examples={"top_p": (0.9, 0.5, 0.75, 0.1, 1e-12, 0.999, 0.3)},
    gentle={"top_p": 0.97},
    operations=(TOP_P,),
    lower=_lower,
    note=_note,
)
