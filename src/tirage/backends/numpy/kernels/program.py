"""One row: run its steps, draw from what they leave, and say with which probability."""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels import entropy, filters, nucleus
from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    NEG_INF,
    UNIT_LOG,
    divide,
    exponent,
    f32,
    float_of,
    i32,
    i64,
    inline,
    kernel,
    key_of,
    ln_of,
    log2_fixed,
    logprob,
    multiply,
    once,
    out_of_line,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.passes import first_with, window_count
from tirage.backends.numpy.kernels.state import UNIT, member, set_high, set_low
from tirage.backends.numpy.kernels.vectors import BLOCK
from tirage.stages import Op

_GREEDY, _TEMPERATURE, _DYNAMIC = int(Op.GREEDY), int(Op.TEMPERATURE), int(Op.DYNAMIC_TEMPERATURE)
_TOP_N_SIGMA, _TOP_K, _TOP_P = int(Op.TOP_N_SIGMA), int(Op.TOP_K), int(Op.TOP_P)
_MIN_P, _MIN_P_LOGIT, _TYPICAL = int(Op.MIN_P), int(Op.MIN_P_LOGIT), int(Op.TYPICAL)
_EPSILON, _ETA, _TOP_H, _XTC = int(Op.EPSILON), int(Op.ETA), int(Op.TOP_H), int(Op.XTC)
_TOP_H_TOKENS = 100
_ONE40 = u64(1) << u64(40)


@kernel
def run(x, s, work, program, coin):
    """Execute the filters of `program` on the window of `s`; XTC acts when `coin` is true. Leaves it weighed."""
    _take_base(x, s, work, program, i64(0))
    for i in range(program.shape[0]):
        step = program[i]
        op = step[0]
        if op == 0:
            break
        if op < _GREEDY:
            continue
        if op in (_TEMPERATURE, _DYNAMIC):
            s.m, s.weighed = value_of(s.high_key), 0
        if op in (_TOP_K, _TOP_H):
            filters.top_k(x, s, work, step[1] if op == _TOP_K else i64(_TOP_H_TOKENS), op == _TOP_K and step[2] != 0)
        if op == _TOP_H:
            filters.compact(x, s, work)
        if op in (_TYPICAL, _ETA, _DYNAMIC):
            filters.find_mean(x, s, work, UNIT if op == _DYNAMIC else s.c)
        if op in (_EPSILON, _TOP_H) or (op == _XTC and coin):
            filters.weigh(x, s, work)
        if op == _TOP_P:
            nucleus.keep_nearest(x, s, work, nucleus.BY_RANK, step[1], step[2], step[3] != 0, step[4] != 0)
        elif op == _TYPICAL:
            nucleus.keep_nearest(x, s, work, nucleus.BY_DISTANCE, step[1], step[2], op != 0, op == 0)
        else:
            _cut(x, s, work, step, coin)
        if s.loose:
            filters.settle(x, s, work)
        if op in (_TEMPERATURE, _DYNAMIC):
            _take_base(x, s, work, program, i + 1)
    filters.weigh(x, s, work)


@once
def _cut(x, s, work, step, coin):
    """Every filter that needs no pass of its own."""
    op = step[0]
    if op == _GREEDY:
        greedy(x, s, work)
    elif op == _TEMPERATURE:
        s.c, s.inverse_t = float_of(i32(step[1])), float_of(i32(step[2]))
    elif op == _DYNAMIC:
        entropy.dynamic_temperature(s, step[1], step[2], step[3], step[4], step[5])
    elif op == _MIN_P:
        filters.min_p(s, step[1])
    elif op == _MIN_P_LOGIT:
        filters.min_p_logit(s, step[1])
    elif op == _EPSILON:
        filters.epsilon(s, step[1], step[2])
    elif op == _ETA:
        filters.eta(s, step[1], step[2], step[3])
    elif op == _TOP_N_SIGMA:
        entropy.top_n_sigma(x, s, work, step[1], step[2])
    elif op == _TOP_H:
        entropy.top_h(s, work, step[1])
    elif op == _XTC and coin:
        entropy.xtc(x, s, work, step[2], step[3], step[4] != 0, coin)


@kernel
def _take_base(x, s, work, program, start):
    """Weigh what a joint top-p judges on if it follows before the next temperature; 0: what it finds itself."""
    out_of_line()
    s.base = u64(0)
    for i in range(start, program.shape[0]):
        op = program[i, 0]
        if op in (_TEMPERATURE, _DYNAMIC):
            return
        if op == _TOP_P and program[i, 4] != 0:
            if i > start:
                filters.weigh(x, s, work)
                s.base = s.total
            return


@once
def greedy(x, s, work):
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


@once
def pick(x, s, work, u):
    """The token that the uniform `u` draws: inverse transform in token-id order (S-W5)."""
    r, _ = multiply(u, s.total)
    reached = u64(0)
    if s.compact:
        for i in range(s.n):
            reached += work.mass[i]
            if reached > r:
                return i64(work.ids[i])
        return i64(-1)
    for j in range(work.block_mass.size):
        if reached + work.block_mass[j] <= r:
            reached += work.block_mass[j]
            continue
        for i in range(j * BLOCK, min((j + 1) * BLOCK, x.size)):
            reached += token_weight(s, x[i], i)
            if reached > r:
                return i64(i)
    return i64(-1)


@kernel
def token_weight(s, value, token):
    """Integer weight of one token in this branch, 0 outside the window."""
    key = key_of(value)
    if not member(s, key, token):
        return u64(0)
    if s.greedy:
        return _ONE40
    if token == s.trimmed:
        return s.left
    return weight(exponent(value, s.m, s.c))


@kernel
def first_positive(s):
    """Smallest key whose weight is not 0, within the window."""
    if s.greedy:
        return s.low_key
    return filters.lowest_key(filters.W_AT_LEAST, i64(1), s.m, s.c, NEG_INF, s.high_key)


@kernel
def branch_logprob(s, value, token):
    """ln of a kept token's probability in this branch (S-L2); -inf outside the window."""
    out_of_line()
    if not member(s, key_of(value), token):
        return f32(-np.inf)
    if s.greedy:
        return f32(0)
    if token == s.trimmed:
        return f32(ln_of(log2_fixed(s.left) - log2_fixed(s.total)) + f32(0))
    return logprob(value, s.m, s.inverse_t, ln_of(log2_fixed(s.total) - UNIT_LOG))


# --- XTC: a mixture of two branches ---------------------------------------------------------------------------


@once
def mixed_logprob(off, on, share, value, token):
    """ln of a token's probability under the mixture, counted in units of 2^-63 (S-L4)."""
    rest = (u64(1) << u64(32)) - share
    a = _point(token_weight(off, value, token), off.total)
    b = _point(token_weight(on, value, token), on.total)
    mask = u64(0xFFFFFFFF)
    low = (a & mask) * rest + (b & mask) * share
    p = (a >> u64(32)) * rest + (b >> u64(32)) * share + (low >> u64(32))
    return f32(ln_of(log2_fixed(max(p, u64(1))) - i64(63 << 23)) + f32(0))


@inline
def _point(w, total):
    """floor(w * 2^63 / total)."""
    return divide(w >> u64(1), w << u64(63), total)


@once
def mixed_support(x, off, on, share, work, nested):
    """How many tokens the mixture can draw: those of either window that have weight; `nested`: on lies in off."""
    if nested:
        s = on if share >> u64(32) else off
        low, low_id = _support_end(s)
        if s.members >= 0 and low <= max(s.low_key, s.floor):
            return s.members
        return window_count(x, work.block_max, low, low_id, s.high_key, s.high_id)
    on_low, on_id = _support_end(on)
    total = window_count(x, work.block_max, on_low, on_id, on.high_key, on.high_id)
    if share >> u64(32):
        return total
    low, low_id = _support_end(off)
    total += window_count(x, work.block_max, low, low_id, off.high_key, off.high_id)
    if on_low > low or (on_low == low and on_id < low_id):
        low, low_id = on_low, on_id
    high, high_id = on.high_key, on.high_id
    if off.high_key < high or (off.high_key == high and off.high_id > high_id):
        high, high_id = off.high_key, off.high_id
    if low > high:
        return total
    return total - window_count(x, work.block_max, low, low_id, high, high_id)


@inline
def _support_end(s):
    """Lower end of the window's tokens that have weight."""
    positive = first_positive(s)
    if positive > s.low_key:
        return positive, MAX_KEY
    return s.low_key, s.low_id
