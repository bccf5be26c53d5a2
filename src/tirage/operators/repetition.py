"""Repetition penalty: positive logits of seen tokens are divided by it, others multiplied (SPEC.md S-N7)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.fields.record import param
from tirage.fields.rules import LARGEST, Float
from tirage.operators.operator import Operation, Operator, Step
from tirage.operators.penalties import note, scope
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    ids, _ = row.seen(step.a)
    r, inverse = numbers.from_bits(step.b), numbers.from_bits(step.c)
    row.write(ids, lambda v: np.minimum(v * np.where(v > 0, inverse, r), FLT_MAX))


REPETITION = Operation("REPETITION", "scope:static r:float inverse:float", run=_run, edit=True, counts=True)


def _lower(*, repetition_penalty: float, repetition_history: str, penalty_window: int | None) -> Step | None:
    if repetition_penalty == 1.0:
        return None
    r, inverse = numbers.bits(numbers.f32(repetition_penalty)), numbers.bits(numbers.reciprocal(repetition_penalty))
    return Step(REPETITION, scope(repetition_history, penalty_window), r, inverse)


OPERATOR = Operator(
    name="repetition",
    rule="S-N7",
    fields={
        "repetition_penalty": param(
            1.0,
            Float(low=1 / LARGEST, high=LARGEST),
            "positive logits of seen tokens are divided by it, negative ones multiplied",
            source="arXiv:1909.05858, Hugging Face",
            off=1.0,
            stage="repetition",
            needs_history=lambda penalty: True,
        )
    },
    examples={"repetition_penalty": (1.3, 0.8, 2.0, 1e30)},
    gentle={"repetition_penalty": 1.2},
    operations=(REPETITION,),
    lower=_lower,
    note=note,
)
