"""Epsilon sampling: tokens at least so likely, and the likeliest (SPEC.md S-O5; arXiv:2210.15191)."""

from __future__ import annotations

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step, keep_by_weight
from tirage.operators.row import share


def bound(operands: tuple[int, ...], total: int, largest: int) -> int:
    """The weight that is the share E / 2^s of the mass."""
    e, s = operands[:2]
    return share(e, s, total)


EPSILON = Operation("EPSILON", "e:word s:int", run=keep_by_weight, weight_bound=bound)


def _lower(*, epsilon_cutoff: float) -> Step | None:
    e, s = numbers.scaled_fraction(epsilon_cutoff)
    return Step(EPSILON, e, s) if e else None


def _note(moment: Moment) -> str:
    return f"at least {moment.params.epsilon_cutoff:g} likely"


OPERATOR = Operator(
    name="epsilon",
    rule="S-O5",
    fields={
        "epsilon_cutoff": param(
            0.0,
            Float(low=0.0, high=1.0, open_high=True),
            "drop tokens less likely than this",
            source="arXiv:2210.15191",
            off=0.0,
            stage="epsilon",
        )
    },
    examples={"epsilon_cutoff": (0.0003, 0.02, 0.3, 1e-30)},
    gentle={"epsilon_cutoff": 0.0001},
    operations=(EPSILON,),
    lower=_lower,
    note=_note,
)
