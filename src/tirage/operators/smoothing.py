"""Quadratic smoothing: distances to the largest logit are squared, and cubed by the curve (SPEC.md S-N8).

Source: text-generation-webui and koboldcpp, whose formula acts on logits that the temperature has divided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX, clamped, cleaned
from tirage.fields.record import param
from tirage.fields.rules import LARGEST, Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState
from tirage.operators.temperature import in_force


def smoothed(
    x: NDArray[np.float32], top: NDArray[np.float32], square: np.float32, cube: np.float32
) -> NDArray[np.float32]:
    """float32 [n]: logits `x` float32 [n], cleaned, at a distance of square * d^2 + cube * d^3 from `top`."""
    d = clamped(top - x)
    growth = clamped(square + clamped(cube * d))
    return clamped(top - clamped(growth * clamped(d * d)))


def _run(row: RowState, step: Step) -> None:
    ids = np.flatnonzero(row.x > -np.inf)
    if ids.size:
        top = cleaned(row.x[ids].max())
        square, cube = numbers.from_bits(step.a), numbers.from_bits(step.b)
        row.write(ids, lambda v: smoothed(v, top, square, cube))


SMOOTH = Operation("SMOOTH", "square:float cube:float", run=_run, edit=True)


def _lower(
    *, smoothing_factor: float, smoothing_curve: float, temperature: float, temperature_floor: float | None
) -> Step | None:
    if not numbers.f32(smoothing_factor) or not temperature:
        return None
    factor, per = _ratio(smoothing_factor)
    curve, one = _ratio(smoothing_curve)
    t, unit = _ratio(in_force(temperature, temperature_floor))
    # Quotients of integers are rounded once.
    square = factor * (3 * one - curve) * unit / (per * one * 2 * t)
    cube = factor * (curve - one) * unit**2 / (per * one * 2 * t**2)
    return Step(SMOOTH, _coefficient(square), _coefficient(cube))


def _ratio(value: float) -> tuple[int, int]:
    """(n, d): the binary32 number nearest to `value` as n / d."""
    return float(numbers.f32(value)).as_integer_ratio()


def _coefficient(value: float) -> int:
    """The bits of a binary32 number."""
    return numbers.bits(numbers.operand(min(value, float(FLT_MAX))))


def _note(moment: Moment) -> str:
    factor, curve = moment.params.smoothing_factor, moment.params.smoothing_curve
    cubed = f", by {curve - 1:g}/2 of it cubed" if curve != 1 else ""
    return f"distances from the largest logit squared times {factor * (3 - curve) / 2:g}{cubed}"


OPERATOR = Operator(
    name="smoothing",
    rule="S-N8",
    fields={
        "smoothing_factor": param(
            0.0,
            Float(low=0.0, high=LARGEST),
            "quadratic smoothing, after the temperature: a logit's distance d from the largest one becomes this times "
            "d squared; greedy draws do without",
            source="text-generation-webui, koboldcpp",
            off=0.0,
            stage="smoothing",
        ),
        "smoothing_curve": param(
            1.0,
            Float(low=1.0, high=10.0),
            "how much of the smoothing is cubic: 1 is none, 3 all; above 3 tokens close to the largest one gain",
            source="text-generation-webui, koboldcpp",
        ),
    },
    examples={"smoothing_factor": (0.3, 2.0, 1e-30, 1e30), "smoothing_curve": (1.0, 2.0, 3.0, 7.5)},
    gentle={"smoothing_factor": 0.2, "smoothing_curve": 1.5},
    operations=(SMOOTH,),
    lower=_lower,
    note=_note,
)
