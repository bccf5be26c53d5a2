"""Top-a: tokens whose probability reaches a share of the square of the largest one (SPEC.md S-O10; KoboldAI)."""

from __future__ import annotations

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step, keep_by_weight


def bound(operands: tuple[int, ...], total: int, largest: int) -> int:
    """The weight of the probability E / 2^s * p_max^2, where p_max is `largest` of `total`."""
    e, s = operands[:2]
    return -(-e * largest * largest // (total << s))


TOP_A = Operation("TOP_A", "e:word s:int", run=keep_by_weight, weight_bound=bound)


def _lower(*, top_a: float) -> Step | None:
    e, s = numbers.scaled_fraction(top_a)
    return Step(TOP_A, e, s) if e else None


def _note(moment: Moment) -> str:
    a = moment.params.top_a
    return f"at least {a:g} × {moment.top_share:.4g}² = {a * moment.top_share**2:.4g}"


OPERATOR = Operator(
    name="top_a",
    rule="S-O10",
    fields={
        "top_a": param(
            0.0,
            Float(low=0.0, high=1.0),
            "keep tokens whose probability is at least this times the square of the largest one",
            source="KoboldAI",
            off=0.0,
            stage="top_a",
        )
    },
    examples={"top_a": (0.2, 0.05, 0.5, 1e-30, 1.0)},
    gentle={"top_a": 0.01},
    operations=(TOP_A,),
    lower=_lower,
    note=_note,
)
