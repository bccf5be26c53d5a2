"""Temperature, greedy at 0, and llama.cpp's dynamic temperature (SPEC.md S-W1, S-P3, S-O9)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.exact.logs import OCTAVE, ilog2
from tirage.exact.weights import Q_LIMIT, exponents, weights
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mass, mean_exponent

_UNIT = numbers.temperature_constant(1.0)
_ONE = 1 << 32
_LEAST = 1 << 9
LEAST_FACTOR = _LEAST / _ONE
"""The smallest share of its largest temperature that a dynamic temperature comes down to."""


# --- the rules ----------------------------------------------------------------------------------------------------


def _greedy(row: RowState, step: Step) -> None:
    row.ids = row.ids[np.argmax(row.key[row.ids])][None]
    row.greedy = True


def _fixed(row: RowState, step: Step) -> None:
    row.c, row.inverse_t = numbers.from_bits(step.a), numbers.from_bits(step.b)
    row.rebase()


def _dynamic(row: RowState, step: Step) -> None:
    """T between T min and T max by the entropy of the set, in integers: rule S-O9."""
    row.rebase()
    count = row.ids.size + (row.listed if step.op is DYNAMIC_TEMPERATURE_LISTED else 0)
    q = exponents(row.x[row.ids], row.m, _UNIT)
    w = weights(q)
    r = factor(step.c, entropy_fraction(mean_exponent(q, w), mass(w), count, step.d, step.e))
    row.c = np.float32(min(numbers.from_bits(step.a) * r, FLT_MAX))
    row.inverse_t = np.float32(min(numbers.from_bits(step.b) * r, FLT_MAX))


def entropy_fraction(mean: int, total: int, count: int, e: int, s: int) -> int:
    """(H / H max) ** (E / 2^s) in units of 2^-32, from a set's mean exponent, mass and size at T = 1."""
    entropy, most = mean + ilog2(total) - 40 * OCTAVE, ilog2(max(count, 1))
    if entropy <= 0 or most <= 0:
        return 0
    octaves = max(ilog2(most) - ilog2(entropy), 0)
    power = np.array([min(octaves * e >> s, Q_LIMIT)], np.int32)
    return int(weights(power)[0]) >> 8


def factor(low: int, fraction: int) -> np.float32:
    """T max / T at this fraction of the way from T min = `low` * T max up; both in units of 2^-32."""
    t = low + ((_ONE - low) * fraction >> 32)
    return np.float32((1 << 62) // max(t, _LEAST)) * np.float32(2.0**-30)


GREEDY = Operation("GREEDY", run=_greedy)
TEMPERATURE = Operation("TEMPERATURE", "c:float inverse_t:float", run=_fixed)
DYNAMIC_TEMPERATURE = Operation("DYNAMIC_TEMPERATURE", "c:float inverse_t:float ratio:long e:word s:int", run=_dynamic)
DYNAMIC_TEMPERATURE_LISTED = Operation(
    "DYNAMIC_TEMPERATURE_LISTED", "c:float inverse_t:float ratio:long e:word s:int", run=_dynamic
)


# --- lowering -----------------------------------------------------------------------------------------------------


def in_force(temperature: float, floor: float | None) -> float:
    """The temperature that divides: `temperature`, at least the `floor` unless it is 0, which is greedy."""
    return max(temperature, floor or 0.0) if temperature else temperature


def _lower(
    *,
    temperature: float,
    dynatemp_range: float,
    dynatemp_exponent: float,
    temperature_floor: float | None,
    entropy_count: str,
) -> Step:
    if temperature == 0.0:
        return Step(GREEDY)
    t, spread = float(numbers.f32(in_force(temperature, temperature_floor))), float(numbers.f32(dynatemp_range))
    if not spread:
        return Step(TEMPERATURE, *_operands(t))
    low, high = max(0.0, t - spread), min(t + spread, numbers.MAX_TEMPERATURE)
    exponent = numbers.scaled_fraction(dynatemp_exponent)
    op = DYNAMIC_TEMPERATURE if entropy_count == "candidates" else DYNAMIC_TEMPERATURE_LISTED
    return Step(op, *_operands(high), numbers.ratio_32(low, high), *exponent)


def _operands(t: float) -> tuple[int, int]:
    return numbers.bits(numbers.temperature_constant(t)), numbers.bits(numbers.reciprocal(t))


# --- words ----------------------------------------------------------------------------------------------------------


def _note(moment: Moment) -> str:
    t = in_force(moment.params.temperature, moment.semantics.temperature_floor)
    spread = moment.params.dynatemp_range
    if moment.step.op is GREEDY:
        return "the largest logit, of equal ones the lowest id"
    if moment.step.op in {DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED}:
        chosen, ends = 1 / float(moment.row.inverse_t), f"[{max(0.0, t - spread):g}, {t + spread:g}]"
        return f"the entropy of the candidates chose {chosen:.4g}, within {ends}"
    return f"distances between logits divided by {t:g}: {'sharper' if t < 1 else 'flatter'}"


OPERATOR = Operator(
    name="temperature",
    rule="S-W1",
    fields={
        "temperature": param(
            1.0,
            Float(low=1e-20, high=1e20, zero=True, none=1.0),
            "divides the logits: below 1 sharper, above 1 flatter; 0 takes the largest logit; None is 1",
            source="OpenAI, EasyDeL",
            off=1.0,
            stage="temperature",
            remedy="use 0 for the largest logit, 1.0 to turn it off",
        ),
        "dynatemp_range": param(
            0.0,
            Float(low=0.0, high=1e20),
            "the temperature moves with the entropy, by at most this much either way",
            source="llama.cpp",
            off=0.0,
            stage="temperature",
        ),
        "dynatemp_exponent": param(
            1.0,
            Float(low=0.0, high=1e20, open_low=True),
            "how the temperature follows the entropy",
            source="llama.cpp",
        ),
    },
    examples={
        "temperature": (1.0, 0.7, 0.05, 2.0, 1.3, 1e-20, 1e20, 0.0),
        "dynatemp_range": (0.5, 2.0),
        "dynatemp_exponent": (1.0, 0.5, 3.0, 10000000000.0),
    },
    gentle={"temperature": 1.4},
    operations=(GREEDY, TEMPERATURE, DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED),
    lower=_lower,
    note=_note,
)
