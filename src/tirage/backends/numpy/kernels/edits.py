"""Edits of a private copy of the row: bans, biases and penalties, on the tokens they touch only (S-N7)."""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels.bits import (
    NEG_INF,
    POS_INF,
    at_most_big,
    clamp,
    clean,
    f32,
    float_of,
    i32,
    i64,
    inline,
    kernel,
    key_of,
    out_of_line,
    value_of,
)
from tirage.backends.numpy.kernels.passes import block_maximum
from tirage.backends.numpy.kernels.vectors import BLOCK
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH

EDITS = frozenset({BAN, ADD, REPETITION, FREQUENCY, PRESENCE, SCALE, SMOOTH})
"""The edits that the kernels run."""
_BAN, _ADD, _REPETITION = int(BAN), int(ADD), int(REPETITION)
_FREQUENCY, _SCALE, _SMOOTH = int(FREQUENCY), int(SCALE), int(SMOOTH)
_PENALTIES = (int(REPETITION), int(FREQUENCY), int(PRESENCE))
_NEG_INF = f32(-np.inf)


@kernel
def has_non_finite(x):
    """True when some logit is NaN or +inf (S-N5)."""
    out_of_line()
    for i in range(x.size):
        k = key_of(x[i])
        if k >= POS_INF or k < NEG_INF:
            return True
    return False


@inline
def ban(row, block_max, ids):
    """Send tokens to -inf."""
    for i in range(ids.size):
        _put(row, block_max, ids[i], _NEG_INF)


@kernel
def _put(row, block_max, token, value):
    """Write one logit and keep its block's maximum true."""
    out_of_line()
    j = token // BLOCK
    old, new = key_of(row[token]), key_of(value)
    row[token] = value
    if new >= block_max[j]:
        block_max[j] = new
    elif old == block_max[j]:
        block_max[j] = block_maximum(row, j)


@inline
def add(row, block_max, ids, values):
    """x + value."""
    for i in range(ids.size):
        x = row[ids[i]]
        if key_of(x) > NEG_INF:
            _put(row, block_max, ids[i], clamp(f32(clean(x) + values[i])))


@inline
def penalise(row, block_max, op, step, ids, prompt, output):
    """Repetition, frequency or presence penalty on the tokens that the history holds in the step's scope."""
    scope, first, second = step[1], float_of(i32(step[2])), float_of(i32(step[3]))
    for i in range(ids.size):
        n = i64(0)
        if scope != 1:
            n += prompt[i]
        if scope != 2:
            n += output[i]
        x = row[ids[i]]
        if n == 0 or key_of(x) <= NEG_INF:
            continue
        x = clean(x)
        if op == _REPETITION:
            x = at_most_big(f32(x * (second if x > f32(0) else first)))
        elif op == _FREQUENCY:
            x = f32(x - at_most_big(f32(first * f32(n))))
        else:
            x = f32(x - first)
        _put(row, block_max, ids[i], clamp(x))


@inline
def scale(row, block_max, factor):
    """x * factor for every candidate."""
    for i in range(row.size):
        if key_of(row[i]) > NEG_INF:
            row[i] = clamp(at_most_big(f32(clean(row[i]) * factor)))
    for j in range(block_max.size):
        block_max[j] = block_maximum(row, j)


@inline
def smooth(row, block_max, square, cube):
    """top - (square + cube * d) * d^2 for every candidate, d its distance from the largest logit, top."""
    largest = NEG_INF
    for j in range(block_max.size):
        largest = max(largest, block_max[j])
    if largest <= NEG_INF:
        return
    top = clean(value_of(largest))
    for i in range(row.size):
        if key_of(row[i]) > NEG_INF:
            d = clamp(f32(top - clean(row[i])))
            growth = clamp(f32(square + clamp(f32(cube * d))))
            row[i] = clamp(f32(top - clamp(f32(growth * clamp(f32(d * d))))))
    for j in range(block_max.size):
        block_max[j] = block_maximum(row, j)


@kernel
def edit(row, block_max, program, edit_ids, edit_values, ids, prompt, output, suspicious):
    """True when the row is non-finite after its hard masks; else all its edits have been made.

    `suspicious` tells that the row held a NaN or +inf before the bans, which may have taken it away.
    """
    out_of_line()
    checked = False
    for i in range(program.shape[0]):
        step = program[i]
        op = step[0]
        if op != _BAN and not checked:
            if suspicious and has_non_finite(row):
                return True
            checked = True
        if op == _BAN:
            ban(row, block_max, edit_ids[step[1] : step[2]])
        elif op == _ADD:
            add(row, block_max, edit_ids[step[1] : step[2]], edit_values[step[1] : step[2]])
        elif op == _SCALE:
            scale(row, block_max, float_of(i32(step[1])))
        elif op == _SMOOTH:
            smooth(row, block_max, float_of(i32(step[1])), float_of(i32(step[2])))
        elif op in _PENALTIES:
            penalise(row, block_max, op, step, ids, prompt, output)
        else:
            break
    return (not checked) and suspicious and has_non_finite(row)
