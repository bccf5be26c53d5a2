"""Parts of what is drawn from, each with the mass before it: a draw reads the one that holds its token."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.sets.words import MASSES, PLACES, SEGMENTS


@triton.jit
def shift_of(length, TILE: tl.constexpr):
    """A segment is made of 2 to this power of tiles, where a set is read from so many places."""
    shift = length * 0
    for octave in tl.static_range(20):  # pyright: ignore[reportGeneralTypeIssues]
        shift += ((length - 1) // TILE >= SEGMENTS << octave).to(tl.int32)
    return shift


@triton.jit
def segments_of(length, TILE: tl.constexpr):
    """How many segments there are."""
    return (((length + TILE - 1) // TILE - 1) >> shift_of(length, TILE)) + 1


@triton.jit
def begin_segment(state_ptr, tile, shift, mass, place):
    """Writes the mass before a segment, and where it begins in the list, if it begins with this tile."""
    begins = ((tile >> shift) << shift) == tile
    tl.store(state_ptr + MASSES + (tile >> shift), mass, mask=begins)
    tl.store(state_ptr + PLACES + (tile >> shift), mass * 0 + place, mask=begins)
