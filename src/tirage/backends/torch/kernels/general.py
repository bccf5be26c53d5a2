"""Rows that the passes over split blocks do not run: any list of filters, and the draw, in one thread block each.

Such a row reads its logits a few times, which no other row waits for. With XTC its steps are run twice, without it and
with it, as its law is a mixture of both (SPEC.md S-W6, S-L4); the second run begins at the XTC.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.carry import CARRIED, follow
from tirage.backends.torch.kernels.exact.entropy import is_temperature
from tirage.backends.torch.kernels.exact.probability import mixed_logprob
from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    POS_INF,
    key_of,
    ln_of,
    log2_fixed,
    logprob_of,
)
from tirage.backends.torch.kernels.exact.thresholds import is_xtc
from tirage.backends.torch.kernels.histogram.level_ranges import has_levels
from tirage.backends.torch.kernels.layout import (
    IS_GREEDY,
    LANES,
    PROGRAM,
    SUMMANDS,
    VARYING,
    WIDTH,
)
from tirage.backends.torch.kernels.open_range.exclusion import is_on
from tirage.backends.torch.kernels.reports.told import is_told, tell_set
from tirage.backends.torch.kernels.resolve import resolve_row, uniform_of
from tirage.backends.torch.kernels.sets.brackets import keep_lanes
from tirage.backends.torch.kernels.sets.drawn import drawn_weights, nearest_at, target_exponents
from tirage.backends.torch.kernels.sets.marks import bits_at, drawn_marks, set_bits, spared_marks
from tirage.backends.torch.kernels.sets.reads import base_of, is_joint
from tirage.backends.torch.kernels.sets.segments import begin_segment, segments_of, shift_of
from tirage.backends.torch.kernels.sets.smoothing import smooth
from tirage.backends.torch.kernels.sets.steps import run_step
from tirage.backends.torch.kernels.sets.tokens import enter, is_within, length_of, members_at, scales_of, weights_at
from tirage.backends.torch.kernels.sets.words import (
    ALL_LOW,
    ALL_NUMBER,
    ALL_TOP,
    ARE_SUMMED,
    BEFORE_XTC,
    CUTS_AFTER,
    FEW,
    FEW_AT,
    FIRST_KEY,
    IS_FRESH,
    IS_LISTED,
    IS_ONE,
    IS_SAME,
    IS_SMOOTHED,
    JOINT,
    KEPT_MASS,
    KEPT_WEIGHTY,
    LAST_KEY,
    LOGIT,
    MASSES,
    NEAREST,
    NEVER,
    NUMBER,
    PLACES,
    RESUMED,
    SCALE,
    SEGMENTED,
    SEGMENTS,
    SHARE,
    SPARES,
    STAYS_WHOLE,
    STEP,
    SUPPORT,
    TARGET,
    TOKEN,
    TOP_KEY,
    TOTAL,
    TOTAL_WITHOUT,
    TURN,
    TURNS,
    WHOLE,
    WITHOUT,
    WORDS_OF_ROW,
    bits_in,
    count_on,
    put,
    save,
    word,
)
from tirage.backends.torch.plan import AS_SET, BY_PASSES
from tirage.exact import numbers
from tirage.operators import END, FIRST_FILTER
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.tfs import TFS
from tirage.operators.top_n_sigma import TOP_N_SIGMA

_AS_SET, _BY_PASSES = tl.constexpr(AS_SET), tl.constexpr(BY_PASSES)
_NONE = tl.constexpr(0x7FFFFFFF)
_TFS, _SIGMA = tl.constexpr(int(TFS)), tl.constexpr(int(TOP_N_SIGMA))
_FEW, _ONE, _LEVELED = tl.constexpr(FEW), tl.constexpr(1), tl.constexpr(False)
_END, _FIRST_FILTER, _ADAPTIVE_P = tl.constexpr(END), tl.constexpr(FIRST_FILTER), tl.constexpr(int(ADAPTIVE_P))
_UNIT = tl.constexpr(float(numbers.temperature_constant(1.0)))
_CERTAIN = tl.constexpr(1 << 40)
_ALWAYS = tl.constexpr(1 << 32)
CHANCES, STATES = 1, 2
"""What is told of rows: the chance of the token before adaptive-p, or what the row carries after it."""
_STATES = tl.constexpr(STATES)


# fmt: off
@triton.jit(do_not_specialize=(*VARYING, "marks", "buckets", "tells", "spares", "keeps"))
def general(
    x_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, meta_ptr, row_ptr, status_ptr, bins_ptr,
    lists_ptr, state_ptr, told_ptr, slots_ptr, carry_ptr, spared_ptr, scale_ptr, kept_ptr, token_ptr, logprob_ptr,
    support_ptr,
    columns, size, blocks, steps, marks, buckets, tells, spares, keeps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, LONG: tl.constexpr,
):
    """What `resolve` does, and rows of any steps: those have a list of ids, `marks` of tokens, as many numbers of each,
    room for few ids, and for some `buckets`, among which tail-free deals tokens out.

    `tells` is 0 or what is told of rows, `CHANCES` or `STATES`; `spares` how many words of a slot say which tokens XTC
    never removes. Laws are told of rows whose slot's scale is NaN, unless `keeps`, how many marks there are of the
    tokens of a row, is -1.
    """
    row = tl.program_id(0).to(tl.int64)
    kind = tl.load(meta_ptr + row * columns + IS_GREEDY)
    # There are no registers for a typical beside other steps of rows that passes draw.
    is_set = (kind == _AS_SET) | ((kind == _BY_PASSES) & has_levels(meta_ptr + row * columns, steps))
    if (tl.load(status_ptr + row) == 0) & is_set:
        own_ptr = lists_ptr + row * (size.to(tl.int64) + marks + _FEW + buckets)
        spared_ptr += tl.load(slots_ptr + row, mask=spares > 0, other=0) * spares
        begin_marks(
            own_ptr, state_ptr + row * WORDS_OF_ROW, spared_ptr, meta_ptr + row * columns, size, steps, spares, LONG
        )
        draw_set(
            x_ptr + row * size, ends_ptr + row * blocks, own_ptr, state_ptr + row * WORDS_OF_ROW,
            bins_ptr + row * LANES, sums_ptr + row * SUMMANDS, meta_ptr + row * columns, row_ptr + row * WIDTH, size,
            steps, marks, BLOCK, LONG,
        )
        lp = logprob_of_row(own_ptr, state_ptr + row * WORDS_OF_ROW, size)
        tl.store(token_ptr + row, word(state_ptr + row * WORDS_OF_ROW, TOKEN))
        tl.store(logprob_ptr + row, lp)
        tl.store(support_ptr + row, word(state_ptr + row * WORDS_OF_ROW, SUPPORT))
    else:
        token, lp, support = resolve_row(
            x_ptr, ends_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, length_ptr, meta_ptr, row_ptr, status_ptr,
            spared_ptr, row, columns, size, blocks, steps, spares, BLOCK, PADDED, TILE, _LEVELED,
        )
        tl.store(token_ptr + row, token.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
        tl.store(logprob_ptr + row, lp)
        tl.store(support_ptr + row, support.to(tl.int64))
    tl.debug_barrier()
    if tells > 0:
        tell_row(
            status_ptr, meta_ptr, state_ptr, slots_ptr, carry_ptr, token_ptr, logprob_ptr, told_ptr, row, columns, tells
        )
    if keeps >= 0:
        tell_laws(
            sums_ptr, kept_ptr, lists_ptr, state_ptr, status_ptr, meta_ptr, slots_ptr, scale_ptr, row, columns, size,
            marks, buckets, keeps, LONG,
        )


@triton.jit
def tell_row(
    status_ptr, meta_ptr, state_ptr, slots_ptr, carry_ptr, token_ptr, logprob_ptr, told_ptr, row, columns, tells
):
    """Writes what is told of a row, once its token is drawn."""
    chance = tl.full((), float("nan"), tl.float64)
    if (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + row * columns + IS_GREEDY) == _AS_SET):
        chance = chance_of(state_ptr + row * WORDS_OF_ROW, meta_ptr + row * columns)
    if tells == _STATES:
        token, lp = tl.load(token_ptr + row).to(tl.int32), tl.load(logprob_ptr + row)
        chance = follow(carry_ptr + tl.load(slots_ptr + row) * CARRIED, token, lp, chance)
    tl.store(told_ptr + row, chance)


@triton.jit
def tell_laws(
    sums_ptr, kept_ptr, lists_ptr, state_ptr, status_ptr, meta_ptr, slots_ptr, scale_ptr, row, columns, size, marks,
    buckets, keeps, TILE: tl.constexpr,
):
    """Writes the laws of a row that was drawn as a set, if they are asked for, and marks its tokens."""
    is_set = (tl.load(status_ptr + row) == 0) & (tl.load(meta_ptr + row * columns + IS_GREEDY) == _AS_SET)
    if is_set & is_told(scale_ptr, slots_ptr + row):
        list_ptr = lists_ptr + row * (size.to(tl.int64) + marks + _FEW + buckets)
        tell_set(
            sums_ptr + row * SUMMANDS, kept_ptr + row * keeps, list_ptr, state_ptr + row * WORDS_OF_ROW, size, keeps,
            TILE,
        )


@triton.jit
def chance_of(state_ptr, meta_ptr):
    """The share of the token in the set that it was drawn from, before adaptive-p, float64; NaN without one."""
    share, token, x = word(state_ptr, SHARE), word(state_ptr, TOKEN).to(tl.int32), bits_in(state_ptr, LOGIT)
    state_ptr += tl.where((share >= 0) & (drawn_turn(meta_ptr, share) == 0), WITHOUT, 0)
    m, c, trimmed, left = scales_of(state_ptr)
    _, w = weights_at(token, x, key_of(x), m, c, trimmed, left)
    found = w.to(tl.float64) / word(state_ptr, WHOLE).to(tl.float64)
    return tl.where(word(state_ptr, TARGET) >= 0, found, tl.full((), float("nan"), tl.float64))


@triton.jit
def draw_set(
    x_ptr, ends_ptr, list_ptr, state_ptr, bins_ptr, sums_ptr, meta_ptr, row_ptr, size, steps, marks,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):
    """Writes token and support of one row; marks are left of what the row without XTC can draw.

    What its loops go on by is in the row's words. All that reads tokens is in functions of their own, for which the
    registers are free: none of these holds more than where the row lies from one call to the next.
    """
    high, low, number = smooth(x_ptr, bins_ptr, sums_ptr, meta_ptr, row_ptr, size, steps, TILE)
    begin_draw(state_ptr, meta_ptr, high, low, number, size, steps, marks)
    keep_lanes(bins_ptr, sums_ptr, state_ptr, row_ptr, meta_ptr, high)
    while word(state_ptr, TURN) < word(state_ptr, TURNS):
        begin_turn(state_ptr, meta_ptr, size, steps)
        while word(state_ptr, STEP) < steps:
            run_step(x_ptr, list_ptr, state_ptr, meta_ptr, size, TILE)
            count_on(state_ptr, STEP)
        if (word(state_ptr, TARGET) >= 0) & (word(state_ptr, IS_SAME) == 0):
            reweigh(x_ptr, ends_ptr, list_ptr, state_ptr, size, BLOCK, TILE)
        if is_weighed(state_ptr) == 0:
            weigh_set(x_ptr, list_ptr, state_ptr, size, TILE)
        if word(state_ptr, TURN) == drawn_turn(meta_ptr, word(state_ptr, SHARE)):
            draw_from(x_ptr, list_ptr, state_ptr, meta_ptr, size, TILE)
        end_turn(state_ptr)


@triton.jit(noinline=True)
def begin_draw(state_ptr, meta_ptr, high, low, number, size, steps, marks):
    """Writes what is known of a row before its first step."""
    share, cuts = coin_of(meta_ptr, steps)
    none = tl.full((), 0, tl.int64)
    put(state_ptr, CUTS_AFTER, cuts)
    put(state_ptr, SHARE, share)
    put(state_ptr, TOTAL, none)
    put(state_ptr, SUPPORT, none)
    put(state_ptr, ALL_TOP, high)
    put(state_ptr, ALL_LOW, low)
    put(state_ptr, ALL_NUMBER, number)
    put(state_ptr, IS_SMOOTHED, number >= 0)
    put(state_ptr, RESUMED, none - 1)
    put(state_ptr, FEW_AT, size + marks)
    put(state_ptr, STAYS_WHOLE, needs_list(meta_ptr, steps))
    put(state_ptr, TURN, none)
    put(state_ptr, TURNS, tl.where(share >= 0, 2, 1))
    tl.debug_barrier()


@triton.jit
def needs_list(meta_ptr, steps):
    """2 where a step of a row takes the least key of a set for that of a token, 1 where one reads its set so often that
    one of few tokens is listed, else 0."""
    found = tl.full((), 0, tl.int32)
    for s in range(steps):
        op = tl.load(meta_ptr + PROGRAM + s * 6)
        found = tl.maximum(found, tl.where(op == _SIGMA, 2, tl.where(op == _TFS, 1, 0)))
    return found


@triton.jit(noinline=True)
def begin_turn(state_ptr, meta_ptr, size, steps):
    """Writes what a turn begins with, the set of all tokens; the second one, in which XTC removes something, begins at
    the XTC, where the set that it is given is still there."""
    if (word(state_ptr, TURN) != 0) & (word(state_ptr, RESUMED) >= 0):
        save(state_ptr, BEFORE_XTC, 0)  # pyright: ignore[reportArgumentType]
    else:
        enter(state_ptr, size)
    put(state_ptr, JOINT, is_joint(meta_ptr, steps))
    put(state_ptr, ARE_SUMMED, steps * 0)
    put(state_ptr, IS_SAME, steps * 0)
    put(state_ptr, STEP, steps * 0)
    tl.debug_barrier()


@triton.jit(noinline=True)
def end_turn(state_ptr):
    """Keeps the numbers of the row without XTC, and goes on to the second turn."""
    turn = word(state_ptr, TURN)
    if (word(state_ptr, SHARE) >= 0) & (turn == 0):
        save(state_ptr, 0, WITHOUT)  # pyright: ignore[reportArgumentType]
    tl.debug_barrier()
    put(state_ptr, TURN, turn + 1)
    tl.debug_barrier()


@triton.jit(noinline=True)
def is_weighed(state_ptr):
    """Whether what a turn leaves is weighed already, int32; what follows from that is written."""
    share, found = word(state_ptr, SHARE), tl.full((), 0, tl.int32)
    if (word(state_ptr, TURN) == 1) & (word(state_ptr, IS_SAME) != 0):
        # XTC removes nothing: all is as in the first turn.
        save(state_ptr, WITHOUT, 0)  # pyright: ignore[reportArgumentType]
        put(state_ptr, TOTAL_WITHOUT, word(state_ptr, TOTAL))
        found += 1
    elif (share < 0) & (word(state_ptr, IS_FRESH) != 0):
        put(state_ptr, TOTAL, word(state_ptr, KEPT_MASS))
        put(state_ptr, SUPPORT, word(state_ptr, KEPT_WEIGHTY))
        found += 1
    tl.debug_barrier()
    return found


@triton.jit
def drawn_turn(meta_ptr, share):
    """In which turn the token is drawn: the first without XTC, the second with it."""
    turn = tl.full((), 0, tl.int32)
    if share >= 0:
        turn = is_on(meta_ptr, share).to(tl.int32)
    return turn
# fmt: on


@triton.jit
def coin_of(meta_ptr, steps):
    """(how often the first XTC of a row is on, in units of 2^-32, int64, -1 where it has none; how many steps behind it
    may remove tokens, int32, -1 where another XTC is among them)."""
    share, cuts = tl.full((), -1, tl.int64), tl.full((), 0, tl.int32)
    for s in range(steps):
        step_ptr = meta_ptr + PROGRAM + s * 6
        op = tl.load(step_ptr)
        is_cut = (op >= _FIRST_FILTER) & (op != _END) & (op != _ADAPTIVE_P) & (is_temperature(op) == 0)
        is_coin = is_xtc(base_of(op))
        more = tl.where(is_cut & (share >= 0) & (cuts >= 0), cuts + 1, cuts)
        cuts = tl.where(is_coin & (share >= 0), -1, more)
        share = tl.where(is_coin & (share < 0), tl.load(step_ptr + 1), share)
    return share, cuts


# --- the weights that are drawn from ----------------------------------------------------------------------------------


@triton.jit(noinline=True)
def reweigh(x_ptr, ends_ptr, list_ptr, state_ptr, size, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Writes the least exponent of the set under adaptive-p: mostly that of its largest weight, or of the largest one
    in each block, and then only blocks with a share above the target are read."""
    PART: tl.constexpr = TILE // 4
    m, c, trimmed, left = scales_of(state_ptr)
    is_top, least = nearest_at(state_ptr, word(state_ptr, TOP_KEY).to(tl.int32))
    length, is_listed = tl.where(is_top, 0, length_of(state_ptr, size)), word(state_ptr, IS_LISTED)
    nearest = tl.arange(0, PART) * 0 + tl.where(is_top, least, _NONE)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            is_told, of_part = least_in(ends_ptr, state_ptr, start + part, size, BLOCK, PART)
            end = tl.where(is_told, 0, length)
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, end, is_listed, PART)
            _, w = weights_at(ids, x, key, m, c, trimmed, left)
            nearest = tl.minimum(nearest, tl.where(key > NEG_INF, target_exponents(w, state_ptr), of_part))
    found = tl.min(nearest, 0)
    put(state_ptr, NEAREST, found)
    tl.debug_barrier()


@triton.jit
def least_in(ends_ptr, state_ptr, start, size, BLOCK: tl.constexpr, PART: tl.constexpr):
    """(whether it is told by the largest logits of their blocks, the least exponent int32 under adaptive-p) of a part
    of the row from `start` on: the greatest int32 where none of its tokens is in the set, or it is not told.

    They tell nothing of a set that is listed or lacks its likeliest tokens, nor of logits that a smoothing changed.
    """
    BLOCKS: tl.constexpr = PART // BLOCK if PART > BLOCK else _ONE
    at = start // BLOCK + tl.arange(0, BLOCKS)
    highest = tl.max(tl.load(ends_ptr + at, mask=at * BLOCK < size, other=NEG_INF), 0)
    last, is_listed = word(state_ptr, LAST_KEY).to(tl.int32), word(state_ptr, IS_LISTED) != 0
    is_known = (is_listed | (word(state_ptr, FIRST_KEY) < POS_INF) | (word(state_ptr, IS_SMOOTHED) != 0)) == 0
    is_nearest, least = nearest_at(state_ptr, highest)
    is_told = is_known & (((highest > last) & is_nearest) | (highest < last))
    return is_told, tl.where(is_told & (highest > last), least, _NONE)


@triton.jit(noinline=True)
def weigh_set(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes the mass of what is drawn from, by segments too, that of the turn before, and how many tokens can be drawn
    in some turn. What a row can draw without its XTC is marked."""
    PART: tl.constexpr = TILE // 8
    length, is_listed, share = length_of(state_ptr, size), word(state_ptr, IS_LISTED), word(state_ptr, SHARE)
    turn = word(state_ptr, TURN)
    mass, number = (tl.arange(0, PART) * 0).to(tl.int64), tl.arange(0, PART) * 0
    marks = (turn == 0) & (share >= 0)
    # With an XTC that is always on, what it removes cannot be drawn.
    least, shift = tl.where((turn == 1) & (share < _ALWAYS), 0, _CERTAIN), shift_of(length, TILE)
    for start in range(0, length, TILE):
        begin_segment(state_ptr, start // TILE, shift, tl.sum(mass, 0), start)
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, is_listed, PART)
            w = drawn_weights(ids, x, key, state_ptr)
            marked = bits_at(drawn_marks(list_ptr, size), ids, w > least)
            mass += w
            number += ((w > 0) & (marked == 0)).to(tl.int32)
            if marks:
                set_bits(drawn_marks(list_ptr, size), start + part, ids, w > 0, is_listed, PART)
    total, found = tl.sum(mass, 0), tl.sum(number, 0)
    without, support = word(state_ptr, TOTAL), word(state_ptr, SUPPORT)
    tl.debug_barrier()
    put(state_ptr, TOTAL, total)
    put(state_ptr, TOTAL_WITHOUT, without)
    put(state_ptr, SUPPORT, tl.where(share == _ALWAYS, found, support + found))
    put(state_ptr, SEGMENTED, segments_of(length, TILE))
    tl.debug_barrier()


@triton.jit(noinline=True)
def draw_from(x_ptr, list_ptr, state_ptr, meta_ptr, size, TILE: tl.constexpr):
    """Writes the token at which the running sum of weights, by id, passes the uniform of the row, and its logit: in one
    segment of the set."""
    PART: tl.constexpr = TILE // 8
    r = tl.umulhi(uniform_of(meta_ptr), word(state_ptr, TOTAL).to(tl.uint64)).to(tl.int64)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    lanes, number = tl.arange(0, SEGMENTS), word(state_ptr, SEGMENTED)
    masses = tl.load(state_ptr + MASSES + lanes, mask=lanes < number, other=NEVER)
    at = tl.sum((masses <= r).to(tl.int32), 0) - 1  # pyright: ignore[reportOperatorIssue]
    reached, token = tl.max(tl.where(masses <= r, masses, 0), 0), tl.full((), -1, tl.int32)
    begin = tl.load(state_ptr + PLACES + at).to(tl.int32)
    end = tl.load(state_ptr + PLACES + at + 1, mask=at + 1 < number, other=length).to(tl.int32)
    for start in range(0, end - begin, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, begin + start + part, end, is_listed, PART)
            w = drawn_weights(ids, x, key, state_ptr)
            after = reached + tl.sum(w, 0)  # pyright: ignore[reportOperatorIssue]
            if (reached <= r) & (after > r):
                at = tl.sum((reached + tl.cumsum(w, 0) <= r).to(tl.int32), 0)
                token = tl.sum(tl.where(tl.arange(0, PART) == at, ids, 0), 0)
            reached = after
    logit = tl.load(x_ptr + token)
    tl.debug_barrier()
    put(state_ptr, TOKEN, token)
    put(state_ptr, LOGIT, logit.to(tl.int32, bitcast=True))
    tl.debug_barrier()


@triton.jit(noinline=True)
def begin_marks(list_ptr, state_ptr, spared_ptr, meta_ptr, size, steps, spares, TILE: tl.constexpr):
    """Clears the marks of a row with XTC, and copies those of the tokens that it spares."""
    PART: tl.constexpr = TILE // 4
    put(state_ptr, SPARES, spares)
    share, _cuts = coin_of(meta_ptr, steps)
    words = (size + 31) >> 5
    for start in range(0, tl.where(share >= 0, words, 0), PART):
        at = start + tl.arange(0, PART)
        spared = tl.load(spared_ptr + at, mask=at < tl.minimum(words, spares), other=0)
        tl.store(drawn_marks(list_ptr, size) + at, at * 0, mask=at < words)
        tl.store(spared_marks(list_ptr, size) + at, spared, mask=at < words)


# --- logprobs ---------------------------------------------------------------------------------------------------------


@triton.jit(noinline=True)
def logprob_of_row(list_ptr, state_ptr, size):
    """ln of the probability of the token of a row, float32."""
    token, lp = word(state_ptr, TOKEN).to(tl.int32), tl.full((), 0.0, tl.float32)
    if word(state_ptr, SHARE) >= 0:
        lp += logprob_of_both(list_ptr, state_ptr, token, size)
    else:
        lp += logprob_in_set(state_ptr, token)
    return lp


@triton.jit
def logprob_in_set(state_ptr, token):
    """ln of the probability of a token of the set."""
    x, total = bits_in(state_ptr, LOGIT), word(state_ptr, TOTAL)
    m, _, trimmed, _ = scales_of(state_ptr)
    lp = logprob_of(x, m, bits_in(state_ptr, SCALE), total)
    if (token == trimmed) | (word(state_ptr, TARGET) >= 0):
        w = drawn_weights(token, x, key_of(x), state_ptr)
        lp = ln_of(log2_fixed(tl.maximum(w, 1).to(tl.uint64)) - log2_fixed(total.to(tl.uint64))) + 0.0
    return tl.where(word(state_ptr, IS_ONE) != 0, 0.0, lp)


@triton.jit
def logprob_of_both(list_ptr, state_ptr, token, size):
    """ln of the probability of a token under the law that XTC's coin mixes of two sets."""
    x, marked = bits_in(state_ptr, LOGIT), bits_at(drawn_marks(list_ptr, size), token, token >= 0)
    key = key_of(x)
    is_held = holds(list_ptr, state_ptr, key, token)
    w_off = tl.where(marked != 0, drawn_weights(token, x, key, state_ptr + WITHOUT), 0)
    w_on = tl.where(is_held != 0, drawn_weights(token, x, key, state_ptr), 0)
    return mixed_logprob(w_off, word(state_ptr, TOTAL_WITHOUT), w_on, word(state_ptr, TOTAL), word(state_ptr, SHARE))


@triton.jit
def holds(list_ptr, state_ptr, key, token):
    """Whether the set has a token with this key, int32: ids that are listed ascend."""
    found = is_within(state_ptr, key, token).to(tl.int32)
    if word(state_ptr, IS_LISTED) != 0:
        low, end = tl.full((), 0, tl.int64), word(state_ptr, NUMBER)
        # [low, end) holds it, if any.
        while low + 1 < end:
            middle = (low + end) >> 1
            is_before = tl.load(list_ptr + middle) > token
            end = tl.where(is_before, middle, end)
            low = tl.where(is_before, low, middle)
        found = (tl.load(list_ptr + low) == token).to(tl.int32)
    return found


# fmt: on
