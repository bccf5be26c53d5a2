"""What a step of a row that is drawn as a set is, and what has to be read before it can be taken."""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.entropy import is_dynamic
from tirage.backends.torch.kernels.exact.thresholds import is_xtc
from tirage.backends.torch.kernels.layout import PROGRAM
from tirage.backends.torch.kernels.sets.brackets import look_ahead
from tirage.backends.torch.kernels.sets.words import (
    ARE_SUMMED,
    BEFORE_XTC,
    CUTS_AFTER,
    HAS_LANES,
    IS_FRESH,
    IS_LISTED,
    IS_SAME,
    IS_SCANNED,
    IS_STALE,
    JOINT,
    NUMBER,
    OP,
    READS,
    RESUMED,
    SET_MASS,
    STEP,
    SUMS_AT,
    TRIMMED,
    TURN,
    UNCUT,
    put,
    save,
    word,
)
from tirage.operators import END, FIRST_FILTER
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.mirostat import MIROSTAT
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.top_h import TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK
from tirage.operators.xtc import XTC, XTC_TIES_KEPT

(
    _GREEDY, _TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _MIN_P_LOGIT, _P_LESS, _SIGMA, _TOP_H, _TFS, _TYPICAL, _BY_RANK,
    _XTC, _XTC_TIES_KEPT, _MIROSTAT, _ADAPTIVE_P,
) = (
    tl.constexpr(int(op)) for op in (
        GREEDY, TEMPERATURE, TOP_K, TOP_P, MIN_P, MIN_P_LOGIT, P_LESS, TOP_N_SIGMA, TOP_H, TFS, TYPICAL,
        TYPICAL_BY_RANK, XTC, XTC_TIES_KEPT, MIROSTAT, ADAPTIVE_P,
    )
)  # fmt: skip
(
    _FLOORED_TOP_P, _FLOORED_MIN_P, _FLOORED_LOGIT, _FLOORED_TYPICAL, _FLOORED_BY_RANK, _FLOORED_XTC,
    _FLOORED_TIES_KEPT,
) = (
    tl.constexpr(int(FLOORED[op])) for op in (
        TOP_P, MIN_P, MIN_P_LOGIT, TYPICAL, TYPICAL_BY_RANK, XTC, XTC_TIES_KEPT,
    )
)  # fmt: skip
_END, _FIRST_FILTER = tl.constexpr(END), tl.constexpr(FIRST_FILTER)
SUMS, COUNT, KNOWN = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""What is read for a step: sums over its set, unless they are known, or how many tokens it has."""


# fmt: off
@triton.jit
def base_of(op):
    """The operation without the number of tokens that it leaves at least."""
    base = tl.where(op == _FLOORED_TOP_P, _TOP_P, tl.where(op == _FLOORED_MIN_P, _MIN_P, op))
    base = tl.where(op == _FLOORED_LOGIT, _MIN_P_LOGIT, tl.where(op == _FLOORED_TYPICAL, _TYPICAL, base))
    base = tl.where(op == _FLOORED_BY_RANK, _BY_RANK, tl.where(op == _FLOORED_XTC, _XTC, base))
    return tl.where(op == _FLOORED_TIES_KEPT, _XTC_TIES_KEPT, base)


@triton.jit
def floor_of(step_ptr):
    """How many tokens a step leaves at least, int64; 0 where that is not asked for (S-O11)."""
    op = tl.load(step_ptr)
    at = tl.where((op == _FLOORED_MIN_P) | (op == _FLOORED_LOGIT), 2, 0)
    at = tl.where((op == _FLOORED_TYPICAL) | (op == _FLOORED_BY_RANK), 3, at)
    at = tl.where((op == _FLOORED_TOP_P) | (op == _FLOORED_XTC) | (op == _FLOORED_TIES_KEPT), 5, at)
    return tl.load(step_ptr + at, mask=at > 0, other=0)


@triton.jit
def is_joint(meta_ptr, steps):
    """Whether a top-p of the row judges the set that the temperature saw."""
    found = tl.full((), 0, tl.int32)
    for s in range(steps):
        step_ptr = meta_ptr + PROGRAM + s * 6
        is_top_p = base_of(tl.load(step_ptr)) == _TOP_P
        found += (is_top_p & (tl.load(step_ptr + 4) > 0)).to(tl.int32)
    return found


@triton.jit
def step_of(state_ptr, meta_ptr):
    """Where the step lies that runs."""
    return meta_ptr + PROGRAM + word(state_ptr, STEP) * 6


@triton.jit
def removes(op):
    """Whether a step may remove tokens."""
    is_other = (op == _TEMPERATURE) | is_dynamic(op) | (op == _ADAPTIVE_P) | (op == _END)
    return (op >= _FIRST_FILTER) & (is_other == 0)


@triton.jit
def is_by_rank(op):
    """Whether a step keeps a number of the first tokens that follows from their weights in order."""
    return (op == _TOP_H) | (op == _MIROSTAT)


@triton.jit
def needs_sums(op):
    """Whether a step that removes tokens follows from the mass of the set, or more sums of it."""
    is_by_key = (op == _GREEDY) | (op == _TOP_K) | (op == _MIN_P) | (op == _MIN_P_LOGIT)
    return (is_by_key | is_by_rank(op) | (op == _TFS)) == 0


@triton.jit
def needs_number(op, step_ptr, size):
    """Whether a step needs to know how many tokens its set has, and its search does not count them."""
    keeps_ties = (op == _TOP_K) & (tl.load(step_ptr + 2) > 0)
    is_one = ((op == _TOP_K) | is_by_rank(op)) & (size < 2)
    return keeps_ties | is_one | (floor_of(step_ptr) > 1)


@triton.jit(noinline=True)
def begin_step(state_ptr, meta_ptr, size):
    """Writes what the step is, `END` where it does nothing, and what is read for it."""
    is_first, step_ptr = word(state_ptr, TURN) == 0, step_of(state_ptr, meta_ptr)
    op = base_of(tl.load(step_ptr))
    if is_first & is_xtc(op):
        remember(state_ptr)
    is_run = (is_first | (word(state_ptr, RESUMED) <= word(state_ptr, STEP))) & (word(state_ptr, IS_SAME) == 0)
    op = tl.where(is_run & ((is_xtc(op) & is_first) == 0), op, _END)
    is_cut, is_stale = removes(op), (word(state_ptr, JOINT) != 0) & (word(state_ptr, IS_STALE) != 0)
    is_summed = is_stale | is_dynamic(op) | (op == _ADAPTIVE_P) | (is_cut & needs_sums(op))
    is_counted = (word(state_ptr, NUMBER) < 0) & is_cut & needs_number(op, step_ptr, size)
    # Of a range that was weighed the sums are known that most steps need.
    is_known = (word(state_ptr, ARE_SUMMED) != 0) & (word(state_ptr, IS_FRESH) != 0)
    is_known &= (is_dynamic(op) | (op == _P_LESS) | (op == _SIGMA)) == 0
    reads = tl.where(is_summed, tl.where(is_known, KNOWN, SUMS), tl.where(is_counted, COUNT, 0))
    reads = tl.where(is_run, reads, 0)
    is_alone = (op == _TOP_P) & (floor_of(step_ptr) <= 1) & (tl.load(step_ptr + 4) == 0) & (reads == SUMS)
    is_alone &= (word(state_ptr, IS_LISTED) == 0) & (word(state_ptr, HAS_LANES) != 0) & (word(state_ptr, TRIMMED) < 0)
    tl.debug_barrier()
    put(state_ptr, OP, op)
    put(state_ptr, READS, reads)
    put(state_ptr, IS_SCANNED, is_cut * 0)
    if reads == SUMS:
        put(state_ptr, ARE_SUMMED, is_cut * 0)
    tl.debug_barrier()
    if is_alone:
        look_ahead(state_ptr, step_ptr, size)


@triton.jit
def remember(state_ptr):
    """Keeps the set that the only XTC is given, at this step, unless a later one may write in the place of its list."""
    cuts, s = word(state_ptr, CUTS_AFTER), word(state_ptr, STEP)
    if (cuts == 0) | ((cuts > 0) & (word(state_ptr, IS_LISTED) == 0)):
        save(state_ptr, 0, BEFORE_XTC)  # pyright: ignore[reportArgumentType]
        put(state_ptr, RESUMED, s)
        tl.debug_barrier()


@triton.jit(noinline=True)
def put_scanned(state_ptr):
    """Writes the sums that a top-p needs, once tokens are listed in the same reading."""
    number, mass = word(state_ptr, NUMBER), word(state_ptr, SET_MASS)
    tl.debug_barrier()
    put(state_ptr, SUMS_AT, number)
    put(state_ptr, SUMS_AT + 1, mass)
    put(state_ptr, UNCUT, mass)
    tl.debug_barrier()
# fmt: on
