"""Triton kernels of the common steps: greedy, temperature, top-k, top-p and min-p in any order, and the draw.

These filters keep a prefix of (key descending, id ascending), so a set is one pair (cut_key, cut_id): tokens above
that key, and tokens at it up to that id. `measure` and `weigh` read each row once, split over thread blocks; `select`
runs a row's steps on what can still be in: the few tokens above a bound that the block maxima give, listed in id
order. Every sum and comparison is on integers. Launch with `enable_fp_fusion=False`; the minima around products keep
the bits right even without it. SPEC.md rules S-N3, S-W, S-O1 ... S-O3, S-L1 ... S-L3.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.exact.keys import FLT_MAX
from tirage.exact.logs import LN2_31, OCTAVE
from tirage.exact.weights import COEFFICIENTS, Q_LIMIT
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P

_NEG_INF = tl.constexpr(-0x7F800000)
_LARGEST = tl.constexpr(float(FLT_MAX))
_LIMIT = tl.constexpr(int(Q_LIMIT))
_B0, _B1, _B2, _B3, _B4, _B5 = (tl.constexpr(float(b)) for b in COEFFICIENTS)
_LN2 = tl.constexpr(LN2_31)
_UNIT_LOG = tl.constexpr(40 * OCTAVE)
_NO_ID = tl.constexpr(0x7FFFFFFF)
FILTERS = (GREEDY, TEMPERATURE, TOP_K, TOP_P, MIN_P)
"""The filters that `select` runs: those that keep a prefix of (key descending, id ascending)."""
_GREEDY, _TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(int(op)) for op in FILTERS)
_OCTAVE = tl.constexpr(OCTAVE)


# --- one token ----------------------------------------------------------------------------------------------------


@triton.jit
def key_of(x):
    """int32 keys of float32 logits, any shape (S-N3)."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


@triton.jit
def value_of(key):
    """float32 logits of int32 keys, any shape."""
    return tl.where(key >= 0, key, (-key) | -2147483648).to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(x, m, c):
    """int32 exponents of float32 logits, any shape (S-W1)."""
    return tl.minimum((m - x) * c, 343932928.0).to(tl.int32)


@triton.jit
def weight_of(q):
    """int64 weights of int32 exponents, any shape (S-W2)."""
    f = ((q & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    r = _B4 + tl.minimum(f * _B5, _LARGEST)
    r = _B3 + tl.minimum(r * f, _LARGEST)
    r = _B2 + tl.minimum(r * f, _LARGEST)
    r = _B1 + tl.minimum(r * f, _LARGEST)
    r = _B0 + tl.minimum(r * f, _LARGEST)
    w = (r.to(tl.int32, bitcast=True) - (q & -8388608)).to(tl.float32, bitcast=True)
    return tl.where(q < _LIMIT, w, 0.0).to(tl.int64)


@triton.jit
def log2_fixed(n):
    """log2 of an integer n >= 1 (uint64 scalar) in 2^-23, int64: 23 squarings of a 32-bit mantissa."""
    e = tl.full((), 0, tl.uint64)
    rest = n
    for shift in tl.static_range(5, -1, -1):  # pyright: ignore[reportGeneralTypeIssues]
        size = tl.full((), 1 << shift, tl.uint64)
        big = (rest >> size) > 0
        e = tl.where(big, e + size, e)
        rest = tl.where(big, rest >> size, rest)
    whole = tl.full((), 31, tl.uint64)
    z = tl.where(e <= whole, n << (whole - tl.minimum(e, whole)), n >> (tl.maximum(e, whole) - whole))
    out = tl.full((), 0, tl.uint64)
    for _ in range(23):
        z = (z * z) >> 31
        carry = z >> 32
        z = z >> carry
        out = (out << 1) | carry
    return ((e << 23) | out).to(tl.int64)


@triton.jit
def ln_of(log2):
    """Natural logarithm, float32, of a fixed-point base-2 logarithm (int64)."""
    return tl.minimum(((log2 * _LN2) >> 31).to(tl.float32) * 1.1920928955078125e-07, _LARGEST)


@triton.jit
def is_in(key, ids, cut_key, cut_id):
    """Whether tokens of these keys and ids, any shape, stand before or at the cut."""
    return (key > cut_key) | ((key == cut_key) & (ids <= cut_id))


# --- passes over a row, split over thread blocks -------------------------------------------------------------------


@triton.jit
def measure(x_ptr, high_ptr, low_ptr, size, blocks, BLOCK: tl.constexpr):
    """Largest and smallest key of each block of one row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x_ptr + row * size + ids, mask=ids < size, other=float("-inf")))
    tl.store(high_ptr + row * blocks + block, tl.max(key, 0))
    tl.store(low_ptr + row * blocks + block, tl.min(key, 0))


@triton.jit
def weigh(x_ptr, top_ptr, c_ptr, mass_ptr, count_ptr, size, blocks, BLOCK: tl.constexpr):
    """Weight of each block of one row, and how many of its tokens have any."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * size + ids, mask=ids < size, other=float("-inf"))
    w = weight_of(exponent_of(x, value_of(tl.load(top_ptr + row)), tl.load(c_ptr + row)))
    tl.store(mass_ptr + row * blocks + block, tl.sum(w, 0))
    tl.store(count_ptr + row * blocks + block, tl.sum((w > 0).to(tl.int32), 0))


# --- passes over the list of one row -------------------------------------------------------------------------------


@triton.jit
def compact(x_ptr, high_ptr, list_x, list_id, size, bound, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Number of tokens with key >= `bound`, listed in id order; blocks whose maximum is lower are not read."""
    n = tl.full((), 0, tl.int32)
    for start in range(0, size, TILE):
        ids = start + tl.arange(0, TILE)
        high = tl.load(high_ptr + ids // BLOCK, mask=ids < size, other=_NEG_INF)
        x = tl.load(x_ptr + ids, mask=(ids < size) & (high >= bound), other=float("-inf"))
        key = key_of(x)
        listed = (key >= bound) & (key > _NEG_INF)
        one = listed.to(tl.int32)
        at = n + tl.cumsum(one, 0) - one
        tl.store(list_x + at, x, mask=listed)
        tl.store(list_id + at, ids, mask=listed)
        n += tl.sum(one, 0)
    # The list is read back by other threads of this block.
    tl.debug_barrier()
    return n


@triton.jit
def list_count(list_x, list_id, n, bound, cut_key, cut_id, TILE: tl.constexpr):
    """How many tokens of the set have a key >= `bound`."""
    total = tl.full((), 0, tl.int32)
    for start in range(0, n, TILE):
        at = start + tl.arange(0, TILE)
        key = key_of(tl.load(list_x + at, mask=at < n, other=float("-inf")))
        ids = tl.load(list_id + at, mask=at < n, other=_NO_ID)
        total += tl.sum((is_in(key, ids, cut_key, cut_id) & (key >= bound)).to(tl.int32), 0)
    return total


@triton.jit
def list_mass(list_x, list_id, n, bound, cut_key, cut_id, m, c, TILE: tl.constexpr):
    """Weight of the tokens of the set that have a key >= `bound`."""
    total = tl.full((), 0, tl.int64)
    for start in range(0, n, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(list_x + at, mask=at < n, other=float("-inf"))
        ids = tl.load(list_id + at, mask=at < n, other=_NO_ID)
        key = key_of(x)
        kept = is_in(key, ids, cut_key, cut_id) & (key >= bound)
        total += tl.sum(tl.where(kept, weight_of(exponent_of(x, m, c)), 0), 0)
    return total


@triton.jit
def nth_tie(list_x, list_id, n, key_wanted, wanted, cut_key, cut_id, TILE: tl.constexpr):
    """Id of the `wanted`-th token of the set, counted from 1, whose key is `key_wanted`."""
    found = tl.full((), -1, tl.int32)
    seen = tl.full((), 0, tl.int64)
    for start in range(0, n, TILE):
        at = start + tl.arange(0, TILE)
        key = key_of(tl.load(list_x + at, mask=at < n, other=float("-inf")))
        ids = tl.load(list_id + at, mask=at < n, other=_NO_ID)
        tie = ((key == key_wanted) & is_in(key, ids, cut_key, cut_id)).to(tl.int32)
        rank = seen + tl.cumsum(tie, 0)
        found = tl.maximum(found, tl.max(tl.where((tie > 0) & (rank == wanted), ids, -1), 0))
        seen += tl.sum(tie, 0)
    return found


@triton.jit
def lowest_key(limit, m, c, high):
    """The least key whose exponent is at most `limit`: exponents fall as keys rise, so no token has to be read."""
    low = tl.full((), _NEG_INF, tl.int64)
    top = high.to(tl.int64)
    while low + 1 < top:
        middle = (low + top) >> 1
        inside = exponent_of(value_of(middle.to(tl.int32)), m, c) <= limit
        top = tl.where(inside, middle, top)
        low = tl.where(inside, low, middle)
    return top.to(tl.int32)


@triton.jit
def kth_maximum(high_ptr, blocks, k, high, PADDED: tl.constexpr):
    """The k-th largest block maximum, hence a lower bound of the k-th largest key; the lowest key when k > blocks."""
    at = tl.arange(0, PADDED)
    maxima = tl.load(high_ptr + at, mask=at < blocks, other=_NEG_INF)
    low = tl.full((), _NEG_INF, tl.int64)
    top = high.to(tl.int64) + 1
    while low + 1 < top:
        middle = (low + top) >> 1
        enough = tl.sum((maxima >= middle.to(tl.int32)).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        top = tl.where(enough, top, middle)
    return low.to(tl.int32)


# --- the steps of one row --------------------------------------------------------------------------------------------


@triton.jit
def target_of(share, total, rule):
    """The mass that a top-p prefix must reach: max(1, ceil(P * W / 2^32)); for `le` floor(P * W / 2^32) + 1."""
    p, w = share.to(tl.uint64), total.to(tl.uint64)
    low = p * w
    floor = ((tl.umulhi(p, w) << 32) | (low >> 32)).to(tl.int64)
    part = (low & 0xFFFFFFFF) > 0
    ceiling = tl.maximum(tl.where(part, floor + 1, floor), 1)
    return tl.where(rule == 1, floor + 1, ceiling)


@triton.jit
def cut_top_k(list_x, list_id, n, k, ties, bound, high, cut_key, cut_id, TILE: tl.constexpr):
    """The pair (cut_key, cut_id) after top-k over a list that holds every token at or above `bound`."""
    if list_count(list_x, list_id, n, _NEG_INF, cut_key, cut_id, TILE) >= k:
        low = bound.to(tl.int64)
        top = high.to(tl.int64) + 1
        while low + 1 < top:
            middle = (low + top) >> 1
            enough = list_count(list_x, list_id, n, middle.to(tl.int32), cut_key, cut_id, TILE) >= k
            low = tl.where(enough, middle, low)
            top = tl.where(enough, top, middle)
        last = low.to(tl.int32)
        old_id = tl.where(last == cut_key, cut_id, _NO_ID)
        above = list_count(list_x, list_id, n, last + 1, cut_key, cut_id, TILE)
        nth = nth_tie(list_x, list_id, n, last, k - above, cut_key, cut_id, TILE)
        cut_id = tl.where(ties > 0, old_id, nth)
        cut_key = last
    return cut_key, cut_id


@triton.jit
def cut_top_p(list_x, list_id, n, target, rule, ties, bound, high, cut_key, cut_id, m, c, TILE: tl.constexpr):
    """(cut_key, cut_id, trimmed id, its weight) after top-p, when the set's mass reaches `target` at `bound`."""
    low = bound.to(tl.int64)
    top = high.to(tl.int64) + 1
    while low + 1 < top:
        middle = (low + top) >> 1
        enough = list_mass(list_x, list_id, n, middle.to(tl.int32), cut_key, cut_id, m, c, TILE) >= target
        low = tl.where(enough, middle, low)
        top = tl.where(enough, top, middle)
    last = low.to(tl.int32)
    above = list_mass(list_x, list_id, n, last + 1, cut_key, cut_id, m, c, TILE)
    each = weight_of(exponent_of(value_of(last), m, c))
    needed = (target - above + each - 1) // tl.maximum(each, 1)
    nth = nth_tie(list_x, list_id, n, last, needed, cut_key, cut_id, TILE)
    old_id = tl.where(last == cut_key, cut_id, _NO_ID)
    trimmed = tl.where(rule == 2, nth, -1)
    left = target - above - (needed - 1) * each
    return last, tl.where(ties > 0, old_id, nth), trimmed, left


@triton.jit
def mass_bound(x_ptr, high_ptr, size, target, m, c, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """A key at or above which a whole row has at least the mass `target`, tried 4, 10 and 22 octaves down.

    Any bound with enough mass gives the same cut, so the division may round as it likes.
    """
    bound = tl.full((), _NEG_INF + 1, tl.int32)
    found = tl.full((), 0, tl.int32)
    octaves = tl.full((), 4, tl.int32)
    while (found == 0) & (octaves < 40):
        tried = tl.maximum(key_of(m - (octaves * _OCTAVE).to(tl.float32) / c), _NEG_INF + 1)
        total = tl.full((), 0, tl.int64)
        for start in range(0, size, TILE):
            ids = start + tl.arange(0, TILE)
            high = tl.load(high_ptr + ids // BLOCK, mask=ids < size, other=_NEG_INF)
            x = tl.load(x_ptr + ids, mask=(ids < size) & (high >= tried), other=float("-inf"))
            total += tl.sum(tl.where(key_of(x) >= tried, weight_of(exponent_of(x, m, c)), 0), 0)
        found = tl.where(total >= target, 1, 0)
        bound = tl.where(found > 0, tried, bound)
        octaves = octaves * 2 + 2
    return bound


@triton.jit
def uniform(seed, step, sample):
    """64 random bits of the draw's Philox block, as uint64."""
    zero = tl.full((), 0, tl.uint32)
    a, b, _, _ = tl.philox(seed, step.to(tl.uint32), sample.to(tl.uint32), zero, zero)
    return (a.to(tl.uint64) << 32) | b.to(tl.uint64)


@triton.jit
def first_maximum(x_ptr, high_ptr, size, blocks, high, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """Lowest id among the tokens of the largest key."""
    at = tl.arange(0, PADDED)
    maxima = tl.load(high_ptr + at, mask=at < blocks, other=_NEG_INF)
    block = tl.min(tl.where(maxima == high, at, _NO_ID), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf")))
    return tl.min(tl.where(key == high, ids, _NO_ID), 0)


@triton.jit
def pick_whole(x_ptr, mass_ptr, size, blocks, r, m, c, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """The token of a row without filters: its block by the blocks' masses, then the place in that block."""
    at = tl.arange(0, PADDED)
    reached = tl.cumsum(tl.load(mass_ptr + at, mask=at < blocks, other=0), 0)
    passed = reached <= r
    block = tl.sum(passed.to(tl.int32), 0)
    before = tl.max(tl.where(passed, reached, 0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    w = weight_of(exponent_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf")), m, c))
    return block * BLOCK + tl.sum((tl.cumsum(w, 0) + before <= r).to(tl.int32), 0)


@triton.jit
def pick_listed(list_x, list_id, n, r, cut_key, cut_id, m, c, trimmed, left, TILE: tl.constexpr):
    """(token, tokens with weight): the first listed token whose running sum exceeds `r`, and the support."""
    token = tl.full((), _NO_ID, tl.int32)
    before = tl.full((), 0, tl.int64)
    support = tl.full((), 0, tl.int32)
    for start in range(0, n, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(list_x + at, mask=at < n, other=float("-inf"))
        ids = tl.load(list_id + at, mask=at < n, other=_NO_ID)
        kept = is_in(key_of(x), ids, cut_key, cut_id)
        w = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
        w = tl.where(kept & (ids == trimmed), left, w)
        reached = before + tl.cumsum(w, 0)
        token = tl.minimum(token, tl.min(tl.where(reached > r, ids, _NO_ID), 0))
        before += tl.sum(w, 0)
        support += tl.sum((w > 0).to(tl.int32), 0)
    return token, support


@triton.jit
def logprob_of(x, m, inverse_t, total):
    """ln of a token's probability when the set weighs `total`."""
    distance = tl.minimum((m - x) * inverse_t, _LARGEST)
    return 0.0 - (distance + ln_of(log2_fixed(total.to(tl.uint64)) - _UNIT_LOG))


@triton.jit
def mass_of_set(
    x_ptr,
    high_ptr,
    list_x,
    list_id,
    size,
    n,
    whole,
    fresh,
    cut_key,
    cut_id,
    m,
    c,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """(tokens listed, mass of the set): of the whole row while it is `fresh` and uncut, else of the list."""
    total = whole
    if (cut_key > _NEG_INF) | (fresh == 0):
        if n < 0:
            n = compact(x_ptr, high_ptr, list_x, list_id, size, cut_key, BLOCK, TILE)
        total = list_mass(list_x, list_id, n, _NEG_INF, cut_key, cut_id, m, c, TILE)
    return n, total


@triton.jit
def draw_listed(x_ptr, list_x, list_id, n, total, u, cut_key, cut_id, m, c, trimmed, left, TILE: tl.constexpr):
    """(token, support, mass) of a row whose set is listed; a truncated top-p has cut one weight to `left`."""
    if trimmed >= 0:
        total = total - weight_of(exponent_of(tl.load(x_ptr + trimmed), m, c)) + left
    r = tl.umulhi(u, total.to(tl.uint64)).to(tl.int64)
    token, support = pick_listed(list_x, list_id, n, r, cut_key, cut_id, m, c, trimmed, left, TILE)
    return token, support, total


@triton.jit
def draw_whole(x_ptr, mass_ptr, count_ptr, size, blocks, whole, u, m, c, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """(token, support, mass) of a row from which nothing was filtered."""
    at = tl.arange(0, PADDED)
    support = tl.sum(tl.load(count_ptr + at, mask=at < blocks, other=0), 0)
    r = tl.umulhi(u, whole.to(tl.uint64)).to(tl.int64)
    return pick_whole(x_ptr, mass_ptr, size, blocks, r, m, c, BLOCK, PADDED), support, whole


# fmt: off
@triton.jit
def select(
    x_ptr, high_ptr, mass_ptr, count_ptr, list_x, list_id, program_ptr, status_ptr, top_ptr, c_ptr,
    seed_ptr, step_ptr, sample_ptr, token_ptr, logprob_ptr, support_ptr, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """Run the steps of one row and draw: token, logprob and support; a row whose status is not 0 is left alone."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(status_ptr + row) == 0:
        token, lp, support = draw_row(
            x_ptr + row * size, high_ptr + row * blocks, mass_ptr + row * blocks, count_ptr + row * blocks,
            list_x + row * size, list_id + row * size, program_ptr + row * steps * 6,
            tl.load(top_ptr + row), tl.load(c_ptr + row),
            uniform(tl.load(seed_ptr + row), tl.load(step_ptr + row), tl.load(sample_ptr + row)),
            size, blocks, steps, BLOCK, PADDED, TILE,
        )
        tl.store(token_ptr + row, token.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
        tl.store(logprob_ptr + row, lp)
        tl.store(support_ptr + row, support.to(tl.int64))


@triton.jit
def draw_row(
    x_ptr, high_ptr, mass_ptr, count_ptr, list_x, list_id, program_ptr, high, first_c, u, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, logprob, support) of one row. The list is made when first needed (n < 0 until then)."""
    m, c = value_of(high), first_c
    inverse_t = tl.full((), 1.0, tl.float32)
    at = tl.arange(0, PADDED)
    whole = tl.sum(tl.load(mass_ptr + at, mask=at < blocks, other=0), 0)
    base = whole
    fresh, greedy = tl.full((), 1, tl.int32), tl.full((), 0, tl.int32)
    cut_key, cut_id = tl.full((), _NEG_INF, tl.int32), tl.full((), -1, tl.int32)
    trimmed, left = tl.full((), -1, tl.int32), tl.full((), 0, tl.int64)
    n = tl.full((), -1, tl.int32)
    for s in range(steps):
        op = tl.load(program_ptr + s * 6)
        a, b = tl.load(program_ptr + s * 6 + 1), tl.load(program_ptr + s * 6 + 2)
        if op == _GREEDY:
            greedy = tl.full((), 1, tl.int32)
        if op == _TEMPERATURE:
            c = a.to(tl.int32).to(tl.float32, bitcast=True)
            inverse_t = b.to(tl.int32).to(tl.float32, bitcast=True)
            fresh = (c == first_c).to(tl.int32)
            n, base = mass_of_set(
                x_ptr, high_ptr, list_x, list_id, size, n, whole, fresh, cut_key, cut_id, m, c, BLOCK, TILE
            )
        if (op == _MIN_P) & (a < _LIMIT):
            lowest = lowest_key(a.to(tl.int32), m, c, high)
            cut_id = tl.where(lowest > cut_key, _NO_ID, cut_id)
            cut_key = tl.maximum(cut_key, lowest)
        if op == _TOP_K:
            bound = tl.maximum(cut_key, _NEG_INF + 1)
            if n < 0:
                bound = tl.maximum(bound, kth_maximum(high_ptr, blocks, a, high, PADDED))
                n = compact(x_ptr, high_ptr, list_x, list_id, size, bound, BLOCK, TILE)
            cut_key, cut_id = cut_top_k(list_x, list_id, n, a, b, bound, high, cut_key, cut_id, TILE)
        if op == _TOP_P:
            n, total = mass_of_set(
                x_ptr, high_ptr, list_x, list_id, size, n, whole, fresh, cut_key, cut_id, m, c, BLOCK, TILE
            )
            joint = tl.load(program_ptr + s * 6 + 4)
            target = target_of(a, tl.where(joint > 0, base, total), b)
            if target <= total:
                bound = tl.maximum(cut_key, _NEG_INF + 1)
                if n < 0:
                    bound = mass_bound(x_ptr, high_ptr, size, target, m, c, BLOCK, TILE)
                    n = compact(x_ptr, high_ptr, list_x, list_id, size, bound, BLOCK, TILE)
                cut_key, cut_id, trimmed, left = cut_top_p(
                    list_x, list_id, n, target, b, tl.load(program_ptr + s * 6 + 3), bound, high,
                    cut_key, cut_id, m, c, TILE,
                )
    return finish(
        x_ptr, high_ptr, mass_ptr, count_ptr, list_x, list_id, n, whole, fresh, greedy, u, high, cut_key, cut_id,
        m, c, inverse_t, trimmed, left, size, blocks, BLOCK, PADDED, TILE,
    )


@triton.jit
def finish(
    x_ptr, high_ptr, mass_ptr, count_ptr, list_x, list_id, n, whole, fresh, greedy, u, high, cut_key, cut_id,
    m, c, inverse_t, trimmed, left, size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, logprob, support) of a row whose steps are done."""
    lp, support = tl.full((), 0.0, tl.float32), tl.full((), 1, tl.int32)
    if greedy > 0:
        token = first_maximum(x_ptr, high_ptr, size, blocks, high, BLOCK, PADDED)
    else:
        n, total = mass_of_set(
            x_ptr, high_ptr, list_x, list_id, size, n, whole, fresh, cut_key, cut_id, m, c, BLOCK, TILE
        )
        if n >= 0:
            token, support, total = draw_listed(
                x_ptr, list_x, list_id, n, total, u, cut_key, cut_id, m, c, trimmed, left, TILE
            )
        else:
            token, support, total = draw_whole(
                x_ptr, mass_ptr, count_ptr, size, blocks, whole, u, m, c, BLOCK, PADDED
            )
        lp = logprob_of(tl.load(x_ptr + token), m, inverse_t, total)
        if (trimmed >= 0) & (token == trimmed):
            lp = ln_of(log2_fixed(left.to(tl.uint64)) - log2_fixed(total.to(tl.uint64))) + 0.0
    return token, lp, support
# fmt: on
