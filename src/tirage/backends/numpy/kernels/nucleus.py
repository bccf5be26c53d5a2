"""Filters that keep the nearest tokens until they hold a share of the mass: top-p by rank, typical by distance.

A list is cut directly. A dense row is searched near its top when its head holds the mass, else between two bounds
that a sample suggests: what lies within both is weighed in one vector pass, only what lies between them is listed.
A wrong guess costs time, never exactness. Rules S-W4, S-O2, S-O4.
"""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    NEG_INF,
    exponent,
    f64,
    i32,
    i64,
    inline,
    kernel,
    key_of,
    once,
    out_of_line,
    shifted,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.filters import Q_AT_MOST, hot_blocks, lowest_key, weigh_list
from tirage.backends.numpy.kernels.passes import (
    crossing,
    first_with,
    key_of_rank,
    list_window,
    rank_of_key,
    split_window,
)
from tirage.backends.numpy.kernels.state import member, set_high, set_low, shrink
from tirage.backends.numpy.kernels.vectors import BLOCK, ends

BY_RANK, BY_DISTANCE = i32(0), i32(1)
_SAMPLES = 4
_HEAD = 4
"""The head of a row is what lies in the best quarter of its blocks."""
_SIGMAS = 2.5
_SHORT = 1024
"""Tokens that are listed rather than weighed in a pass."""


@inline
def _target(p, rule, base):
    """The mass that the kept tokens must reach; `le` keeps on while the mass before a token is <= the share."""
    floor, rest = shifted(u64(p), i64(32), base)
    if rule == 1:
        return floor + u64(1)
    return max(floor + u64(rest), u64(1))


@inline
def _order_of(kind, s, key):
    """uint32: the smaller, the earlier a token is kept."""
    if kind == BY_RANK:
        return rank_of_key(key)
    return u32(abs(i64(exponent(value_of(key), s.m, s.c)) - s.mean))


@kernel
def _reach(kind, s, order):
    """(lowest, highest) key of the window's tokens whose order is at most `order`; empty for -1."""
    if order < 0:
        return MAX_KEY, NEG_INF
    if kind == BY_RANK:
        return max(key_of_rank(u32(order)), s.low_key), s.high_key
    low = lowest_key(Q_AT_MOST, s.mean + order, s.m, s.c, NEG_INF, s.high_key)
    high, beyond = s.high_key, s.mean - order - 1
    if i64(exponent(value_of(high), s.m, s.c)) <= beyond:
        high = i32(lowest_key(Q_AT_MOST, beyond, s.m, s.c, NEG_INF, high) - i32(1))
    return max(low, s.low_key), high


# --- the cut ----------------------------------------------------------------------------------------------


@kernel
def keep_nearest(x, s, work, kind, p, rule, ties, joint):
    """Keep the shortest run of tokens, by `kind`, that holds the mass: top-p, or typical, which keeps all ties."""
    out_of_line()
    target = _target(p, rule, s.base if joint else s.total)
    if target > s.total and rule != 2:
        return
    sure, members, n = _gather(x, s, work, kind, min(target, s.total))
    widest, before = crossing(work.order, work.mass, n, sure, target, work.table)
    low, high = _reach(kind, s, i64(widest))
    token, reached = _last_tie(work, n, low, before, target)
    first_key, first_id = s.high_key, s.high_id
    set_low(s, low, MAX_KEY if ties else token)
    if high < first_key:
        set_high(s, high, i32(0))
    _keep_listed(s, work, n, sure, members)
    if high < first_key:
        first_key, first_id = _first_below(x, s, work)
    s.high_key, s.high_id = first_key, first_id
    if rule == 2:
        _trim(s, work, low, token, reached, target)


@once
def _first_below(x, s, work):
    """(key, id) of the first token of a window whose upper end is a bare bound."""
    best = NEG_INF
    if s.compact:
        token = i32(0)
        for i in range(s.n):
            if work.keys[i] > best:
                best, token = work.keys[i], work.ids[i]
        return best, token
    for j in range(work.block_max.size):
        if work.block_max[j] >= s.low_key:
            best = max(best, ends(x, j, (s.low_key, s.high_key))[0])
    return best, first_with(x, work.block_max, best, i32(0), work.keys, work.ids)


@once
def _last_tie(work, n, key, before, target):
    """(id, mass up to it) of the listed token with this key at which the mass reaches the target."""
    last = MAX_KEY
    for i in range(n):
        if work.keys[i] == key and before < target:
            before += work.mass[i]
            last = work.ids[i]
    return last, before


@once
def _keep_listed(s, work, n, sure, members):
    """Make the state weighed again after a cut: a list when nothing is kept outside it, else dense."""
    total = sure
    if members == 0:
        s.n, s.compact = n, 1
        shrink(s, work)
        for i in range(s.n):
            total += work.mass[i]
        members = s.n
    else:
        for i in range(n):
            if member(s, work.keys[i], work.ids[i]):
                work.block_mass[work.ids[i] // BLOCK] += work.mass[i]
                total += work.mass[i]
                members += 1
    s.total, s.members, s.weighed, s.loose = total, members, 1, 0


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


# --- finding where the mass is reached ----------------------------------------------------------------------------


@once
def _gather(x, s, work, kind, target):
    """(mass and tokens before the list, its length), the crossing token being in the list; sets its `order`."""
    sure, members, n = u64(0), i64(0), s.n
    if not s.compact:
        head = _head_key(s, work)
        n = list_window(x, work.block_max, head, MAX_KEY, s.high_key, s.high_id, work.keys, work.ids)
        if weigh_list(s, work, n) >= target and kind == BY_RANK:
            for j in range(work.block_mass.size):
                work.block_mass[j] = u64(0)
        else:
            sure, members, n = _enclose(x, s, work, kind, target, head, n)
    for i in range(n):
        work.order[i] = _order_of(kind, s, work.keys[i])
    return sure, members, n


@once
def _head_key(s, work):
    """A key that only the best blocks reach, or one above the window where they are not better than the others."""
    blocks = work.block_max.size
    for j in range(blocks):
        work.mass[j], work.order[j] = u64(1), rank_of_key(work.block_max[j])
    rank, _ = crossing(work.order, work.mass, blocks, u64(0), u64(blocks // _HEAD + 1), work.table)
    key = key_of_rank(rank)
    if key <= s.low_key or _HEAD * hot_blocks(work, key) > 2 * blocks + _HEAD:
        return i32(s.high_key + i32(1))
    return key


@kernel
def _enclose(x, s, work, kind, target, head, listed):
    """`_gather` of a dense row whose head is listed: split by a bracket; where that missed, by what it left out."""
    exact, points, total = _take_points(x, s, work, kind, head, listed)
    near, far = _bracket(s, work, exact, points, total, target)
    inner_low, inner_high = _reach(kind, s, near - 1)
    outer_low, outer_high = _reach(kind, s, far)
    while True:
        sure, members, n = split_window(x, work, s, inner_low, inner_high, outer_low, outer_high)
        if target <= sure:
            outer_low, outer_high = inner_low, inner_high
            inner_low, inner_high = MAX_KEY, NEG_INF
        elif sure + weigh_list(s, work, n) < target:
            inner_low, inner_high = outer_low, outer_high
            outer_low, outer_high = s.low_key, s.high_key
        else:
            return sure, members, n


@once
def _bracket(s, work, exact, n, total, target):
    """(near, far): orders between which the mass is most likely reached.

    What lies beyond the cut is light tokens mostly, so it is that remainder, not the mass before, that a sample
    tells well.
    """
    at = max(f64(total) - f64(s.total - target), 0.0)
    middle, _ = crossing(work.order, work.mass, n, u64(0), u64(at), work.table)
    spread, before = f64(0), i64(0)
    for i in range(exact, n):
        w = f64(work.mass[i])
        spread += w * w if work.order[i] >= middle else 0.0
        before += work.order[i] < middle
    slack = _SIGMAS * np.sqrt(spread) + 1e-6 * f64(total)
    near, far = i64(0), i64(0xFFFFFFFF)
    if at > slack and before * (BLOCK // _SAMPLES) > _SHORT:
        near = i64(crossing(work.order, work.mass, n, u64(0), u64(at - slack), work.table)[0])
    if at + slack < f64(total):
        far = i64(crossing(work.order, work.mass, n, u64(0), u64(at + slack), work.table)[0])
    return near, far


@once
def _take_points(x, s, work, kind, head, n):
    """(points that are exact, all points, their mass): writes the orders and masses of an estimate of the row.

    The n listed tokens, keys >= head, and the best of each block count as themselves, each sampled one for its share.
    """
    total, blocks = u64(0), work.block_max.size
    for i in range(n):
        work.order[i] = _order_of(kind, s, work.keys[i])
        total += work.mass[i]
    for j in range(blocks):
        best = work.block_max[j]
        if s.low_key <= best < head and best <= s.high_key:
            w = weight(exponent(value_of(best), s.m, s.c))
            work.order[n], work.mass[n] = _order_of(kind, s, best), w
            n, total = n + 1, total + w
    exact = n
    for j in range(blocks):
        best = work.block_max[j]
        if best >= s.low_key:
            for i in range(j * BLOCK + ((j & 31) << 1), min((j + 1) * BLOCK, x.size), BLOCK // _SAMPLES):
                k = key_of(x[i])
                if k != best and k < head and member(s, k, i):
                    w = weight(exponent(x[i], s.m, s.c)) * u64(BLOCK // _SAMPLES)
                    work.order[n], work.mass[n] = _order_of(kind, s, k), w
                    n, total = n + 1, total + w
    return exact, n, total
