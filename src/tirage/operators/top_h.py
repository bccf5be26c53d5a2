"""Top-h: of the first 100 tokens, the prefix with the share h of their entropy (SPEC.md S-O7; arXiv:2509.02510)."""

from __future__ import annotations

from collections.abc import Sequence

from tirage.exact import numbers
from tirage.exact.logs import OCTAVE, ilog2
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState

TOKENS = 100
"""How many tokens are looked at, as in the published code."""


def _run(row: RowState, step: Step) -> None:
    order = row.ranked()[:TOKENS]
    q, w = row.q()[order].tolist(), row.w()[order].tolist()
    row.keep_prefix(order, prefix(q, w, len(order), step.a), ties=False)


def prefix(q: Sequence[int], w: Sequence[int], count: int, share: int) -> int:
    """How many of the first `count` tokens, with exponents q and weights w, are kept; share in units of 2^-32."""
    log_mass = ilog2(max(sum(w[:count]), 1)) - 40 * OCTAVE
    parts = [wi * (qi + log_mass) for qi, wi in zip(q[:count], w[:count], strict=True)]
    total, reached = sum(parts), 0
    for n, part in enumerate(parts):
        reached += part
        if reached << 32 > share * total:
            return max(n, 1)
    return max(count, 1)


TOP_H = Operation("TOP_H", "h:long", run=_run)


def _lower(*, top_h: float) -> Step | None:
    return Step(TOP_H, numbers.mass_fraction(top_h)) if top_h else None


def _note(moment: Moment) -> str:
    return f"the most likely tokens that hold {moment.params.top_h:g} of the entropy"


OPERATOR = Operator(
    name="top_h",
    rule="S-O7",
    fields={
        "top_h": param(
            0.0,
            Float(low=0.0, high=1.0, open_low=True, zero=True),
            "keep the most likely tokens that hold this fraction of the entropy",
            source="arXiv:2509.02510",
            off=0.0,
            stage="top_h",
        )
    },
    examples={"top_h": (0.4, 0.8, 1.0)},
    gentle={"top_h": 0.95},
    operations=(TOP_H,),
    lower=_lower,
    note=_note,
)
