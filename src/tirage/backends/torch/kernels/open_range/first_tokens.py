"""Top-h in a row that passes draw: of the first tokens of its set, which the open range holds, those with a share of
the entropy (SPEC.md S-O7). Nothing is put in order: each token sums up those that stand before it."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    is_in,
    key_of,
    log2_fixed,
    weight_of,
)
from tirage.backends.torch.kernels.open_range.lists import open_keys
from tirage.backends.torch.kernels.sets.ordered import words_of
from tirage.exact.logs import OCTAVE
from tirage.operators.top_h import TOKENS, TOP_H

_FEW, _FIRST, _TOP_H = tl.constexpr(256), tl.constexpr(TOKENS), tl.constexpr(int(TOP_H))
_UNIT_LOG = tl.constexpr(40 * OCTAVE)
_PART_BITS, _PART_MASK = tl.constexpr(20), tl.constexpr((1 << 20) - 1)
"""How `words_of` joins two parts of a sum of products."""


@triton.jit
def is_top_h(op):
    """Whether a step keeps first tokens with a share of the entropy."""
    return op == _TOP_H


@triton.jit
def first_of_top_h(step_ptr, ties):
    """How many of the first tokens of its set a top-h keeps at most, int64; where these are so many ties, exactly.

    All of them have the same part of the entropy, and the mass of one token has none.
    """
    most, share = tl.minimum(ties, _FIRST).to(tl.int64), tl.load(step_ptr + 1)
    return tl.where(ties >= 0, tl.maximum((most * share) >> 32, 1), _FIRST)


# fmt: off
@triton.jit(noinline=True)
def cut_top_h(x_ptr, list_ptr, n, step_ptr, cut_key, cut_id, m, c, TILE: tl.constexpr):
    """(length of the list, cut_key, cut_id) after a top-h of a set of few tokens, all listed; no others are then.

    Not inlined: what few rows need takes no registers of the others.
    """
    number = list_set(x_ptr, list_ptr, n, cut_key, cut_id, TILE)
    lanes = tl.arange(0, _FEW)
    ids = tl.load(list_ptr + lanes, mask=lanes < number, other=NO_ID)
    x = tl.load(x_ptr + ids, mask=lanes < number, other=float("-inf"))
    mass = tl.sum(tl.where(lanes < number, weight_of(exponent_of(x, m, c)), 0), 0)
    log_mass = log2_fixed(tl.maximum(mass, 1).to(tl.uint64)) - _UNIT_LOG
    upper, lower, rank = reached_at(x_ptr, list_ptr, number, ids, key_of(x), log_mass, m, c)
    # The last token has reached all.
    all_high, all_low = words_of(tl.max(upper, 0), tl.max(lower, 0))
    tl.debug_barrier()
    share = tl.load(step_ptr + 1).to(tl.uint64)
    goal_high, goal_low = (tl.umulhi(all_low, share) + all_high.to(tl.uint64) * share).to(tl.int64), all_low * share
    high, low = words_of(upper, lower)
    high, low = (high << 32) | (low >> 32).to(tl.int64), low << 32
    passes = (high > goal_high) | ((high == goal_high) & (low > goal_low))
    kept = (lanes < number) & ((passes == 0) | (rank == 1))
    tl.debug_barrier()
    ids = tl.load(list_ptr + lanes, mask=kept, other=-1)
    key = key_of(tl.load(x_ptr + ids, mask=kept, other=float("inf")))
    last_key = tl.min(tl.where(kept, key, POS_INF), 0)
    return number, last_key, tl.max(tl.where(key == last_key, ids, -1), 0)


@triton.jit
def list_set(x_ptr, list_ptr, n, cut_key, cut_id, TILE: tl.constexpr):
    """How many tokens the set has, all of which are listed, once the list holds no others."""
    PART: tl.constexpr = TILE // 4
    number = tl.full((), 0, tl.int32)
    for start in range(0, n, TILE):
        # A few of a tile at a time, as `sum_terms` does.
        for part in range(0, TILE, PART):
            found, ids, _ = open_keys(x_ptr, list_ptr, start + part, n, PART)
            kept = is_in(found, ids, cut_key, cut_id).to(tl.int32)
            # Places that are written may be others' of the same part.
            tl.debug_barrier()
            tl.store(list_ptr + number + tl.cumsum(kept, 0) - kept, ids, mask=kept > 0)
            number += tl.sum(kept, 0)
    tl.debug_barrier()
    return number


@triton.jit
def reached_at(x_ptr, list_ptr, number, ids, key, log_mass, m, c):
    """(upper int64, lower int64, rank int32), [FEW]: upper * 2^20 + lower is the entropy of the listed tokens up to
    each, `rank` how many they are."""
    rank = tl.arange(0, _FEW) * 0
    upper, lower = rank.to(tl.int64), rank.to(tl.int64)
    for start in range(0, number, 2):
        for ahead in range(2):
            # What two of them take is not held at once.
            tl.debug_barrier()
            at = start + ahead
            other_id = tl.load(list_ptr + at, mask=at < number, other=NO_ID)
            x = tl.load(x_ptr + other_id, mask=at < number, other=float("-inf"))
            other, q = key_of(x), exponent_of(x, m, c)
            w, surprise = tl.where(other > NEG_INF, weight_of(q), 0), q.to(tl.int64) + log_mass
            is_before = (other > key) | ((other == key) & (other_id <= ids))
            rank += is_before.to(tl.int32)
            upper += tl.where(is_before, (w >> _PART_BITS) * surprise, 0)
            lower += tl.where(is_before, (w & _PART_MASK) * surprise, 0)
    return upper, lower, rank
# fmt: on
