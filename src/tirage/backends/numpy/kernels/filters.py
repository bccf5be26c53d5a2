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
    UNIT_LOG,
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
    log2_fixed,
    multiply,
    rounded_up,
    shifted,
    subtract,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.passes import (
    BLOCK,
    crossing,
    key_of_rank,
    list_window,
    rank_of_key,
    split_window,
    total_mass,
    window_count,
    window_mass,
)
from tirage.backends.numpy.kernels.state import UNIT, member, set_high, set_low, shrink

Q_AT_MOST, W_AT_LEAST = 0, 1
_SAMPLES = 4
_TOP_H_TOKENS = 100
_ONE32 = u64(1) << u64(32)


# --- primitives -----------------------------------------------------------------------------------------------


@kernel
def lowest_key(kind, limit, m, c, low, high):
    """Smallest key in (low, high] whose logit meets the condition; `high` itself is taken to meet it."""
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
    if s.compact:
        return
    s.n = list_window(
        x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id, work.keys, work.ids
    )
    s.compact, s.weighed = 1, 0


@kernel
def settle(x, s, work):
    """After a cut: shorten the list, or make one when few blocks still reach the window."""
    if s.compact:
        shrink(s, work)
        return
    hot = 0
    for j in range(work.block_max.size):
        hot += work.block_max[j] >= s.low_key
    if 4 * hot <= work.block_max.size + 12:
        compact(x, s, work)


@kernel
def weigh(x, s, work):
    """Mass of the window at the current temperature; fills the weights of its tokens or blocks."""
    if s.weighed == 1:
        return s.total
    if s.compact:
        total = u64(0)
        for i in range(s.n):
            w = weight(exponent(value_of(work.keys[i]), s.m, s.c))
            work.mass[i] = w
            total += w
    elif s.whole:
        total = total_mass(x, work.block_max, s.m, s.c, work.block_mass)
    else:
        total = window_mass(x, work.block_max, s, work.block_mass)
    s.total, s.weighed = total, 1
    return total


@kernel
def count(x, s, work, low_key):
    """Tokens of the window with key >= `low_key`."""
    if s.compact:
        n = i64(0)
        for i in range(s.n):
            n += i64(work.keys[i] >= low_key)
        return n
    if s.whole and max(low_key, s.low_key) <= s.floor:
        return i64(x.size)
    if low_key > s.low_key:
        return window_count(x, work.block_max, low_key, MAX_KEY, s.high_key, s.high_id)
    return window_count(x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id)


@kernel
def moment(x, s, work, m, c):
    """(Qbar, mass): floor(sum(w * q) / sum(w)) over the window at (m, c)."""
    high, low, total = u64(0), u64(0), u64(0)
    if s.compact:
        for i in range(s.n):
            q = exponent(value_of(work.keys[i]), m, c)
            w = weight(q)
            product = w * u64(q)
            high, low, total = high + (product >> u64(32)), low + (product & u64(0xFFFFFFFF)), total + w
    else:
        for j in range(work.block_max.size):
            if work.block_max[j] < s.low_key:
                continue
            for i in range(j * BLOCK, min((j + 1) * BLOCK, x.size)):
                k = key_of(x[i])
                q = exponent(x[i], m, c)
                w = weight(q) if member(s, k, i) else u64(0)
                product = w * u64(q)
                high, low, total = high + (product >> u64(32)), low + (product & u64(0xFFFFFFFF)), total + w
    high, low = add(high >> u64(32), high << u64(32), u64(0), low)
    return i64(divide(high, low, total)), total


@kernel
def sort_list(s, work):
    """order = positions of the list, (key descending, id ascending): Shell's sort of rank and position in one word."""
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
    if not s.compact:
        if k >= x.size:
            return
        low_key, low_id = _floor_of_top(x, s, work, k)
        n = list_window(x, work.block_max, low_key, low_id, s.high_key, s.high_id, work.keys, work.ids)
        if n >= k:
            set_low(s, low_key, low_id)
        elif low_key > s.low_key:
            n = list_window(
                x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id, work.keys, work.ids
            )
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
        last, before = _last_tie(work, s.n, key, before, u64(k))
    set_low(s, key, last)
    shrink(s, work)


@kernel
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


# --- top-p ----------------------------------------------------------------------------------------------------


@inline
def _target(p, rule, base):
    """The mass that the kept prefix must reach; `le` keeps on while the mass before a token is <= the share."""
    floor, rest = shifted(u64(p), i64(32), base)
    if rule == 1:
        return floor + u64(1)
    return max(floor + u64(rest), u64(1))


@kernel
def top_p(x, s, work, p, rule, ties, joint):
    """Keep the shortest prefix of the window that holds the mass, the crossing token included."""
    sure = u64(0)
    if s.compact:
        total = weigh(x, s, work)
        n = s.n
        target = _target(p, rule, s.base if joint else total)
    else:
        certain, doubtful = _bracket(x, s, work, p, s.base if joint else u64(0))
        total, n = split_window(
            x, work.block_max, s, certain, doubtful, work.block_mass, work.keys, work.ids
        )
        s.weighed = 0
        target = _target(p, rule, s.base if joint else total)
        sure, n = _list_around(x, s, work, certain, doubtful, n, min(target, total))
    if target > total and rule != 2:
        return
    for i in range(n):
        work.order[i] = rank_of_key(work.keys[i])
    rank, before = crossing(work.order, work.mass, n, sure, target, work.table)
    key = key_of_rank(rank)
    last, reached = _last_tie(work, n, key, before, target)
    set_low(s, key, MAX_KEY if ties else last)
    _keep_listed(s, work, n, sure)
    if rule == 2:
        _trim(s, work, key, last, reached, target)


@kernel
def _bracket(x, s, work, p, base):
    """(certain, doubtful): keys between which a top-p cut most likely lies, from block maxima and a sample.

    Maxima count as themselves and each sampled logit for its share of the block, so both a peak and a plain are
    judged well. A miss costs time, never exactness.
    """
    n, total, spread = _take_points(x, s, work)
    share = f64(p) / 4294967296.0
    target = f64(base) * share if base else f64(total) * share
    if base:
        share = min(target / max(f64(total), 1.0), 1.0)
    slack = 2.5 * np.sqrt(share * (1.0 - share) * spread) + 1e-6 * f64(total)
    certain, doubtful = MAX_KEY, s.low_key
    if target > slack:
        rank, _ = crossing(work.order, work.mass, n, u64(0), u64(target - slack), work.table)
        certain = key_of_rank(rank)
        if _points_above(work, n, rank) <= 4096:
            certain = MAX_KEY
    if target + slack < f64(total):
        rank, _ = crossing(work.order, work.mass, n, u64(0), u64(target + slack), work.table)
        doubtful = max(key_of_rank(rank), s.low_key)
    return certain, doubtful


@kernel
def _take_points(x, s, work):
    """(points, their mass, sum of squares of the sampled ones): writes ranks and masses of the estimate."""
    n, total, spread = i64(0), u64(0), f64(0)
    for j in range(work.block_max.size):
        best = work.block_max[j]
        if best < s.low_key:
            continue
        start, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
        step = (stop - start + _SAMPLES - 1) // _SAMPLES
        if best <= s.high_key:
            w = weight(exponent(value_of(best), s.m, s.c))
            work.order[n], work.mass[n] = rank_of_key(best), w
            n += 1
            total += w
        for i in range(start + (j & 31) % step, stop, step):
            k = key_of(x[i])
            if k != best and member(s, k, i):
                w = weight(exponent(x[i], s.m, s.c)) * u64(step)
                work.order[n], work.mass[n] = rank_of_key(k), w
                n += 1
                total += w
                spread += f64(w) * f64(w)
    return n, total, spread


@inline
def _points_above(work, n, rank):
    """About how many tokens rank before `rank`."""
    above = i64(0)
    for i in range(n):
        above += work.order[i] < rank
    return above * (BLOCK // (_SAMPLES + 1))


@kernel
def _list_around(x, s, work, certain, doubtful, n, target):
    """(mass before the list, its length) of a list that holds the crossing token; `n` are listed already."""
    sure, listed = u64(0), u64(0)
    for j in range(work.block_mass.size):
        sure += work.block_mass[j]
    if target <= sure:
        n = list_window(
            x, work.block_max, i32(certain + i32(1)), MAX_KEY, s.high_key, s.high_id, work.keys, work.ids
        )
        sure = u64(0)
        for j in range(work.block_mass.size):
            work.block_mass[j] = u64(0)
    for i in range(n):
        work.mass[i] = weight(exponent(value_of(work.keys[i]), s.m, s.c))
        listed += work.mass[i]
    if sure + listed >= target:
        return sure, n
    high, high_id = (s.high_key, s.high_id) if s.high_key <= certain else (certain, i32(0))
    n = list_window(x, work.block_max, s.low_key, s.low_id, high, high_id, work.keys, work.ids)
    for i in range(n):
        work.mass[i] = weight(exponent(value_of(work.keys[i]), s.m, s.c))
    return sure, n


@inline
def _last_tie(work, n, key, before, target):
    """(id, mass up to it) of the listed token with this key at which the mass reaches the target."""
    last = MAX_KEY
    for i in range(n):
        if work.keys[i] == key and before < target:
            before += work.mass[i]
            last = work.ids[i]
    return last, before


@kernel
def _keep_listed(s, work, n, sure):
    """Make the state weighed again after a top-p cut: a list when nothing is kept outside it, else dense."""
    total = sure
    if sure == u64(0):
        s.n, s.compact = n, 1
        shrink(s, work)
        for i in range(s.n):
            total += work.mass[i]
    else:
        for i in range(n):
            if member(s, work.keys[i], work.ids[i]):
                work.block_mass[work.ids[i] // BLOCK] += work.mass[i]
                total += work.mass[i]
    s.total, s.weighed = total, 1


@kernel
def _trim(s, work, key, token, reached, target):
    """Leave the crossing token only what the target still needs."""
    whole = weight(exponent(value_of(key), s.m, s.c))
    excess = reached - min(target, reached)
    s.trimmed, s.left = token, whole - excess
    s.total -= excess
    if s.compact:
        for i in range(s.n):
            if work.ids[i] == token:
                work.mass[i] = s.left
    else:
        work.block_mass[token // BLOCK] -= excess


# --- thresholds -----------------------------------------------------------------------------------------------


@kernel
def cut_below(x, s, work, key):
    """Keep keys >= `key`."""
    if key > s.low_key:
        set_low(s, key, MAX_KEY)
        settle(x, s, work)


@kernel
def min_p(x, s, work, widest):
    """Keep tokens whose q is at most `widest` above the smallest."""
    limit = i64(exponent(value_of(s.high_key), s.m, s.c)) + widest
    if limit < i64(LIMIT):
        cut_below(x, s, work, lowest_key(Q_AT_MOST, limit, s.m, s.c, NEG_INF, s.high_key))


@kernel
def min_p_logit(x, s, work, ratio):
    """EasyDeL's rule: keep x >= ratio * largest x, and the largest."""
    bound = key_of(clamp(f32(float_of(i32(ratio)) * value_of(s.high_key))))
    cut_below(x, s, work, min(bound, s.high_key))


@kernel
def epsilon(x, s, work, e, shift):
    """Keep tokens with at least the share e / 2^shift of the mass, and the likeliest."""
    share = rounded_up(u64(e), shift, weigh(x, s, work))
    cut_below(x, s, work, lowest_key(W_AT_LEAST, i64(share), s.m, s.c, NEG_INF, s.high_key))


@kernel
def eta(x, s, work, e, shift, half):
    """Like epsilon, but also keep what is at most `half` less likely than the entropy says."""
    share = rounded_up(u64(e), shift, weigh(x, s, work))
    mean, _ = moment(x, s, work, s.m, s.c)
    by_mass = lowest_key(W_AT_LEAST, i64(share), s.m, s.c, NEG_INF, s.high_key)
    by_entropy = lowest_key(Q_AT_MOST, mean + half, s.m, s.c, NEG_INF, s.high_key)
    cut_below(x, s, work, min(by_mass, by_entropy))
