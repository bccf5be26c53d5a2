"""XTC, exclude top choices: now and then, all likely tokens but the least likely of them (SPEC.md S-O8; llama.cpp)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Float, Ids
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, mass
from tirage.operators.row import share as share_of


def _run(row: RowState, step: Step) -> None:
    if not row.coin:
        return
    w, order = row.w(), row.ranked()
    above = order[w[order] >= bound(step.b, step.c, step.d, mass(w))]
    if above.size < 2:
        return
    kept = np.ones(row.ids.size, bool)
    kept[above[:-1]] = False
    if step.op is XTC_TIES_KEPT:
        key = row.key[row.ids]
        kept |= key == key[above[-1]]
    if row.protected is not None:
        kept |= np.isin(row.ids, row.protected)
    row.keep(kept, listed=row.listed)


def bound(e: int, s: int, strict: int, total: int) -> int:
    """The weight from which on a token may be removed: the share E / 2^s of the mass, or more than it."""
    return (e * total >> s) + 1 if strict else max(1, share_of(e, s, total))


XTC = Operation("XTC", "coin:long e:word s:int strict:static", run=_run)
XTC_TIES_KEPT = Operation("XTC_TIES_KEPT", "coin:long e:word s:int strict:static", run=_run)
COINS = (XTC, XTC_TIES_KEPT)
"""The operations that toss a coin; their first operand is how often it is on, in units of 2^-32."""


def _lower(*, xtc_probability: float, xtc_threshold: float, xtc_rule: str, xtc_ties: str) -> Step | None:
    coin = numbers.mass_fraction(xtc_probability)
    if not coin:
        return None
    op = XTC if xtc_ties == "index" else XTC_TIES_KEPT
    return Step(op, coin, *numbers.scaled_fraction(xtc_threshold), int(xtc_rule == "gt"))


def _note(moment: Moment) -> str:
    p, threshold = moment.params.xtc_probability, moment.params.xtc_threshold
    if not moment.row.coin:
        return f"the coin said no (on with probability {p:g})"
    if not moment.removed:
        return f"the coin said yes, but fewer than two tokens reach {threshold:g}"
    return f"the coin said yes: of the tokens that reach {threshold:g}, only the least likely stays"


OPERATOR = Operator(
    name="xtc",
    rule="S-O8",
    fields={
        "xtc_probability": param(
            0.0,
            Float(low=0.0, high=1.0),
            "chance that all tokens at the XTC threshold but the least likely are removed",
            source="llama.cpp",
            off=0.0,
            stage="xtc",
        ),
        "xtc_threshold": param(
            0.1,
            Float(low=0.0, high=1.0),
            "probability that counts for XTC; above 0.5 no two tokens reach it and nothing is removed",
            source="llama.cpp",
        ),
        "xtc_protected_ids": param((), Ids(), "tokens that XTC never removes", source="MLX", off=()),
    },
    examples={"xtc_probability": (1.0, 0.5, 0.03), "xtc_threshold": (0.1, 0.02, 0.0, 0.5)},
    gentle={"xtc_probability": 0.5, "xtc_threshold": 0.08},
    operations=COINS,
    lower=_lower,
    note=_note,
)
