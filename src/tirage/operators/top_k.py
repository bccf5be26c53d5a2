"""Top-k: the k most likely tokens (SPEC.md S-O1)."""

from __future__ import annotations

from tirage.fields.record import param
from tirage.fields.rules import Int
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    if step.a < row.ids.size:
        row.keep_prefix(row.ranked(), step.a, ties=bool(step.b))
    else:
        row.listed = min(row.listed, step.a - row.ids.size)


TOP_K = Operation("TOP_K", "k:int ties:static", run=_run)


def _lower(*, top_k: int, top_k_ties: str, top_k_one: str) -> Step | None:
    one = top_k == 1 and top_k_one == "argmax"
    return Step(TOP_K, top_k, int(top_k_ties == "all" and not one)) if top_k else None


def _note(moment: Moment) -> str:
    k, left = moment.params.top_k, moment.left
    if left > k:
        return f"the {k} most likely, and {left - k} as likely as the last of them"
    return f"the {left} most likely" if left == k else f"no more than {k} candidates: all stay"


OPERATOR = Operator(
    name="top_k",
    rule="S-O1",
    fields={
        "top_k": param(
            0,
            Int(low=0, alias=-1, optional=True, none=0),
            "keep the k most likely tokens; -1 and None are stored as 0",
            source="EasyDeL, Hugging Face",
            off=0,
            stage="top_k",
        )
    },
    examples={"top_k": (1, 2, 3, 7, 40, 1000)},
    gentle={"top_k": 30},
    operations=(TOP_K,),
    lower=_lower,
    note=_note,
)
