"""The filters: each moves an end of the window exactly as `backends/numpy/plain.py` would.

Conditions on q, w or a distance are monotone in the logit, so each turns into a threshold on keys by bisection,
evaluating the real formula: no filter needs a pass of its own to cut. Rules S-W4, S-O1 ... S-O9.
"""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels.bits import (
    LIMIT,
    MAX_KEY,
    NEG_INF,
    add,
    clamp,
    divide,
    exponent,
    f32,
    f64,
    float_of,
    i32,
    i64,
    inline,
    kernel,
    key_of,
    multiply,
    out_of_line,
    rounded_up,
    shifted_up,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.passes import (
    crossing,
    key_of_rank,
    list_window,
    rank_of_key,
    total_mass,
    window_count,
    window_mass,
    window_moments,
)
from tirage.backends.numpy.kernels.state import set_low, shrink

Q_AT_MOST, W_AT_LEAST = i32(0), i32(1)


# --- primitives -----------------------------------------------------------------------------------------------


@kernel
def lowest_key(kind, limit, m, c, low, high):
    """Smallest key in (low, high] whose logit meets the condition; `high` itself is taken to meet it."""
    out_of_line()
    low, high = i64(low), i64(high)
    while high - low > 1:
        middle = (low + high) >> 1
        q = exponent(value_of(i32(middle)), m, c)
        if (i64(q) <= limit) if kind == Q_AT_MOST else (weight(q) >= u64(limit)):
            high = middle
        else:
            low = middle
    return i32(high)


@kernel
def compact(x, s, work):
    """Turn the window into a list."""
    out_of_line()
    if s.compact:
        return
    s.n = list_window(x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id, work.keys, work.ids)
    s.compact, s.weighed = 1, 0


@kernel
def settle(x, s, work):
    """After a cut: shorten the list, or make one when few blocks still reach the window."""
    out_of_line()
    s.loose = 0
    if s.compact:
        shrink(s, work)
    elif 4 * hot_blocks(work, s.low_key) <= work.block_max.size + 12:
        compact(x, s, work)


@inline
def hot_blocks(work, key):
    """Blocks that hold a key >= `key`."""
    hot = 0
    for j in range(work.block_max.size):
        hot += work.block_max[j] >= key
    return hot


@kernel
def weigh(x, s, work):
    """Set the mass of the window at the current temperature; fills the weights of its tokens or blocks."""
    out_of_line()
    if s.weighed:
        return
    if s.compact:
        total, s.members = weigh_list(s, work, s.n), s.n
    elif s.whole:
        total = total_mass(x, work.block_max, s.m, s.c, work.block_mass)
        s.members = x.size if s.floor > NEG_INF else -1
    else:
        total, s.members = window_mass(x, work.block_max, s, work.block_mass)
    s.total, s.weighed = total, 1


@kernel
def weigh_list(s, work, n):
    """Mass of the first n listed tokens; fills their weights."""
    out_of_line()
    total = u64(0)
    for i in range(n):
        w = weight(exponent(value_of(work.keys[i]), s.m, s.c))
        work.mass[i] = w
        total += w
    return total


@kernel
def count(x, s, work, low_key):
    """Tokens of the window with key >= `low_key`."""
    out_of_line()
    if s.compact:
        n = i64(0)
        for i in range(s.n):
            n += i64(work.keys[i] >= low_key)
        return n
    if s.members >= 0 and low_key <= max(s.low_key, s.floor):
        return s.members
    if s.whole and max(low_key, s.low_key) <= s.floor:
        return i64(x.size)
    if low_key > s.low_key:
        return window_count(x, work.block_max, low_key, MAX_KEY, s.high_key, s.high_id)
    return window_count(x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id)


@kernel
def find_mean(x, s, work, c):
    """Set Qbar = floor(sum(w * q) / sum(w)) of the window at this c; fills the weights, as `weigh` does."""
    out_of_line()
    if s.compact:
        high, low, total, s.members = u64(0), u64(0), u64(0), s.n
        for i in range(s.n):
            q = exponent(value_of(work.keys[i]), s.m, c)
            w = weight(q)
            work.mass[i] = w
            total += w
            high, low = add(high, low, u64(0), w * u64(q))
    else:
        total, s.members, high, low = window_moments(x, work.block_max, s, c, work.block_mass)
    s.mean, s.total, s.weighed = i64(divide(high, low, total)), total, 1


@kernel
def sort_list(s, work):
    """order = positions of the list, (key descending, id ascending): Shell's sort of rank and position in one word."""
    out_of_line()
    a, n = work.mass, s.n
    for i in range(n):
        a[i] = (u64(rank_of_key(work.keys[i])) << u64(32)) | u64(i)
    gap = i64(1)
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap >= 1:
        for i in range(gap, n):
            word, at = a[i], i
            while at >= gap and a[at - gap] > word:
                a[at] = a[at - gap]
                at -= gap
            a[at] = word
        gap //= 3
    for i in range(n):
        work.order[i] = u32(a[i])


# --- top-k ----------------------------------------------------------------------------------------------------


@kernel
def top_k(x, s, work, k, ties):
    """Keep the k first of the window; with `ties`, also every token that equals the last of them."""
    out_of_line()
    if not s.compact:
        if k >= x.size:
            return
        low_key, low_id = _floor_of_top(x, s, work, k)
        n = list_window(x, work.block_max, low_key, low_id, s.high_key, s.high_id, work.keys, work.ids)
        if n >= k:
            set_low(s, low_key, low_id)
        elif low_key > s.low_key:
            n = list_window(x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id, work.keys, work.ids)
        s.n, s.compact, s.weighed = n, 1, 0
    if k >= s.n:
        return
    s.weighed = 0
    for i in range(s.n):
        work.mass[i], work.order[i] = u64(1), rank_of_key(work.keys[i])
    rank, before = crossing(work.order, work.mass, s.n, u64(0), u64(k), work.table)
    key = key_of_rank(rank)
    last = MAX_KEY
    if not ties:
        last = _kth_tie(work, s.n, key, i64(k) - i64(before))
    set_low(s, key, last)
    shrink(s, work)


@inline
def _kth_tie(work, n, key, k):
    """Id of the k-th listed token with this key."""
    last = MAX_KEY
    for i in range(n):
        if work.keys[i] == key and k > 0:
            k -= 1
            last = work.ids[i]
    return last


@inline
def _floor_of_top(x, s, work, k):
    """(key, id): a lower end below which the k first of the window certainly, or most likely, do not lie.

    With nothing cut above, the k-th largest block maximum is certain; beyond that a sample is asked.
    """
    blocks = work.block_max.size
    if s.high_key < s.ceiling or s.high_id > 0:
        return s.low_key, s.low_id
    if 2 * k <= blocks:
        for j in range(blocks):
            work.mass[j], work.order[j] = u64(1), rank_of_key(work.block_max[j])
        rank, _ = crossing(work.order, work.mass, blocks, u64(0), u64(k), work.table)
    else:
        n = min(i64(4096), i64(x.size))
        stride = i64(x.size) // n
        for i in range(n):
            work.mass[i], work.order[i] = u64(1), rank_of_key(key_of(x[i * stride]))
        expected = f64(k) * n / x.size
        goal = i64(expected + 4.0 * np.sqrt(expected) + 4.0)
        if goal >= n:
            return s.low_key, s.low_id
        rank, _ = crossing(work.order, work.mass, n, u64(0), u64(goal), work.table)
    key = key_of_rank(rank)
    if key <= s.low_key:
        return s.low_key, s.low_id
    return key, MAX_KEY


# --- thresholds -----------------------------------------------------------------------------------------------


@kernel
def min_p(s, widest):
    """Keep tokens whose q is at most `widest` above the smallest."""
    limit = i64(exponent(value_of(s.high_key), s.m, s.c)) + widest
    if limit < i64(LIMIT):
        set_low(s, lowest_key(Q_AT_MOST, limit, s.m, s.c, NEG_INF, s.high_key), MAX_KEY)


@kernel
def min_p_logit(s, ratio):
    """EasyDeL's rule: keep x >= ratio * largest x, and the largest."""
    bound = key_of(clamp(f32(float_of(i32(ratio)) * value_of(s.high_key))))
    set_low(s, min(bound, s.high_key), MAX_KEY)


@kernel
def epsilon(s, e, shift):
    """Keep tokens with at least the share e / 2^shift of the mass, and the likeliest."""
    share = i64(rounded_up(u64(e), shift, s.total))
    set_low(s, lowest_key(W_AT_LEAST, share, s.m, s.c, NEG_INF, s.high_key), MAX_KEY)


@kernel
def top_a(s, e, shift):
    """Keep tokens with at least the share e / 2^shift of the square of the largest probability."""
    out_of_line()
    best = weight(exponent(value_of(s.high_key), s.m, s.c))
    square, low = multiply(best, best)
    high, low = multiply(low, u64(e))
    # Rounded up twice, which is as once: ceil(ceil(E M^2 / 2^s) / W).
    high, low = shifted_up(high + square * u64(e), low, shift)
    high, low = add(high, low, u64(0), s.total - u64(1))
    least = i64(divide(high, low, s.total))
    set_low(s, lowest_key(W_AT_LEAST, least, s.m, s.c, NEG_INF, s.high_key), MAX_KEY)


@kernel
def eta(s, e, shift, half):
    """Like epsilon, but also keep what is at most `half` less likely than the entropy says."""
    share = i64(rounded_up(u64(e), shift, s.total))
    by_mass = lowest_key(W_AT_LEAST, share, s.m, s.c, NEG_INF, s.high_key)
    by_entropy = lowest_key(Q_AT_MOST, s.mean + half, s.m, s.c, NEG_INF, s.high_key)
    set_low(s, min(by_mass, by_entropy), MAX_KEY)
