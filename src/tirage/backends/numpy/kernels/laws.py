"""The law of a row that was just drawn: the weights of what it kept over their sum, as float64 (S-W6)."""

from __future__ import annotations

from typing import Any

from numba import types

from tirage.backends.numpy.kernels.bits import f64
from tirage.backends.numpy.kernels.state import STATE
from tirage.backends.numpy.kernels.vectors import shares


def law_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def write_law(x, block_max, states, branch, law):
        if digest == 0:
            return
        s = states[branch]
        if s.greedy:
            law[s.high_id] = 1.0
            return
        given = (s.m, s.c, s.low_key, s.low_id, s.high_key, s.high_id, f64(s.total))
        for block in range(block_max.size):
            if block_max[block] >= s.low_key:
                shares(x, block, given, law)
        if s.trimmed >= 0:
            law[s.trimmed] = f64(s.left) / f64(s.total)

    return write_law


def law_signature() -> Any:
    """(logits float32 [V], block maxima int32, states, which of them, law float64 [V], zero at first) -> nothing."""
    from numba.np.numpy_support import from_dtype

    made = [types.Array(kind, 1, "C") for kind in (types.int32, from_dtype(STATE))]
    return types.void(
        types.Array(types.float32, 1, "C", readonly=True), *made, types.int64, types.Array(types.float64, 1, "C")
    )
