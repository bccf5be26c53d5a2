"""XTC as the last filter: the first tokens that it removes, and the law that its coin mixes (SPEC.md S-O8, S-W6, S-L4).

What it removes stands before a head (key, id) of the set. Both sets are weighed, as a logprob needs them. Weights count
from the largest logit of the set that the last temperature sees (S-W1): behind XTC that is another one for each set.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    exponent_of,
    is_in,
    key_of,
    uniform,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.exact.thresholds import is_xtc, least_kept, share_of
from tirage.backends.torch.kernels.layout import (
    ABOVE_FIRST,
    HEAD_ID,
    HEAD_KEY,
    HIGH,
    LEFT_HIGH,
    OPEN,
    PROGRAM,
    SAMPLE,
    SEED,
    STEP,
)  # fmt: skip
from tirage.backends.torch.kernels.open_range.lists import nth_tie, open_count, open_keys
from tirage.backends.torch.kernels.open_range.sparing import count_from_spared, is_before, is_new, with_spared
from tirage.exact.philox import Domain
from tirage.operators.xtc import XTC_TIES_KEPT

_TIES_KEPT = tl.constexpr(int(XTC_TIES_KEPT))
_XTC_DOMAIN = tl.constexpr(int(Domain.XTC))
_ALWAYS = tl.constexpr(1 << 32)


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
@triton.jit(noinline=True)
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
            # It has another before it; a shard that does not hold it may find the first of its block.
            last_id = tl.maximum(last_id, 1)
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
    """(masses of the blocks, how many tokens are removed that have a weight) once `each` int64 [PADDED] is without what
    XTC removes.

    The masses `each` of the blocks lie in the plane `kind`, unless the range has one key only.
    """
    PART: tl.constexpr = TILE // 4
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
            for part in range(0, TILE, PART):
                key, ids, x = open_keys(x_ptr, list_ptr, start + part, n, PART)
                goes = is_in(key, ids, cut_key, cut_id) & is_before(key, ids, head_key, head_id)
                w = tl.where(goes, weight_of(exponent_of(x, m, c)), 0)
                tl.atomic_add(mass_ptr + ids // BLOCK * 4 + kind, -w, mask=goes, sem="relaxed")
                # Behind a temperature what is removed may weigh nothing.
                gone += tl.sum((w > 0).to(tl.int32), 0)
        tl.debug_barrier()
        each = tl.load(mass_ptr + at * 4 + kind, mask=at < blocks, other=0, cache_modifier=".cg")
    return each, gone


@triton.jit
def weighed_anew(
    x_ptr, mass_ptr, list_ptr, row_ptr, n, cut_key, cut_id, old_m, c, is_always, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(masses of the blocks, a number of tokens) of what XTC leaves, whose weights count from its own largest logit.

    The number is how many of its tokens have a weight or, unless XTC is always on, how many that had none before. A set
    that was cut is listed; else the row is read again.
    """
    PART: tl.constexpr = BLOCK if BLOCK < TILE else TILE
    at, number = tl.arange(0, PADDED), tl.full((), 0, tl.int32)
    tl.store(mass_ptr + at * 4 + ABOVE_FIRST, (at * 0).to(tl.int64), mask=at < blocks)
    tl.debug_barrier()
    if cut_key > NEG_INF:
        for start in range(0, n, TILE):
            key, ids, x = open_keys(x_ptr, list_ptr, start, n, TILE)
            w = tl.where(is_in(key, ids, cut_key, cut_id), weight_left(x, ids, row_ptr, c, 0), 0)
            tl.atomic_add(mass_ptr + ids // BLOCK * 4 + ABOVE_FIRST, w, mask=w > 0, sem="relaxed")
            number += tl.sum(is_new(w, x, old_m, c, is_always).to(tl.int32), 0)
    else:
        for start in range(0, size, TILE):
            # Each part of a tile lies in one block.
            for part in range(0, TILE, PART):
                first = start + part
                ids = first + tl.arange(0, PART)
                x = tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))
                w = weight_left(x, ids, row_ptr, c, 0)
                mass = tl.sum(w, 0)
                tl.atomic_add(mass_ptr + first // BLOCK * 4 + ABOVE_FIRST, mass, mask=first < size, sem="relaxed")
                number += tl.sum(is_new(w, x, old_m, c, is_always).to(tl.int32), 0)
    tl.debug_barrier()
    each = tl.load(mass_ptr + at * 4 + ABOVE_FIRST, mask=at < blocks, other=0, cache_modifier=".cg")
    return each, number


@triton.jit
def weight_left(x, ids, row_ptr, c, spared):
    """The weights of tokens, any shape, in what XTC leaves: 0 for what it removes, but not of those that are `spared`.
    """
    head_key = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")
    head_id = tl.load(row_ptr + HEAD_ID, cache_modifier=".cg")
    m = value_of(tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg"))
    # Those above are removed.
    w = weight_of(exponent_of(tl.minimum(x, m), m, c))
    return tl.where(is_before(key_of(x), ids, head_key, head_id) & (spared == 0), 0, w)


@triton.jit
def left_by_xtc(
    x_ptr, mass_ptr, count_ptr, list_ptr, row_ptr, spared_ptr, spares, each, support, n, ties, kind, lowest, cut_key,
    cut_id, m, c, share, size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(masses of the blocks of what XTC leaves of a set, how many tokens either may give) from the same of the set."""
    is_always = share == _ALWAYS
    count_from_spared(x_ptr, row_ptr, spared_ptr, spares, cut_key, cut_id, size, TILE)
    if tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg") < tl.load(row_ptr + HIGH):
        others, number = weighed_anew(
            x_ptr, mass_ptr, list_ptr, row_ptr, n, cut_key, cut_id, m, c, is_always, size, blocks, BLOCK, PADDED, TILE
        )
        support = tl.where(is_always, number, support + number)
    else:
        others, gone = without_head(
            x_ptr, mass_ptr, count_ptr, list_ptr, row_ptr, each, n, ties, kind, lowest, cut_key, cut_id, m, c, blocks,
            BLOCK, PADDED, TILE,
        )
        support -= tl.where(is_always, gone, 0)
    others, number = with_spared(
        x_ptr, mass_ptr, row_ptr, spared_ptr, spares, others, cut_key, cut_id, m, c, is_always, size, blocks, BLOCK,
        PADDED, TILE,
    )
    return others, support + number
# fmt: on


@triton.jit
def count_from_head(row_ptr):
    """Write that the weights of what XTC leaves count from its own largest logit, as behind a temperature."""
    high, head = tl.load(row_ptr + HIGH), tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")
    tl.store(row_ptr + LEFT_HIGH, tl.minimum(high, head))
    tl.debug_barrier()
