"""What a row reports beside its token: logprobs, ranks and top lists of one view (S-L5)."""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels import filters
from tirage.backends.numpy.kernels.bits import (
    NEG_INF,
    POS_INF,
    f32,
    frozen,
    i32,
    i64,
    inline,
    key_of,
    pasted,
)
from tirage.backends.numpy.kernels.passes import find_maxima, total_mass
from tirage.backends.numpy.kernels.program import branch_logprob
from tirage.backends.numpy.kernels.state import enter
from tirage.sampling_metadata import View

_RAW, _SAMPLED = int(View.RAW), int(View.SAMPLED)


@inline
def _show(x, s, work, token, asked, top_n, lp, rank, top_ids, top_lp, asked_lp):
    """Report the law that the state stands for; shortens its window, so it comes last."""
    key = key_of(x[token])
    lp[0] = branch_logprob(s, x[token], token)
    rank[0] = 1 + filters.count(x, s, work, i32(key + i32(1)))
    for i in range(asked.size):
        asked_lp[i] = branch_logprob(s, x[asked[i]], i64(asked[i]))
    if top_n > 0:
        n = _list_top(x, s, work, top_n)
        for i in range(n):
            t = i64(work.ids[work.order[i]])
            top_ids[i], top_lp[i] = t, branch_logprob(s, x[t], t)


@inline
def _list_top(x, s, work, top_n):
    """Length of the sorted list of the window's first tokens."""
    filters.top_k(x, s, work, i64(top_n), i64(top_n < 0))
    filters.compact(x, s, work)
    filters.sort_list(s, work)
    return s.n


@inline
def report(logits, x, s, whole, work, copied, view, token, asked, top_n, lp, rank, top_ids, top_lp, asked_lp):
    """Writes the view that the row of logits [V] asks for; `whole` is spare state for views of the whole row."""
    if view != _SAMPLED:
        x = take_whole(logits, x, s, whole, work, copied, view)
    shown = s if view == _SAMPLED else whole
    _show(x, shown, work, token, asked, top_n, lp, rank, top_ids, top_lp, asked_lp)


@pasted
def take_whole(logits, x, s, whole, work, copied, view):
    """The row [V] that a raw or processed view is of; sets `whole` to its law."""
    high, low = s.ceiling, s.floor
    if view == _RAW and copied:
        x = logits
        high, low = find_maxima(x, work.block_max)
        if high >= POS_INF or low < NEG_INF:
            # A mask made these harmless to the draw; in the raw view they count as -inf.
            for i in range(x.size):
                k = key_of(x[i])
                work.row[i] = x[i] if NEG_INF < k < POS_INF else f32(-np.inf)
            x = frozen(work.row)
            high, low = find_maxima(x, work.block_max)
    enter(whole, high, low)
    if view != _RAW and not s.greedy:
        whole.c, whole.inverse_t = s.c, s.inverse_t
    whole.total = total_mass(x, work.block_max, whole.m, whole.c, work.block_mass)
    return x
