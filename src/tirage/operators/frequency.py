"""Frequency penalty: subtracted once per time that a token was seen (SPEC.md S-N7)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.history import History
from tirage.operators.operator import Operation, Operator, Step
from tirage.operators.penalties import additive, note, scope
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    ids, n = row.seen(step.a)
    penalty = numbers.from_bits(step.b)
    row.write(ids, lambda v: v - np.minimum(penalty * n, FLT_MAX))


FREQUENCY = Operation("FREQUENCY", "scope:static penalty:float", run=_run, edit=True, counts=True)


def divided(penalty: float, counted: int) -> np.float32:
    """The penalty under semantics that divide it by the number of counted tokens."""
    return numbers.operand(numbers.operand(penalty) / np.float32(max(counted, 1)))


def _lower(
    *,
    frequency_penalty: float,
    frequency_history: str,
    penalty_window: int | None,
    frequency_divisor: str,
    history: History,
) -> Step | None:
    if frequency_penalty == 0.0:
        return None
    penalty = numbers.operand(frequency_penalty)
    if frequency_divisor == "length":
        penalty = divided(frequency_penalty, min(history.length, penalty_window or history.length))
    return Step(FREQUENCY, scope(frequency_history, penalty_window), numbers.bits(penalty))


def _moves(*, frequency_penalty: float, frequency_divisor: str) -> bool:
    return bool(frequency_penalty) and frequency_divisor == "length"


OPERATOR = Operator(
    name="frequency",
    rule="S-N7",
    fields={
        "frequency_penalty": additive(
            "frequency", "subtracted once per time a token was seen; the semantics sets the limit, mostly 2"
        )
    },
    examples={"frequency_penalty": (0.5, -1.5, 2.0)},
    gentle={"frequency_penalty": 0.3},
    operations=(FREQUENCY,),
    lower=_lower,
    moves=_moves,
    note=note,
)
