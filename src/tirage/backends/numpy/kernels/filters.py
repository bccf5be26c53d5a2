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
    once,
    rounded_up,
    shifted,
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
from tirage.backends.numpy.kernels.state import member, set_low, shrink

Q_AT_MOST, W_AT_LEAST = 0, 1
_SAMPLES = 4


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
    s.n = list_window(x, work.block_max, s.low_key, s.low_id, s.high_key, s.high_id, work.keys, work.ids)
    s.compact, s.weighed = 1, 0


@kernel
def settle(x, s, work):
    """After a cut: shorten the list, or make one when few blocks still reach the window."""
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
    if s.weighed:
        return
    if s.compact:
        total = weigh_list(s, work, s.n)
    elif s.whole:
        total = total_mass(x, work.block_max, s.m, s.c, work.block_mass)
    else:
        total = window_mass(x, work.block_max, s, work.block_mass)
    s.total, s.weighed = total, 1


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
def find_mean(s, work, c):
    """Set Qbar = floor(sum(w * q) / sum(w)) of the list at this c, and the mass it was taken over."""
    high, low, total = u64(0), u64(0), u64(0)
    for i in range(s.n):
        q = exponent(value_of(work.keys[i]), s.m, c)
        w = weight(q)
        product = w * u64(q)
        high, low, total = high + (product >> u64(32)), low + (product & u64(0xFFFFFFFF)), total + w
    high, low = add(high >> u64(32), high << u64(32), u64(0), low)
    s.mean, s.entropy_mass = i64(divide(high, low, total)), total


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
        last, before = _last_tie(work, s.n, key, before, u64(k))
    set_low(s, key, last)
    shrink(s, work)


@once
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
    """Keep the shortest prefix of the window that holds the mass, the crossing token included.

    A list is cut directly. A dense row is searched near its top when its mass is known, else between two keys
    that a sample suggests: only tokens that may be the crossing one are listed.
    """
    sure, n = u64(0), s.n
    total = s.total
    target = _target(p, rule, s.base if joint else total)
    if not s.compact:
        n = _list_head(x, s, work, min(target, total)) if s.weighed else i64(0)
        if n == 0:
            certain, doubtful = _bracket(x, s, work, p, s.base if joint else u64(0))
            if s.weighed and certain == MAX_KEY:
                n = (
                    list_window(x, work.block_max, doubtful, MAX_KEY, s.high_key, s.high_id, work.keys, work.ids)
                    if doubtful > s.low_key
                    else i64(0)
                )
                for j in range(work.block_mass.size):
                    work.block_mass[j] = u64(0)
            else:
                total, n = split_window(x, work.block_max, s, certain, doubtful, work.block_mass, work.keys, work.ids)
            s.weighed = 0
            target = _target(p, rule, s.base if joint else total)
            sure, n = _list_around(x, s, work, certain, n, min(target, total))
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
def is_flat(s, work):
    """True when most blocks of an uncut row reach within 3 octaves of the best: a sample then tells all."""
    near = lowest_key(Q_AT_MOST, i64(3 << 23), s.m, s.c, NEG_INF, s.high_key)
    return s.whole and 2 * hot_blocks(work, near) > work.block_max.size


@once
def _list_head(x, s, work, target):
    """Length of a weighed list of the window's likeliest tokens that holds the target; 0 when it would be long."""
    best = i64(exponent(value_of(s.high_key), s.m, s.c))
    for octaves in (3, 8):
        key = lowest_key(Q_AT_MOST, best + (octaves << 23), s.m, s.c, NEG_INF, s.high_key)
        if key <= s.low_key or 8 * hot_blocks(work, key) > work.block_max.size:
            return i64(0)
        n = list_window(x, work.block_max, key, MAX_KEY, s.high_key, s.high_id, work.keys, work.ids)
        if weigh_list(s, work, n) >= target:
            return n
    return i64(0)


@kernel
def weigh_list(s, work, n):
    """Mass of the first n listed tokens; fills their weights."""
    total = u64(0)
    for i in range(n):
        w = weight(exponent(value_of(work.keys[i]), s.m, s.c))
        work.mass[i] = w
        total += w
    return total


@once
def _bracket(x, s, work, p, base):
    """(certain, doubtful): keys between which a top-p cut most likely lies, from block maxima and a sample.

    Maxima count as themselves and each sampled logit for its share of the block. A miss costs time, never
    exactness.
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
        above = i64(0)
        for i in range(n):
            above += work.order[i] < rank
        if above * (BLOCK // (_SAMPLES + 1)) <= 4096:
            certain = MAX_KEY
    if target + slack < f64(total):
        rank, _ = crossing(work.order, work.mass, n, u64(0), u64(target + slack), work.table)
        doubtful = max(key_of_rank(rank), s.low_key)
    return certain, doubtful


@kernel
def _take_points(x, s, work):
    """(points, their mass, sum of squares of the sampled ones): writes ranks and masses of the estimate.

    Where the block's mass is known, its sampled weights are scaled to add up to it.
    """
    n, total, spread = i64(0), u64(0), f64(0)
    for j in range(work.block_max.size):
        best = work.block_max[j]
        if best < s.low_key or (s.weighed and work.block_mass[j] == u64(0)):
            continue
        start, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
        step = (stop - start + _SAMPLES - 1) // _SAMPLES
        first, sampled, rest = n, u64(0), work.block_mass[j]
        if best <= s.high_key:
            w = weight(exponent(value_of(best), s.m, s.c))
            work.order[n], work.mass[n] = rank_of_key(best), w
            first, n, total, rest = n + 1, n + 1, total + w, rest - min(w, rest)
        for i in range(start + (j & 31) % step, stop, step):
            k = key_of(x[i])
            if k != best and member(s, k, i):
                w = weight(exponent(x[i], s.m, s.c))
                work.order[n], work.mass[n] = rank_of_key(k), w
                n, sampled = n + 1, sampled + w
        scale = f64(step)
        if s.weighed:
            scale = f64(rest) / max(f64(sampled), 1.0)
        for i in range(first, n):
            w = u64(f64(work.mass[i]) * scale)
            work.mass[i] = w
            total += w
            spread += f64(w) * f64(w)
    return n, total, spread


@once
def _list_around(x, s, work, certain, n, target):
    """(mass before the list, its length) of a list that holds the crossing token; `n` are listed already."""
    sure = u64(0)
    for j in range(work.block_mass.size):
        sure += work.block_mass[j]
    if target <= sure:
        n = list_window(x, work.block_max, i32(certain + i32(1)), MAX_KEY, s.high_key, s.high_id, work.keys, work.ids)
        sure = u64(0)
        for j in range(work.block_mass.size):
            work.block_mass[j] = u64(0)
    if sure + weigh_list(s, work, n) >= target:
        return sure, n
    high, high_id = (s.high_key, s.high_id) if s.high_key <= certain else (certain, i32(0))
    n = list_window(x, work.block_max, s.low_key, s.low_id, high, high_id, work.keys, work.ids)
    weigh_list(s, work, n)
    return sure, n


@kernel
def _last_tie(work, n, key, before, target):
    """(id, mass up to it) of the listed token with this key at which the mass reaches the target."""
    last = MAX_KEY
    for i in range(n):
        if work.keys[i] == key and before < target:
            before += work.mass[i]
            last = work.ids[i]
    return last, before


@once
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


@once
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
def eta(s, e, shift, half):
    """Like epsilon, but also keep what is at most `half` less likely than the entropy says."""
    share = i64(rounded_up(u64(e), shift, s.total))
    by_mass = lowest_key(W_AT_LEAST, share, s.m, s.c, NEG_INF, s.high_key)
    by_entropy = lowest_key(Q_AT_MOST, s.mean + half, s.m, s.c, NEG_INF, s.high_key)
    set_low(s, min(by_mass, by_entropy), MAX_KEY)
