"""The steps of a row on its open range, and its draw: only the few tokens of that range are looked at one by one."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.layout import (
    ABOVE,
    ABOVE_FIRST,
    ABOVE_LAST,
    ABOVE_WEIGHTY,
    ALL_FIRST,
    ALL_LAST,
    FIRST_C,
    HIGH,
    IS_GREEDY,
    LAST_C,
    LOWEST,
    OPEN,
    PROGRAM,
    SAMPLE,
    SEED,
    STEP,
    TOP,
    VARYING,
    WEIGHTY,
    constant,
    sum_of,
)  # fmt: skip
from tirage.backends.torch.kernels.rule import (
    LIMIT,
    NEG_INF,
    NO_ID,
    exponent_of,
    is_in,
    key_of,
    ln_of,
    log2_fixed,
    logprob_of,
    lowest_key,
    target_of,
    uniform,
    value_of,
    weight_of,
)  # fmt: skip
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P

_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(int(op)) for op in (TEMPERATURE, TOP_K, TOP_P, MIN_P))


WAYS = tl.constexpr(16)
"""Parts into which a pass over a list that is longer than a tile divides the keys among which the cut lies."""


@triton.jit
def open_ids(list_ptr, start, n, TILE: tl.constexpr):
    """The ids [TILE] of a tile of the list, and beyond its end none."""
    at = start + tl.arange(0, TILE)
    return tl.load(list_ptr + at, mask=at < n, other=NO_ID)


@triton.jit
def open_keys(x_ptr, list_ptr, start, n, cut_key, cut_id, TILE: tl.constexpr):
    """(keys, ids) [TILE] of a tile of the list; beyond its end, and where no token of the set is, the key of -inf."""
    ids = open_ids(list_ptr, start, n, TILE)
    key = key_of(tl.load(x_ptr + ids, mask=ids < NO_ID, other=float("-inf")))
    return tl.where(is_in(key, ids, cut_key, cut_id), key, NEG_INF), ids


@triton.jit
def weights_at(key, counts, m, c):
    """The weights int64 of tokens with these keys, any shape, 1 each where it `counts`, and 0 at -inf."""
    w = tl.where(counts, 1, weight_of(exponent_of(value_of(key), m, c)))
    return tl.where(key > NEG_INF, w, 0)


@triton.jit
def open_sum(x_ptr, list_ptr, n, tile, ties, single, counts, cut_key, cut_id, m, c, TILE: tl.constexpr):
    """The weight or the number of the set's tokens in the range, of which `tile` are the first keys.

    Of a range of the one key `single` the list is empty, and `ties` is how many there are.
    """
    total = tl.maximum(ties, 0).to(tl.int64) * weights_at(single, counts, m, c)
    total += tl.sum(weights_at(tile, counts, m, c), 0)
    for start in range(TILE, n, TILE):
        key, _ = open_keys(x_ptr, list_ptr, start, n, cut_key, cut_id, TILE)
        total += tl.sum(weights_at(key, counts, m, c), 0)
    return total


@triton.jit
def last_key(
    x_ptr, list_ptr, n, tile, counts, beyond, target, lowest, top, cut_key, cut_id, m, c, TILE: tl.constexpr
):  # fmt: skip
    """(the largest key of the range down to which the set's weight or number reaches `target`, what lies above it).

    `beyond` is that of what lies above the range. One tile is searched in registers; a longer list is read once for
    each four bits of the answer.
    """
    low, end, more = lowest.to(tl.int64), top.to(tl.int64), beyond
    ways = tl.arange(0, WAYS)
    while (n > TILE) & (low + 1 < end):
        width = (end - low + WAYS - 1) // WAYS
        reached = ways.to(tl.int64) * 0 + beyond
        for start in range(0, n, TILE):
            key, _ = open_keys(x_ptr, list_ptr, start, n, cut_key, cut_id, TILE)
            w = weights_at(key, counts, m, c)
            for way in range(WAYS):
                part = tl.sum(tl.where(key >= low + width * way, w, 0), 0)
                reached += tl.where(ways == way, part, 0)
        passed = tl.sum(((reached >= target) | (ways == 0)).to(tl.int32), 0)
        next_end = low + width * passed
        more = tl.where(next_end < end, tl.sum(tl.where(ways == passed, reached, 0), 0), more)
        low, end = next_end - width, tl.minimum(next_end, end)
    w = weights_at(tile, counts, m, c)
    while low + 1 < end:
        middle = (low + end) >> 1
        here = beyond + tl.sum(tl.where(tile >= middle, w, 0), 0)
        enough = here >= target
        low, end = tl.where(enough, middle, low), tl.where(enough, end, middle)
        more = tl.where(enough, more, here)
    return low.to(tl.int32), more


@triton.jit
def ties_of(key, ids, wanted, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr):
    """How many tokens of a tile have the key `wanted`, in each block, int32 [PADDED]."""
    tie = key == wanted
    others = TILE - tl.sum(tie.to(tl.int32), 0)
    found = tl.histogram(tl.where(tie, ids // BLOCK, 0), PADDED)
    return found - tl.where(tl.arange(0, PADDED) == 0, others, 0)


@triton.jit
def nth_tie(
    x_ptr, count_ptr, list_ptr, n, tile, ties, wanted, nth, cut_key, cut_id, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Id of the `nth` token, counted from 1 and by id, whose key is `wanted`."""
    at = tl.arange(0, PADDED)
    each = tl.load(count_ptr + at * 4 + OPEN, mask=at < tl.where(ties < 0, 0, blocks), other=0)
    if ties < 0:
        each = ties_of(tile, open_ids(list_ptr, 0, n, TILE), wanted, BLOCK, PADDED, TILE)
        for start in range(TILE, n, TILE):
            key, ids = open_keys(x_ptr, list_ptr, start, n, cut_key, cut_id, TILE)
            each += ties_of(key, ids, wanted, BLOCK, PADDED, TILE)
    reached = tl.cumsum(each, 0).to(tl.int64)
    block = tl.sum((reached < nth).to(tl.int32), 0)
    seen = tl.max(tl.where(reached < nth, reached, 0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    tie = key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))) == wanted
    rank = seen + tl.cumsum(tie.to(tl.int32), 0)
    return tl.max(tl.where(tie & (rank == nth), ids, -1), 0)


# --- the steps of one row --------------------------------------------------------------------------------------------


@triton.jit
def first_maximum(x_ptr, high_ptr, size, blocks, high, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """Lowest id among the tokens of the largest key."""
    at = tl.arange(0, PADDED)
    maxima = tl.load(high_ptr + at, mask=at < blocks, other=NEG_INF)
    block = tl.min(tl.where(maxima == high, at, NO_ID), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf")))
    return tl.min(tl.where(key == high, ids, NO_ID), 0)


@triton.jit
def uniform_of(meta_ptr):
    """The uniform of a row's draw."""
    return uniform(tl.load(meta_ptr + SEED), tl.load(meta_ptr + STEP), tl.load(meta_ptr + SAMPLE))


@triton.jit
def masses_under(mass_ptr, is_first, blocks, PADDED: tl.constexpr):
    """(mass of the row, mass above its open range) under the first temperature, or under the last."""
    every, above = sum_of(mass_ptr, ALL_FIRST, blocks, PADDED), sum_of(mass_ptr, ABOVE_FIRST, blocks, PADDED)
    if is_first == 0:
        every, above = sum_of(mass_ptr, ALL_LAST, blocks, PADDED), sum_of(mass_ptr, ABOVE_LAST, blocks, PADDED)
    return every, above


# fmt: off
@triton.jit(do_not_specialize=VARYING)
def resolve(
    x_ptr, ends_ptr, mass_ptr, count_ptr, list_ptr, length_ptr, meta_ptr, row_ptr, status_ptr,
    token_ptr, logprob_ptr, support_ptr, columns, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """Run the steps of one row on its open range and draw: token, logprob and support."""
    row = tl.program_id(0).to(tl.int64)
    token, lp, support = tl.full((), -1, tl.int32), tl.full((), float("nan"), tl.float32), tl.full((), 0, tl.int32)
    meta_ptr += row * columns
    if tl.load(status_ptr + row) == 0:
        if tl.load(meta_ptr + IS_GREEDY) != 0:
            token = first_maximum(
                x_ptr + row * size, ends_ptr + row * blocks, size, blocks, tl.load(row_ptr + row * 4), BLOCK, PADDED
            )
            lp, support = tl.full((), 0.0, tl.float32), tl.full((), 1, tl.int32)
        else:
            token, lp, support = draw_row(
                x_ptr + row * size, mass_ptr + row * blocks * 4, count_ptr + row * blocks * 4, list_ptr + row * size,
                tl.load(length_ptr + row), meta_ptr, row_ptr + row * 4, size, blocks, steps, BLOCK, PADDED, TILE,
            )
    tl.store(token_ptr + row, token.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(logprob_ptr + row, lp)
    tl.store(support_ptr + row, support.to(tl.int64))


@triton.jit
def last_inverse(meta_ptr, steps):
    """1 / T of a row's last temperature, 1 where it has none."""
    inverse_t = tl.full((), 1.0, tl.float32)
    for s in range(steps):
        if tl.load(meta_ptr + PROGRAM + s * 6) == _TEMPERATURE:
            inverse_t = constant(meta_ptr, PROGRAM + s * 6 + 2)
    return inverse_t


@triton.jit
def draw_row(
    x_ptr, mass_ptr, count_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, logprob, support) of one row. `ties` is how many of the set have the range's only key, else -1."""
    high, lowest, top = tl.load(row_ptr + HIGH), tl.load(row_ptr + LOWEST), tl.load(row_ptr + TOP)
    first_c, last_c = constant(meta_ptr, FIRST_C), constant(meta_ptr, LAST_C)
    m, c = value_of(high), first_c
    is_plain = (lowest >= top) & (first_c == last_c)
    base = sum_of(mass_ptr, ALL_FIRST, blocks, PADDED)
    above, ties = base, tl.full((), -1, tl.int32)
    if is_plain == 0:
        above = sum_of(mass_ptr, ABOVE_FIRST, blocks, PADDED)
        if lowest + 1 == top:
            ties = sum_of(count_ptr, OPEN, blocks, PADDED)
    cut_key, cut_id, trimmed = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32), tl.full((), -1, tl.int32)
    left = tl.full((), 0, tl.int64)
    tile, _ = open_keys(x_ptr, list_ptr, 0, n, cut_key, cut_id, TILE)
    for s in range(steps):
        step_ptr = meta_ptr + PROGRAM + s * 6
        op, a, b = tl.load(step_ptr), tl.load(step_ptr + 1), tl.load(step_ptr + 2)
        if op == _TEMPERATURE:
            c = a.to(tl.int32).to(tl.float32, bitcast=True)
            if first_c != last_c:
                every, above = masses_under(mass_ptr, c == first_c, blocks, PADDED)
                base = tl.where(cut_key > NEG_INF, base, every)
            if cut_key > NEG_INF:
                base = above + open_sum(x_ptr, list_ptr, n, tile, ties, lowest, False, cut_key, cut_id, m, c, TILE)
        if (op == _MIN_P) & (a < LIMIT):
            key = lowest_key(a.to(tl.int32), m, c, high)
            cut_id = tl.where(key > cut_key, NO_ID, cut_id)
            cut_key = tl.maximum(cut_key, key)
            tile = tl.where(tile < key, NEG_INF, tile)
            ties = tl.where((ties >= 0) & (key > lowest), 0, ties)  # pyright: ignore[reportOperatorIssue]
        if ((op == _TOP_K) | (op == _TOP_P)) & (lowest < top):
            counts = op == _TOP_K
            beyond, total = above, base
            if counts:
                beyond = sum_of(count_ptr, ABOVE, blocks, PADDED).to(tl.int64)
            if counts | (cut_key > NEG_INF):
                total = beyond + open_sum(x_ptr, list_ptr, n, tile, ties, lowest, counts, cut_key, cut_id, m, c, TILE)
            joint = tl.load(step_ptr + 4)
            target = tl.where(counts, a, target_of(a, tl.where(joint > 0, base, total), b))
            all_ties = tl.where(counts, b, tl.load(step_ptr + 3)) > 0
            trims = (b == 2) & (op == _TOP_P)
            if target <= total:
                cut_key, cut_id, ties, nth, rest = cut(
                    x_ptr, count_ptr, list_ptr, n, tile, ties, counts, beyond, target, all_ties, lowest, top,
                    cut_key, cut_id, m, c, size, blocks, BLOCK, PADDED, TILE,
                )
                trimmed = tl.where(counts, trimmed, tl.where(trims, nth, -1))
                left = tl.where(trims, rest, left)
                tile = tl.where(is_in(tile, open_ids(list_ptr, 0, n, TILE), cut_key, cut_id), tile, NEG_INF)
    token, support, total = draw(
        x_ptr, mass_ptr, count_ptr, list_ptr, n, tile, ties, is_plain, uniform_of(meta_ptr), lowest,
        cut_key, cut_id, m, c, trimmed, left, size, blocks, BLOCK, PADDED, TILE,
    )
    lp = logprob_of(tl.load(x_ptr + token), m, last_inverse(meta_ptr, steps), total)
    part = tl.maximum(left, 1).to(tl.uint64)
    share = ln_of(log2_fixed(part) - log2_fixed(total.to(tl.uint64))) + 0.0  # pyright: ignore[reportAttributeAccessIssue]
    return token, tl.where((trimmed >= 0) & (token == trimmed), share, lp), support


@triton.jit
def cut(
    x_ptr, count_ptr, list_ptr, n, tile, ties, counts, beyond, target, all_ties, lowest, top, cut_key, cut_id, m, c,
    size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties, last id, what of its weight is needed) after top-k or top-p.

    `counts` says which; the set reaches `target`, and has `beyond` above the range.
    """
    last, more = last_key(
        x_ptr, list_ptr, n, tile, counts, beyond, target, lowest, top, cut_key, cut_id, m, c, TILE
    )
    each = tl.where(counts, 1, weight_of(exponent_of(value_of(last), m, c)))
    needed = (target - more + each - 1) // tl.maximum(each, 1)
    nth = nth_tie(
        x_ptr, count_ptr, list_ptr, n, tile, ties, last, needed, cut_key, cut_id, size, blocks, BLOCK, PADDED, TILE
    )
    old_id = tl.where(last == cut_key, cut_id, NO_ID)
    ties = tl.where((ties >= 0) & (all_ties == 0), needed.to(tl.int32), ties)
    return last, tl.where(all_ties, old_id, nth), ties, nth, target - more - (needed - 1) * each


@triton.jit
def add_to_blocks(mass_ptr, key, ids, m, c, trimmed, left, BLOCK: tl.constexpr):
    """Adds the weights of a tile's tokens to those of their blocks above the range; how many have any."""
    w = weights_at(key, False, m, c)
    w = tl.where((key > NEG_INF) & (ids == trimmed), left, w)
    tl.atomic_add(mass_ptr + ids // BLOCK * 4 + ABOVE_LAST, w, mask=w > 0, sem="relaxed")
    return tl.sum((w > 0).to(tl.int32), 0)


@triton.jit
def draw(
    x_ptr, mass_ptr, count_ptr, list_ptr, n, tile, ties, is_plain, u, lowest, cut_key, cut_id, m, c,
    trimmed, left, size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, support, mass): the block in which the running sum of weights passes the uniform, then its token."""
    at = tl.arange(0, PADDED)
    there = at < blocks
    kind = tl.where(is_plain, ALL_FIRST, tl.where(cut_key > NEG_INF, ABOVE_LAST, ALL_LAST))
    support = sum_of(count_ptr, WEIGHTY, blocks, PADDED)
    each = tl.load(mass_ptr + at * 4 + kind, mask=there, other=0)
    if (cut_key > NEG_INF) & (is_plain == 0):
        support = sum_of(count_ptr, ABOVE_WEIGHTY, blocks, PADDED)
        if ties >= 0:
            single = weight_of(exponent_of(value_of(lowest), m, c))
            many = tl.load(count_ptr + at * 4 + OPEN, mask=there, other=0)
            kept = tl.minimum(tl.maximum(ties - (tl.cumsum(many, 0) - many), 0), many)
            each += kept.to(tl.int64) * single
            support += tl.where(single > 0, ties, 0)
            is_cut = (trimmed >= 0) & is_in(lowest, trimmed, cut_key, cut_id)
            each += tl.where(is_cut & (at == trimmed // BLOCK), left - single, 0)
        else:
            ids = open_ids(list_ptr, 0, n, TILE)
            support += add_to_blocks(mass_ptr, tile, ids, m, c, trimmed, left, BLOCK)
            for start in range(TILE, n, TILE):
                key, ids = open_keys(x_ptr, list_ptr, start, n, cut_key, cut_id, TILE)
                support += add_to_blocks(mass_ptr, key, ids, m, c, trimmed, left, BLOCK)
            # What other threads of this block have added is read past the nearest cache.
            tl.debug_barrier()
            each = tl.load(mass_ptr + at * 4 + ABOVE_LAST, mask=there, other=0, cache_modifier=".cg")
    reached = tl.cumsum(each, 0)
    total = tl.max(reached, 0)
    r = tl.umulhi(u, total.to(tl.uint64)).to(tl.int64)  # pyright: ignore[reportAttributeAccessIssue]
    passed = reached <= r
    block = tl.sum((passed & there).to(tl.int32), 0)
    before = tl.max(tl.where(passed, reached, 0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))
    kept = is_in(key_of(x), ids, cut_key, cut_id)
    w = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
    w = tl.where(kept & (ids == trimmed), left, w)
    return block * BLOCK + tl.sum((tl.cumsum(w, 0) + before <= r).to(tl.int32), 0), support, total
# fmt: on
