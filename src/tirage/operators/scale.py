"""Scaled logits: the temperature of engines that divide before their penalties (SPEC.md S-N7)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    factor = numbers.from_bits(step.a)
    row.write(np.arange(row.x.size), lambda v: np.minimum(v * factor, FLT_MAX))


SCALE = Operation("SCALE", "factor:float", run=_run, edit=True)


def _lower(*, temperature: float) -> Step | None:
    return None if temperature in {0.0, 1.0} else Step(SCALE, numbers.bits(numbers.reciprocal(temperature)))


def _note(moment: Moment) -> str:
    return f"every logit divided by {moment.params.temperature:g}"


OPERATOR = Operator(
    name="scale", rule="S-N7", gentle={"temperature": 1.4}, operations=(SCALE,), lower=_lower, note=_note
)
