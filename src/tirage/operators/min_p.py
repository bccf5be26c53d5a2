"""Min-p: tokens at least a fraction as likely as the most likely one (SPEC.md S-O3; arXiv:2407.01082)."""

from __future__ import annotations

import numpy as np

from tirage.exact import numbers
from tirage.exact.keys import clamped, keys, value
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState


def _by_probability(row: RowState, step: Step) -> None:
    q = row.q()
    row.keep(q - q.min() <= step.a)


def _by_logit(row: RowState, step: Step) -> None:
    """EasyDeL's comparison of raw logits."""
    key = row.key[row.ids]
    bound = clamped(np.array([numbers.from_bits(step.a) * value(key.max())]))
    row.keep((key >= keys(bound)) | row.is_top())


MIN_P = Operation("MIN_P", "widest:int", run=_by_probability)
MIN_P_LOGIT = Operation("MIN_P_LOGIT", "ratio:float", run=_by_logit)


def _lower(*, min_p: float, min_p_rule: str) -> Step | None:
    ratio = float(numbers.f32(min_p))
    if ratio == 0.0:
        return None
    if min_p_rule == "logit_ratio":
        return Step(MIN_P_LOGIT, numbers.bits(np.float32(ratio)))
    threshold = numbers.ratio_threshold(ratio)
    # Only a power of two has a threshold that some q meets exactly; "gt" leaves that q out.
    if min_p_rule == "gt" and np.frexp(ratio)[0] == 0.5:
        threshold = max(threshold - 1, 0)
    return Step(MIN_P, threshold)


def _note(moment: Moment) -> str:
    p = moment.params.min_p
    if moment.step.op.base is MIN_P_LOGIT:
        return f"logits at least {p:g} times the largest logit"
    return f"at least {p:g} × {moment.top_share:.4g} = {p * moment.top_share:.4g}"


OPERATOR = Operator(
    name="min_p",
    rule="S-O3",
    fields={
        "min_p": param(
            0.0,
            Float(low=0.0, high=1.0),
            "keep tokens at least this fraction as likely as the most likely one",
            source="arXiv:2407.01082",
            off=0.0,
            stage="min_p",
        )
    },
    examples={"min_p": (0.1, 0.5, 0.05, 1.0, 1e-30, 0.25)},
    gentle={"min_p": 0.004},
    operations=(MIN_P, MIN_P_LOGIT),
    lower=_lower,
    note=_note,
)
