"""Eta sampling: like epsilon, with a bound that follows the entropy (SPEC.md S-O5; arXiv:2210.15191)."""

from __future__ import annotations

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mass, mean_exponent, share


def _run(row: RowState, step: Step) -> None:
    q, w = row.q(), row.w()
    likely = w >= share(step.a, step.b, mass(w))
    row.keep(likely | (q <= mean_exponent(q, w) + step.c) | row.is_top())


ETA = Operation("ETA", "e:word s:int distance:int", run=_run)


def _lower(*, eta_cutoff: float) -> Step | None:
    e, s = numbers.scaled_fraction(eta_cutoff)
    return Step(ETA, e, s, numbers.half_neglog2(eta_cutoff)) if e else None


def _note(moment: Moment) -> str:
    return f"at least as likely as the entropy asks, at most {moment.params.eta_cutoff:g}"


OPERATOR = Operator(
    name="eta",
    rule="S-O5",
    fields={
        "eta_cutoff": param(
            0.0,
            Float(low=0.0, high=1.0, open_high=True),
            "drop tokens below a bound that follows the entropy",
            source="arXiv:2210.15191",
            off=0.0,
            stage="eta",
        )
    },
    examples={"eta_cutoff": (0.0003, 0.02, 0.3, 1e-30)},
    gentle={"eta_cutoff": 0.001},
    operations=(ETA,),
    lower=_lower,
    note=_note,
)
