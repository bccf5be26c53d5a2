"""Filters that keep the nearest tokens until they hold a share of the mass: top-p by rank, typical by distance.

A list is cut directly. A dense row is searched near its top when its head holds the mass, else between two bounds
that a sample suggests: one vector pass weighs the row and what lies within both, and lists what lies between them.
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
    out_of_line,
    shifted,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.filters import Q_AT_MOST, hot_blocks, lowest_key, weigh, weigh_list
from tirage.backends.numpy.kernels.passes import (
    crossing,
    first_with,
    key_of_rank,
    list_window,
    rank_of_key,
    split_window,
    weigh_and_split,
)
from tirage.backends.numpy.kernels.state import set_high, set_low, shrink
from tirage.backends.numpy.kernels.vectors import BLOCK, MASS_OF_UNIT, PROBED_BLOCKS, ends, probe

BY_RANK, BY_DISTANCE = i32(0), i32(1)
_HEAD = 4
"""The head of a row is what lies in the best quarter of its blocks."""
_SIGMAS = 2.5
_STRIDE = 4
"""How many times its own width a bracket that missed moves on."""
_BINS = 256
_ONE = u64(1) << u64(44)
"""A point in a bin, whose lower 44 bits hold mass: 2^15 points of less than 2^29 each."""
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
    """(lowest, highest) key of the window's tokens whose order is at most `order`."""
    if kind == BY_RANK:
        return max(key_of_rank(u32(order)), s.low_key), s.high_key
    return _around(s, s.mean, order)


@kernel
def _around(s, center, distance):
    """(lowest, highest) key of the window's tokens whose q lies that near to `center`; empty for -1."""
    out_of_line()
    if distance < 0:
        return MAX_KEY, NEG_INF
    low = lowest_key(Q_AT_MOST, center + distance, s.m, s.c, NEG_INF, s.high_key)
    high, beyond = s.high_key, center - distance - 1
    if i64(exponent(value_of(high), s.m, s.c)) <= beyond:
        high = i32(lowest_key(Q_AT_MOST, beyond, s.m, s.c, NEG_INF, high) - i32(1))
    return max(low, s.low_key), high


# --- the cut ----------------------------------------------------------------------------------------------


@kernel
def keep_nearest(x, s, work, kind, p, rule, ties, joint):
    """Keep the shortest run of tokens, by `kind`, that holds the mass: top-p, or typical, which keeps all ties."""
    out_of_line()
    base = s.base if joint else u64(0)
    if s.compact or base != u64(0) or not s.whole:
        weigh(x, s, work)
        if s.seen == u64(0):
            s.seen = s.total
        if base > s.total and _target(p, rule, base) > s.total and rule != 2:
            return
    sure, members, n = _gather(x, s, work, kind, p, rule, base)
    noted = s.noted
    if s.seen == u64(0):
        s.seen = s.total
    target = _target(p, rule, base if base != u64(0) else s.total)
    widest, before = crossing(work.order, work.mass, n, sure, target, work.table)
    low, high = _reach(kind, s, i64(widest))
    token, reached = _last_tie(work, n, low, before, target)
    first_key, first_id = s.high_key, s.high_id
    set_low(s, low, MAX_KEY if ties else token)
    if high < first_key:
        set_high(s, high, i32(0))
    _keep_listed(s, work, n, sure, members)
    if noted:
        _note_listed(s, work)
    if high < first_key:
        first_key, first_id = _first_below(x, s, work)
    s.high_key, s.high_id = first_key, first_id
    if rule == 2:
        _trim(s, work, low, token, reached, target)


@inline
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


@inline
def _last_tie(work, n, key, before, target):
    """(id, mass up to it) of the listed token with this key at which the mass reaches the target."""
    last = MAX_KEY
    for i in range(n):
        if work.keys[i] == key and before < target:
            before += work.mass[i]
            last = work.ids[i]
    return last, before


@inline
def _keep_listed(s, work, n, sure, members):
    """Make the state weighed again after a cut: a list when nothing is kept outside it, else dense."""
    s.n = n
    shrink(s, work)
    total = sure
    for i in range(s.n):
        total += work.mass[i]
    if members == 0:
        s.compact = 1
    else:
        for i in range(s.n):
            work.block_mass[u32(work.ids[i]) // u32(BLOCK)] += work.mass[i]
    s.total, s.members, s.weighed = total, members + s.n, 1


@inline
def _note_listed(s, work):
    """Add what is kept of the list to the bits of what is kept outside it."""
    for i in range(s.n):
        token = u32(work.ids[i])
        work.kept[token >> u32(6)] |= u64(1) << u64(token & u32(63))
    s.noted = 1


@inline
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


@inline
def _gather(x, s, work, kind, p, rule, base):
    """(mass and tokens before the list, its length), the crossing token being in the list; sets its `order`."""
    sure, members, n = u64(0), i64(0), s.n
    if not s.compact:
        head = _head_key(s, work)
        n = list_window(x, work.block_max, head, MAX_KEY, s.high_key, s.high_id, work.keys, work.ids)
        held = weigh_list(s, work, n)
        points, mass, widest = _probe(x, s, work, head, n)
        if not s.weighed and f64(held) >= _share(p) * (f64(held) + mass * _unit(x, points)):
            weigh(x, s, work)
        if kind == BY_RANK and s.weighed and held >= _goal(s, p, rule, base):
            for j in range(work.block_mass.size):
                work.block_mass[j] = u64(0)
        else:
            sure, members, n = _enclose(x, s, work, kind, p, rule, base, n, points, widest)
    for i in range(n):
        work.order[i] = _order_of(kind, s, work.keys[i])
    return sure, members, n


@inline
def _goal(s, p, rule, base):
    """The mass at which the search ends, once the window is weighed."""
    return min(_target(p, rule, base if base != u64(0) else s.total), s.total)


@inline
def _share(p):
    return f64(p) * 2.0**-32


@inline
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
def _probe(x, s, work, head, n):
    """(number of probes, their mass and largest exponent): a sample of the window below the head, behind n points.

    Each probe is an order, its q, and a weight in units of `MASS_OF_UNIT`, which takes the place of a listed key.
    """
    out_of_line()
    mass, widest, count = f64(0), i64(0), i64(0)
    most = min(s.high_key, i32(head - i32(1)))
    for g in range(i64(x.size) // (BLOCK * PROBED_BLOCKS)):
        units, q = probe(x, g * PROBED_BLOCKS, (s.m, s.c, s.low_key, most), work.order, work.keys, n + count)
        mass, widest = mass + 64.0 * f64(units), max(widest, i64(q))
        count += 64
    return count, mass, widest


@inline
def _unit(x, points):
    """The mass that one unit of a probe stands for."""
    return MASS_OF_UNIT * f64(x.size) / f64(max(points, i64(1)))


@kernel
def _enclose(x, s, work, kind, p, rule, base, listed, probes, widest):
    """`_gather` of a dense row, split by a bracket; where that missed, by what it left out."""
    center = s.mean if kind == BY_DISTANCE else i64(0)
    near, far = i64(-1), i64(0xFFFFFFFF)
    if probes:
        unit = _unit(x, probes)
        total, noise = _take_points(s, work, center, listed, probes, unit)
        at, doubt = f64(total) * _share(p), noise * (1.0 - _share(p)) ** 2
        if s.weighed:
            at, doubt = max(f64(total) - f64(s.total - _goal(s, p, rule, base)) / unit, 0.0), 0.0
        tokens = f64(x.size) / f64(probes)
        near, far = _bracket(work, listed + probes, max(widest - center, center), total, at, doubt, tokens)
    while True:
        if s.weighed:
            s.noted = 0
            inner_low, inner_high = _around(s, center, near)
            outer_low, outer_high = _around(s, center, far)
            sure, members, n = split_window(x, work, s, inner_low, inner_high, outer_low, outer_high)
        else:
            sure, members, n = weigh_and_split(x, work, s, near, far)
        target = _goal(s, p, rule, base)
        if sure < target <= sure + weigh_list(s, work, n):
            return sure, members, n
        further = _STRIDE * (far - near)
        if target <= sure:
            near, far = max(near - further, i64(-1)), near
        else:
            near, far = far, far + further


@inline
def _take_points(s, work, center, listed, probes, unit):
    """(mass, its variance), in units, of an estimate of the row: the listed tokens, and each probe for its share.

    Writes the points: their distances from `center` and their masses in units.
    """
    total, noise = u64(0), f64(0)
    for i in range(listed):
        work.order[i] = u32(abs(i64(exponent(value_of(work.keys[i]), s.m, s.c)) - center))
        work.keys[i] = i32(f64(work.mass[i]) / unit)
        total += u64(work.keys[i])
    for i in range(listed, listed + probes):
        total += u64(work.keys[i])
        noise += f64(work.keys[i]) * f64(work.keys[i])
        if center:
            work.order[i] = u32(abs(i64(work.order[i]) - center))
    return total, noise


@inline
def _bracket(work, n, widest, total, at, doubt, tokens):
    """(near, far): up to `near` the mass `at` is most likely not reached yet, up to `far` it is; for n points.

    What lies beyond the cut is light tokens mostly, so it is that remainder, not the mass before, that a sample
    tells well. `doubt` is the variance of `at` itself; `tokens` is how many a probe stands for.
    """
    shift = u32(0)
    while (widest >> i64(shift)) >= _BINS:
        shift += u32(1)
    table = work.table
    for b in range(_BINS):
        table[b] = u64(0)
    for i in range(n):
        table[_bin(work.order[i], shift)] += _ONE + u64(work.keys[i])
    middle, before, _ = _seek(table, at)
    spread = doubt
    for b in range(middle, _BINS):
        mass = f64(table[b] & (_ONE - u64(1)))
        spread += mass * mass / f64(max(table[b] >> u64(44), u64(1)))
    slack = _SIGMAS * np.sqrt(spread) + 1e-6 * f64(total)
    first, before, count = _seek(table, max(at - slack, 0.0))
    last, _, _ = _seek(table, at + slack)
    weighs = at > slack and f64(count) * tokens > _SHORT
    if not weighs:
        first, before, _ = _seek(table, at + slack)
    few = i64(0)
    for i in range(n):
        b = _bin(work.order[i], shift)
        work.order[few], work.mass[few] = work.order[i], u64(work.keys[i])
        few += i64((b >= first) & (b <= last))
    near, far = i64(-1), i64(0xFFFFFFFF)
    if weighs:
        near = i64(crossing(work.order, work.mass, few, before, u64(at - slack), table)[0]) - 1
    if at + slack < f64(total):
        far = i64(crossing(work.order, work.mass, few, before, u64(at + slack), table)[0])
    return near, far


@inline
def _bin(order, shift):
    return min(i64(order >> shift), i64(_BINS - 1))


@kernel
def _seek(table, mass):
    """(bin in which the mass is reached, mass and points before it)."""
    out_of_line()
    before, count = u64(0), u64(0)
    for b in range(_BINS - 1):
        here = table[b] & (_ONE - u64(1))
        if f64(before + here) >= mass:
            return i64(b), before, count
        before, count = before + here, count + (table[b] >> u64(44))
    return i64(_BINS - 1), before, count
