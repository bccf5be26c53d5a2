"""The rarer filters: those that judge by entropy, spread or the whole head of the distribution. Rules S-O4 ... S-O9."""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.kernels.bits import (
    LIMIT,
    MAX_KEY,
    NEG_INF,
    UNIT_LOG,
    add,
    at_most_big,
    divide,
    exponent,
    f32,
    f64,
    float_of,
    i32,
    i64,
    inline,
    kernel,
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
from tirage.backends.numpy.kernels.filters import (
    W_AT_LEAST,
    compact,
    count,
    cut_below,
    lowest_key,
    moment,
    sort_list,
    top_k,
    weigh,
)
from tirage.backends.numpy.kernels.passes import crossing, list_window
from tirage.backends.numpy.kernels.state import UNIT, set_high, set_low, shrink

_ONE32 = u64(1) << u64(32)
_TOP_H_TOKENS = 100


@kernel
def typical(x, s, work, p, exceed):
    """Keep the tokens whose q is nearest to the mean q, ties all, until they hold the mass."""
    mean, total = moment(x, s, work, s.m, s.c)
    compact(x, s, work)
    weigh(x, s, work)
    for i in range(s.n):
        q = i64(exponent(value_of(work.keys[i]), s.m, s.c))
        work.order[i] = u32(abs(q - mean))
    if exceed:
        target = shifted(u64(p), i64(32), total)[0] + u64(1)
    else:
        target = max(rounded_up(u64(p), i64(32), total), u64(1))
    widest, _ = crossing(work.order, work.mass, s.n, u64(0), target, work.table)
    _keep_order_up_to(s, work, widest)


@kernel
def _keep_order_up_to(s, work, widest):
    """Keep the listed tokens whose `order` is at most `widest`; they are neighbours in key order."""
    n = i64(0)
    high, high_id, low = NEG_INF, i32(0), MAX_KEY
    for i in range(s.n):
        if work.order[i] > widest:
            continue
        k, t = work.keys[i], work.ids[i]
        work.keys[n], work.ids[n] = k, t
        n += 1
        if k > high:
            high, high_id = k, t
        low = min(low, k)
    changed = n < s.n
    s.n = n
    if changed:
        if high < s.high_key:
            set_high(s, high, high_id)
        set_low(s, low, MAX_KEY)


@kernel
def top_n_sigma(x, s, work, e, shift):
    """Keep x >= largest - n * standard deviation, measured in fixed point relative to the widest distance."""
    compact(x, s, work)
    top = value_of(s.high_key)
    widest = f32(0)
    for i in range(s.n):
        widest = max(widest, at_most_big(f32(top - value_of(work.keys[i]))))
    if widest == f32(0):
        return
    unit = _power_of_two(29 - _binary_exponent(widest))
    s1, high, low = u64(0), u64(0), u64(0)
    for i in range(s.n):
        v = u64(i64(f64(at_most_big(f32(top - value_of(work.keys[i])))) * unit))
        square = v * v
        s1 += v
        high += square >> u64(32)
        low += square & u64(0xFFFFFFFF)
    high, low = add(high >> u64(32), high << u64(32), u64(0), low)
    limit = shifted(u64(e), shift + 1, _root(_variance(u64(s.n), s1, high, low) << u64(2)))[0]
    bound = s.high_key
    for i in range(s.n):
        v = u64(i64(f64(at_most_big(f32(top - value_of(work.keys[i])))) * unit))
        if v <= limit:
            bound = min(bound, work.keys[i])
    cut_below(x, s, work, bound)


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
def dynamic_temperature(x, s, work, c, inverse_t, low, e, shift):
    """Set T between T min and T max by the entropy of the window, in integers."""
    fraction = _entropy_fraction(x, s, work, e, shift)
    rest, _ = shifted(fraction, i64(32), _ONE32 - u64(low))
    t = u64(low) + rest
    r = f32(f32((u64(1) << u64(62)) // max(t, u64(512))) * f32(2.0**-30))
    s.c = at_most_big(f32(float_of(i32(c)) * r))
    s.inverse_t = at_most_big(f32(float_of(i32(inverse_t)) * r))
    s.weighed = 0


@inline
def _entropy_fraction(x, s, work, e, shift):
    """(H / H max) ** exponent in units of 2^-32, entropies at T = 1 over the window."""
    mean, total = moment(x, s, work, s.m, UNIT)
    entropy = mean + log2_fixed(total) - UNIT_LOG
    most = log2_fixed(u64(count(x, s, work, NEG_INF)))
    if entropy <= 0 or most <= 0:
        return u64(0)
    octaves = max(log2_fixed(u64(most)) - log2_fixed(u64(entropy)), i64(0))
    power = shifted(u64(e), shift, u64(octaves))[0]
    return weight(i32(min(power, u64(LIMIT)))) >> u64(8)


@kernel
def top_h(x, s, work, h):
    """Among the first 100 tokens, keep the prefix that holds the share of their entropy."""
    top_k(x, s, work, i64(_TOP_H_TOKENS), False)
    compact(x, s, work)
    total = weigh(x, s, work)
    log_mass = log2_fixed(total) - UNIT_LOG
    sort_list(s, work)
    s.weighed = 0
    weigh(x, s, work)
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
    shrink(s, work)


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
def xtc(x, s, work, e, shift, strict):
    """Drop every token at or above the threshold but the last of them."""
    total = weigh(x, s, work)
    if strict:
        share = shifted(u64(e), shift, total)[0] + u64(1)
    else:
        share = rounded_up(u64(e), shift, total)
    share = max(share, u64(1))
    if weight(exponent(value_of(s.high_key), s.m, s.c)) < share:
        return
    bound = lowest_key(W_AT_LEAST, i64(share), s.m, s.c, NEG_INF, s.high_key)
    low_id = MAX_KEY
    if bound <= s.low_key:
        bound, low_id = s.low_key, s.low_id
    last, token, above = _last_above(x, s, work, bound, low_id)
    if above >= 2:
        set_high(s, last, token)
        s.weighed = 0
        if s.compact:
            shrink(s, work)


@kernel
def _last_above(x, s, work, bound, low_id):
    """(key, id, how many) of the window's tokens down to `bound`: the last of them and their number."""
    n = s.n
    if not s.compact:
        n = list_window(x, work.block_max, bound, low_id, s.high_key, s.high_id, work.keys, work.ids)
    last, token, above = MAX_KEY, i32(0), i64(0)
    for i in range(n):
        k = work.keys[i]
        if k < bound:
            continue
        above += 1
        if k <= last:
            last, token = k, work.ids[i]
    return last, token, above
