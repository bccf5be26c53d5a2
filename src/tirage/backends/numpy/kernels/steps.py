"""The table of filters: what each operation does to the window of a row.

Every entry takes (x, s, work, step, coin): the row's logits float32 [V], the state of the branch, scratch memory, the
step as int64 [6], and XTC's coin. An operation that is not here is drawn by the plain path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tirage.backends.numpy.kernels import entropy, filters, nucleus, rare
from tirage.backends.numpy.kernels.bits import (
    float_of,
    i32,
    i64,
    inline,
    u64,
    value_of,
)
from tirage.backends.numpy.kernels.passes import first_with
from tirage.backends.numpy.kernels.state import UNIT, set_high, set_low
from tirage.operators import Operation
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.mirostat import MIROSTAT_V2
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, GREEDY, TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.top_a import TOP_A
from tirage.operators.top_h import TOKENS, TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.operators.xtc import XTC

_ONE40 = u64(1) << u64(40)
_TOP_H_TOKENS = i64(TOKENS)
_NO, _YES = i64(0), i64(1)
"""Flags as steps hold them: a bool that is a constant would be a type of its own, and the callee compiled again."""


@inline
def _rebase(s):
    s.m, s.weighed = value_of(s.high_key), 0


@inline
def _temperature(x, s, work, step, coin):
    _rebase(s)
    s.c, s.inverse_t = float_of(i32(step[1])), float_of(i32(step[2]))


@inline
def _dynamic_temperature(x, s, work, step, coin):
    _rebase(s)
    filters.find_mean(x, s, work, UNIT)
    entropy.dynamic_temperature(s, step[1], step[2], step[3], step[4], step[5])


@inline
def _top_k(x, s, work, step, coin):
    filters.top_k(x, s, work, step[1], step[2])


@inline
def _top_h(x, s, work, step, coin):
    filters.top_k(x, s, work, _TOP_H_TOKENS, _NO)
    filters.compact(x, s, work)
    filters.weigh(x, s, work)
    entropy.top_h(s, work, step[1])


@inline
def _top_p(x, s, work, step, coin):
    nucleus.keep_nearest(x, s, work, nucleus.BY_RANK, step[1], step[2], step[3], step[4])


@inline
def _typical(x, s, work, step, coin):
    filters.find_mean(x, s, work, s.c)
    nucleus.keep_nearest(x, s, work, nucleus.BY_DISTANCE, step[1], step[2], _YES, _NO)


@inline
def _min_p(x, s, work, step, coin):
    filters.min_p(s, step[1])


@inline
def _min_p_logit(x, s, work, step, coin):
    filters.min_p_logit(s, step[1])


@inline
def _top_p_min_keep(x, s, work, step, coin):
    work.states[2] = work.states[0]
    nucleus.keep_nearest(x, s, work, nucleus.BY_RANK, step[1], step[2], step[3], step[4])
    rare.leave_at_least(x, s, work, work.states[2], step[5])


@inline
def _min_p_min_keep(x, s, work, step, coin):
    work.states[2] = work.states[0]
    filters.min_p(s, step[1])
    rare.leave_at_least(x, s, work, work.states[2], step[2])


@inline
def _min_p_logit_min_keep(x, s, work, step, coin):
    work.states[2] = work.states[0]
    filters.min_p_logit(s, step[1])
    rare.leave_at_least(x, s, work, work.states[2], step[2])


@inline
def _tfs(x, s, work, step, coin):
    rare.tfs(x, s, work, step[1], step[2])


@inline
def _mirostat_v2(x, s, work, step, coin):
    filters.weigh(x, s, work)
    rare.mirostat_v2(s, step[1])


@inline
def _epsilon(x, s, work, step, coin):
    filters.weigh(x, s, work)
    filters.epsilon(s, step[1], step[2])


@inline
def _top_a(x, s, work, step, coin):
    filters.weigh(x, s, work)
    filters.top_a(s, step[1], step[2])


@inline
def _p_less(x, s, work, step, coin):
    filters.weigh(x, s, work)
    entropy.p_less(x, s, work, step[1])


@inline
def _eta(x, s, work, step, coin):
    filters.find_mean(x, s, work, s.c)
    filters.eta(s, step[1], step[2], step[3])


@inline
def _top_n_sigma(x, s, work, step, coin):
    entropy.top_n_sigma(x, s, work, step[1], step[2])


@inline
def _xtc(x, s, work, step, coin):
    if coin:
        filters.weigh(x, s, work)
        entropy.xtc(x, s, work, step[2], step[3], step[4] != 0, coin)


@inline
def _greedy(x, s, work, step, coin):
    """Keep the largest logit of the window, lowest id."""
    key, token = s.high_key, i32(-1)
    if s.compact:
        for i in range(s.n):
            if work.keys[i] == key:
                token = work.ids[i]
                break
    else:
        token = first_with(x, work.block_max, key, s.high_id, work.keys, work.ids)
    s.compact, s.n, s.greedy = 1, 1, 1
    work.keys[0], work.ids[0], work.mass[0] = key, token, _ONE40
    set_high(s, key, token)
    set_low(s, key, token)
    s.total, s.weighed, s.loose = _ONE40, 1, 0


STEPS: Mapping[Operation, Any] = {
    GREEDY: _greedy,
    TEMPERATURE: _temperature,
    DYNAMIC_TEMPERATURE: _dynamic_temperature,
    TOP_N_SIGMA: _top_n_sigma,
    TOP_K: _top_k,
    TOP_P: _top_p,
    MIN_P: _min_p,
    MIN_P_LOGIT: _min_p_logit,
    FLOORED[TOP_P]: _top_p_min_keep,
    FLOORED[MIN_P]: _min_p_min_keep,
    FLOORED[MIN_P_LOGIT]: _min_p_logit_min_keep,
    TFS: _tfs,
    MIROSTAT_V2: _mirostat_v2,
    TOP_A: _top_a,
    P_LESS: _p_less,
    TYPICAL: _typical,
    EPSILON: _epsilon,
    ETA: _eta,
    TOP_H: _top_h,
    XTC: _xtc,
}
"""The filters that the kernels run."""


def _chosen(entries: Sequence[tuple[int, Any]]) -> Any:
    """A function that runs the entry of a step, by halves.

    Each function becomes part of the one above it, so in a chain the last entry would do so as often as there are
    entries: "kernels ready" of `benchmarks.cold_start` counts that.
    """
    if len(entries) == 1:
        return entries[0][1]
    middle = len(entries) // 2
    bound, low, high = entries[middle][0], _chosen(entries[:middle]), _chosen(entries[middle:])

    @inline
    def choose(x, s, work, step, coin):
        if step[0] < bound:
            low(x, s, work, step, coin)
        else:
            high(x, s, work, step, coin)

    return choose


cut: Any = _chosen(sorted((int(op), act) for op, act in STEPS.items()))
"""Run one filter step."""
