"""Bad words: token sequences that are never completed (SPEC.md S-H3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.history import History
from tirage.operators.masks import BAN
from tirage.operators.operator import Ids, Moment, Operator, counted


def completing(words: Iterable[Sequence[int]], tokens: NDArray[np.int32]) -> list[int]:
    """Tokens that would complete one of the id sequences `words` after `tokens` int32 [n] (S-H3)."""
    banned, last = list[int](), int(tokens[-1]) if tokens.size else -1
    for word in words:
        # Most end here: one token is looked at before a prefix is compared.
        if len(word) > 1 and word[-2] != last:
            continue
        prefix = [*word[:-1]]
        if tokens[max(0, tokens.size - len(prefix)) :].tolist() == prefix:
            banned.append(word[-1])
    return banned


def enforced(words: Iterable[Sequence[int]], eos_ids: Sequence[int], rule: str) -> Iterator[Sequence[int]]:
    """The id sequences that are banned; with the rule "dropped" those that are one EOS token are not."""
    return (word for word in words if rule == "banned" or len(word) != 1 or word[0] not in eos_ids)


def _bans(
    *,
    bad_words_token_ids: Sequence[Sequence[int]],
    eos_token_ids: Sequence[int],
    bad_words_history: str,
    bad_words_eos: str,
    history: History,
) -> Ids | None:
    if not bad_words_token_ids:
        return None
    tokens = history.tokens() if bad_words_history == "both" else history.output()
    words = enforced(bad_words_token_ids, eos_token_ids, bad_words_eos)
    return np.array(completing(words, tokens), np.int32)


def _note(moment: Moment) -> str:
    history, params, semantics = moment.history, moment.params, moment.semantics
    words = enforced(params.bad_words_token_ids, params.eos_token_ids, semantics.bad_words_eos)
    both = semantics.bad_words_history == "both"
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
