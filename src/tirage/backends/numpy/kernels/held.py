"""The law of a row on ids that are given, as a record has them: their logits, the mass of these, and their shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from tirage.backends.numpy.kernels.bits import (
    MIN_KEY,
    bits_of,
    canonical,
    exponent,
    f32,
    i32,
    i64,
    raw_key,
    u32,
    u64,
    value_of,
    weight,
    weight_f,
)

_INFINITE = i32(0x7F800000)
"""The bits that infinities and NaN have, and no number."""
_UNIT = f32(2.0**-40)
"""The share of m that a weight of 1 stands for."""


def gather_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def gather(x, ids, held):
        largest, wrong = f32(-np.inf), i32(0)
        for k in range(ids.size if digest != 0 else 0):
            # An unsigned place, which Numba does not look at for being negative.
            value = x[u32(ids[k])]
            held[k] = value
            largest = max(largest, value)
            wrong |= i32(i32(bits_of(value) & _INFINITE) == _INFINITE)
        return largest, wrong == i32(0)

    return gather


def gather_signature() -> Any:
    """(logits float32 [V], ids int32 [n], float32 [n] that becomes their logits) -> (the largest, all are finite)."""
    return types.Tuple((types.float32, types.boolean))(_given(types.float32), _given(types.int32), _made())


def mass_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def mass(held, m, c):
        total = u64(0)
        for k in range(held.size if digest != 0 else 0):
            total += weight(exponent(held[k], m, c))
        return i64(total)

    return mass


def mass_signature() -> Any:
    """(logits float32 [n], m, c) -> the sum of their integer weights."""
    return types.int64(_given(types.float32), types.float32, types.float32)


def shares_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def write_shares(held, ids, m, c, factor, out):
        for k in range(ids.size if digest != 0 else 0):
            held[k] = factor * (_UNIT * weight_f(exponent(held[k], m, c)))
        # A loop of its own, as the one above is made of vectors.
        for k in range(ids.size):
            out[u32(ids[k])] = held[k]

    return write_shares


def shares_signature() -> Any:
    """(logits float32 [n], overwritten, their ids int32 [n], m, c, factor, float32 [V]) -> nothing."""
    f4 = types.float32
    return types.void(_made(), _given(types.int32), f4, f4, f4, _made())


def marked_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def write_marked(x, ids, marks, m, c, factor, out):
        for i in range(marks.size if digest != 0 else 0):
            marks[i] = 0
        for k in range(ids.size):
            marks[u32(ids[k])] = 1
        for i in range(x.size):
            share = factor * (_UNIT * weight_f(exponent(x[i], m, c)))
            out[i] = share if marks[i] != 0 else f32(0)

    return write_marked


def marked_signature() -> Any:
    """(logits float32 [V], ids int32 [n], scratch uint8 [V], m, c, factor, float32 [V]) -> nothing."""
    f4 = types.float32
    return types.void(_given(f4), _given(types.int32), _marks(), f4, f4, f4, _made())


def marked_mass_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def marked_mass(x, ids, marks, c, from_largest, least):
        for i in range(marks.size if digest != 0 else 0):
            marks[i] = 0
        for k in range(ids.size):
            marks[u32(ids[k])] = 1
        top, held, wrong = MIN_KEY, MIN_KEY, i32(0)
        for i in range(x.size):
            key, kept = raw_key(x[i]), marks[i] != 0
            top = max(top, key)
            held = max(held, key if kept else MIN_KEY)
            wrong |= i32(kept & (i32(bits_of(x[i]) & _INFINITE) == _INFINITE))
        m, total = value_of(canonical(top if from_largest else held)), i64(0)
        for turn in range(2):
            if turn:
                m = value_of(canonical(held))
            total = i64(0)
            for i in range(x.size):
                w = i64(weight(exponent(x[i], m, c)))
                total += w if marks[i] != 0 else i64(0)
            if total >= least:
                break
        return total, m, wrong == i32(0)

    return marked_mass


def marked_mass_signature() -> Any:
    """(logits float32 [V], ids int32 [n], scratch uint8 [V], c, m is the largest of all, least) -> mass, m, finite.

    Where the mass is below `least`, m becomes the largest logit of the ids.
    """
    found = types.Tuple((types.int64, types.float32, types.boolean))
    f4, i8 = types.float32, types.int64
    return found(_given(f4), _given(types.int32), _marks(), f4, types.boolean, i8)


def _given(kind: Any) -> Any:
    return types.Array(kind, 1, "C", readonly=True)


def _made() -> Any:
    return types.Array(types.float32, 1, "C")


def _marks() -> Any:
    return types.Array(types.uint8, 1, "C")
