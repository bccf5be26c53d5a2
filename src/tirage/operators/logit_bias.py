"""logit_bias: added to the logits of single tokens; -inf forbids one (SPEC.md S-N7, S-P2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import Bias
from tirage.operators.masks import BAN
from tirage.operators.operator import Edit, Ids, Moment, Operation, Operator, Step, counted
from tirage.operators.row import RowState


def _run(row: RowState, step: Step) -> None:
    row.write(row.edit_ids[step.a : step.b], lambda v: v + row.edit_values[step.a : step.b])


ADD = Operation("ADD", run=_run, edit=True, lists=True)
"""Add the row's edit values [a, b) to the logits of its edit ids [a, b)."""


def finite(logit_bias: Mapping[int, float] | None) -> tuple[Ids, np.ndarray]:
    """The tokens with a finite bias, ids int32 [n] ascending, and their biases float32 [n]."""
    listed = [(token, numbers.operand(bias)) for token, bias in sorted((logit_bias or {}).items()) if bias != -np.inf]
    return np.array([t for t, _ in listed], np.int32), np.array([v for _, v in listed], np.float32)


def _lower(*, logit_bias: Mapping[int, float] | None) -> Edit | None:
    return Edit(ADD, *finite(logit_bias)) if logit_bias else None


def _bans(*, logit_bias: Mapping[int, float] | None) -> Ids | None:
    if not logit_bias:
        return None
    return np.array(sorted(token for token, bias in logit_bias.items() if bias == -np.inf), np.int32)


def _note(moment: Moment) -> str:
    return f"added to {counted(moment.listed, 'logit')}"


def _ban_note(moment: Moment) -> str:
    return f"a bias of -inf forbids {counted(moment.listed, 'token')}"


OPERATOR = Operator(
    name="logit_bias",
    rule="S-N7",
    fields={
        "logit_bias": param(
            None,
            Bias(),
            "added to the logits of single tokens; -inf forbids one",
            source="OpenAI",
            off=None,
            stage="logit_bias",
        )
    },
    gentle={"logit_bias": {0: 0.75, 7: -float("inf"), 11: -1.5}},
    operations=(BAN, ADD),
    lower=_lower,
    bans=_bans,
    note=_note,
    ban_note=_ban_note,
)
