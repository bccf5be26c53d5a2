"""Passes over one row of logits: maxima of blocks, masses, counts, and lists of the tokens in a window.

A *window* is an interval of the order (key descending, id ascending): from (high_key, high_id), the first token
in it, to (low_key, low_id), the last. Block maxima let a pass skip the blocks that reach no window.
"""

from __future__ import annotations

from tirage.backends.numpy.kernels.bits import (
    LIMIT,
    MAX_KEY,
    bits_of,
    canonical,
    exponent,
    f32,
    float_of,
    hits,
    i32,
    i64,
    inline,
    kernel,
    key_of,
    raw_key,
    trailing_zeros,
    u32,
    u64,
    value_of,
    weight,
    weight_f,
)

BLOCK = 256
_LIGHT = i32(17 << 23)
"""From 17 octaves down, 256 weights sum to less than 2^32."""
_WORST = i32(-0x80000000)
_NEG_INF_BITS = i32(-0x800000)
_SPLIT, _UNSPLIT = f32(2.0**-20), f32(2.0**20)


@kernel
def find_maxima(x, block_max):
    """(largest key, smallest key) of `x`; fills the largest of each block."""
    high, low = _WORST, MAX_KEY
    for j in range(block_max.size):
        best, worst = _WORST, MAX_KEY
        xs = x[j * BLOCK : (j + 1) * BLOCK]
        if xs.size == BLOCK:
            for i in range(BLOCK):
                k = raw_key(xs[i])
                best, worst = max(best, k), min(worst, k)
        else:
            for i in range(xs.size):
                k = raw_key(xs[i])
                best, worst = max(best, k), min(worst, k)
        block_max[j] = canonical(best)
        high, low = max(high, best), min(low, worst)
    return canonical(high), canonical(low)


@kernel
def copy_row(x, words, out, block_max):
    """`find_maxima` of `out`, which becomes `x` with the tokens that the bitmask `words` forbids at -inf."""
    high, low = _WORST, MAX_KEY
    for j in range(block_max.size):
        best, worst = _WORST, MAX_KEY
        start = j * BLOCK
        xs, ys = x[start : start + BLOCK], out[start : start + BLOCK]
        if words.size:
            _mask_block(xs, words[start // 32 :], ys)
        else:
            for i in range(xs.size):
                ys[i] = xs[i]
        for i in range(xs.size):
            k = raw_key(ys[i])
            best, worst = max(best, k), min(worst, k)
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
    best = _WORST
    xs = x[j * BLOCK : (j + 1) * BLOCK]
    for i in range(xs.size):
        best = max(best, raw_key(xs[i]))
    return canonical(best)


@inline
def heavy_mass(xs, m, c):
    """Mass of up to 256 logits: each weight split in two int32 halves, exactly, so that the sums stay narrow."""
    high, low = i32(0), i32(0)
    for i in range(xs.size):
        w = weight_f(exponent(xs[i], m, c))
        h = i32(f32(w * _SPLIT))
        high = i32(high + h)
        low = i32(low + i32(f32(w - f32(f32(h) * _UNSPLIT))))
    return (u64(high) << u64(20)) + u64(low)


@inline
def light_mass(xs, m, c):
    """Mass of up to 256 logits that all lie 17 octaves below the best."""
    total = i32(0)
    for i in range(xs.size):
        total = i32(total + i32(weight_f(exponent(xs[i], m, c))))
    return u64(u32(total))


@inline
def windowed_mass(xs, m, c, low_key, high_key):
    """Mass of those of up to 256 logits whose key is in [low_key, high_key]."""
    high, low = i32(0), i32(0)
    for i in range(xs.size):
        k = key_of(xs[i])
        w = weight_f(exponent(xs[i], m, c))
        w = w if (k >= low_key) & (k <= high_key) else f32(0)
        h = i32(f32(w * _SPLIT))
        high = i32(high + h)
        low = i32(low + i32(f32(w - f32(f32(h) * _UNSPLIT))))
    return (u64(high) << u64(20)) + u64(low)


@kernel
def block_mass_of(xs, best, m, c):
    """Mass of one whole block whose largest key is `best`."""
    q = exponent(value_of(best), m, c)
    if q >= LIMIT:
        return u64(0)
    if q >= _LIGHT:
        return light_mass(xs, m, c)
    return heavy_mass(xs, m, c)


@kernel
def total_mass(x, block_max, m, c, block_mass):
    """Mass of the whole row; fills the mass of each block."""
    total = u64(0)
    for j in range(block_max.size):
        w = block_mass_of(x[j * BLOCK : (j + 1) * BLOCK], block_max[j], m, c)
        block_mass[j] = w
        total += w
    return total


@inline
def inside(key, token, s):
    """True when the token is in the window of `s`."""
    return ((key > s.low_key) | ((key == s.low_key) & (token <= s.low_id))) & (
        (key < s.high_key) | ((key == s.high_key) & (token >= s.high_id))
    )


@inline
def _cut(start, stop, low_key, low_id, high_key, high_id):
    """(mixed, lowest key, highest key): how the window looks from one block; mixed = ids matter in it."""
    mixed = ((low_id >= start) & (low_id < stop - 1)) | ((high_id > start) & (high_id < stop))
    low = low_key if low_id >= stop - 1 else i32(low_key + i32(1))
    high = high_key if high_id <= start else i32(high_key - i32(1))
    return mixed, low, high


@kernel
def window_mass(x, block_max, s, block_mass):
    """Mass of the window of `s`; fills what each block adds to it."""
    total = u64(0)
    for j in range(block_max.size):
        start, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
        w = u64(0)
        if block_max[j] >= s.low_key:
            mixed, low, high = _cut(start, stop, s.low_key, s.low_id, s.high_key, s.high_id)
            if mixed:
                for i in range(start, stop):
                    if inside(key_of(x[i]), i, s):
                        w += weight(exponent(x[i], s.m, s.c))
            else:
                w = windowed_mass(x[start:stop], s.m, s.c, low, high)
        block_mass[j] = w
        total += w
    return total


@inline
def _count_block(xs, low, high):
    n = i32(0)
    for i in range(xs.size):
        k = key_of(xs[i])
        n = i32(n + i32((k >= low) & (k <= high)))
    return i64(n)


@kernel
def window_count(x, block_max, low_key, low_id, high_key, high_id):
    """How many tokens the window holds."""
    total = i64(0)
    for j in range(block_max.size):
        if block_max[j] < low_key:
            continue
        start, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
        mixed, low, high = _cut(start, stop, low_key, low_id, high_key, high_id)
        if mixed:
            for i in range(start, stop):
                k = key_of(x[i])
                above = (k > low_key) | ((k == low_key) & (i <= low_id))
                total += i64(above & ((k < high_key) | ((k == high_key) & (i >= high_id))))
        else:
            total += _count_block(x[start:stop], low, high)
    return total


@inline
def _list_block(x, start, stop, low_key, low_id, high_key, high_id, keys, ids, n):
    """Append the window's tokens of one block to `keys` and `ids`; returns the new length."""
    at = start
    while at + 64 <= stop:
        word = hits(x, at, low_key, high_key)
        while word != u64(0):
            i = at + i64(trailing_zeros(word))
            word &= word - u64(1)
            k = key_of(x[i])
            keys[n], ids[n] = k, i
            n += i64(((k > low_key) | (i <= low_id)) & ((k < high_key) | (i >= high_id)))
        at += 64
    for i in range(at, stop):
        k = key_of(x[i])
        keys[n], ids[n] = k, i
        above = (k > low_key) | ((k == low_key) & (i <= low_id))
        n += i64(above & ((k < high_key) | ((k == high_key) & (i >= high_id))))
    return n


@kernel
def list_window(x, block_max, low_key, low_id, high_key, high_id, keys, ids):
    """Number of tokens in the window; lists their keys and ids, ids ascending. The lists need V + 1 places."""
    n = i64(0)
    for j in range(block_max.size):
        if block_max[j] >= low_key:
            start, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
            n = _list_block(x, start, stop, low_key, low_id, high_key, high_id, keys, ids, n)
    return n


@kernel
def split_window(x, block_max, s, certain, doubtful, block_mass, keys, ids):
    """(mass of the window, tokens listed): one pass that separates what a top-p cut keeps for certain.

    `block_mass` gets each block's mass of keys > `certain`; tokens with keys in [doubtful, certain] are listed.
    """
    total = u64(0)
    n = i64(0)
    whole = (s.low_key <= s.floor) & (s.high_key >= s.ceiling)
    for j in range(block_max.size):
        start, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
        sure, w = u64(0), u64(0)
        if block_max[j] >= s.low_key:
            mixed, low, high = _cut(start, stop, s.low_key, s.low_id, s.high_key, s.high_id)
            if mixed:
                for i in range(start, stop):
                    k = key_of(x[i])
                    if inside(k, i, s):
                        wi = weight(exponent(x[i], s.m, s.c))
                        w += wi
                        if k > certain:
                            sure += wi
            elif block_max[j] <= certain and whole:
                w = block_mass_of(x[start:stop], block_max[j], s.m, s.c)
            else:
                w, sure = _two_masses(x[start:stop], s.m, s.c, low, high, certain)
            if block_max[j] >= doubtful:
                low, low_id = (s.low_key, s.low_id) if s.low_key >= doubtful else (doubtful, MAX_KEY)
                high, high_id = (s.high_key, s.high_id) if s.high_key <= certain else (certain, i32(0))
                n = _list_block(x, start, stop, low, low_id, high, high_id, keys, ids, n)
        block_mass[j] = sure
        total += w
    return total, n


@inline
def _two_masses(xs, m, c, low_key, high_key, certain):
    """(mass of keys in [low_key, high_key], of those the part above `certain`)."""
    high, low, high2, low2 = i32(0), i32(0), i32(0), i32(0)
    for i in range(xs.size):
        k = key_of(xs[i])
        w = weight_f(exponent(xs[i], m, c))
        w = w if (k >= low_key) & (k <= high_key) else f32(0)
        h = i32(f32(w * _SPLIT))
        rest = i32(f32(w - f32(f32(h) * _UNSPLIT)))
        high = i32(high + h)
        low = i32(low + rest)
        high2 = i32(high2 + (h if k > certain else i32(0)))
        low2 = i32(low2 + (rest if k > certain else i32(0)))
    return (u64(high) << u64(20)) + u64(low), (u64(high2) << u64(20)) + u64(low2)


@kernel
def crossing(order, mass, n, before, target, table):
    """(u, mass before u): the least `order` value at which `before` + the mass up to it reaches `target`.

    A weighted radix selection, four levels of 8 bits: no sort, no data movement. When the target is out of
    reach, the largest value.
    """
    prefix, fixed = u32(0), u32(0)
    reached = before
    for level in range(4):
        shift = u32(24 - 8 * level)
        for b in range(256):
            table[b] = u64(0)
        last = u32(0)
        for i in range(n):
            if u32(order[i] & fixed) == prefix:
                b = u32(u32(order[i] >> shift) & u32(255))
                table[b] += mass[i]
                last = max(last, b)
        b = u32(0)
        while b < last and reached + table[b] < target:
            reached += table[b]
            b = u32(b + u32(1))
        prefix = u32(prefix | u32(b << shift))
        fixed = u32(fixed | u32(u32(255) << shift))
    return prefix, reached


@inline
def rank_of_key(key):
    """uint32 that is smaller for a larger key; its own inverse with `key_of_rank`."""
    return u32(u32(key) ^ u32(0x7FFFFFFF))


@inline
def key_of_rank(rank):
    return i32(u32(rank ^ u32(0x7FFFFFFF)))
