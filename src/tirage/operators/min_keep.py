"""min_keep: top-p, min-p, typical and XTC leave at least this many tokens (SPEC.md S-O11; llama.cpp)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tirage.fields.record import param
from tirage.fields.rules import TOKEN_ID_LIMIT, Int
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK, most_typical
from tirage.operators.xtc import COINS, XTC, XTC_TIES_KEPT

Order = Callable[[RowState, Step], NDArray[np.int64] | None]
"""Positions [n] into a row's ids, of which the first stay; None where all do."""


def _by_logit(row: RowState, step: Step) -> NDArray[np.int64]:
    return row.ranked()


def _whole(row: RowState, step: Step) -> None:
    return None


def _floored(op: Operation, order: Order) -> Operation:
    """`op` with one more operand: how many tokens it leaves at least, the first of an order; None restores all."""

    def run(row: RowState, step: Step) -> None:
        before, listed, trimmed = row.ids, row.listed, row.trimmed
        least = step.operands[len(op.operands)]
        op.run(row, step._replace(op=op))
        if row.ids.size < min(least, before.size):
            row.ids, row.trimmed = before, trimmed
            first = order(row, step)
            if first is None:
                row.listed = listed
            else:
                row.keep_prefix(first, least, ties=False)
        row.listed = max(row.listed, min(listed, least - before.size))

    kinds = " ".join(f"{name}:{kind}" for name, kind in op.operands)
    return Operation(f"{op.name}_MIN_KEEP", f"{kinds} least:int", run=run, base=op)


FLOORED = {
    **{op: _floored(op, _by_logit) for op in (TOP_P, MIN_P, MIN_P_LOGIT)},
    **{op: _floored(op, most_typical) for op in (TYPICAL, TYPICAL_BY_RANK)},
    **{op: _floored(op, _whole) for op in (XTC, XTC_TIES_KEPT)},
}
"""The operations that heed min_keep, and what they are with it."""


def floored(step: Step, least: int) -> Step:
    """The step, leaving at least this many tokens where it is one that heeds min_keep."""
    op = FLOORED.get(step.op)
    if op is None or least < 2:
        return step
    operands = (*step.operands[: len(step.op.operands)], least)
    return step._replace(op=op, **dict(zip("abcde", operands, strict=False)))


def floor_note(moment: Moment, text: str) -> str:
    """The note of a step, with what min_keep held back."""
    least = moment.params.min_keep
    if moment.step.op.base in COINS and moment.step.op in FLOORED.values() and moment.row.coin and not moment.removed:
        return f"the coin said yes, but fewer than two tokens reach the threshold or fewer than {least:,} would be left"
    held = moment.step.op in FLOORED.values() and moment.left == least and moment.removed
    return f"{text}; min_keep is {least:,}" if held else text


OPERATOR = Operator(
    name="min_keep",
    rule="S-O11",
    fields={
        "min_keep": param(
            0,
            Int(low=0, high=TOKEN_ID_LIMIT),
            "top_p, min_p, typical_p and XTC leave at least this many tokens; 1 is no more than they do anyway",
            source="llama.cpp",
            off=0,
            stage="min_keep",
        )
    },
    examples={"min_keep": (3, 1, 2, 40)},
    gentle={"min_keep": 2},
    operations=tuple(FLOORED.values()),
    has_steps=False,
)
