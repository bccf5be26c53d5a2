"""The rarer filters: those that judge by entropy, spread or the whole head of the distribution. Rules S-O4 ... S-O9."""

from __future__ import annotations

from tirage.backends.numpy.kernels.bits import (
    LIMIT,
    MAX_KEY,
    NEG_INF,
    UNIT_LOG,
    add,
    at_most_big,
    clean,
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
    out_of_line,
    rounded_up,
    shifted,
    subtract,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.filters import W_AT_LEAST, lowest_key, sort_list, weigh_list
from tirage.backends.numpy.kernels.passes import cut, list_window
from tirage.backends.numpy.kernels.state import member, set_high, set_low, shrink
from tirage.backends.numpy.kernels.vectors import BLOCK, ends, spread

_ONE32 = u64(1) << u64(32)


@kernel
def top_n_sigma(x, s, work, e, shift):
    """Keep x >= largest - n * standard deviation, measured in fixed point relative to the widest distance."""
    out_of_line()
    top = value_of(s.high_key)
    widest = _distance(top, _smallest(x, s, work))
    if widest == f32(0):
        return
    unit = _power_of_two(29 - _binary_exponent(widest))
    n, s1, high, low = _sums(x, s, work, top, unit)
    limit = shifted(u64(e), shift + 1, _root(_variance(u64(n), s1, high, low) << u64(2)))[0]
    above, bound = i64(NEG_INF), i64(s.high_key)
    while bound - above > 1:
        middle = (above + bound) >> 1
        if u64(i64(f64(_distance(top, i32(middle))) * unit)) <= limit:
            bound = middle
        else:
            above = middle
    set_low(s, i32(bound), MAX_KEY)


@inline
def _smallest(x, s, work):
    """Smallest key in the window."""
    least = s.high_key
    if s.compact:
        for i in range(s.n):
            least = min(least, work.keys[i])
    elif s.low_key <= s.floor:
        least = s.floor
    else:
        for j in range(work.block_max.size):
            if work.block_max[j] >= s.low_key:
                least = min(least, _least_of_block(x, j, s))
    return least


@inline
def _least_of_block(x, j, s):
    least = ends(x, j, (s.low_key, s.high_key))[1]
    if least != s.low_key:
        return least
    # Only some of the tokens that equal the lower end may be in.
    least = s.high_key
    for i in range(j * BLOCK, min((j + 1) * BLOCK, x.size)):
        k = key_of(x[i])
        if member(s, k, i):
            least = min(least, k)
    return least


@inline
def _sums(x, s, work, top, unit):
    """(tokens, sum of v, 128-bit sum of v * v) over the window, v = distance below the largest in units."""
    n, s1, high, low = s.n, u64(0), u64(0), u64(0)
    if s.compact:
        for i in range(s.n):
            v = u64(i64(f64(_distance(top, work.keys[i])) * unit))
            s1 += v
            high, low = add(high, low, u64(0), v * v)
        return n, s1, high, low
    n = i64(0)
    for j in range(work.block_max.size):
        if work.block_max[j] < s.low_key:
            continue
        mixed, least, most = cut(j, x.size, s.low_key, s.low_id, s.high_key, s.high_id)
        if mixed:
            for i in range(j * BLOCK, min((j + 1) * BLOCK, x.size)):
                k = key_of(x[i])
                if member(s, k, i):
                    v = u64(i64(f64(_distance(top, k)) * unit))
                    n, s1 = n + 1, s1 + v
                    high, low = add(high, low, u64(0), v * v)
        else:
            count, sum_v, top_words, low_words = spread(x, j, (top, unit, least, most))
            n, s1 = n + i64(count), s1 + sum_v
            high, low = add(high, low, top_words >> u64(32), top_words << u64(32))
            high, low = add(high, low, u64(0), low_words)
    return n, s1, high, low


@inline
def _distance(top, key):
    """How far a logit lies below the largest, finite, and 0 where flush-to-zero might make it so."""
    return clean(at_most_big(f32(top - value_of(key))))


@inline
def _variance(n, s1, high, low):
    """floor((n * S2 - S1^2) / n^2)."""
    top, bottom = multiply(n, low)
    top += n * high
    top2, bottom2 = multiply(s1, s1)
    top, bottom = subtract(top, bottom, top2, bottom2)
    return divide(top, bottom, n * n)


@inline
def _binary_exponent(x):
    """floor(log2(x)) of a positive float32, subnormals included."""
    e = i64(0)
    v = f64(x)
    while v >= 2.0:
        v *= 0.5
        e += 1
    while v < 1.0:
        v *= 2.0
        e -= 1
    return e


@inline
def _power_of_two(e):
    v = f64(1)
    for _ in range(abs(e)):
        v = v * 2.0 if e > 0 else v * 0.5
    return v


@inline
def _root(n):
    """floor(sqrt(n)) of a uint64 below 2^62."""
    root = u64(0)
    for i in range(31):
        trial = root | (u64(1) << u64(30 - i))
        if trial * trial <= n:
            root = trial
    return root


@kernel
def dynamic_temperature(s, c, inverse_t, low, e, shift):
    """Set T between T min and T max by (H / H max) ** exponent, entropies at T = 1 over the window, in integers."""
    out_of_line()
    entropy = s.mean + log2_fixed(s.total) - UNIT_LOG
    most = log2_fixed(u64(s.members))
    fraction = u64(0)
    if entropy > 0 and most > 0:
        octaves = max(log2_fixed(u64(most)) - log2_fixed(u64(entropy)), i64(0))
        power = shifted(u64(e), shift, u64(octaves))[0]
        fraction = weight(i32(min(power, u64(LIMIT)))) >> u64(8)
    t = u64(low) + shifted(fraction, i64(32), _ONE32 - u64(low))[0]
    r = f32(f32((u64(1) << u64(62)) // max(t, u64(512))) * f32(2.0**-30))
    s.c = at_most_big(f32(float_of(i32(c)) * r))
    s.inverse_t = at_most_big(f32(float_of(i32(inverse_t)) * r))
    s.weighed = 0


@kernel
def top_h(s, work, h):
    """Of a list of at most 100 tokens, keep the prefix that holds the share of their entropy."""
    out_of_line()
    sort_list(s, work)
    log_mass = log2_fixed(weigh_list(s, work, s.n)) - UNIT_LOG
    all_high, all_low = u64(0), u64(0)
    for i in range(s.n):
        high, low = _entropy_of(s, work, i, log_mass)
        all_high, all_low = add(all_high, all_low, high, low)
    share_high, share_low = multiply(all_low, u64(h))
    share_high += all_high * u64(h)
    kept = i64(0)
    high, low = u64(0), u64(0)
    for i in range(s.n):
        more_high, more_low = _entropy_of(s, work, i, log_mass)
        high, low = add(high, low, more_high, more_low)
        rest, _ = subtract(share_high, share_low, (high << u64(32)) | (low >> u64(32)), low << u64(32))
        if i64(rest) < 0:
            break
        kept = i + 1
    at = i64(work.order[max(kept, 1) - 1])
    set_low(s, work.keys[at], work.ids[at])


@inline
def _entropy_of(s, work, i, log_mass):
    """w * -log2(p) of the i-th token as a signed 128-bit number."""
    at = work.order[i]
    bits = i64(exponent(value_of(work.keys[at]), s.m, s.c)) + log_mass
    high, low = multiply(work.mass[at], u64(abs(bits)))
    if bits < 0:
        return subtract(u64(0), u64(0), high, low)
    return high, low


@kernel
def xtc(x, s, work, e, shift, strict, drawn):
    """Drop every token at or above the threshold but the last of them; leaves the window weighed.

    When `drawn` is false, `s` is a copy of the state that owns `work`, whose masses then stay as they are.
    """
    out_of_line()
    share = shifted(u64(e), shift, s.total)[0] + u64(1) if strict else rounded_up(u64(e), shift, s.total)
    share = max(share, u64(1))
    if weight(exponent(value_of(s.high_key), s.m, s.c)) < share:
        return
    bound, low_id, n = lowest_key(W_AT_LEAST, i64(share), s.m, s.c, NEG_INF, s.high_key), MAX_KEY, s.n
    if bound <= s.low_key:
        bound, low_id = s.low_key, s.low_id
    if not s.compact:
        n = list_window(x, work.block_max, bound, low_id, s.high_key, s.high_id, work.keys, work.ids)
    last, token, above = MAX_KEY, i32(0), i64(0)
    for i in range(n):
        k = work.keys[i]
        if k >= bound:
            above += 1
            if k <= last:
                last, token = k, work.ids[i]
    if above >= 2:
        _remove_before(s, work, n, bound, last, token, drawn)


@inline
def _remove_before(s, work, n, bound, last, token, drawn):
    """Lower the upper end to a token and take what went from the masses."""
    total, members = s.total, s.members
    for i in range(n):
        k = work.keys[i]
        if k >= bound and not (k == last and work.ids[i] == token):
            w = weight(exponent(value_of(k), s.m, s.c))
            total, members = total - w, members - 1
            if drawn and not s.compact:
                work.block_mass[work.ids[i] // BLOCK] -= w
    known = s.members >= 0
    set_high(s, last, token)
    s.total, s.members, s.weighed, s.loose = total, members if known else i64(-1), 1, 0
    if drawn and s.compact:
        shrink(s, work)


@kernel
def p_less(x, s, work, norm):
    """Keep what is at least as likely as two draws are to be equal (S-O12); with `norm`, beyond a flat law's share."""
    out_of_line()
    n, high, low = _squares(x, s, work)
    if norm == 0:
        high, low = add(high, low, u64(0), s.total - u64(1))
        least = i64(divide(high, low, s.total))
    else:
        least = _beyond_flat(n, high, low, s.total)
    set_low(s, lowest_key(W_AT_LEAST, least, s.m, s.c, NEG_INF, s.high_key), MAX_KEY)


@inline
def _squares(x, s, work):
    """(tokens, 128-bit sum of their squared weights) of the window."""
    n, high, low = s.n, u64(0), u64(0)
    if s.compact:
        for i in range(s.n):
            most, least = multiply(work.mass[i], work.mass[i])
            high, low = add(high, low, most, least)
        return n, high, low
    n = i64(0)
    for i in range(x.size):
        key = key_of(x[i])
        if member(s, key, i):
            w = weight(exponent(x[i], s.m, s.c))
            most, least = multiply(w, w)
            high, low = add(high, low, most, least)
            n += 1
    return n, high, low


@inline
def _beyond_flat(n, high, low, total):
    """The least b with b * total * (n - 1) >= n * squares - total^2; 0 for one token."""
    if n < 2:
        return i64(0)
    more, product = multiply(low, u64(n))
    high, low = high * u64(n) + more, product
    most, least = multiply(total, total)
    high, low = subtract(high, low, most, least)
    below, bound = i64(-1), i64(1) << 41
    while bound - below > 1:
        middle = (below + bound) >> 1
        most, least = multiply(u64(middle) * u64(n - 1), total)
        if most > high or (most == high and least >= low):
            bound = middle
        else:
            below = middle
    return bound
