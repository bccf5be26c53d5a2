"""min_tokens: no stop token before so many new ones (SPEC.md S-P2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tirage.operators.masks import BAN
from tirage.operators.operator import Ids, Moment, Operator


def _bans(*, min_tokens: int, stop_token_ids: Sequence[int], eos_token_ids: Sequence[int], step: int) -> Ids | None:
    return np.array(sorted({*stop_token_ids, *eos_token_ids}), np.int32) if step < min_tokens else None


def _note(moment: Moment) -> str:
    return f"step {moment.at} < {moment.params.min_tokens}: the stop tokens have to wait"


OPERATOR = Operator(
    name="min_tokens",
    rule="S-P2",
    operations=(BAN,),
    bans=_bans,
    ban_note=_note,
    moves=lambda *, min_tokens: bool(min_tokens),
)
