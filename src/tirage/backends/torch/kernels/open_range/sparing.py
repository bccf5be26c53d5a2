"""Tokens that XTC never removes, by their bits: what stands before the head of a row is looked up there (SPEC.md S-O8).

There are mostly few. What XTC leaves is weighed without them first, and they are added then.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, NO_ID, exponent_of, is_in, key_of, value_of, weight_of
from tirage.backends.torch.kernels.layout import ABOVE_FIRST, HEAD_ID, HEAD_KEY, HIGH, LEFT_HIGH, SLOT

_WORD_BITS = tl.constexpr(5)
_LAST_BIT = tl.constexpr(31)
_BIAS = tl.constexpr(127)


@triton.jit
def note_slot(row_ptr, slots_ptr, spares):
    """Writes where the bits of a row are to be found: a kernel that runs steps has no registers for a pointer."""
    slot = tl.load(slots_ptr, mask=spares > 0, other=0)
    tl.store(row_ptr + SLOT, slot.to(tl.int32))


@triton.jit
def own_words(row_ptr, spared_ptr, spares):
    """Where the bits of a row begin."""
    return spared_ptr + tl.load(row_ptr + SLOT, cache_modifier=".cg").to(tl.int64) * spares


@triton.jit
def is_spared(ids, which, row_ptr, spared_ptr, spares):
    """int32 1 for those of tokens `which`, any shape, that XTC never removes, else 0; `spares` is 0 without any."""
    words_ptr = own_words(row_ptr, spared_ptr, spares)
    words = tl.load(words_ptr + (ids >> _WORD_BITS), mask=which & (ids < tl.where(spares > 0, NO_ID, 0)), other=0)
    return (words >> (ids & _LAST_BIT)) & 1


@triton.jit
def is_before(key, ids, head_key, head_id):
    """Whether tokens of these keys and ids, any shape, stand before the head."""
    return (key > head_key) | ((key == head_key) & (ids < head_id))


@triton.jit
def is_new(w, x, old_m, c, is_always):
    """Whether tokens, any shape, that XTC leaves with the weights `w` had none before; where it is always on, whether
    they have one."""
    return (w > 0) & (is_always | (weight_of(exponent_of(x, old_m, c)) == 0))


@triton.jit
def first_bits(words):
    """(the lowest set bit of int32 words, any shape, 0 where there is none, and its number)."""
    bit = words & -words
    # A float32 holds powers of two exactly.
    number = (bit.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - _BIAS
    return bit, number


# fmt: off
@triton.jit
def spared_at(x_ptr, at, words, cut_key, cut_id, size):
    """(ids, logits, keys, the other bits) of the first token of each of the words `at`, whose bits are left; of what is
    not in the set, the key is -inf's."""
    bit, number = first_bits(words)
    ids = (at << _WORD_BITS) + number
    x = tl.load(x_ptr + ids, mask=(bit != 0) & (ids < size), other=float("-inf"))
    key = key_of(x)
    return ids, x, tl.where(is_in(key, ids, cut_key, cut_id), key, NEG_INF), words ^ bit


@triton.jit
def count_from_spared(x_ptr, row_ptr, spared_ptr, spares, cut_key, cut_id, size, TILE: tl.constexpr):
    """Write that the weights of what XTC leaves count from the largest of the tokens of the set that it never removes,
    if a temperature stands behind it and that is greater than the others."""
    PART: tl.constexpr = TILE // 4
    most = tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg")
    if (spares > 0) & (most < tl.load(row_ptr + HIGH)):
        for start in range(0, spares, PART):
            at = start + tl.arange(0, PART)
            words = tl.load(own_words(row_ptr, spared_ptr, spares) + at, mask=at < spares, other=0)
            while tl.max((words != 0).to(tl.int32), 0) > 0:  # pyright: ignore[reportOperatorIssue]
                _, _, key, words = spared_at(x_ptr, at, words, cut_key, cut_id, size)
                most = tl.maximum(most, tl.max(key, 0))
        tl.store(row_ptr + LEFT_HIGH, most)
        tl.debug_barrier()


@triton.jit
def with_spared(
    x_ptr, mass_ptr, row_ptr, spared_ptr, spares, each, cut_key, cut_id, old_m, c, is_always, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(masses of the blocks, a number of tokens) once `each` int64 [PADDED] has the tokens before the head that
    XTC never removes.

    The number is how many of these have a weight or, unless XTC is always on, how many that had none before.
    """
    PART: tl.constexpr = TILE // 4
    lanes, number = tl.arange(0, PADDED), tl.full((), 0, tl.int32)
    if spares > 0:
        tl.debug_barrier()
        tl.store(mass_ptr + lanes * 4 + ABOVE_FIRST, each, mask=lanes < blocks)
        tl.debug_barrier()
        for start in range(0, spares, PART):
            at = start + tl.arange(0, PART)
            words = tl.load(own_words(row_ptr, spared_ptr, spares) + at, mask=at < spares, other=0)
            while tl.max((words != 0).to(tl.int32), 0) > 0:  # pyright: ignore[reportOperatorIssue]
                ids, x, key, words = spared_at(x_ptr, at, words, cut_key, cut_id, size)
                head_key = tl.load(row_ptr + HEAD_KEY, cache_modifier=".cg")
                head_id = tl.load(row_ptr + HEAD_ID, cache_modifier=".cg")
                m = value_of(tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg"))
                w = weight_of(exponent_of(tl.minimum(x, m), m, c))
                w = tl.where(is_before(key, ids, head_key, head_id), w, 0)
                tl.atomic_add(mass_ptr + ids // BLOCK * 4 + ABOVE_FIRST, w, mask=w > 0, sem="relaxed")
                number += tl.sum(is_new(w, x, old_m, c, is_always).to(tl.int32), 0)
        tl.debug_barrier()
        each = tl.load(mass_ptr + lanes * 4 + ABOVE_FIRST, mask=lanes < blocks, other=0, cache_modifier=".cg")
    return each, number
# fmt: on
