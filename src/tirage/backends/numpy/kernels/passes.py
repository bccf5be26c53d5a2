"""Passes over one row of logits: maxima of blocks, masses, counts, and lists of the tokens in a window.

A *window* is an interval of the order (key descending, id ascending): from (high_key, high_id), the first token
in it, to (low_key, low_id), the last. Block maxima let a pass skip the blocks that reach no window. What happens
inside a block is in `vectors`.
"""

from __future__ import annotations

from tirage.backends.numpy.kernels.bits import (
    LIMIT,
    MAX_KEY,
    add,
    bits_of,
    canonical,
    exponent,
    float_of,
    hits,
    i32,
    i64,
    inline,
    kernel,
    key_of,
    out_of_line,
    trailing_zeros,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.state import member
from tirage.backends.numpy.kernels.vectors import BLOCK, WORDS, extremes, heavy, light, moments, part, split, tally

_LIGHT = i32(17 << 23)
"""From 17 octaves down, 256 weights sum to less than 2^32."""
_WORST = i32(-0x80000000)
_NEG_INF_BITS = i32(-0x800000)


@kernel
def find_maxima(x, block_max):
    """(largest key, smallest key) of `x`; fills the largest of each block."""
    out_of_line()
    high, low = _WORST, MAX_KEY
    for j in range(block_max.size):
        best, worst = extremes(x, j, ())
        block_max[j] = canonical(best)
        high, low = max(high, best), min(low, worst)
    return canonical(high), canonical(low)


@kernel
def copy_row(x, words, out, block_max):
    """`find_maxima` of `out`, which becomes `x` with the tokens that the bitmask `words` forbids at -inf."""
    out_of_line()
    high, low = _WORST, MAX_KEY
    for j in range(block_max.size):
        start = j * BLOCK
        xs, ys = x[start : start + BLOCK], out[start : start + BLOCK]
        if words.size:
            _mask_block(xs, words[start // 32 :], ys)
        else:
            for i in range(xs.size):
                ys[i] = xs[i]
        best, worst = extremes(out, j, ())
        block_max[j] = canonical(best)
        high, low = max(high, best), min(low, worst)
    return canonical(high), canonical(low)


@inline
def _mask_block(xs, words, ys):
    for s in range((xs.size + 31) // 32):
        word = words[s]
        n = min(32, xs.size - s * 32)
        for i in range(n):
            b = bits_of(xs[s * 32 + i])
            ys[s * 32 + i] = float_of(b if i32(i32(word >> i32(i)) & i32(1)) != i32(0) else _NEG_INF_BITS)


@kernel
def block_maximum(x, j):
    """Largest key of block `j`."""
    out_of_line()
    return canonical(extremes(x, j, ())[0])


@inline
def largest(block_max):
    """Largest key of a row."""
    best = _WORST
    for j in range(block_max.size):
        best = max(best, block_max[j])
    return best


@inline
def joined(high, low):
    """Mass of two half sums."""
    return (u64(high) << u64(20)) + u64(low)


@kernel
def block_mass_of(x, j, best, m, c):
    """Mass of one whole block whose largest key is `best`."""
    q = exponent(value_of(best), m, c)
    if q >= LIMIT:
        return u64(0)
    if q >= _LIGHT:
        return u64(u32(light(x, j, (m, c))[0]))
    high, low = heavy(x, j, (m, c))
    return joined(high, low)


@kernel
def total_mass(x, block_max, m, c, block_mass):
    """Mass of the whole row; fills the mass of each block."""
    out_of_line()
    total = u64(0)
    for j in range(block_max.size):
        w = block_mass_of(x, j, block_max[j], m, c)
        block_mass[j] = w
        total += w
    return total


@inline
def cut(j, size, low_key, low_id, high_key, high_id):
    """(mixed, lowest key, highest key): how the window looks from one block; mixed = ids matter in it."""
    start, stop = j * BLOCK, min((j + 1) * BLOCK, size)
    mixed = ((low_id >= start) & (low_id < stop - 1)) | ((high_id > start) & (high_id < stop))
    low = low_key if low_id >= stop - 1 else i32(low_key + i32(1))
    high = high_key if high_id <= start else i32(high_key - i32(1))
    return mixed, low, high


@kernel
def _slow_block(x, j, s, c, inner_low, inner_high):
    """(mass, tokens, mass and tokens with keys in the inner interval, sum of w * q) of a block that ids cut."""
    out_of_line()
    total, sure, product = u64(0), u64(0), u64(0)
    n, members = i64(0), i64(0)
    high = u64(0)
    for i in range(j * BLOCK, min((j + 1) * BLOCK, x.size)):
        k = key_of(x[i])
        if member(s, k, i):
            q = exponent(x[i], s.m, c)
            w = weight(q)
            total, n = total + w, n + 1
            high, product = add(high, product, u64(0), w * u64(q))
            if inner_low <= k <= inner_high:
                sure, members = sure + w, members + 1
    return total, n, sure, members, high, product


@kernel
def _window_block(x, j, s):
    """(mass, tokens) of the window in one block."""
    out_of_line()
    mixed, low, high = cut(j, x.size, s.low_key, s.low_id, s.high_key, s.high_id)
    if mixed:
        total, n, _, _, _, _ = _slow_block(x, j, s, s.c, MAX_KEY, MAX_KEY)
        return total, n
    top, bottom, count = part(x, j, (s.m, s.c, low, high))
    return joined(top, bottom), i64(count)


@inline
def window_mass(x, block_max, s, block_mass):
    """(mass, tokens) of the window of `s`; fills what each block adds to the mass."""
    total, members = u64(0), i64(0)
    for j in range(block_max.size):
        w, n = u64(0), i64(0)
        if block_max[j] >= s.low_key:
            w, n = _window_block(x, j, s)
        block_mass[j] = w
        total, members = total + w, members + n
    return total, members


@inline
def window_moments(x, block_max, s, c, block_mass):
    """(mass, tokens, 128-bit sum of w * q) of the window at this c; fills the mass of each block."""
    total, members, high, low = u64(0), i64(0), u64(0), u64(0)
    for j in range(block_max.size):
        w = u64(0)
        if block_max[j] >= s.low_key:
            mixed, least, most = cut(j, x.size, s.low_key, s.low_id, s.high_key, s.high_id)
            if mixed:
                w, n, _, _, top, bottom = _slow_block(x, j, s, c, MAX_KEY, MAX_KEY)
            else:
                top_half, low_half, n, by_top, by_low = moments(x, j, (s.m, c, least, most))
                w = joined(top_half, low_half)
                top, bottom = add(by_top >> u64(44), by_top << u64(20), u64(0), by_low)
            high, low = add(high, low, top, bottom)
            members += i64(n)
        block_mass[j] = w
        total += w
    return total, members, high, low


@kernel
def window_count(x, block_max, low_key, low_id, high_key, high_id):
    """How many tokens the window holds."""
    out_of_line()
    total = i64(0)
    for j in range(block_max.size):
        if block_max[j] < low_key:
            continue
        mixed, low, high = cut(j, x.size, low_key, low_id, high_key, high_id)
        if mixed:
            for i in range(j * BLOCK, min((j + 1) * BLOCK, x.size)):
                k = key_of(x[i])
                above = (k > low_key) | ((k == low_key) & (i <= low_id))
                total += i64(above & ((k < high_key) | ((k == high_key) & (i >= high_id))))
        else:
            total += i64(tally(x, j, (low, high))[0])
    return total


@kernel
def list_block(x, j, low_key, low_id, high_key, high_id, skip_low, skip_high, keys, ids, n):
    """Append the window's tokens of one block, save keys in [skip_low, skip_high]; returns the new length."""
    out_of_line()
    at, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
    while at < stop:
        if at + 64 <= stop:
            word = hits(x, at, low_key, high_key, skip_low, skip_high)
        else:
            word = u64(0)
            for i in range(stop - at):
                k = key_of(x[at + i])
                hit = (k >= low_key) & (k <= high_key) & ((k < skip_low) | (k > skip_high))
                word |= u64(hit) << u64(i)
        while word != u64(0):
            i = at + i64(trailing_zeros(word))
            word &= word - u64(1)
            k = key_of(x[i])
            keys[n], ids[n] = k, i
            n += i64(((k > low_key) | (i <= low_id)) & ((k < high_key) | (i >= high_id)))
        at += 64
    return n


@kernel
def list_window(x, block_max, low_key, low_id, high_key, high_id, keys, ids):
    """Number of tokens in the window; lists their keys and ids, ids ascending. The lists need V + 1 places."""
    out_of_line()
    n = i64(0)
    for j in range(block_max.size):
        if block_max[j] >= low_key:
            n = list_block(x, j, low_key, low_id, high_key, high_id, MAX_KEY, _WORST, keys, ids, n)
    return n


@kernel
def first_with(x, block_max, key, first, keys, ids):
    """Lowest id >= `first` whose key is `key`, -1 for none; overwrites the head of the lists."""
    for j in range(block_max.size):
        if block_max[j] < key or (j + 1) * BLOCK <= first:
            continue
        if list_block(x, j, key, MAX_KEY, key, first, MAX_KEY, _WORST, keys, ids, i64(0)) > 0:
            return ids[0]
    return i32(-1)


@inline
def split_window(x, work, s, inner_low, inner_high, outer_low, outer_high):
    """(mass and tokens with keys in the inner interval, tokens listed): what a cut surely keeps, and what not.

    `block_mass` gets each block's inner mass; what the window holds in the outer interval only is listed.
    """
    sure, members, n = u64(0), i64(0), i64(0)
    low_id = s.low_id if outer_low <= s.low_key else MAX_KEY
    high_id = s.high_id if outer_high >= s.high_key else i32(0)
    for j in range(work.block_max.size):
        best = work.block_max[j]
        inner, count = u64(0), i64(0)
        if best >= inner_low and inner_low <= inner_high:
            inner, count = _inner_block(x, j, s, inner_low, inner_high)
        if best >= outer_low:
            n = list_block(
                x, j, outer_low, low_id, outer_high, high_id, inner_low, inner_high, work.keys, work.ids, n
            )  # fmt: skip
        work.block_mass[j] = inner
        sure, members = sure + inner, members + count
    return sure, members, n


@inline
def _inner_block(x, j, s, inner_low, inner_high):
    """(mass, tokens) of the window's tokens with keys in an interval, in one block."""
    mixed, low, high = cut(j, x.size, s.low_key, s.low_id, s.high_key, s.high_id)
    if mixed:
        _, _, inner, count, _, _ = _slow_block(x, j, s, s.c, inner_low, inner_high)
        return inner, count
    top, bottom, n = part(x, j, (s.m, s.c, max(inner_low, low), min(inner_high, high)))
    return joined(top, bottom), i64(n)


@inline
def weigh_and_split(x, work, s, near, far):
    """`split_window` of a whole row that is not weighed yet, which it does too: q <= near are in, q <= far are listed.

    Tokens without weight are never listed. Where the row is recorded, `work.kept` gets the bits of those that are in.
    """
    total, sure, members, n = u64(0), u64(0), i64(0), i64(0)
    far = min(far, i64(LIMIT) - 1)
    marks = work.marks[: 2 * WORDS] if s.noting else work.marks[:WORDS]
    for j in range(work.block_max.size):
        best = work.block_max[j]
        inner = u64(0)
        if i64(exponent(value_of(best), s.m, s.c)) > far:
            total += block_mass_of(x, j, best, s.m, s.c)
        else:
            high, low, top, bottom, count = split(x, j, (s.m, s.c, i32(near), i32(far)), marks)
            inner = joined(top, bottom)
            total, sure, members = total + joined(high, low), sure + inner, members + i64(count)
            n = _list_marked(x, j, work, n)
        work.block_mass[j] = inner
        if s.noting:
            _note_block(work, j, inner)
    s.total, s.weighed, s.noted = total, 1, s.noting
    return sure, members, n


@inline
def _note_block(work, j, mass):
    """Keep the bits of a block's tokens that are in; one without their mass has none."""
    for k in range(WORDS):
        work.kept[j * WORDS + k] = work.marks[WORDS + k] if mass != u64(0) else u64(0)


@inline
def _list_marked(x, j, work, n):
    """Append the marked tokens of a block to the list; returns the new length."""
    for k in range(WORDS):
        word = work.marks[k]
        while word != u64(0):
            i = j * BLOCK + k * 64 + i64(trailing_zeros(word))
            word &= word - u64(1)
            work.keys[n], work.ids[n] = key_of(x[i]), i
            n += 1
    return n


@kernel
def crossing(order, mass, n, before, target, table):
    """(u, mass before u): the least `order` value at which `before` + the mass up to it reaches `target`.

    A weighted selection by histograms of 256 bins, each dividing the bin of the one before: no sort, no data
    movement. When the target is out of reach, the largest value.
    """
    out_of_line()
    least, most = u32(order[0]), u32(order[0])
    for i in range(n):
        least, most = min(least, u32(order[i])), max(most, u32(order[i]))
    width, shift = u32(most - least), u32(0)
    reached = before
    while u32(width >> shift) > u32(255):
        shift = u32(shift + u32(1))
    while True:
        for b in range(256):
            table[b] = u64(0)
        for i in range(n):
            at = u32(u32(order[i]) - least)
            if at <= width:
                table[u32(at >> shift)] += mass[i]
        b, last = u32(0), u32(width >> shift)
        while b < last and reached + table[b] < target:
            reached += table[b]
            b = u32(b + u32(1))
        least = u32(least + u32(b << shift))
        if shift == u32(0):
            return least, reached
        width = min(u32(most - least), u32(u32(u32(1) << shift) - u32(1)))
        shift = u32(max(shift, u32(8)) - u32(8))


@inline
def rank_of_key(key):
    """uint32 that is smaller for a larger key; its own inverse with `key_of_rank`."""
    return u32(u32(key) ^ u32(0x7FFFFFFF))


@inline
def key_of_rank(rank):
    return i32(u32(rank ^ u32(0x7FFFFFFF)))
