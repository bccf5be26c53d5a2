"""Adaptive-p: weights by how near a probability is to a target that follows the text (SPEC.md S-O15; llama.cpp)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.numbers import LOG2E_23
from tirage.exact.weights import weights
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mass

INVERSE_WIDTH = float.fromhex("0x1.aaaaaap+1")
"""1 / 0.3 in binary32, as llama.cpp divides."""
ONE = 2.0**32
"""Units of a target in 1."""


def _run(row: RowState, step: Step) -> None:
    """New weights: a peak at the target, square near it and linear in the tails."""
    w = row.w()
    p = w.astype(np.float64) / np.float64(mass(w))
    q = exponents_of(p, step.a)
    row.chances, row.reweighted = p, weights(q - q.min())


def exponents_of(p: NDArray[np.float64], target: int) -> NDArray[np.int32]:
    """Exponents int32 [n] of shares p [n] by how far they are from a target in 2^-32. Each operation is one of
    binary64."""
    distance = np.abs(p - target / ONE) * INVERSE_WIDTH
    return (10.0 * (distance * distance) / (1.0 + distance) * LOG2E_23).astype(np.int32)


ADAPTIVE_P = Operation("ADAPTIVE_P", "target:long", run=_run)


def _lower(*, adaptive_target: float, state: float | None) -> Step | None:
    if adaptive_target < 0 or state is None:
        return None
    target = 2.0 * float(numbers.f32(adaptive_target)) - state
    return Step(ADAPTIVE_P, round(max(0.0, min(target, 1.0)) * ONE))


def _initial(*, adaptive_target: float) -> float | None:
    return None if adaptive_target < 0 else float(numbers.f32(adaptive_target))


def _advance(*, state: float, chance: float, adaptive_decay: float) -> float:
    if np.isnan(chance):
        return state
    decay = float(numbers.f32(adaptive_decay))
    return chance * (1.0 - decay) + state * decay


def _note(moment: Moment) -> str:
    return f"weights by the distance of each probability from {moment.step.a / ONE:.4g}"


OPERATOR = Operator(
    name="adaptive_p",
    rule="S-O15",
    fields={
        "adaptive_target": param(
            -1.0,
            Float(low=-1.0, high=1.0),
            "probability that the drawn tokens shall have in the mean; below 0 is off; it carries a state from token "
            "to token",
            source="llama.cpp",
            off=-1.0,
            stage="adaptive_p",
        ),
        "adaptive_decay": param(
            0.9,
            Float(low=0.0, high=0.99),
            "how long the mean of adaptive-p remembers: about 1 / (1 - it) tokens",
            source="llama.cpp",
        ),
    },
    examples={"adaptive_target": (0.5, 0.0, 0.2, 1.0), "adaptive_decay": (0.5, 0.0, 0.99)},
    gentle={"adaptive_target": 0.3},
    operations=(ADAPTIVE_P,),
    lower=_lower,
    initial=_initial,
    advance=_advance,
    note=_note,
)
