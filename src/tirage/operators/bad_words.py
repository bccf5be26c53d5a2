"""Bad words: token sequences that are never completed (SPEC.md S-H3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.history import History
from tirage.operators.masks import BAN
from tirage.operators.operator import Ids, Moment, Operator, counted


def completing(words: Iterable[Sequence[int]], tokens: NDArray[np.int32]) -> list[int]:
    """Tokens that would complete one of the id sequences `words` after `tokens` int32 [n] (S-H3)."""
    banned: list[int] = []
    for word in words:
        prefix = tuple(word[:-1])
        n = len(prefix)
        if n <= tokens.size and tuple(tokens[tokens.size - n :].tolist()) == prefix:
            banned.append(word[-1])
    return banned


def _bans(*, bad_words_token_ids: Sequence[Sequence[int]], bad_words_history: str, history: History) -> Ids | None:
    if not bad_words_token_ids:
        return None
    tokens = history.tokens() if bad_words_history == "both" else history.output()
    return np.array(completing(bad_words_token_ids, tokens), np.int32)


def _note(moment: Moment) -> str:
    history, words = moment.history, moment.params.bad_words_token_ids
    both = moment.semantics.bad_words_history == "both"
    due = completing(words, history.tokens() if both else history.output())
    return f"{counted(len(due), 'bad word')} would be completed now"


OPERATOR = Operator(
    name="bad_words",
    rule="S-H3",
    operations=(BAN,),
    bans=_bans,
    ban_note=_note,
    moves=lambda *, bad_words_token_ids: bool(bad_words_token_ids),
)
