"""What a draw tells of the sets that a row was drawn from: numbers of `plan.SUMS`, which its logprobs follow from.

There are `LAW` int64 of each of two sets from `plan.LAWS` on, and then how often XTC is on in units of 2^-32, -1 where
there is none. The first set is the only one, or that without XTC, the second that with it. A set is what lies between
two tokens in the order of every cut: what stands before (`FIRST_KEY`, `FIRST_ID`) is out, (`LAST_KEY`, `LAST_ID`) is
the last one in. Where `IS_LISTED`, those of them are in that are marked in a table of their own, uint8 [V]: by the bit
1 for the first set, and 2 for the second. What has no weight need not be marked in a mixture.

`BASIS` is the key that weights count from, `CONSTANT` and `SCALE` are c and 1 / T as bits; `TRIMMED` is the token whose
weight is `LEFT`, -1 for none; `IS_ONE` is 1 where the set is one token, drawn greedily. `TARGET`, -1 without it,
`WHOLE` and `NEAREST` are adaptive-p's target in 2^-32, the mass of the set before it and the least exponent under it
(S-O15).
`TOTAL` is the mass of what is drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.numpy import distribution
from tirage.backends.torch.plan import LAW, LAWS, SUMS, metadata_of
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY, keys
from tirage.operators import Step
from tirage.operators.adaptive_p import ADAPTIVE_P, exponents_of
from tirage.operators.row import RowState, mass

IS_LISTED, BASIS, CONSTANT, SCALE, TRIMMED, LEFT, IS_ONE, TARGET, WHOLE, NEAREST = 1, 4, 5, 6, 7, 8, 11, 12, 13, 14
TOTAL, LAST_KEY, LAST_ID, FIRST_KEY, FIRST_ID = range(24, 29)
"""Where they stand in a law. Those below 24 are where `kernels.sets.words` has them in its words of a row."""
SHARE = SUMS - 1


def tell_sets(
    sets: Tensor,
    kept: Tensor,
    x: Tensor,
    meta: Tensor,
    which: NDArray[np.intp],
    spared: NDArray[np.bool_] | None = None,
) -> None:
    """Writes into `sets` [B, `plan.SUMS`] what the rows `which` [n] of logits [B, V] on the CPU were drawn from.

    Sets that are no prefix are marked in `kept` uint8 [B, V], where that has columns. Those rows have a token; `meta`
    is as `draw_op.draw` takes it, and `spared` bool [B, V] what XTC never removes, None for nothing.
    """
    rows = metadata_of(meta.numpy(), None, spared)
    for r in which:
        found = distribution.outcome(distribution.request_of(x.numpy(), rows, r))
        steps = found.request.steps
        sets[r, SHARE] = -1 if found.on is None else found.share
        for at, branch in enumerate((found.off, found.on)):
            if branch is not None:
                law = _law_of(branch.row, steps)
                if kept.shape[1] and law[IS_LISTED]:
                    kept[r, branch.row.ids] |= 1 << at
                begin = LAWS + at * LAW
                for place, number in law.items():
                    sets[r, begin + place] = number


def _law_of(row: RowState, steps: Sequence[Step]) -> dict[int, int]:
    """The numbers of a set by their places."""
    key, ids = keys(row.x), np.arange(row.x.size)
    first_key, last_key = int(key[row.ids].max()), int(key[row.ids].min())
    first_id = int(row.ids[key[row.ids] == first_key].min())
    last_id = int(row.ids[key[row.ids] == last_key].max())
    between = (key > last_key) | ((key == last_key) & (ids <= last_id))
    between &= (key < first_key) | ((key == first_key) & (ids >= first_id))
    is_listed = int(between.sum()) > row.ids.size
    trimmed, left = row.trimmed or (-1, 0)
    basis = first_key if row.greedy else keys(np.array([row.m], np.float32))[0]
    law = {
        IS_LISTED: int(is_listed),
        BASIS: int(basis),
        CONSTANT: numbers.bits(row.c),
        SCALE: numbers.bits(row.inverse_t),
        TRIMMED: int(trimmed),
        LEFT: int(left),
        IS_ONE: int(row.greedy),
        TARGET: -1,
        TOTAL: int(mass(row.w())),
        LAST_KEY: int(NEG_INF_KEY) if is_listed else last_key,
        LAST_ID: -1 if is_listed else last_id,
        FIRST_KEY: int(POS_INF_KEY) if is_listed else first_key,
        FIRST_ID: 0 if is_listed else first_id,
    }
    if row.reweighted is not None:
        (target,) = (step.a for step in steps if step.op == ADAPTIVE_P)
        w = replace(row, reweighted=None).w()
        nearest = exponents_of(w.astype(np.float64) / np.float64(mass(w)), target).min()
        law |= {TARGET: target, WHOLE: mass(w), NEAREST: int(nearest)}
    return law
