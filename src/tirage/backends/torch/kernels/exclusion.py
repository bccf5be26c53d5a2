"""XTC as the last filter: the first tokens that it removes, and the law that its coin mixes (SPEC.md S-O8, S-W6, S-L4).

What it removes stands before a head (key, id) of the set. Both sets are weighed, as a logprob needs them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.layout import HEAD_ID, HEAD_KEY, HIGH, OPEN, PROGRAM, SAMPLE, SEED, STEP
from tirage.backends.torch.kernels.lists import nth_tie, open_count, open_keys
from tirage.backends.torch.kernels.rule import (
    exponent_of,
    is_in,
    ln_of,
    log2_fixed,
    uniform,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.thresholds import is_xtc, least_kept, share_of, sum_128
from tirage.exact.philox import Domain
from tirage.operators.xtc import XTC_TIES_KEPT

_TIES_KEPT = tl.constexpr(int(XTC_TIES_KEPT))
_XTC_DOMAIN = tl.constexpr(int(Domain.XTC))
_POINT = tl.constexpr(63)
_POINT_LOG = tl.constexpr(63 << 23)


@triton.jit
def is_before(key, ids, head_key, head_id):
    """Whether tokens of these keys and ids, any shape, stand before the head."""
    return (key > head_key) | ((key == head_key) & (ids < head_id))


@triton.jit
def share_of_xtc(meta_ptr, steps):
    """How often the XTC of a row is on, in units of 2^-32, int64; -1 where it has none."""
    share = tl.full((), -1, tl.int64)
    for s in range(steps):
        if is_xtc(tl.load(meta_ptr + PROGRAM + s * 6)):
            share = tl.load(meta_ptr + PROGRAM + s * 6 + 1)
    return share


@triton.jit
def is_on(meta_ptr, share):
    """Whether the coin of a row's XTC says that it is on."""
    u = uniform(tl.load(meta_ptr + SEED), tl.load(meta_ptr + STEP), tl.load(meta_ptr + SAMPLE), _XTC_DOMAIN)
    return (u >> 32).to(tl.int64) < share


# fmt: off
@triton.jit
def find_head(
    x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, row_ptr, total, lowest, cut_key, cut_id, m, c, size,
    blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """Write the head: the last token of those that reach the threshold, where there are several.

    The histogram has left all of them open, unless they are too few.
    """
    least, high = share_of(op, step_ptr, total), tl.load(row_ptr + HIGH)
    key = least_kept(op, tl.full((), -1, tl.int64), least, m, c, high, 0)
    number = open_count(x_ptr, list_ptr, n, ties, key, cut_key, cut_id, TILE)
    number = tl.where((ties >= 0) & (key > lowest), 0, number)
    if (number > 1) & (weight_of(exponent_of(value_of(high), m, c)) >= least):
        last_key, last_id = lowest, tl.full((), -1, tl.int32)
        if ties >= 0:
            last_id = nth_tie(x_ptr, count_ptr, list_ptr, n, ties, lowest, ties, size, blocks, BLOCK, PADDED, TILE)
        else:
            last_key, last_id = last_reaching(x_ptr, list_ptr, n, key, cut_key, cut_id, high, TILE)
        tl.store(row_ptr + HEAD_KEY, last_key)
        # Before the id 0 there is none: with all ties kept, only greater keys go.
        tl.store(row_ptr + HEAD_ID, tl.where(op == _TIES_KEPT, 0, last_id))
        tl.debug_barrier()


@triton.jit
def last_reaching(x_ptr, list_ptr, n, least_key, cut_key, cut_id, high, TILE: tl.constexpr):
    """(key, id) of the last listed token of the set, in order, whose key is at least that."""
    last_key, last_id = high, tl.full((), -1, tl.int32)
    for start in range(0, n, TILE):
        key, ids, _ = open_keys(x_ptr, list_ptr, start, n, TILE)
        reaches = is_in(key, ids, cut_key, cut_id) & (key >= least_key)
        last_key = tl.minimum(last_key, tl.min(tl.where(reaches, key, high), 0))
    for start in range(0, n, TILE):
        key, ids, _ = open_keys(x_ptr, list_ptr, start, n, TILE)
        last = is_in(key, ids, cut_key, cut_id) & (key == last_key)
        last_id = tl.maximum(last_id, tl.max(tl.where(last, ids, -1), 0))
    return last_key, last_id


@triton.jit
def without_head(
    x_ptr, mass_ptr, count_ptr, list_ptr, row_ptr, each, n, ties, kind, lowest, cut_key, cut_id, m, c, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(masses of the blocks, how many tokens are removed) once `each` int64 [PADDED] is without what XTC removes.

    The masses `each` of the blocks lie in the plane `kind`, unless the range has one key only.
    """
    at = tl.arange(0, PADDED)
    head_key = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")
    head_id = tl.load(row_ptr + HEAD_ID, cache_modifier=".cg")
    gone = tl.full((), 0, tl.int32)
    if ties >= 0:
        if head_id > 0:
            single = weight_of(exponent_of(value_of(lowest), m, c))
            many = tl.load(count_ptr + at * 4 + OPEN, mask=at < blocks, other=0)
            kept = tl.minimum(tl.maximum(ties - (tl.cumsum(many, 0) - many), 0), many)
            each -= (kept - (at == head_id // BLOCK).to(tl.int32)).to(tl.int64) * single
            gone += ties - 1
    else:
        for start in range(0, n, TILE):
            key, ids, x = open_keys(x_ptr, list_ptr, start, n, TILE)
            goes = is_in(key, ids, cut_key, cut_id) & is_before(key, ids, head_key, head_id)
            w = tl.where(goes, weight_of(exponent_of(x, m, c)), 0)
            tl.atomic_add(mass_ptr + ids // BLOCK * 4 + kind, -w, mask=goes, sem="relaxed")
            gone += tl.sum(goes.to(tl.int32), 0)
        tl.debug_barrier()
        each = tl.load(mass_ptr + at * 4 + kind, mask=at < blocks, other=0, cache_modifier=".cg")
    return each, gone
# fmt: on


# --- the law of the mixture ------------------------------------------------------------------------------------------


@triton.jit
def point_of(w, mass):
    """floor(w * 2^63 / mass) of int64 w <= mass: uint64."""
    rest, by, found = w.to(tl.uint64), mass.to(tl.uint64), tl.full((), 0, tl.uint64)
    for _ in range(63):
        rest = rest << 1
        fits = rest >= by
        rest = tl.where(fits, rest - by, rest)
        found = (found << 1) | fits.to(tl.uint64)
    return tl.where(w == mass, tl.full((), 1, tl.uint64) << _POINT, found)


@triton.jit
def mixed_logprob(w, total, w_on, total_on, share):
    """ln of the probability of a token with these weights in sets of these masses, the second drawn with a share."""
    off, on = point_of(w, total), point_of(w_on, total_on)
    off_share, on_share = (tl.full((), 1 << 32, tl.int64) - share).to(tl.uint64), share.to(tl.uint64)
    high, low = sum_128(
        tl.umulhi(off, off_share), off * off_share, tl.umulhi(on, on_share), on * on_share
    )  # fmt: skip
    point = (high << 32) | (low >> 32)
    return ln_of(log2_fixed(tl.where(point > 0, point, 1)) - _POINT_LOG) + 0.0
