"""One row: run its steps, draw from what they leave, and say with which probability."""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels import filters
from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    NEG_INF,
    UNIT_LOG,
    divide,
    exponent,
    f32,
    i64,
    inline,
    kernel,
    key_of,
    ln_of,
    log2_fixed,
    logprob,
    multiply,
    out_of_line,
    u64,
    weight,
)
from tirage.backends.numpy.kernels.passes import window_count
from tirage.backends.numpy.kernels.state import member
from tirage.backends.numpy.kernels.steps import cut
from tirage.backends.numpy.kernels.vectors import BLOCK
from tirage.operators import END, FIRST_FILTER
from tirage.operators.min_keep import FLOORED
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, TEMPERATURE
from tirage.operators.top_p import TOP_P

_REBASE = (int(TEMPERATURE), int(DYNAMIC_TEMPERATURE))
_TOP_P = (int(TOP_P), int(FLOORED[TOP_P]))
_ONE40 = u64(1) << u64(40)


@inline
def run(x, s, work, program, coin, recorded):
    """Execute the filters of `program` on the window of `s`; XTC acts when `coin` is true. Leaves it weighed.

    With `recorded`, `s.seen` holds the mass that the last temperature stage saw, and a cut by mass notes what it keeps.
    """
    _take_base(x, s, work, program, i64(0))
    s.noting = recorded
    if recorded:
        _see(x, s, work, program, i64(0))
    for i in range(program.shape[0]):
        step = program[i]
        if step[0] == END:
            break
        if step[0] < FIRST_FILTER:
            continue
        cut(x, s, work, step, coin)
        if s.loose:
            filters.settle(x, s, work)
        if step[0] in _REBASE:
            s.seen = u64(0)
            _take_base(x, s, work, program, i + 1)
            if recorded:
                _see(x, s, work, program, i + 1)
    filters.weigh(x, s, work)
    if s.seen == u64(0):
        s.seen = s.total


@kernel
def _see(x, s, work, program, start):
    """Weigh what this temperature stage sees, unless the next step does so itself or another such stage follows."""
    out_of_line()
    s.undivided = s.whole
    first = i64(0)
    for i in range(start, program.shape[0]):
        op = program[i, 0]
        if op in _REBASE:
            return
        if first == 0 and op >= FIRST_FILTER:
            first = op
    if first != i64(0) and first not in _TOP_P:
        filters.weigh(x, s, work)
        s.seen = s.total


@kernel
def _take_base(x, s, work, program, start):
    """Weigh what a joint top-p judges on if it follows before the next temperature; 0: what it finds itself."""
    out_of_line()
    s.base = u64(0)
    for i in range(start, program.shape[0]):
        op = program[i, 0]
        if op in _REBASE:
            return
        if op in _TOP_P and program[i, 4] != 0:
            if i > start:
                filters.weigh(x, s, work)
                s.base = s.total
            return


@inline
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


@inline
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


@inline
def mixed_support(x, off, on, share, work, nested):
    """How many tokens the mixture can draw: those of either window that have weight; `nested`: on lies in off."""
    if nested:
        s = on if share >> u64(32) else off
        low, low_id = support_end(s)
        if s.members >= 0 and low <= max(s.low_key, s.floor):
            return s.members
        return window_count(x, work.block_max, low, low_id, s.high_key, s.high_id)
    on_low, on_id = support_end(on)
    total = window_count(x, work.block_max, on_low, on_id, on.high_key, on.high_id)
    if share >> u64(32):
        return total
    low, low_id = support_end(off)
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
def support_end(s):
    """Lower end of the window's tokens that have weight."""
    positive = first_positive(s)
    if positive > s.low_key:
        return positive, MAX_KEY
    return s.low_key, s.low_id
