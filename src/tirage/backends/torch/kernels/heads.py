"""The head of a set that tail-free cuts: its likeliest tokens, which mostly tell the cut before others are in order.

A bend |d(i) - d(i + 1)| of the drops d(i) = w(i) - w(i + 1), none of which is negative, is at most the sum of both. So
all bends that end behind the h-th token are at most (w(h - 1) - w(N - 1)) + (w(h) - w(N)) together, which is at most
w(h - 1) + w(h), whatever the tokens there are. Where the curvature of the head passes the share of the least sum of all
bends, and that of the greatest, with the same token, this is the cut. It then stands in the head, and is heavier than
its last token, so that the head holds all tokens that stay: it is listed while the set is counted, by ascending ids.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.rule import key_of
from tirage.backends.torch.kernels.sets import IS_LISTED, NUMBER, put, word

REACH, HEAD, HEADED, HEAD_LEAST = (tl.constexpr(114 + at) for at in range(4))
"""Words of a row: the exponent up to which the head goes, -1 for none, how many buckets it has, how many tokens, and
the weight of the last of them that is in order."""
PART_OF_SET = 8
"""A head has room for one token in so many of the vocabulary."""
_EACH = tl.constexpr(PART_OF_SET)
_LEAST, _MOST = (tl.constexpr(octaves << 23) for octaves in (3, 18))
"""The last token of a head weighs less than the first one by so many octaves: a heavier one leaves too much open, and a
lighter one tells hardly more."""


# fmt: off
@triton.jit
def room_of(size):
    """How many tokens a head has room for."""
    return size // _EACH


@triton.jit
def put_reach(state_ptr, ranked, number, low, length, size, PART: tl.constexpr):
    """Writes how far a head goes, by the exponents of a sample in order, so many of which count, for a set of `length`.

    It is not to have too many tokens: the sample tells three quarters of what there is room for.
    """
    lanes = tl.arange(0, PART)
    wanted = (PART * 3 // 4 * room_of(size).to(tl.int64) // tl.maximum(length, 1)).to(tl.int32)
    at = tl.minimum(wanted, number - 1)
    reach = tl.minimum(tl.max(tl.where(lanes == at, ranked, 0), 0), low + _MOST)  # pyright: ignore[reportOperatorIssue]
    is_few = (word(state_ptr, NUMBER) >= 0) & (word(state_ptr, NUMBER) <= PART)
    put(state_ptr, REACH, tl.where((number > 0) & (is_few == 0) & (reach - low >= _LEAST), reach, -1))


@triton.jit
def settle_head(buckets_ptr, state_ptr, size):
    """Writes how many tokens the head has, once it is known where its buckets end; without room there is none."""
    head = word(state_ptr, HEAD)
    if head > 0:
        number = tl.load(buckets_ptr + head)
        tl.debug_barrier()
        put(state_ptr, HEADED, number)
        put(state_ptr, HEAD, tl.where((number > 0) & (number <= room_of(size)), head, 0))
        tl.debug_barrier()


@triton.jit(noinline=True)
def keep_head(x_ptr, list_ptr, head_ptr, state_ptr, least_key, TILE: tl.constexpr):
    """Lists in the place of the set the tokens of its head that have at least this key: all of the set that have."""
    PART: tl.constexpr = TILE // 4
    length, number = word(state_ptr, HEADED).to(tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            at = start + part + tl.arange(0, PART)
            ids = tl.load(head_ptr + at, mask=at < length, other=0)
            x = tl.load(x_ptr + ids, mask=at < length, other=float("-inf"))
            one = ((at < length) & (key_of(x) >= least_key)).to(tl.int32)
            tl.store(list_ptr + number + tl.cumsum(one, 0) - one, ids, mask=one > 0)
            number += tl.sum(one, 0)
    tl.debug_barrier()
    put(state_ptr, NUMBER, number)
    put(state_ptr, IS_LISTED, number * 0 + 1)
    tl.debug_barrier()
# fmt: on
