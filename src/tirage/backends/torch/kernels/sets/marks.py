"""Marks of tokens, a bit each, beside the list of a row with XTC: what can be drawn without it, and what it spares."""

from __future__ import annotations

import triton
import triton.language as tl

_BITS, _ONE = tl.constexpr(32), tl.constexpr(1)


def marks(size: int) -> int:
    """Numbers that the marks of a row take."""
    return 2 * -(-size // 32)


@triton.jit
def drawn_marks(list_ptr, size):
    """Where the marks of what can be drawn without XTC lie."""
    return list_ptr + size


@triton.jit
def spared_marks(list_ptr, size):
    """Where the marks of what XTC never removes lie."""
    return list_ptr + size + ((size + 31) >> 5)


@triton.jit
def bits_at(marks_ptr, ids, asked):
    """The marks int32 of tokens, any shape, that are `asked`; 0 for the others."""
    # Read past the nearest cache, which does not see what atomic operations do.
    return (tl.load(marks_ptr + (ids >> 5), mask=asked, other=0, cache_modifier=".cg") >> (ids & 31)) & 1


@triton.jit
def set_bits(marks_ptr, first, ids, marked, is_listed, PART: tl.constexpr):
    """Marks those of the ids [PART] that are `marked`; each comes once, and the first one is given."""
    WORDS: tl.constexpr = PART // 32 if PART > 32 else _ONE
    EACH: tl.constexpr = PART // WORDS
    bits = tl.where(marked, 1, 0) << (ids & 31)
    if (EACH == _BITS) & (is_listed == 0):
        # Neighbours: additions to the one word that 32 tokens share would come one after the other.
        words = tl.sum(tl.reshape(bits, (WORDS, EACH)), 1)
        tl.store(marks_ptr + (first >> 5) + tl.arange(0, WORDS), words, mask=words != 0)
    else:
        tl.atomic_add(marks_ptr + (ids >> 5), bits, mask=marked, sem="relaxed", scope="cta")
