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
    GREATEST,
    HIGH,
    IS_GREEDY,
    LAST_C,
    LEAST,
    LOWEST,
    OPEN,
    PROGRAM,
    SAMPLE,
    SEED,
    STEP,
    TOP,
    VARYING,
    WEIGHTY,
    WIDTH,
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

WAYS = tl.constexpr(8)
"""Parts that a search divides its range into with each reading of the list."""
_MAX = tl.constexpr(0x7FFFFFFF)
_BY_WEIGHT, _BY_NUMBER = tl.constexpr(True), tl.constexpr(False)
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(int(op)) for op in (TEMPERATURE, TOP_K, TOP_P, MIN_P))


@triton.jit
def open_keys(x_ptr, list_ptr, start, n, TILE: tl.constexpr):
    """(keys, ids, logits) [TILE] of a tile of the list; the keys beyond its end are -inf's."""
    at = start + tl.arange(0, TILE)
    ids = tl.load(list_ptr + at, mask=at < n, other=NO_ID)
    x = tl.load(x_ptr + ids, mask=at < n, other=float("-inf"))
    return key_of(x), ids, x


@triton.jit
def open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE: tl.constexpr):
    """How many tokens of the set lie in the range at or above `lowest`; of a range of one key only that is known."""
    total = tl.maximum(ties, 0)
    if ties < 0:
        for start in range(0, n, TILE):
            key, ids, _ = open_keys(x_ptr, list_ptr, start, n, TILE)
            total += tl.sum((is_in(key, ids, cut_key, cut_id) & (key >= lowest)).to(tl.int32), 0)
    return total


@triton.jit
def open_mass(x_ptr, list_ptr, n, ties, single, lowest, cut_key, cut_id, m, c, TILE: tl.constexpr):
    """The weight of the same tokens."""
    total = tl.maximum(ties, 0).to(tl.int64) * weight_of(exponent_of(value_of(single), m, c))
    if ties < 0:
        for start in range(0, n, TILE):
            key, ids, x = open_keys(x_ptr, list_ptr, start, n, TILE)
            kept = is_in(key, ids, cut_key, cut_id) & (key >= lowest)
            total += tl.sum(tl.where(kept, weight_of(exponent_of(x, m, c)), 0), 0)
    return total


@triton.jit
def open_sums(
    x_ptr, list_ptr, n, lowest, low, step, cut_key, cut_id, m, c, TILE: tl.constexpr, WEIGH: tl.constexpr
):  # fmt: skip
    """The weights of the same tokens, or their number, at or above `low` + j * `step`: int64 [WAYS], 0 for j = 0."""
    at = tl.arange(0, WAYS)
    sums = (at * 0).to(tl.int64)
    for start in range(0, n, TILE):
        key, ids, x = open_keys(x_ptr, list_ptr, start, n, TILE)
        kept = is_in(key, ids, cut_key, cut_id) & (key >= lowest)
        each = kept.to(tl.int64)
        if WEIGH:
            each = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
        for j in range(1, WAYS):
            floor = tl.minimum(low + j * step, _MAX).to(tl.int32)
            sums += tl.where(at == j, tl.sum(tl.where(key >= floor, each, 0), 0), 0)
    return sums


@triton.jit
def tie_counts(x_ptr, list_ptr, n, key_wanted, low, step, TILE: tl.constexpr):
    """How many tokens with that key have ids of at most `low` + j * `step`: int64 [WAYS]."""
    at = tl.arange(0, WAYS)
    counts = (at * 0).to(tl.int64)
    for start in range(0, n, TILE):
        key, ids, _ = open_keys(x_ptr, list_ptr, start, n, TILE)
        for j in range(1, WAYS):
            tie = (key == key_wanted) & (ids <= low + j * step)
            counts += tl.where(at == j, tl.sum(tie.to(tl.int64), 0), 0)
    return counts


@triton.jit
def nth_tie(
    x_ptr, count_ptr, list_ptr, n, ties, key_wanted, wanted, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Id of the `wanted`-th token, counted from 1 and by id, whose key is `key_wanted`."""
    if ties >= 0:
        at = tl.arange(0, PADDED)
        reached = tl.cumsum(tl.load(count_ptr + at * 4 + OPEN, mask=at < blocks, other=0), 0).to(tl.int64)
        block = tl.sum((reached < wanted).to(tl.int32), 0)
        seen = tl.max(tl.where(reached < wanted, reached, 0), 0)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        tie = (key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))) == key_wanted).to(tl.int32)
        rank = seen + tl.cumsum(tie, 0)
        found = tl.max(tl.where((tie > 0) & (rank == wanted), ids, -1), 0)
    else:
        # Mostly the first: one pass finds it.
        first = tl.full((), NO_ID, tl.int32)
        for start in range(0, n, TILE):
            key, ids, _ = open_keys(x_ptr, list_ptr, start, n, TILE)
            first = tl.minimum(first, tl.min(tl.where(key == key_wanted, ids, NO_ID), 0))
        low, top = first - 1, tl.where(wanted > 1, size - 1, first)
        while low + 1 < top:
            step = tl.cdiv(top - low, WAYS)
            counts = tie_counts(x_ptr, list_ptr, n, key_wanted, low, step, TILE)
            low += tl.sum(((counts < wanted) & (tl.arange(0, WAYS) > 0)).to(tl.int32), 0) * step
            top = tl.minimum(low + step, top)
        found = top
    return found


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
def range_of(row_ptr, n):
    """[lowest, top): the open range of a row; where `n` tokens are listed, only as far as their keys."""
    lowest, top = tl.load(row_ptr + LOWEST), tl.load(row_ptr + TOP)
    if n > 0:
        lowest, top = tl.load(row_ptr + LEAST), tl.load(row_ptr + GREATEST) + 1
    return lowest, top


@triton.jit
def masses_under(mass_ptr, whole, is_first, blocks, PADDED: tl.constexpr):
    """(mass of the row, mass above its open range) under the first temperature, or under the last."""
    every, above = whole, sum_of(mass_ptr, ABOVE_FIRST, blocks, PADDED)
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
                x_ptr + row * size, ends_ptr + row * blocks, size, blocks, tl.load(row_ptr + row * WIDTH), BLOCK, PADDED
            )
            lp, support = tl.full((), 0.0, tl.float32), tl.full((), 1, tl.int32)
        else:
            token, lp, support = draw_row(
                x_ptr + row * size, mass_ptr + row * blocks * 4, count_ptr + row * blocks * 4, list_ptr + row * size,
                tl.load(length_ptr + row), meta_ptr, row_ptr + row * WIDTH, size, blocks, steps, BLOCK, PADDED, TILE,
            )
    tl.store(token_ptr + row, token.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(logprob_ptr + row, lp)
    tl.store(support_ptr + row, support.to(tl.int64))


@triton.jit
def draw_row(
    x_ptr, mass_ptr, count_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, logprob, support) of one row. `ties` is how many of the set have the range's only key, else -1."""
    high = tl.load(row_ptr + HIGH)
    lowest, top = range_of(row_ptr, n)
    first_c, last_c = constant(meta_ptr, FIRST_C), constant(meta_ptr, LAST_C)
    m, c, inverse_t = value_of(high), first_c, tl.full((), 1.0, tl.float32)
    is_plain = (lowest >= top) & (first_c == last_c)
    whole = sum_of(mass_ptr, ALL_FIRST, blocks, PADDED)
    every, above, base = whole, whole, whole
    number, ties = tl.full((), NO_ID, tl.int32), tl.full((), -1, tl.int32)
    if is_plain == 0:
        above = sum_of(mass_ptr, ABOVE_FIRST, blocks, PADDED)
        number = sum_of(count_ptr, ABOVE, blocks, PADDED)
        if lowest + 1 == top:
            ties = sum_of(count_ptr, OPEN, blocks, PADDED)
    cut_key, cut_id, trimmed = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32), tl.full((), -1, tl.int32)
    left = tl.full((), 0, tl.int64)
    for s in range(steps):
        step_ptr = meta_ptr + PROGRAM + s * 6
        op, a, b = tl.load(step_ptr), tl.load(step_ptr + 1), tl.load(step_ptr + 2)
        if op == _TEMPERATURE:
            c = a.to(tl.int32).to(tl.float32, bitcast=True)
            inverse_t = b.to(tl.int32).to(tl.float32, bitcast=True)
            if first_c != last_c:
                every, above = masses_under(mass_ptr, whole, c == first_c, blocks, PADDED)
            base = every
            if cut_key > NEG_INF:
                base = above + open_mass(x_ptr, list_ptr, n, ties, lowest, lowest, cut_key, cut_id, m, c, TILE)
        if (op == _MIN_P) & (a < LIMIT):
            key = lowest_key(a.to(tl.int32), m, c, high)
            cut_id = tl.where(key > cut_key, NO_ID, cut_id)
            cut_key = tl.maximum(cut_key, key)
            ties = tl.where((ties >= 0) & (key > lowest), 0, ties)  # pyright: ignore[reportOperatorIssue]
        if (op == _TOP_K) & (lowest < top):  # noqa: SIM102 - the count is dear, and `and` would make it anyway
            if number + open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE) >= a:
                cut_key, cut_id, ties = cut_top_k(
                    x_ptr, count_ptr, list_ptr, n, ties, number, a, b, lowest, top, cut_key, cut_id, size, blocks,
                    BLOCK, PADDED, TILE,
                )
        if op == _TOP_P:
            total = every
            if cut_key > NEG_INF:
                total = above + open_mass(x_ptr, list_ptr, n, ties, lowest, lowest, cut_key, cut_id, m, c, TILE)
            joint = tl.load(step_ptr + 4)
            target = target_of(a, tl.where(joint > 0, base, total), b)
            if target <= total:
                cut_key, cut_id, ties, trimmed, left = cut_top_p(
                    x_ptr, count_ptr, list_ptr, n, ties, above, target, b, tl.load(step_ptr + 3), lowest, top,
                    cut_key, cut_id, m, c, size, blocks, BLOCK, PADDED, TILE,
                )
    token, support, total = draw(
        x_ptr, mass_ptr, count_ptr, list_ptr, n, ties, is_plain, uniform_of(meta_ptr), lowest, cut_key, cut_id, m, c,
        trimmed, left, size, blocks, BLOCK, PADDED, TILE,
    )
    lp = logprob_of(tl.load(x_ptr + token), m, inverse_t, total)
    part = tl.maximum(left, 1).to(tl.uint64)
    share = ln_of(log2_fixed(part) - log2_fixed(total.to(tl.uint64))) + 0.0  # pyright: ignore[reportAttributeAccessIssue]
    return token, tl.where((trimmed >= 0) & (token == trimmed), share, lp), support


@triton.jit
def cut_top_k(
    x_ptr, count_ptr, list_ptr, n, ties, number, k, all_ties, lowest, top, cut_key, cut_id, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties) after top-k of a set of at least k tokens, `number` of them above the range."""
    low, end = lowest.to(tl.int64), top.to(tl.int64)
    while low + 1 < end:
        step = tl.cdiv(end - low, WAYS)
        sums = open_sums(x_ptr, list_ptr, n, lowest, low, step, cut_key, cut_id, 0.0, 0.0, TILE, _BY_NUMBER)
        low += tl.sum(((number + sums >= k) & (tl.arange(0, WAYS) > 0)).to(tl.int64), 0) * step
        end = tl.minimum(low + step, end)
    last = low.to(tl.int32)
    more = number
    if ties < 0:
        more += open_count(x_ptr, list_ptr, n, ties, last + 1, cut_key, cut_id, TILE)
    wanted = k - more
    if all_ties > 0:
        cut_id = tl.where(last == cut_key, cut_id, NO_ID)
    else:
        cut_id = nth_tie(
            x_ptr, count_ptr, list_ptr, n, ties, last, wanted, size, blocks, BLOCK, PADDED, TILE
        )
        ties = tl.where(ties >= 0, wanted.to(tl.int32), ties)
    return last, cut_id, ties


@triton.jit
def cut_top_p(
    x_ptr, count_ptr, list_ptr, n, ties, above, target, rule, all_ties, lowest, top, cut_key, cut_id, m, c,
    size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties, trimmed id, its weight) after top-p of a set of at least the mass `target`."""
    low, end = lowest.to(tl.int64), top.to(tl.int64)
    while low + 1 < end:
        step = tl.cdiv(end - low, WAYS)
        sums = open_sums(x_ptr, list_ptr, n, lowest, low, step, cut_key, cut_id, m, c, TILE, _BY_WEIGHT)
        low += tl.sum(((above + sums >= target) & (tl.arange(0, WAYS) > 0)).to(tl.int64), 0) * step
        end = tl.minimum(low + step, end)
    last = low.to(tl.int32)
    more = above
    if ties < 0:
        more += open_mass(x_ptr, list_ptr, n, ties, lowest, last + 1, cut_key, cut_id, m, c, TILE)
    each = weight_of(exponent_of(value_of(last), m, c))
    needed = (target - more + each - 1) // tl.maximum(each, 1)
    nth = nth_tie(x_ptr, count_ptr, list_ptr, n, ties, last, needed, size, blocks, BLOCK, PADDED, TILE)
    old_id = tl.where(last == cut_key, cut_id, NO_ID)
    ties = tl.where((ties >= 0) & (all_ties == 0), needed.to(tl.int32), ties)
    trimmed = tl.where(rule == 2, nth, -1)
    return last, tl.where(all_ties > 0, old_id, nth), ties, trimmed, target - more - (needed - 1) * each


@triton.jit
def draw(
    x_ptr, mass_ptr, count_ptr, list_ptr, n, ties, is_plain, u, lowest, cut_key, cut_id, m, c, trimmed, left,
    size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
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
            for start in range(0, n, TILE):
                key, ids, x = open_keys(x_ptr, list_ptr, start, n, TILE)
                kept = is_in(key, ids, cut_key, cut_id)
                w = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
                w = tl.where(kept & (ids == trimmed), left, w)
                tl.atomic_add(mass_ptr + ids // BLOCK * 4 + ABOVE_LAST, w, mask=w > 0, sem="relaxed")
                support += tl.sum((w > 0).to(tl.int32), 0)
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
