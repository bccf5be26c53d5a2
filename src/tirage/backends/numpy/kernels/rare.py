"""Filters that few requests have: Mirostat 2, tail-free sampling, and the least that a cut leaves (min_keep).

Rules S-O11, S-O13, S-O14.
"""

from __future__ import annotations

from tirage.backends.numpy.kernels import filters
from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    NEG_INF,
    exponent,
    i32,
    i64,
    inline,
    kernel,
    log2_fixed,
    out_of_line,
    shifted,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.filters import W_AT_LEAST, lowest_key
from tirage.backends.numpy.kernels.passes import key_of_rank, rank_of_key, window_count
from tirage.backends.numpy.kernels.state import set_low

_NO = i64(0)


@kernel
def mirostat_v2(s, mu):
    """Keep tokens whose surprise is at most mu, in units of 2^-23 bits, and the likeliest."""
    out_of_line()
    least = log2_fixed(s.total) - mu
    low, high = u64(0), weight(exponent(value_of(s.high_key), s.m, s.c)) + u64(1)
    while high - low > u64(1):
        middle = (low + high) >> u64(1)
        if log2_fixed(middle) >= least:
            high = middle
        else:
            low = middle
    set_low(s, lowest_key(W_AT_LEAST, i64(high), s.m, s.c, NEG_INF, s.high_key), MAX_KEY)


# --- tail-free sampling ---------------------------------------------------------------------------------------


@inline
def tfs(x, s, work, e, shift):
    """Keep the first of the ranked tokens, up to where the curvature of their weights exceeds a share of it all."""
    filters.compact(x, s, work)
    if s.n > 2:
        filters.top_k(x, s, work, _before_the_tail(s, work, e, shift), _NO)


@kernel
def _before_the_tail(s, work, e, shift):
    """How many tokens of the list stay; overwrites its weights."""
    out_of_line()
    _rank_list(s, work)
    w, n = work.mass, s.n
    for i in range(n):
        w[i] = weight(exponent(value_of(key_of_rank(work.order[i])), s.m, s.c))
    s.weighed = 0
    total = u64(0)
    for i in range(n - 2):
        total += _curvature(w, i)
    if total == u64(0):
        return n
    limit, reached = shifted(u64(e), shift, total)[0], u64(0)
    for i in range(n - 2):
        reached += _curvature(w, i)
        if reached > limit:
            return i64(i + 1)
    return n - 1


@inline
def _curvature(w, i):
    return u64(abs(i64(w[i]) - (i64(w[i + 1]) << i64(1)) + i64(w[i + 2])))


@inline
def _rank_list(s, work):
    """order = ranks of the list's keys, ascending: a radix sort by bytes, to and fro between `order` and `mass`."""
    for i in range(s.n):
        work.order[i] = rank_of_key(work.keys[i])
    for byte in range(2):
        _place_by(work.order, work.mass, s.n, u32(16 * byte), work.table)
        _place_by(work.mass, work.order, s.n, u32(16 * byte + 8), work.table)


@inline
def _place_by(given, out, n, shift, table):
    """Copies n ranks, ordered by one byte of theirs; equal ones keep their order."""
    for b in range(256):
        table[b] = u64(0)
    for i in range(n):
        table[(u32(given[i]) >> shift) & u32(255)] += u64(1)
    before = u64(0)
    for b in range(256):
        count = table[b]
        table[b] = before
        before += count
    for i in range(n):
        b = (u32(given[i]) >> shift) & u32(255)
        out[table[b]] = u32(given[i])
        table[b] += u64(1)


# --- min_keep -------------------------------------------------------------------------------------------------


@kernel
def leave_at_least(x, s, work, before, least):
    """After a cut that left fewer tokens: the `least` first of the window that it found, which is in `before`."""
    out_of_line()
    if s.loose:
        filters.settle(x, s, work)
    left = filters.count(x, s, work, i32(NEG_INF + i32(1)))
    if left >= least or left == _members(x, before, work):
        return
    # The list may have lost what the cut dropped, the logits have not; weights are made anew.
    s.low_key, s.low_id = before.low_key, before.low_id
    s.high_key, s.high_id = before.high_key, before.high_id
    s.whole, s.trimmed, s.left = before.whole, before.trimmed, before.left
    s.compact, s.weighed, s.noted, s.loose, s.members = 0, 0, 0, 0, -1
    filters.top_k(x, s, work, least, _NO)


@inline
def _members(x, s, work):
    return window_count(x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id)
