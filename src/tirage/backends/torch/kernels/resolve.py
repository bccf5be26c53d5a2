"""The steps of a row on its open range, and its draw: only the few tokens of that range are looked at one by one."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.entropy import (
    factor_of,
    is_dynamic,
    is_temperature,
    last_scale,
    scaled,
    sum_ties,
)
from tirage.backends.torch.kernels.exact.probability import mixed_logprob
from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    is_in,
    key_of,
    ln_of,
    log2_fixed,
    logprob_of,
    target_of,
    uniform,
    value_of,
    weight_of,
)  # fmt: skip
from tirage.backends.torch.kernels.exact.thresholds import (
    is_by_logit,
    is_min_p,
    is_top_p,
    is_xtc,
    judged,
    least_by_key,
    least_kept,
    least_number,
    reads_mass,
    reads_sums,
    widest_of,
)
from tirage.backends.torch.kernels.layout import (
    ABOVE,
    ABOVE_LAST,
    ABOVE_WEIGHTY,
    ADDED,
    ALL_FIRST,
    ALL_LAST,
    BASE,
    FACTOR,
    FIRST_C,
    GREATEST,
    HEAD_ID,
    HEAD_KEY,
    HIGH,
    IS_GREEDY,
    LEAST,
    LEFT,
    LEFT_HIGH,
    LOW,
    LOWEST,
    MASS_TO,
    OPEN,
    PROGRAM,
    SAMPLE,
    SEED,
    STEP,
    SUMMANDS,
    SUMMED,
    TOP,
    VARYING,
    WEIGHTY,
    WIDTH,
    constant,
    sum_of,
)  # fmt: skip
from tirage.backends.torch.kernels.open_range.cuts import cut_top_k, cut_top_p, reopened
from tirage.backends.torch.kernels.open_range.exclusion import (
    count_from_head,
    find_head,
    is_on,
    left_by_xtc,
    share_of_xtc,
    weight_left,
)  # fmt: skip
from tirage.backends.torch.kernels.open_range.first_tokens import cut_top_h, first_of_top_h, is_top_h
from tirage.backends.torch.kernels.open_range.levels import (
    has_levels,
    is_leveled,
    is_removed,
    keep_levels,
    largest_left,
)
from tirage.backends.torch.kernels.open_range.lists import open_count, open_keys, sum_terms
from tirage.backends.torch.kernels.open_range.sparing import is_before, is_spared
from tirage.backends.torch.kernels.open_range.totals import (
    is_in_doubt,
    is_plain,
    lower_mass,
    set_mass,
    step_at,
    store_base,
)
from tirage.backends.torch.kernels.reports.told import tell_first, tell_greedy, tell_scale, tell_second
from tirage.exact.philox import Domain
from tirage.operators.top_k import TOP_K

_TOP_K = tl.constexpr(int(TOP_K))
_DRAW = tl.constexpr(int(Domain.DRAW))


# --- the steps of one row --------------------------------------------------------------------------------------------


@triton.jit
def first_maximum(x_ptr, high_ptr, size, blocks, high, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """Lowest id among the tokens of the largest key."""
    at = tl.arange(0, PADDED)
    maxima = tl.load(high_ptr + at, mask=at < blocks, other=NEG_INF)
    block = tl.min(tl.where(maxima == high, at, NO_ID), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x_ptr + ids, mask=ids < size, other=float("-inf")))
    # Where another shard holds the block, its token is one of the block, whichever.
    last = block * BLOCK + BLOCK - 1  # pyright: ignore[reportOperatorIssue]
    return tl.minimum(tl.min(tl.where(key == high, ids, NO_ID), 0), last)


@triton.jit
def uniform_of(meta_ptr):
    """The uniform of a row's draw."""
    return uniform(tl.load(meta_ptr + SEED), tl.load(meta_ptr + STEP), tl.load(meta_ptr + SAMPLE), _DRAW)


@triton.jit
def range_of(row_ptr, count_ptr, n, blocks, PADDED: tl.constexpr):
    """(lowest, top, ties) of the open range [lowest, top) of a row, where `n` tokens are listed only as far as their
    keys; `ties` is how many tokens have its only key, else -1."""
    lowest, top = tl.load(row_ptr + LOWEST), tl.load(row_ptr + TOP)
    least, greatest = tl.load(row_ptr + LEAST), tl.load(row_ptr + GREATEST)
    if (n > 0) & (least <= greatest):
        lowest, top = least, greatest + 1
    # Not in a branch: what all rows have worked out before their steps is worked out again behind them, not held.
    is_one = lowest + 1 == top
    number = sum_of(count_ptr, OPEN, tl.where(is_one, blocks, 0), PADDED)
    return lowest, top, tl.where(is_one, number, -1)


# fmt: off
@triton.jit(do_not_specialize=(*VARYING, "spares"))
def resolve(
    x_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, meta_ptr, row_ptr, status_ptr,
    spared_ptr, token_ptr, logprob_ptr, support_ptr, columns, size, blocks, steps, spares,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, LEVELED: tl.constexpr,
):
    """Run the steps of one row on its open range and draw: token, logprob and support.

    `spares` is how many words of a slot say which tokens XTC never removes. A row has a typical only where `LEVELED`.
    """
    row = tl.program_id(0).to(tl.int64)
    token, lp, support = resolve_row(
        x_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, meta_ptr, row_ptr, status_ptr,
        spared_ptr, row, columns, size, blocks, steps, spares, BLOCK, PADDED, TILE, LEVELED,
    )
    tl.store(token_ptr + row, token.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(logprob_ptr + row, lp)
    tl.store(support_ptr + row, support.to(tl.int64))


@triton.jit
def resolve_row(
    x_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, meta_ptr, row_ptr, status_ptr, spared_ptr,
    row, columns, size, blocks, steps, spares,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, LEVELED: tl.constexpr,
):
    """(token, logprob, support) of one row; -1, NaN and 0 of one that has no token."""
    token, lp, support = tl.full((), -1, tl.int32), tl.full((), float("nan"), tl.float32), tl.full((), 0, tl.int32)
    meta_ptr += row * columns
    if tl.load(status_ptr + row) == 0:
        if tl.load(meta_ptr + IS_GREEDY) != 0:
            token = first_maximum(
                x_ptr + row * size, ends_ptr + row * blocks, size, blocks, tl.load(row_ptr + row * WIDTH), BLOCK, PADDED
            )
            lp, support = tl.full((), 0.0, tl.float32), tl.full((), 1, tl.int32)
            tell_greedy(sums_ptr + row * SUMMANDS, row_ptr + row * WIDTH, token)
        else:
            # Of fewer than 2^38 logits: 64 bits would not fit into the registers.
            place = row.to(tl.int32) * blocks * 4
            token, lp, support = draw_row(
                x_ptr + row * size, mass_ptr + place, count_ptr + place, sums_ptr + row * SUMMANDS,
                list_ptr + row * size, tl.load(length_ptr + row), meta_ptr, row_ptr + row * WIDTH, spared_ptr, size,
                blocks, steps, spares, LEVELED, BLOCK, PADDED, TILE,
            )
    return token, lp, support


@triton.jit
def draw_row(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, spared_ptr, size, blocks, steps, spares,
    LEVELS: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, logprob, support) of one row. `ties` is how many of the set have the range's only key, else -1."""
    lowest, top, ties = range_of(row_ptr, count_ptr, n, blocks, PADDED)
    m, c = value_of(tl.load(row_ptr + HIGH)), constant(meta_ptr, FIRST_C)
    store_base(sums_ptr, sum_of(mass_ptr, ALL_FIRST, blocks, PADDED), True)
    cut_key, cut_id, trimmed = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32), tl.full((), -1, tl.int32)
    for s in range(steps):
        step_ptr, op = step_at(
            x_ptr, count_ptr, list_ptr, meta_ptr, row_ptr, n, ties, s, lowest, top, cut_key, cut_id, blocks, PADDED,
            TILE,
        )
        if is_temperature(op):
            c, cut_key, cut_id = after_temperature(
                x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, lowest, cut_key, cut_id, m, c,
                size, TILE,
            )
            if LEVELS:
                m = tl.where(has_levels(meta_ptr, steps), largest_left(row_ptr), m)
        total, above = set_mass(
            x_ptr, mass_ptr, list_ptr, sums_ptr, meta_ptr, row_ptr, n, ties, op, lowest, cut_key, cut_id, m, c,
            blocks, PADDED, TILE,
        )
        if is_min_p(op, step_ptr) | is_by_logit(op) | reads_mass(op) | reads_sums(op):
            cut_key, cut_id, ties = cut_to_key(
                x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, lowest, cut_key, cut_id, m,
                c, TILE,
            )
        if is_top_p(op):
            n, ties, lowest, top, cut_key, cut_id, trimmed = cut_to_mass(
                x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, above,
                lowest, top, cut_key, cut_id, m, c, trimmed, size, blocks, BLOCK, PADDED, TILE,
            )
        if ((op == _TOP_K) | is_top_h(op) | (least_number(op, step_ptr) > 1)) & (lowest < top):
            cut_key, cut_id, ties, trimmed = cut_to_number(
                x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, lowest, top, cut_key, cut_id, trimmed, size, blocks,
                BLOCK, PADDED, TILE,
            )
            if is_top_h(op) & (ties < 0):  # pyright: ignore[reportOperatorIssue]
                n, cut_key, cut_id = cut_top_h(x_ptr, list_ptr, n, step_ptr, cut_key, cut_id, m, c, TILE)
        if LEVELS and is_leveled(op) & (lowest < top):
            n, ties, lowest, top, cut_key, cut_id = keep_levels(
                x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, ties, step_ptr, meta_ptr, row_ptr, lowest, top,
                cut_key, cut_id, m, c, size, blocks, BLOCK, PADDED, TILE,
            )
        if is_xtc(op):
            find_head(
                x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, row_ptr, total, lowest, cut_key, cut_id, m, c, size,
                blocks, BLOCK, PADDED, TILE,
            )
    return draw(
        x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, meta_ptr, row_ptr, spared_ptr, n, ties, lowest,
        cut_key, cut_id, m, c, trimmed, size, blocks, steps, spares, LEVELS, BLOCK, PADDED, TILE,
    )


@triton.jit
def goal_of(step_ptr, sums_ptr, meta_ptr, row_ptr, cut_key, total):
    """(mass of the set, mass that a top-p must reach, whether they are in doubt); in doubt the greatest that they may
    be."""
    doubt = is_in_doubt(meta_ptr, row_ptr, cut_key)
    base = tl.load(sums_ptr + BASE, cache_modifier=".cg")
    judged_on = tl.where(tl.load(step_ptr + 4) > 0, base, total)
    if doubt:
        judged_on = tl.minimum(tl.load(sums_ptr + MASS_TO), tl.load(sums_ptr + 1))
        total = judged_on
    return total, target_of(tl.load(step_ptr + 1), judged_on, tl.load(step_ptr + 2)), doubt


@triton.jit
def logprob_in(
    x_ptr, sums_ptr, meta_ptr, row_ptr, spared_ptr, token, m, c, total, total_on, share, trimmed, left, steps, spares
):
    """ln of a token's probability in a set of the mass `total`, where the token `trimmed` has the weight `left`.

    Where XTC is on with a `share` from 0, the set that it leaves has the mass `total_on`. The law's scale is told.
    """
    x, inverse_t = tl.load(x_ptr + token), last_scale_of(meta_ptr, row_ptr, steps)
    tell_scale(sums_ptr, c, inverse_t)
    if share >= 0:
        spared = is_spared(token, token >= 0, row_ptr, spared_ptr, spares)
        w, w_on = weight_of(exponent_of(x, m, c)), weight_left(x, token, row_ptr, c, spared)
        lp = mixed_logprob(w, total, w_on, total_on, share)
    else:
        lp = unmixed_logprob(x, token, m, inverse_t, total, trimmed, left)
    return lp


@triton.jit
def unmixed_logprob(x, token, m, inverse_t, total, trimmed, left):
    """The same in a row without XTC."""
    lp = logprob_of(x, m, inverse_t, total)
    part = tl.maximum(left, 1).to(tl.uint64)
    share = ln_of(log2_fixed(part) - log2_fixed(total.to(tl.uint64))) + 0.0
    return tl.where((trimmed >= 0) & (token == trimmed), share, lp)


@triton.jit
def last_scale_of(meta_ptr, row_ptr, steps):
    """1 / T of the last temperature of a row, 1 where it has none."""
    inverse_t = tl.full((), 1.0, tl.float32)
    for s in range(steps):
        inverse_t = last_scale(meta_ptr + PROGRAM + s * 6, row_ptr, inverse_t)
    return inverse_t


@triton.jit
def least_key(
    x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, lowest, cut_key, cut_id, m, c,
    TILE: tl.constexpr,
):
    """The least key that a step with a threshold keeps, of a set with the mass `total`."""
    high = tl.minimum(tl.load(row_ptr + HIGH), tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg"))
    key = high
    is_row = (tl.load(row_ptr + ADDED) != 0) & (op == tl.load(meta_ptr + SUMMED)) & (cut_key == NEG_INF)
    if is_min_p(op, step_ptr) | is_by_logit(op):
        key = least_by_key(op, step_ptr, m, c, high)
    elif (reads_sums(op) == 0) | is_row | (ties < 0):  # pyright: ignore[reportOperatorIssue]
        # Unless the whole row is summed, the open range holds the set of sums; one key alone is kept anyway.
        key = threshold(
            x_ptr, list_ptr, sums_ptr, n, op, step_ptr, row_ptr, is_row, total, lowest, cut_key, cut_id, m, c, high,
            TILE,
        )
    return key


@triton.jit
def cut_to_key(
    x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, lowest, cut_key, cut_id, m, c,
    TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties) after a step with a threshold, of a set with the mass `total`."""
    key = least_key(
        x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, lowest, cut_key, cut_id, m, c, TILE
    )
    cut_id = tl.where(key > cut_key, NO_ID, cut_id)
    ties = tl.where((ties >= 0) & (key > lowest), 0, ties)  # pyright: ignore[reportOperatorIssue]
    return tl.maximum(cut_key, key), cut_id, ties


@triton.jit
def cut_to_mass(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, above, lowest, top,
    cut_key, cut_id, m, c, trimmed, size, blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(length of the list, ties, lowest key, key above, cut_key, cut_id, trimmed id) after a top-p of a set with the
    mass `total`, but for what is below its open range."""
    total += lower_mass(list_ptr, sums_ptr, meta_ptr, row_ptr, cut_key, m, c, size, TILE)
    total, target, doubt = goal_of(step_ptr, sums_ptr, meta_ptr, row_ptr, cut_key, total)
    if target <= total:
        if (cut_key == NEG_INF) & (c != constant(meta_ptr, FIRST_C)):
            n, ties, above, lowest, top = reopened(
                x_ptr, mass_ptr, count_ptr, list_ptr, n, ties, above, target, op, step_ptr, lowest, top, cut_key,
                cut_id, m, c, size, blocks, PADDED, TILE,
            )
        cut_key, cut_id, ties, trimmed = cut_top_p(
            x_ptr, count_ptr, sums_ptr, list_ptr, n, ties, target - above, doubt, step_ptr, lowest, top, cut_key,
            cut_id, m, c, size, blocks, BLOCK, PADDED, TILE,
        )
    return n, ties, lowest, top, cut_key, cut_id, trimmed


@triton.jit
def cut_to_number(
    x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, lowest, top, cut_key, cut_id, trimmed, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties, trimmed id) after a top-k, before a top-h looks at the first tokens one by one, or after
    another step that leaves a least number of tokens."""
    is_first = (op == _TOP_K) | is_top_h(op)
    k = tl.where(op == _TOP_K, tl.load(step_ptr + 1), least_number(op, step_ptr))
    k = tl.where(is_top_h(op), first_of_top_h(step_ptr, ties), k)
    number = sum_of(count_ptr, ABOVE, blocks, PADDED)
    kept = number + open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE)
    if (is_first == 0) & (kept < k):
        # The first of what the step was given, and that is a prefix: the first of all.
        cut_key, cut_id = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32)
        trimmed = tl.full((), -1, tl.int32)
        if lowest + 1 == top:
            ties = sum_of(count_ptr, OPEN, blocks, PADDED)
    if is_first == (kept >= k):
        all_ties = tl.where(op == _TOP_K, tl.load(step_ptr + 2), 0)
        cut_key, cut_id, ties = cut_top_k(
            x_ptr, count_ptr, list_ptr, n, ties, number, k, all_ties, lowest, top, cut_key, cut_id, size,
            blocks, BLOCK, PADDED, TILE,
        )
    return cut_key, cut_id, ties, trimmed


@triton.jit
def threshold(
    x_ptr, list_ptr, sums_ptr, n, op, step_ptr, row_ptr, is_row, total, lowest, cut_key, cut_id, m, c, high,
    TILE: tl.constexpr,
):
    """The least key that a step keeps whose threshold follows from the mass of the set, or from sums of its terms.

    `total` is the mass of the set where it is not one of these sums. Those of a whole row are there.
    """
    PART: tl.constexpr = TILE // 4
    widest = tl.full((), 0, tl.int32)
    if reads_sums(op):
        least_key = tl.load(row_ptr + LOW)
        if is_row == 0:
            least_key = high
            for start in range(0, n, TILE):
                for part in range(0, TILE, PART):
                    key, ids, _ = open_keys(x_ptr, list_ptr, start + part, n, PART)
                    kept = is_in(key, ids, cut_key, cut_id) & (key >= lowest)
                    least_key = tl.minimum(least_key, tl.min(tl.where(kept, key, high), 0))
        widest = widest_of(least_key, m)
        if is_row == 0:
            sum_terms(x_ptr, list_ptr, sums_ptr, n, op, lowest, cut_key, cut_id, m, c, widest, TILE)
        total = tl.load(sums_ptr + 1, cache_modifier=".cg")
    limit, least = judged(op, step_ptr, total, sums_ptr)
    return least_kept(op, limit, least, m, c, high, widest)


@triton.jit
def after_temperature(
    x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, lowest, cut_key, cut_id, m, c, size,
    TILE: tl.constexpr,
):
    """(constant c, cut_key, cut_id) after a step that is a temperature.

    A set that has to be listed for it is one that was cut, if only where nothing is removed. What an XTC before it
    leaves has weights of its own.
    """
    count_from_head(row_ptr)
    is_uncut = is_dynamic(op) & (cut_key == NEG_INF) & (tl.load(row_ptr + FACTOR) == 0)
    c = constant_after(
        x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, lowest, cut_key, cut_id, m, c, size, TILE
    )
    return c, tl.where(is_uncut, NEG_INF + 1, cut_key), tl.where(is_uncut, NO_ID, cut_id)


@triton.jit
def constant_after(
    x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, lowest, cut_key, cut_id, m, c, size,
    TILE: tl.constexpr,
):
    """The constant c after a step that is a temperature; a dynamic one is known, or its set is cut and listed."""
    found = constant(step_ptr, 1)
    if is_dynamic(op):
        if tl.load(row_ptr + FACTOR) == 0:
            if ties < 0:
                sum_terms(x_ptr, list_ptr, sums_ptr, n, op, lowest, cut_key, cut_id, m, c, 0, TILE)
            else:
                sum_ties(sums_ptr, ties)
            factor = factor_of(step_ptr, meta_ptr, sums_ptr, size)
            tl.store(row_ptr + FACTOR, factor.to(tl.int32, bitcast=True))
            tl.debug_barrier()
        found = scaled(step_ptr, 1, tl.load(row_ptr + FACTOR, cache_modifier=".cg").to(tl.float32, bitcast=True))
    return found


@triton.jit
def draw(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, meta_ptr, row_ptr, spared_ptr, n, ties, lowest, cut_key, cut_id,
    m, c, trimmed, size, blocks, steps, spares,
    LEVELS: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(token, logprob, support) of the set, or of what the row's XTC leaves of it where its coin says so."""
    whole = tl.where(c == constant(meta_ptr, FIRST_C), ALL_FIRST, ALL_LAST)
    is_cut = (cut_key > NEG_INF) & (is_plain(meta_ptr, row_ptr) == 0)
    kind = tl.where(is_cut, ABOVE_LAST, whole)
    each, support = weighed(
        x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, ties, is_cut, kind, lowest, cut_key, cut_id, m, c, trimmed,
        blocks, BLOCK, PADDED, TILE,
    )
    total, share = tl.sum(each, 0), share_of_xtc(meta_ptr, steps)
    total_on, from_m = total, m
    tell_first(sums_ptr, row_ptr, share, cut_key, cut_id, trimmed, left_in(sums_ptr), total)
    head_key, head_id = tl.full((), POS_INF, tl.int32), tl.full((), 0, tl.int32)
    if share >= 0 and tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg") < POS_INF:
        others, support = left_by_xtc(
            x_ptr, mass_ptr, count_ptr, list_ptr, row_ptr, spared_ptr, spares, each, support, n, ties, kind, lowest,
            cut_key, cut_id, m, c, share, size, blocks, BLOCK, PADDED, TILE,
        )
        total_on = tl.sum(others, 0)
        if is_on(meta_ptr, share):
            each, from_m = others, value_of(tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg"))
            head_key = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")
            head_id = tl.load(row_ptr + HEAD_ID, cache_modifier=".cg")
    if LEVELS and share < 0:
        # Without XTC, a head is what a typical left; nothing before it is spared.
        head_key, spares = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg"), spares * 0
    token = drawn_from(
        x_ptr, each, uniform_of(meta_ptr), row_ptr, spared_ptr, spares, head_key, head_id, cut_key, cut_id, from_m, c,
        trimmed, left_in(sums_ptr), size, blocks, LEVELS, BLOCK, PADDED,
    )
    if share >= 0:
        tell_second(sums_ptr, row_ptr, c, cut_key, cut_id, total_on)
    lp = logprob_in(
        x_ptr, sums_ptr, meta_ptr, row_ptr, spared_ptr, token, m, c, total, total_on, share, trimmed, left_in(sums_ptr),
        steps, spares,
    )
    return token, lp, support


@triton.jit
def left_in(sums_ptr):
    """What is left of the weight that a top-p cut: read where it is needed, as it would take registers until then."""
    return tl.load(sums_ptr + LEFT, cache_modifier=".cg")


@triton.jit
def weighed(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, ties, is_cut, kind, lowest, cut_key, cut_id, m, c, trimmed,
    blocks, BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(masses of the blocks int64 [PADDED], support) of a set; where a list is read, its masses are added there."""
    PART: tl.constexpr = TILE // 4
    at = tl.arange(0, PADDED)
    there = at < blocks
    support = sum_of(count_ptr, WEIGHTY, blocks, PADDED)
    each = tl.load(mass_ptr + at * 4 + kind, mask=there, other=0)
    if is_cut:
        support = sum_of(count_ptr, ABOVE_WEIGHTY, blocks, PADDED)
        if ties >= 0:
            single = weight_of(exponent_of(value_of(lowest), m, c))
            many = tl.load(count_ptr + at * 4 + OPEN, mask=there, other=0)
            kept = tl.minimum(tl.maximum(ties - (tl.cumsum(many, 0) - many), 0), many)
            each += kept.to(tl.int64) * single
            support += tl.where(single > 0, ties, 0)
            is_trimmed = (trimmed >= 0) & is_in(lowest, trimmed, cut_key, cut_id)
            each += tl.where(is_trimmed & (at == trimmed // BLOCK), left_in(sums_ptr) - single, 0)
        else:
            for start in range(0, n, TILE):
                for part in range(0, TILE, PART):
                    key, ids, x = open_keys(x_ptr, list_ptr, start + part, n, PART)
                    kept = is_in(key, ids, cut_key, cut_id)
                    w = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
                    w = tl.where(kept & (ids == trimmed), left_in(sums_ptr), w)
                    tl.atomic_add(mass_ptr + ids // BLOCK * 4 + ABOVE_LAST, w, mask=w > 0, sem="relaxed")
                    support += tl.sum((w > 0).to(tl.int32), 0)
            # What other threads of this block have added is read past the nearest cache.
            tl.debug_barrier()
            each = tl.load(mass_ptr + at * 4 + ABOVE_LAST, mask=there, other=0, cache_modifier=".cg")
    return each, support


@triton.jit
def drawn_from(
    x_ptr, each, u, row_ptr, spared_ptr, spares, head_key, head_id, cut_key, cut_id, m, c, trimmed, left, size, blocks,
    LEVELS: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """The token: the block in which the running sum of weights passes the uniform `u`, then its token there."""
    there = tl.arange(0, PADDED) < blocks
    reached = tl.cumsum(each, 0)
    total = tl.max(reached, 0)
    r = tl.umulhi(u, total.to(tl.uint64)).to(tl.int64)  # pyright: ignore[reportAttributeAccessIssue]
    passed = reached <= r
    block = tl.sum((passed & there).to(tl.int32), 0)
    before = tl.max(tl.where(passed, reached, 0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))
    gone = is_before(key_of(x), ids, head_key, head_id)
    gone = gone & (is_spared(ids, gone, row_ptr, spared_ptr, spares) == 0)
    if LEVELS:
        gone = gone | is_removed(key_of(x), ids, row_ptr)
    kept = is_in(key_of(x), ids, cut_key, cut_id) & (gone == 0)
    w = tl.where(kept, weight_of(exponent_of(x, m, c)), 0)
    w = tl.where(kept & (ids == trimmed), left, w)
    # A shard that does not hold the block finds it all the same.
    return block * BLOCK + tl.minimum(tl.sum((tl.cumsum(w, 0) + before <= r).to(tl.int32), 0), BLOCK - 1)
# fmt: on
