"""Mirostat 1 and 2: cuts that steer the surprise of the drawn tokens to a target (SPEC.md S-O14; arXiv:2007.14966)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from tirage.exact import numbers
from tirage.exact.logs import OCTAVE, exp2, ilog2
from tirage.fields.record import param
from tirage.fields.rules import Float, Int
from tirage.operators.operator import Moment, Operation, Operator, Step, counted, keep_by_weight
from tirage.operators.row import RowState

M = 100
"""Tokens from which version 1 estimates how fast probabilities fall; llama.cpp and the paper take as many."""
LIMIT = 1 << 30
"""The largest mu, up or down, that a step is given, in units of 2^-23 bits."""
LOG2E = float.fromhex("0x1.71547652b82fep+0")


# --- the rules ----------------------------------------------------------------------------------------------------


def bound(operands: tuple[int, ...], total: int, largest: int) -> int:
    """The least weight whose surprise in the mass `total` is at most mu."""
    least = ilog2(total) - operands[0]
    return bisect_left(range(1, largest + 1), least, key=ilog2) + 1


def _by_zipf(row: RowState, step: Step) -> None:
    order = row.ranked()
    q = row.q()[order[:M]].tolist()
    row.keep_prefix(order, candidates(q, mu=step.a, vocab_size=row.x.size, count=order.size), ties=False)


def candidates(q: Sequence[int], *, mu: int, vocab_size: int, count: int) -> int:
    """How many of `count` tokens have a surprise of about mu, if all fall off as the first ones with exponents `q`.

    `mu` and `q` are in units of 2^-23 octaves. Under Zipf's law of slope s, k = (|s - 1| 2^mu / |1 - V^(1 - s)|)^(1/s).
    """
    slope = _slope(q)
    if slope <= 0:
        return count
    away = abs(slope - OCTAVE) or 1
    power = exp2(away * ilog2(vocab_size) >> 23)
    rest = power - (1 << 62) if slope < OCTAVE else (1 << 62) - (1 << 124) // power
    if rest < 1:
        return 1
    log2_k = ((ilog2(away) - 23 * OCTAVE + mu - ilog2(rest) + 62 * OCTAVE) << 23) // slope
    if log2_k < 0:
        return 1
    return count if log2_k >= 21 * OCTAVE else min(exp2(log2_k) >> 62, count)


def _slope(q: Sequence[int]) -> int:
    """The slope of exponents over ln(rank), by least squares through the differences, in units of 2^-23."""
    t = [ilog2(i + 2) - ilog2(i + 1) for i in range(len(q) - 1)]
    b = [after - before for before, after in pairwise(q)]
    squares = sum(ti * ti for ti in t)
    return (sum(ti * bi for ti, bi in zip(t, b, strict=True)) << 23) // squares if squares else 0


MIROSTAT = Operation("MIROSTAT", "mu:int", run=_by_zipf)
MIROSTAT_V2 = Operation("MIROSTAT_V2", "mu:int", run=keep_by_weight, weight_bound=bound)


# --- lowering, and the state that a row carries ----------------------------------------------------------------------


def _lower(*, mirostat: int, state: float | None) -> Step | None:
    if not mirostat or state is None:
        return None
    mu = max(-LIMIT, min(math.floor(state * OCTAVE), LIMIT))
    return Step(MIROSTAT if mirostat == 1 else MIROSTAT_V2, mu)


def _initial(*, mirostat: int, mirostat_tau: float) -> float | None:
    return 2.0 * float(numbers.f32(mirostat_tau)) if mirostat else None


def _advance(*, state: float, logprob: float, mirostat_tau: float, mirostat_eta: float) -> float:
    error = -logprob * LOG2E - float(numbers.f32(mirostat_tau))
    return state - float(numbers.f32(mirostat_eta)) * error


# --- words ----------------------------------------------------------------------------------------------------------


def _note(moment: Moment) -> str:
    mu, left = moment.step.a / OCTAVE, counted(moment.left, "token")
    if moment.step.op is MIROSTAT:
        return f"mu is {mu:.4g} bits: {left} by the fall of the {M} most likely"
    return f"mu is {mu:.4g} bits: {left} of at most this surprise, and at least the likeliest"


OPERATOR = Operator(
    name="mirostat",
    rule="S-O14",
    fields={
        "mirostat": param(
            0,
            Int(low=0, high=2),
            "version of Mirostat, which steers the surprise of the text to `mirostat_tau`; it carries a state from "
            "token to token",
            source="llama.cpp, arXiv:2007.14966",
            off=0,
            stage="mirostat",
        ),
        "mirostat_tau": param(
            5.0,
            Float(low=0.0, high=100.0),
            "surprise of a token, in bits, that Mirostat aims at",
            source="llama.cpp",
        ),
        "mirostat_eta": param(
            0.1,
            Float(low=0.0, high=10.0),
            "how fast Mirostat corrects: the share of a token's error that it takes into account",
            source="llama.cpp",
        ),
    },
    examples={"mirostat": (2, 1), "mirostat_tau": (0.7, 5.0, 2.0, 0.0), "mirostat_eta": (1.0, 0.1)},
    gentle={"mirostat": 2, "mirostat_tau": 20.0},
    operations=(MIROSTAT, MIROSTAT_V2),
    lower=_lower,
    initial=_initial,
    advance=_advance,
    note=_note,
)
