"""no_repeat_ngram_size: no sequence of this many tokens occurs twice (SPEC.md S-H4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.fields.record import param
from tirage.fields.rules import Int
from tirage.history import History
from tirage.operators.masks import BAN
from tirage.operators.operator import Ids, Moment, Operator, counted


def repeating(size: int, tokens: NDArray[np.int32]) -> Ids:
    """Tokens that would repeat an n-gram of `size` tokens already in `tokens` int32 [n], ascending (S-H4)."""
    starts = tokens.size - size + 1
    if starts <= 0:
        return np.zeros(0, np.int32)
    same = np.ones(starts, bool)
    tail = tokens[tokens.size - size + 1 :] if size > 1 else tokens[:0]
    for offset, token in enumerate(tail):
        same &= tokens[offset : offset + starts] == token
    return np.unique(tokens[size - 1 :][same])


def _bans(*, no_repeat_ngram_size: int, history: History) -> Ids | None:
    return repeating(no_repeat_ngram_size, history.tokens()) if no_repeat_ngram_size else None


def _note(moment: Moment) -> str:
    return f"{counted(moment.listed, 'token')} would repeat a sequence of the text so far"


OPERATOR = Operator(
    name="no_repeat_ngram",
    rule="S-H4",
    fields={
        "no_repeat_ngram_size": param(
            0,
            Int(low=0),
            "no sequence of this many tokens is generated twice",
            source="Hugging Face",
            off=0,
            stage="no_repeat_ngram",
            needs_history=lambda size: True,
        )
    },
    examples={"no_repeat_ngram_size": (1, 2, 3)},
    gentle={"no_repeat_ngram_size": 3},
    operations=(BAN,),
    bans=_bans,
    ban_note=_note,
    moves=lambda *, no_repeat_ngram_size: bool(no_repeat_ngram_size),
)
