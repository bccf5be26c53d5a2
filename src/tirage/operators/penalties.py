"""What the penalties on seen tokens share: which tokens one counts, and how it is explained."""

from __future__ import annotations

from typing import Any

from tirage.fields.record import param
from tirage.fields.rules import LARGEST, Float
from tirage.operators.operator import Moment, counted
from tirage.operators.row import SCOPES

_PLACES = {"both": "prompt and output", "output": "the output", "prompt": "the prompt"}


def scope(history: str, penalty_window: int | None) -> int:
    """The operand that says which tokens are counted; a window forgets which side a token came from."""
    return 0 if penalty_window else SCOPES.index(history)


def additive(stage: str, meaning: str) -> Any:
    """The declaration of a penalty that is subtracted."""
    return param(
        0.0,
        Float(low=-LARGEST, high=LARGEST),
        meaning,
        source="OpenAI",
        off=0.0,
        stage=stage,
        needs_history=lambda penalty: True,
    )


def note(moment: Moment) -> str:
    """How many tokens the penalty acted on."""
    counts, scope = moment.row.counts, SCOPES[moment.step.a]
    seen = 0 if counts is None else int((counts.seen(scope) > 0).sum())
    window = moment.semantics.penalty_window
    where = f"the last {window} tokens" if window else _PLACES[scope]
    return f"acts on the {counted(seen, 'distinct token')} of {where}"
