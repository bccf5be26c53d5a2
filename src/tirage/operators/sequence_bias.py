"""sequence_bias: added to the logit of the token that would complete a sequence; -inf forbids it (SPEC.md S-H7)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tirage.exact import numbers
from tirage.fields.record import param
from tirage.fields.rules import SequenceBias
from tirage.history import History
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.operator import Edit, Ids, Moment, Operator, counted

Biases = Sequence[tuple[Sequence[int], float]] | None


def due(biases: Biases, history: History) -> Iterator[tuple[int, float]]:
    """(token, bias) of the sequences whose tokens but the last are the newest of prompt + output."""
    tokens = history.tokens()
    for ids, bias in biases or ():
        n = len(ids) - 1
        if n <= tokens.size and tuple(tokens[tokens.size - n :].tolist()) == tuple(ids[:-1]):
            yield ids[-1], bias


def _lower(*, sequence_bias: Biases, history: History) -> Edit | None:
    if not sequence_bias:
        return None
    found: dict[int, list[float]] = {}
    for token, bias in due(sequence_bias, history):
        if bias != -math.inf:
            found.setdefault(token, []).append(float(numbers.operand(bias)))
    ids = sorted(found)
    return Edit(ADD, np.array(ids, np.int32), np.array([numbers.operand(math.fsum(found[t])) for t in ids], np.float32))


def _bans(*, sequence_bias: Biases, history: History) -> Ids | None:
    if not sequence_bias:
        return None
    return np.array(sorted({t for t, bias in due(sequence_bias, history) if bias == -math.inf}), np.int32)


def _note(moment: Moment) -> str:
    return f"added to {counted(moment.listed, 'logit')}"


def _ban_note(moment: Moment) -> str:
    return f"a bias of -inf forbids {counted(moment.listed, 'token')}"


def is_longer_than_a_token(biases: Biases) -> bool:
    """Whether some sequence has more than one token, so that the history decides about its bias."""
    return any(len(ids) > 1 for ids, _ in biases or ())


OPERATOR = Operator(
    name="sequence_bias",
    rule="S-H7",
    fields={
        "sequence_bias": param(
            None,
            SequenceBias(),
            "added to the logit of the token that would complete a sequence of tokens; -inf forbids it",
            source="Hugging Face",
            off=None,
            stage="sequence_bias",
            needs_history=is_longer_than_a_token,
        )
    },
    gentle={"sequence_bias": (((5, 2), 0.75), ((4, 5, 9), -1.5), ((13,), 0.5))},
    operations=(BAN, ADD),
    lower=_lower,
    bans=_bans,
    moves=lambda *, sequence_bias: is_longer_than_a_token(sequence_bias),
    note=_note,
    ban_note=_ban_note,
)
