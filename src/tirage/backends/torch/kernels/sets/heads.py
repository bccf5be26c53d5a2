"""The head of a set that tail-free cuts: its likeliest tokens, which mostly tell the cut before others are in order.

A bend |d(i) - d(i + 1)| of the drops d(i) = w(i) - w(i + 1), none of which is negative, is at most the sum of both. So
all bends that end behind the h-th token are at most (w(h - 1) - w(N - 1)) + (w(h) - w(N)) together, which is at most
w(h - 1) + w(h), whatever the tokens there are. Where the curvature of the head passes the share of the least sum of all
bends, and that of the greatest, with the same token, this is the cut. It then stands in the head, and is heavier than
its last token, so that the head holds all tokens that stay: it is listed while the set is counted, by ascending ids, at
the end of the room in which the set is put in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import key_of
from tirage.backends.torch.kernels.sets.words import CUT_KEY, HEADED, IS_LISTED, NUMBER, put, word

_EACH = tl.constexpr(8)
"""A head has room for one token in so many of the vocabulary."""
_LEAST, _MOST = (tl.constexpr(octaves << 23) for octaves in (3, 18))
"""The last token of a head weighs less than the first one by so many octaves: a heavier one leaves too much open, and a
lighter one tells hardly more."""


# fmt: off
@triton.jit
def room_of(size):
    """How many tokens a head has room for."""
    return size // _EACH


@triton.jit
def ids_of_head(list_ptr, size):
    """Where the tokens of a head are listed; what is dealt out may reach there later."""
    return list_ptr + size - room_of(size)


@triton.jit
def first_behind_head(state_ptr, ranked, number, length, size, PART: tl.constexpr):
    """The place, in a sample in order of so many exponents, of the first one behind the head, int32; 0 without one.

    The set is read from `length` places. A head is not to have too many tokens: the sample tells three quarters of what
    there is room for.
    """
    wanted = (PART * 3 // 4 * room_of(size).to(tl.int64) // tl.maximum(length, 1)).to(tl.int32)
    lanes, at, low = tl.arange(0, PART), tl.minimum(wanted, number - 1), tl.min(ranked, 0)
    reach = tl.minimum(tl.max(tl.where(lanes == at, ranked, 0), 0), low + _MOST)  # pyright: ignore[reportOperatorIssue]
    is_few = (word(state_ptr, NUMBER) >= 0) & (word(state_ptr, NUMBER) <= PART)
    found = tl.sum((ranked < reach).to(tl.int32), 0)
    return tl.where((is_few == 0) & (reach - low >= _LEAST), found, 0)  # pyright: ignore[reportOperatorIssue]


@triton.jit(noinline=True)
def keep_head(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Lists in the place of the set the tokens of its head that have at least the key of the cut: all that have."""
    PART: tl.constexpr = TILE // 4
    length, number = word(state_ptr, HEADED).to(tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            at = start + part + tl.arange(0, PART)
            ids = tl.load(ids_of_head(list_ptr, size) + at, mask=at < length, other=0)
            x = tl.load(x_ptr + ids, mask=at < length, other=float("-inf"))
            one = ((at < length) & (key_of(x) >= word(state_ptr, CUT_KEY))).to(tl.int32)
            tl.store(list_ptr + number + tl.cumsum(one, 0) - one, ids, mask=one > 0)
            number += tl.sum(one, 0)
    tl.debug_barrier()
    put(state_ptr, NUMBER, number)
    put(state_ptr, IS_LISTED, number * 0 + 1)
    tl.debug_barrier()
# fmt: on
