"""The edits of logits, one rule for each stage (S-O)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from reference import past
from reference.arithmetic import FLT_MAX, f32, reciprocal, settle, tiny
from reference.branch import NOTHING, Branch, change
from tirage.processors import Past, find_processor


def no_edit(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    """n-gram bans are hard masks, which were applied already."""


def _bias(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    for token, bias in dict(row.params.logit_bias or {}).items():
        if bias != NOTHING:
            amount = tiny(f32(bias))
            change(row, token, lambda v, amount=amount: f32(v + amount))


def _sequence_bias(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    said = [*prompt, *output]
    added: dict[int, Fraction] = {}
    for ids, bias in row.params.sequence_bias or ():
        opening = list(ids[:-1])
        if bias != NOTHING and said[len(said) - len(opening) :] == opening and len(said) >= len(opening):
            added[ids[-1]] = added.get(ids[-1], Fraction(0)) + Fraction(tiny(f32(bias)))
    for token, total in added.items():
        amount = tiny(f32(float(total)))
        change(row, token, lambda v, amount=amount: f32(v + amount))


def _repetition(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    r = f32(row.params.repetition_penalty)
    if row.params.repetition_penalty == 1.0:
        return
    for token in past.counted(row.semantics.repetition_history, row.semantics.penalty_window, prompt, output):
        change(row, token, lambda v: min(f32(v * (reciprocal(r) if v > 0 else r)), FLT_MAX))


def _frequency(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    f = tiny(past.frequency_penalty(row.params, row.semantics, len(prompt) + len(output)))
    counts = past.counted(row.semantics.frequency_history, row.semantics.penalty_window, prompt, output)
    if row.params.frequency_penalty:
        for token, n in counts.items():
            change(row, token, lambda v, n=n: f32(v - min(f32(f * f32(n)), FLT_MAX)))


def _presence(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    penalty = tiny(f32(row.params.presence_penalty))
    if row.params.presence_penalty:
        for token in past.counted(row.semantics.presence_history, row.semantics.penalty_window, prompt, output):
            change(row, token, lambda v: f32(v - penalty))


def _dry(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    if row.params.dry_multiplier:
        for token, penalty in past.dry_penalties(row.params, [*prompt, *output]).items():
            change(row, token, lambda v, penalty=penalty: f32(v - tiny(penalty)))


def _scale(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    if row.params.temperature not in {0.0, 1.0}:
        factor = reciprocal(f32(row.params.temperature))
        for token in range(len(row.x)):
            change(row, token, lambda v: min(f32(v * factor), FLT_MAX))


def _smoothing(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Distances from the largest logit by A d^2 + B d^3, with coefficients that the temperature divides again."""
    factor, curve = Fraction(f32(row.params.smoothing_factor)), Fraction(f32(row.params.smoothing_curve))
    candidates = [v for v in row.x if v != NOTHING]
    if not factor or not row.params.temperature or not candidates:
        return
    t = Fraction(f32(max(row.params.temperature, row.semantics.temperature_floor or 0.0)))
    square = tiny(f32(min(float(factor * (3 - curve) / 2 / t), FLT_MAX)))
    cube = tiny(f32(min(float(factor * (curve - 1) / 2 / t**2), FLT_MAX)))
    top = tiny(max(candidates))

    def formula(v: float) -> float:
        d = settle(f32(top - v))
        growth = settle(f32(square + settle(f32(cube * d))))
        return f32(top - settle(f32(growth * settle(f32(d * d)))))

    for token in range(len(row.x)):
        change(row, token, formula)


def _processors(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    for name, args in row.params.logits_processors:
        logits = np.array(row.x, np.float32)
        result = find_processor(name).run(logits, args, row.params.extra_args, lambda: Past(prompt, output))
        row.x = [float(v) for v in np.asarray(result, np.float32)[0]]


EDIT_RULES = {
    "logit_bias": _bias,
    "sequence_bias": _sequence_bias,
    "repetition": _repetition,
    "frequency": _frequency,
    "presence": _presence,
    "dry": _dry,
    "scale": _scale,
    "processors": _processors,
    "smoothing": _smoothing,
}
"""Each edit by its stage; the others are hard masks."""
