"""Custom logits processors: functions by name, run where their stage stands (SPEC.md S-P4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tirage.fields.record import param
from tirage.fields.rules import Json, Processors
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import NON_FINITE, PROCESSOR_FAILED, RowState
from tirage.processors import find_processor

Named = Sequence[tuple[str, Mapping[str, Any]]]


def _run(row: RowState, step: Step) -> None:
    if row.process is not None:
        row.x = np.where(row.masked, np.float32(-np.inf), row.process(row.x)).astype(np.float32)
        row.check_finite()
        if row.status == NON_FINITE:
            # The model's logits were finite, or the row would have ended before.
            row.status = PROCESSOR_FAILED


PROCESS = Operation("PROCESS", run=_run, edit=True)


def _lower(*, logits_processors: Named) -> Step | None:
    return Step(PROCESS) if logits_processors else None


def _needs_past(named: Named) -> bool:
    return any(find_processor(name).needs_past for name, _ in named)


def _note(moment: Moment) -> str:
    return "ran " + ", ".join(name for name, _ in moment.params.logits_processors)


OPERATOR = Operator(
    name="processors",
    rule="S-P4",
    fields={
        "logits_processors": param(
            (),
            Processors(),
            "registered processors to run, each with its arguments",
            source="SGLang",
            off=(),
            stage="processors",
            needs_history=_needs_past,
        ),
        "extra_args": param(
            None,
            Json(),
            "arguments for the named `logits_processors`; a key that none of them declares is refused",
            source="EasyDeL",
            off=None,
        ),
    },
    operations=(PROCESS,),
    lower=_lower,
    note=_note,
)
