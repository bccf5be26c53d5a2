"""What a token changes in the tables of its row, in one launch: histories, counts, matches, state, step and length.

A thread block is one row. Its threads all read the row's numbers before any of them writes one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.device.past_form import ABSENT
from tirage.backends.torch.kernels.edit import breaks
from tirage.backends.torch.kernels.exact.carry import TOKEN_AT, move
from tirage.backends.torch.kernels.layout import STEP

_ABSENT = tl.constexpr(ABSENT)

SIZES = ("columns", "room", "tail", "counts", "windows", "ring", "matches", "powers", "carried")
"""Sizes of tables, and whether there are some: the kernel is not compiled anew for their values."""


# fmt: off
@triton.jit(do_not_specialize=SIZES)
def append(
    token_ptr, slots_ptr, used_ptr, meta_ptr, length_ptr, said_ptr, fault_ptr, tail_ptr, count_ids_ptr, in_prompt_ptr,
    in_output_ptr, distinct_ptr, window_ptr, ring_ptr, ahead_ptr, breaks_ptr, unbroken_ptr, carry_ptr,
    columns, room, tail, counts, windows, ring, matches, powers, carried, size,
    TILE: tl.constexpr,
):
    """Appends a token to each row; -1 leaves it as it is, and one that cannot be one is kept as its fault."""
    slot = tl.load(slots_ptr + tl.program_id(0))
    token = tl.load(token_ptr + tl.program_id(0)).to(tl.int64)
    fault, length, said = tl.load(fault_ptr + slot), tl.load(length_ptr + slot), tl.load(said_ptr + slot)
    step = tl.load(meta_ptr + slot * columns + STEP)
    carry_ptr += slot * carried
    drawn = tl.load(carry_ptr + TOKEN_AT, mask=carried > 0, other=_ABSENT)
    legal = (token >= 0) & (token < size) & (tl.load(used_ptr + slot) != 0)
    tl.debug_barrier()
    if (token != -1) & (legal == 0) & (fault == -1):
        tl.store(fault_ptr + slot, token)
    if legal:
        tl.store(length_ptr + slot, length + 1)
    if legal & (length < room):
        tl.store(tail_ptr + slot * tail + tl.minimum(said, tail - 1), token.to(tl.int32))
        tl.store(said_ptr + slot, said + 1)
        tl.store(meta_ptr + slot * columns + STEP, step + 1)
        ring_ptr += slot * ring
        if carried > 0:
            move(carry_ptr, meta_ptr + slot * columns, drawn == token)
        if counts > 0:
            leaving = tl.full((), _ABSENT, tl.int64)
            if windows > 0:
                leaving = leaving_of(ring_ptr, tl.load(window_ptr + slot), length, ring)
            count(
                count_ids_ptr + slot * counts, in_prompt_ptr + slot * counts, in_output_ptr + slot * counts,
                distinct_ptr + slot, token, leaving, counts, TILE,
            )
        if ring > 0:
            if matches > 0:
                match(ring_ptr, ahead_ptr + slot * ring, token, length, ring, TILE)
            if powers > 0:
                since = tl.load(unbroken_ptr + slot) + 1
                ends = breaks(breaks_ptr + slot * ((size + 31) // 32), token, token >= 0)
                tl.debug_barrier()
                tl.store(unbroken_ptr + slot, tl.where(ends != 0, 0, since))
            tl.debug_barrier()
            tl.store(ring_ptr + (length & (ring - 1)), token.to(tl.int32))


@triton.jit
def leaving_of(ring_ptr, window, length, ring):
    """The token that leaves the window of penalties when another comes; ABSENT where none does."""
    at = length - window
    leaves = (window > 0) & (at >= 0)
    return tl.load(ring_ptr + (at & (ring - 1)), mask=leaves, other=_ABSENT).to(tl.int64)


@triton.jit
def count(ids_ptr, in_prompt_ptr, in_output_ptr, distinct_ptr, token, leaving, counts, TILE: tl.constexpr):
    """Counts a token, and what leaves the window once less; the place of what is counted no more is free."""
    distinct = tl.load(distinct_ptr)
    place, found = distinct, tl.full((), 0, tl.int32)
    for start in range(0, distinct.to(tl.int32), TILE):
        at = (start + tl.arange(0, TILE)).to(tl.int64)
        there = at < distinct
        ids = tl.load(ids_ptr + at, mask=there, other=_ABSENT)
        gone, same = there & (ids == leaving), there & (ids == token)
        left = tl.load(in_output_ptr + at, mask=there, other=0) - gone.to(tl.int32)
        if leaving != _ABSENT:
            is_free = there & (left + tl.load(in_prompt_ptr + at, mask=there, other=0) == 0)
            place = tl.minimum(place, tl.min(tl.where(is_free, at, distinct), 0))
        found = tl.maximum(found, tl.max(same.to(tl.int32), 0))
        tl.store(in_output_ptr + at, left + same.to(tl.int32), mask=gone | same)
    tl.debug_barrier()
    if (found == 0) & (place < counts):
        tl.store(ids_ptr + place, token)
        tl.store(in_prompt_ptr + place, 0)
        tl.store(in_output_ptr + place, 1)
        if place == distinct:
            tl.store(distinct_ptr, distinct + 1)


@triton.jit
def match(ring_ptr, ahead_ptr, token, length, ring, TILE: tl.constexpr):
    """Makes the matches that a token goes on with longer by one and ends the others, from the newest place down."""
    number = tl.minimum(length + 1, ring.to(tl.int64)).to(tl.int32)
    turned = tl.load(ring_ptr + ring - 1) == token
    longest = tl.load(ahead_ptr + ring - 1)
    for done in range(0, number, TILE):
        at = number - 1 - done - tl.arange(0, TILE)
        agrees = tl.where(at > 0, tl.load(ring_ptr + at - 1, mask=at > 0, other=_ABSENT) == token, turned)
        before = tl.where(at > 0, tl.load(ahead_ptr + at - 1, mask=at > 0, other=0), longest)
        # What this turn reads is written by the next one.
        tl.debug_barrier()
        tl.store(ahead_ptr + at, tl.where(agrees, before + 1, 0), mask=at >= 0)
# fmt: on
