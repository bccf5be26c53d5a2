"""Logprobs, ranks and first candidates of rows in their views, in two launches: ends, then masses and what is told.

`view_ends` finds the first candidate of each block, `view_weigh` the mass of the block and how many tokens lie above
the drawn one; the last block puts those of its row together, and takes its first candidates one by one: after each it
looks for the next one of that block alone. Then it looks up the tokens that the row names. Rows that report nothing, or
have no token, are not read (S-L5).

What a row was drawn from is what the draw has told (`reports.laws`): two tokens between which a set lies, or marks of
those that it has. Where tokens are ordered by their logprobs, `view_ends` writes these, and they stand for logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    exponent_of,
    is_spoiled,
    key_of,
    logits_at,
    logprob_of,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.layout import SUMMANDS
from tirage.backends.torch.kernels.measure import is_last
from tirage.backends.torch.kernels.reports.laws import (
    goes_by_logprob,
    largest_of,
    logprobs_of,
    mass_of,
    own_logprob,
    shown,
)
from tirage.backends.torch.kernels.reports.told import SCALE, C
from tirage.sampling_metadata import View

_NONE, _RAW, _SAMPLED = (tl.constexpr(int(view)) for view in (View.NONE, View.RAW, View.SAMPLED))
_LAST_ID = tl.constexpr((1 << 20) - 1)
_ABSENT = tl.constexpr(-1)

SIZES = ("most", "asked", "width", "keeps")
"""Arguments that kernels are not compiled anew for."""


@triton.jit
def view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, ids, there, IS_BFLOAT: tl.constexpr):
    """Logits of a row in its view: as they came, where those that are not finite count as -inf, or after its edits,
    where those that cannot be drawn count as -inf if the view is that of the draw."""
    if view == _RAW:
        given = logits_at(given_ptr, ids, there, IS_BFLOAT)
        x = tl.where(is_spoiled(key_of(given)), float("-inf"), given)
    elif view == _SAMPLED:
        x = shown(edited_ptr, ids, there, sums_ptr, kept_ptr, law_ptr)
    else:
        x = tl.load(edited_ptr + ids, mask=there, other=float("-inf"))
    return x


@triton.jit
def is_ordered_by_logprob(sums_ptr, view):
    """Whether the tokens of a row's view are ordered by logprobs, which are written before they are looked at."""
    found = tl.full((), False, tl.int1)
    if view == _SAMPLED:
        found = goes_by_logprob(sums_ptr)
    return found


@triton.jit
def order_of(key, ids):
    """int64, any shape: larger first is the order of every cut (S-W3); ABSENT where a token is no candidate."""
    order = ((key.to(tl.int64) + (1 << 31)) << 20) | (ids ^ _LAST_ID).to(tl.int64)
    return tl.where(key > NEG_INF, order, _ABSENT)


@triton.jit
def key_in(order):
    """int32 keys of such numbers; -inf's for ABSENT."""
    return tl.where(order == _ABSENT, NEG_INF, (order >> 20) - (1 << 31)).to(tl.int32)


@triton.jit
def largest_in(ends_ptr, blocks, PADDED: tl.constexpr):
    """The largest logit of a row in its view, any number where it has no candidate."""
    at = tl.arange(0, PADDED)
    key = key_in(tl.max(tl.load(ends_ptr + at, mask=at < blocks, other=_ABSENT), 0))
    return value_of(tl.where(key > NEG_INF, key, 0))


@triton.jit
def known(given, told_ptr):
    """A number of a view's law: the one that was `given`, float32, or if that is NaN what the draw told."""
    return tl.where(given == given, given, tl.load(told_ptr).to(tl.int32).to(tl.float32, bitcast=True))


# fmt: off
@triton.jit(do_not_specialize=("keeps",))
def view_ends(
    given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, slots_ptr, view_ptr, status_ptr, ends_ptr, arrived_ptr,
    keeps, size, blocks, BLOCK: tl.constexpr, IS_BFLOAT: tl.constexpr,
):
    """The first candidate of a block, as `order_of` has it; the counter of the row is made 0 for `view_weigh`."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tl.store(arrived_ptr + row, 0, mask=block == 0)
    view = tl.load(view_ptr + tl.load(slots_ptr + row))
    if (view != _NONE) & (tl.load(status_ptr + row) == 0):
        ids = block * BLOCK + tl.arange(0, BLOCK)
        given_ptr, edited_ptr, sums_ptr = given_ptr + row * size, edited_ptr + row * size, sums_ptr + row * SUMMANDS
        kept_ptr, law_ptr = kept_ptr + row * keeps, law_ptr + row * size
        if is_ordered_by_logprob(sums_ptr, view):
            x = tl.load(edited_ptr + ids, mask=ids < size, other=float("-inf"))
            x = logprobs_of(x, ids, sums_ptr, kept_ptr)
            tl.store(law_ptr + ids, x, mask=ids < size)
        else:
            x = view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, ids, ids < size, IS_BFLOAT)
        tl.store(ends_ptr + row * blocks + block, tl.max(order_of(key_of(x), ids), 0))


@triton.jit(do_not_specialize=SIZES)
def view_weigh(
    given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, slots_ptr, view_ptr, scale_ptr, top_n_ptr, asked_ptr,
    status_ptr, token_ptr, ends_ptr, mass_ptr, above_ptr, arrived_ptr, logprob_ptr, rank_ptr, top_id_ptr,
    top_logprob_ptr, asked_logprob_ptr, most, asked, width, keeps, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, NAMED: tl.constexpr, IS_BFLOAT: tl.constexpr, EMPTY: tl.constexpr,
):
    """The mass of a block under the row's view, and how many of its tokens lie above the drawn one.

    The last block of the row tells what the row reports, at most `most` first candidates, and the logprobs of the
    first `asked` of the tokens, `width` places, that its slot names.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, status = tl.load(slots_ptr + row), tl.load(status_ptr + row)
    view = tl.load(view_ptr + slot)
    given_ptr, edited_ptr, sums_ptr = given_ptr + row * size, edited_ptr + row * size, sums_ptr + row * SUMMANDS
    kept_ptr, law_ptr = kept_ptr + row * keeps, law_ptr + row * size
    ends_ptr, mass_ptr, above_ptr = ends_ptr + row * blocks, mass_ptr + row * blocks, above_ptr + row * blocks
    if (view != _NONE) & (status == 0):
        m, c = largest_in(ends_ptr, blocks, PADDED), known(tl.load(scale_ptr + slot * 2), sums_ptr + C)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        token = tl.load(token_ptr + row)
        drawn = view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, token, token >= 0, IS_BFLOAT)
        x = view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, ids, ids < size, IS_BFLOAT)
        above = (key_of(x) > key_of(drawn)) & (ids < size)
        if view != _SAMPLED:
            tl.store(mass_ptr + block, tl.sum(weight_of(exponent_of(x, m, c)), 0))
        tl.store(above_ptr + block, tl.sum(above.to(tl.int32), 0))
    if is_last(arrived_ptr + row, blocks):
        inverse_t = known(tl.load(scale_ptr + slot * 2 + 1), sums_ptr + SCALE)
        tell(
            given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, inverse_t, tl.load(top_n_ptr + slot), status,
            tl.load(token_ptr + row), ends_ptr, mass_ptr, above_ptr, logprob_ptr + row, rank_ptr + row,
            top_id_ptr + row * most, top_logprob_ptr + row * most, asked_ptr + slot * width,
            asked_logprob_ptr + row * asked, most, asked, size, blocks, BLOCK, PADDED, NAMED, IS_BFLOAT, EMPTY,
        )


@triton.jit
def tell(
    given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, inverse_t, top_n, status, token, ends_ptr, mass_ptr,
    above_ptr, logprob_ptr, rank_ptr, top_id_ptr, top_logprob_ptr, asked_ptr, asked_logprob_ptr, most, asked, size,
    blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, NAMED: tl.constexpr, IS_BFLOAT: tl.constexpr, EMPTY: tl.constexpr,
):
    """Logprob, rank, and at most `most` first candidates of a row; what it does not report is NaN, 0, -1 and -inf.

    Beside them the logprobs of the first `asked` tokens that it names, NaN past its own.
    """
    at = tl.arange(0, PADDED)
    lp, rank, listed = tl.full((), float("nan"), tl.float32), tl.full((), 0, tl.int64), tl.full((), 0, tl.int32)
    m, total, told = tl.full((), 0, tl.float32), tl.full((), 1, tl.int64), tl.full((), 0, tl.int32)
    if (view != _NONE) & (status == 0):
        told += asked
        there = at < blocks
        ends, m = tl.load(ends_ptr + at, mask=there, other=_ABSENT), largest_in(ends_ptr, blocks, PADDED)
        total = tl.sum(tl.load(mass_ptr + at, mask=there, other=0, cache_modifier=".cg"), 0)
        total = tl.maximum(total, 1)
        if view == _SAMPLED:
            m, total = largest_of(sums_ptr), mass_of(sums_ptr)
        rank = 1 + tl.sum(tl.load(above_ptr + at, mask=there, other=0, cache_modifier=".cg"), 0).to(tl.int64)
        drawn = view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, token, token >= 0, IS_BFLOAT)
        lp = viewed_logprob(drawn, token, sums_ptr, view, m, inverse_t, total)
        wanted = tl.minimum(top_n, most).to(tl.int32)
        best = tl.max(ends, 0)
        while (listed < wanted) & (best != _ABSENT):
            first = ((best & _LAST_ID) ^ _LAST_ID).to(tl.int32)  # pyright: ignore[reportOperatorIssue]
            tl.store(top_id_ptr + listed, first.to(tl.int64))
            x = value_of(key_in(best))
            tl.store(top_logprob_ptr + listed, viewed_logprob(x, first, sums_ptr, view, m, inverse_t, total))
            block = first // BLOCK
            ids = block * BLOCK + tl.arange(0, BLOCK)
            x = view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, ids, ids < size, IS_BFLOAT)
            order = order_of(key_of(x), ids)
            ends = tl.where(at == block, tl.max(tl.where(order < best, order, _ABSENT), 0), ends)
            best = tl.max(ends, 0)
            listed += 1
    tell_asked(
        given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, asked_ptr, asked_logprob_ptr, m, inverse_t, total,
        told, asked, NAMED, IS_BFLOAT,
    )
    rest = tl.where((status == 0) | (status == EMPTY), float("-inf"), float("nan"))
    while listed < most:
        tl.store(top_id_ptr + listed, tl.full((), -1, tl.int64))
        tl.store(top_logprob_ptr + listed, rest)
        listed += 1
    tl.store(logprob_ptr, lp)
    tl.store(rank_ptr, rank)


@triton.jit
def tell_asked(
    given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, asked_ptr, asked_logprob_ptr, m, inverse_t, total, told,
    asked, NAMED: tl.constexpr, IS_BFLOAT: tl.constexpr,
):
    """The logprobs of the first `told` tokens that a row names, when its view weighs `total`; NaN for the others
    of the `asked`, and past its own, which are -1."""
    for begin in range(0, asked, NAMED):
        place = begin + tl.arange(0, NAMED)
        ids = tl.load(asked_ptr + place, mask=place < told, other=-1)
        x = view_at(given_ptr, edited_ptr, sums_ptr, kept_ptr, law_ptr, view, ids, ids >= 0, IS_BFLOAT)
        lp = tl.where(ids >= 0, viewed_logprob(x, ids, sums_ptr, view, m, inverse_t, total), float("nan"))
        tl.store(asked_logprob_ptr + place, lp, mask=place < asked)
# fmt: on


@triton.jit
def viewed_logprob(x, ids, sums_ptr, view, m, inverse_t, total):
    """ln of the probabilities of tokens, any shape, from their logits when the view weighs `total`; -inf for -inf
    (S-L2)."""
    lp = tl.where(key_of(x) == NEG_INF, float("-inf"), logprob_of(x, m, inverse_t, total))
    if view == _SAMPLED:
        lp = own_logprob(lp, x, ids, sums_ptr, total)
    return lp
