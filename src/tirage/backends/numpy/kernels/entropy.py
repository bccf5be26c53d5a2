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
    log2_fixed,
    multiply,
    once,
    rounded_up,
    shifted,
    subtract,
    u32,
    u64,
    value_of,
    weight,
)
from tirage.backends.numpy.kernels.filters import W_AT_LEAST, lowest_key, sort_list, weigh_list
from tirage.backends.numpy.kernels.passes import crossing, list_window
from tirage.backends.numpy.kernels.state import set_high, set_low

_ONE32 = u64(1) << u64(32)


@kernel
def typical(s, work, p, exceed):
    """Keep the tokens whose q is nearest to the mean q, ties all, until they hold the mass."""
    for i in range(s.n):
        q = i64(exponent(value_of(work.keys[i]), s.m, s.c))
        work.order[i] = u32(abs(q - s.mean))
    if exceed:
        target = shifted(u64(p), i64(32), s.total)[0] + u64(1)
    else:
        target = max(rounded_up(u64(p), i64(32), s.total), u64(1))
    widest, _ = crossing(work.order, work.mass, s.n, u64(0), target, work.table)
    _keep_order_up_to(s, work, widest)


@once
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
        s.loose = 0


@kernel
def top_n_sigma(s, work, e, shift):
    """Keep x >= largest - n * standard deviation, measured in fixed point relative to the widest distance."""
    top = value_of(s.high_key)
    widest = f32(0)
    for i in range(s.n):
        widest = max(widest, _distance(top, work.keys[i]))
    if widest == f32(0):
        return
    unit = _power_of_two(29 - _binary_exponent(widest))
    s1, high, low = u64(0), u64(0), u64(0)
    for i in range(s.n):
        v = u64(i64(f64(_distance(top, work.keys[i])) * unit))
        square = v * v
        s1 += v
        high += square >> u64(32)
        low += square & u64(0xFFFFFFFF)
    high, low = add(high >> u64(32), high << u64(32), u64(0), low)
    limit = shifted(u64(e), shift + 1, _root(_variance(u64(s.n), s1, high, low) << u64(2)))[0]
    bound = s.high_key
    for i in range(s.n):
        v = u64(i64(f64(_distance(top, work.keys[i])) * unit))
        if v <= limit:
            bound = min(bound, work.keys[i])
    set_low(s, bound, MAX_KEY)


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
    """Set T between T min and T max by (H / H max) ** exponent, entropies at T = 1 over the list, in integers."""
    entropy = s.mean + log2_fixed(s.entropy_mass) - UNIT_LOG
    most = log2_fixed(u64(s.n))
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
def xtc(x, s, work, e, shift, strict):
    """Drop every token at or above the threshold but the last of them."""
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
        set_high(s, last, token)
