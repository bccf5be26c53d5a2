"""Presence penalty: subtracted from the logit of every token that was seen (SPEC.md S-N7)."""

from __future__ import annotations

from tirage.exact import numbers
from tirage.operators.operator import Operation, Operator, Step
from tirage.operators.penalties import additive, note, scope
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    ids, _ = row.seen(step.a)
    penalty = numbers.from_bits(step.b)
    row.write(ids, lambda v: v - penalty)


PRESENCE = Operation("PRESENCE", "scope:static penalty:float", run=_run, edit=True, counts=True)


def _lower(*, presence_penalty: float, presence_history: str, penalty_window: int | None) -> Step | None:
    if presence_penalty == 0.0:
        return None
    penalty = numbers.bits(numbers.operand(presence_penalty))
    return Step(PRESENCE, scope(presence_history, penalty_window), penalty)


OPERATOR = Operator(
    name="presence",
    rule="S-N7",
    fields={
        "presence_penalty": additive(
            "presence",
            "subtracted from the logit of every token that was seen; the semantics sets the limit, mostly 2",
        )
    },
    examples={"presence_penalty": (0.7, -0.3, 2.0)},
    gentle={"presence_penalty": 0.2},
    operations=(PRESENCE,),
    lower=_lower,
    note=note,
)
