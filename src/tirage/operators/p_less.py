"""p-less: tokens at least as likely as two independent draws are to be equal (SPEC.md S-O12; arXiv:2509.23234)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.fields.record import param
from tirage.fields.rules import OneOf
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mass, sum_of_products

HALF = 20
"""Weights of up to 41 bits are squared in two parts: the upper one, and this many low bits."""
KINDS = ("plain", "norm")
"""The thresholds by operand: the chance of two equal draws, or that with the equal draws of a flat law left out."""


def _run(row: RowState, step: Step) -> None:
    w = row.w()
    row.keep((w >= bound(step.a, squares(w), mass(w), w.size)) | row.is_top())


def squares(w: NDArray[np.uint64]) -> int:
    """The sum of the squares of integer weights uint64 [n], exact."""
    high, low = w >> np.uint64(HALF), w & np.uint64((1 << HALF) - 1)
    return joined(sum_of_products(high, high), sum_of_products(high, low), sum_of_products(low, low))


def joined(high: int, mixed: int, low: int) -> int:
    """The sum of squares from those of the upper parts, of the products of both, and of the low parts."""
    return (high << 2 * HALF) + (mixed << HALF + 1) + low


def bound(norm: int, squared: int, total: int, count: int) -> int:
    """The least weight that stays, of `count` weights with the sum `total` and the sum of squares `squared`."""
    if not norm:
        return -(-squared // total)
    return -(-(count * squared - total * total) // (total * (count - 1))) if count > 1 else 0


P_LESS = Operation("P_LESS", "norm:static", run=_run)


def _lower(*, p_less: str | None) -> Step | None:
    return None if p_less is None else Step(P_LESS, KINDS.index(p_less))


def _note(moment: Moment) -> str:
    if moment.params.p_less == "norm":
        return "at least as likely as two draws are equal beyond what a flat law makes equal"
    return "at least as likely as two draws are equal"


OPERATOR = Operator(
    name="p_less",
    rule="S-O12",
    fields={
        "p_less": param(
            None,
            OneOf((None, *KINDS)),
            "'plain': keep tokens at least as likely as the sum of all squared probabilities, the chance that two "
            "draws are equal; 'norm': the same sum with what a flat law gives taken off, which keeps more",
            source="arXiv:2509.23234",
            off=None,
            stage="p_less",
        )
    },
    examples={"p_less": ("norm", "plain")},
    gentle={"p_less": "norm"},
    operations=(P_LESS,),
    lower=_lower,
    note=_note,
)
