"""The steps of a row whose set need not be a prefix: each is what its plain rule in `tirage.operators` says.

A step finds by which numbers tokens stay, and `remove` lists those. SPEC.md rules S-O1 ... S-O15.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.entropy import factor_at, is_dynamic, scaled
from tirage.backends.torch.kernels.exact.least_weights import least_of_top_a, least_surprising
from tirage.backends.torch.kernels.exact.rule import (
    NO_ID,
    exponent_of,
    key_of,
    target_of,
    value_of,
)
from tirage.backends.torch.kernels.exact.thresholds import (
    is_xtc,
    judged,
    least_by_logit,
    mean_of,
    share_of,
)
from tirage.backends.torch.kernels.layout import constant
from tirage.backends.torch.kernels.sets.curvature import cut_tail
from tirage.backends.torch.kernels.sets.keeping import all_stay, keep
from tirage.backends.torch.kernels.sets.listing import list_between, look_for_holes, weigh_listed, weigh_tied
from tirage.backends.torch.kernels.sets.ordered import (
    entropy_prefix,
    rank_first,
    zipf_prefix,
)
from tirage.backends.torch.kernels.sets.places import BY_KEY
from tirage.backends.torch.kernels.sets.ranges import AS_RANGE, keep_range, settle_range
from tirage.backends.torch.kernels.sets.reads import (
    COUNT,
    KNOWN,
    SUMS,
    begin_step,
    floor_of,
    is_by_rank,
    put_scanned,
    removes,
    step_of,
)
from tirage.backends.torch.kernels.sets.searches import cut_at
from tirage.backends.torch.kernels.sets.tokens import count_set, scales_of, sum_set, weights_at
from tirage.backends.torch.kernels.sets.words import (
    ALL,
    ARE_KEPT,
    ARE_SUMMED,
    BASE,
    BASIS,
    CONSTANT,
    CUT_ID,
    CUT_KEY,
    CUT_LEFT,
    CUT_TOKEN,
    CUT_TURN,
    CUT_TURNS,
    FEW,
    FEW_AT,
    FLOOR,
    GOAL,
    HAS_LISTED,
    INTO_AT,
    IS_FRESH,
    IS_LEVELED,
    IS_LISTED,
    IS_ONE,
    IS_PREFIX,
    IS_REMOVED,
    IS_SAME,
    IS_SCANNED,
    IS_SIGMA,
    IS_STALE,
    IS_WEIGHED,
    IS_WEIGHED_OUT,
    JOINT,
    KEPT,
    KEPT_LOW,
    KEPT_TOP,
    LARGEST,
    LEAST,
    LEAST_WEIGHT,
    LEFT,
    LEVEL,
    LIMIT,
    LOW_KEY,
    MEAN,
    NEVER,
    NUMBER,
    ONLY_TIED,
    OP,
    REACHING,
    READS,
    REMOVED,
    RESUMED,
    SCALE,
    SCAN_END,
    SCAN_LOW,
    SET_NUMBER,
    STAGES,
    SUMS_AT,
    TARGET,
    TOP_KEY,
    TRIMMED,
    UNCUT,
    WAS_LISTED,
    WHOLE,
    WRITES,
    count_on,
    put,
    word,
)
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.mirostat import MIROSTAT, MIROSTAT_V2
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import DYNAMIC_TEMPERATURE_LISTED, GREEDY, TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.top_a import TOP_A
from tirage.operators.top_h import TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK
from tirage.operators.xtc import XTC_TIES_KEPT

(
    _GREEDY, _TEMPERATURE, _LISTED, _TOP_K, _TOP_P, _MIN_P, _MIN_P_LOGIT, _EPSILON, _ETA, _P_LESS, _SIGMA, _TOP_A,
    _TOP_H, _TFS, _TYPICAL, _BY_RANK, _XTC_TIES_KEPT, _MIROSTAT, _MIROSTAT_V2, _ADAPTIVE_P,
) = (
    tl.constexpr(int(op)) for op in (
        GREEDY, TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, TOP_K, TOP_P, MIN_P, MIN_P_LOGIT, EPSILON, ETA, P_LESS,
        TOP_N_SIGMA, TOP_A, TOP_H, TFS, TYPICAL, TYPICAL_BY_RANK, XTC_TIES_KEPT, MIROSTAT, MIROSTAT_V2, ADAPTIVE_P,
    )
)  # fmt: skip
_TRUNCATED = tl.constexpr(RULES.index("truncated"))
_FEW, _FIRST = tl.constexpr(FEW), tl.constexpr(100)
"""How many of the first tokens top-h and Mirostat 1 look at."""


# --- one step ---------------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def run_step(x_ptr, list_ptr, state_ptr, meta_ptr, size, TILE: tl.constexpr):
    """One step on the set, that at `STEP`; XTC removes something in the second turn.

    Every loop over tokens stands once in all that is called here: kernels are compiled where they are used. Nothing but
    where the row lies is held in registers from one call to the next.
    """
    begin_step(state_ptr, meta_ptr, size)
    if word(state_ptr, IS_SCANNED) != 0:
        low, end = tl.where(word(state_ptr, IS_SCANNED) == 2, -1, word(state_ptr, SCAN_LOW)), word(state_ptr, SCAN_END)
        most = tl.where(word(state_ptr, IS_SCANNED) == ONLY_TIED, 0, ALL)
        list_between(x_ptr, list_ptr, state_ptr, BY_KEY, low, end, most, size, TILE)
        put_scanned(state_ptr)
    elif word(state_ptr, READS) == SUMS:
        sum_set(x_ptr, list_ptr, state_ptr, word(state_ptr, OP), is_dynamic(word(state_ptr, OP)), size, TILE)
    if word(state_ptr, READS) == COUNT:
        count_set(x_ptr, list_ptr, state_ptr, size, TILE)
    take_step(state_ptr, meta_ptr)
    if (word(state_ptr, CUT_TURNS) > 0) & (word(state_ptr, OP) == _TFS) & (word(state_ptr, LEAST) != 0):
        cut_tail(x_ptr, list_ptr, state_ptr, step_of(state_ptr, meta_ptr), size, TILE)
    cut_set(x_ptr, list_ptr, state_ptr, meta_ptr, size, TILE)


@triton.jit(noinline=True)
def take_step(state_ptr, meta_ptr):
    """What a step does to the numbers of its row, once its sums are known; for one that cuts, with what that begins."""
    op, step_ptr, zero = word(state_ptr, OP), step_of(state_ptr, meta_ptr), tl.full((), 0, tl.int64)
    is_summed = (word(state_ptr, READS) == SUMS) | (word(state_ptr, READS) == KNOWN)
    is_stale = is_summed & (word(state_ptr, JOINT) != 0) & (word(state_ptr, IS_STALE) != 0)
    number, removed, uncut = word(state_ptr, NUMBER), word(state_ptr, REMOVED), word(state_ptr, UNCUT)
    tl.debug_barrier()
    put(state_ptr, CUT_TURN, zero)
    put(state_ptr, CUT_TURNS, zero)
    if is_stale:
        put(state_ptr, BASE, uncut)
        put(state_ptr, IS_STALE, zero)
    tl.debug_barrier()
    if removes(op):
        if (op == _TOP_K) & (number >= 0) & (tl.load(step_ptr + 1) >= number):
            # All stay but those at -inf in llama.cpp's list.
            put(state_ptr, REMOVED, tl.minimum(removed, tl.load(step_ptr + 1) - number))
        else:
            begin_cut(state_ptr, op, step_ptr)
    elif (op == _TEMPERATURE) | is_dynamic(op):
        change_temperature(state_ptr, op, step_ptr)
    elif op == _ADAPTIVE_P:
        put(state_ptr, TARGET, tl.load(step_ptr + 1))
        put(state_ptr, IS_FRESH, number * 0)
        put(state_ptr, WHOLE, word(state_ptr, SUMS_AT + 1))
    tl.debug_barrier()


@triton.jit
def change_temperature(state_ptr, op, step_ptr):
    """Weights count from the largest logit of the set, at the step's temperature, or at that of the set's entropy."""
    c, scale, top = constant(step_ptr, 1), constant(step_ptr, 2), word(state_ptr, TOP_KEY)
    if is_dynamic(op):
        number = word(state_ptr, NUMBER) + tl.where(op == _LISTED, word(state_ptr, REMOVED), 0)
        factor = factor_at(step_ptr, number, state_ptr + SUMS_AT)
        c, scale = scaled(step_ptr, 1, factor), scaled(step_ptr, 2, factor)
    tl.debug_barrier()
    put(state_ptr, BASIS, top)
    put(state_ptr, CONSTANT, c.to(tl.int32, bitcast=True))
    put(state_ptr, SCALE, scale.to(tl.int32, bitcast=True))
    put(state_ptr, IS_STALE, top * 0 + 1)
    put(state_ptr, IS_FRESH, top * 0)
    tl.debug_barrier()


# --- how a step cuts --------------------------------------------------------------------------------------------------


@triton.jit
def thresholds_of(state_ptr, op, step_ptr):
    """(least weight, greatest exponent or distance, least key) of which a token that a step keeps has one.

    The largest logit stays. A step that is no threshold keeps nothing by weight or exponent here.
    """
    high, zero = word(state_ptr, TOP_KEY).to(tl.int32), tl.full((), 0, tl.int64)
    m, c, _, _ = scales_of(state_ptr)
    total, largest = word(state_ptr, SUMS_AT + 1), word(state_ptr, LARGEST)
    least, limit, key = zero + NEVER, zero - 1, high
    if op == _MIN_P:
        limit = exponent_of(value_of(high), m, c) + tl.load(step_ptr + 1)
    elif op == _MIN_P_LOGIT:
        key = least_by_logit(step_ptr, high)
    elif op == _TOP_A:
        least = least_of_top_a(step_ptr, largest, total)
    elif op == _MIROSTAT_V2:
        least = least_surprising(tl.load(step_ptr + 1), largest, total)
    elif is_xtc(op):
        least = share_of(op, step_ptr, total)
    elif (op == _EPSILON) | (op == _ETA) | (op == _P_LESS) | (op == _SIGMA):
        limit, least = judged(op, step_ptr, total, state_ptr + SUMS_AT)
    elif op == _TFS:
        # Weights that are all the same do not bend: all stay.
        last = exponent_of(value_of(word(state_ptr, LOW_KEY).to(tl.int32)), m, c)
        least = tl.where(last == exponent_of(value_of(high), m, c), 0, least)
    return least, limit, key


@triton.jit
def goal_of(state_ptr, op, step_ptr):
    """What the first tokens must reach that a step keeps, int64: a mass or a number, `NEVER` for the last token, or 0
    where the step does not cut so."""
    total, number = word(state_ptr, SUMS_AT + 1), word(state_ptr, NUMBER)
    a, b = tl.load(step_ptr + 1), tl.load(step_ptr + 2)
    goal = tl.full((), 0, tl.int64)
    if op == _TOP_P:
        judged_on = tl.where(tl.load(step_ptr + 4) > 0, word(state_ptr, BASE), total)
        goal = target_of(a, judged_on, b)
        goal = tl.where(goal <= total, goal, NEVER)
    elif (op == _TYPICAL) | (op == _BY_RANK):
        goal = target_of(a, total, tl.where(b > 0, 1, 0))
    elif op == _TOP_K:
        goal = a
    elif op == _GREEDY:
        goal += 1
    elif (op == _TOP_H) | (op == _MIROSTAT):
        goal = tl.where(number < 0, _FIRST, tl.minimum(number, _FIRST))
    elif is_xtc(op):
        goal += NEVER
    return goal


@triton.jit
def stages_of(op, step_ptr):
    """In how many stages the last token that a step keeps is looked for: 1 by level, 2 by key, 3 by id."""
    is_truncated = (op == _TOP_P) & (tl.load(step_ptr + 2) == _TRUNCATED)
    ties = ((op == _TOP_K) & (tl.load(step_ptr + 2) > 0)) | ((op == _TOP_P) & (tl.load(step_ptr + 3) > 0))
    return tl.where(op == _TYPICAL, 1, tl.where((ties & (is_truncated == 0)) | (op == _XTC_TIES_KEPT), 2, 3))


@triton.jit
def cut_set(x_ptr, list_ptr, state_ptr, meta_ptr, size, TILE: tl.constexpr):
    """Lists what a step keeps of the set.

    There are two turns where the first says which tokens the second keeps: where the step leaves a least number of
    tokens, or a number that follows from the first tokens.
    """
    while word(state_ptr, CUT_TURN) < word(state_ptr, CUT_TURNS):
        if word(state_ptr, GOAL) > 0:
            cut_at(x_ptr, list_ptr, state_ptr, size, TILE)
            apply_cut(x_ptr, state_ptr, meta_ptr)
            if word(state_ptr, HAS_LISTED) == ONLY_TIED:
                weigh_tied(state_ptr, size, TILE)
            elif word(state_ptr, HAS_LISTED) != 0:
                weigh_listed(x_ptr, list_ptr, state_ptr, size, TILE)
                if word(state_ptr, IS_LEVELED) != 0:
                    look_for_holes(x_ptr, list_ptr, state_ptr, size, TILE)
        begin_keep(state_ptr, meta_ptr, size)
        if word(state_ptr, ARE_KEPT) == 0:
            keep(x_ptr, list_ptr, state_ptr, size, TILE)
        if (word(state_ptr, CUT_TURN) == 0) & is_by_rank(word(state_ptr, OP)):
            keep_prefix(x_ptr, list_ptr, state_ptr, meta_ptr, size)
        end_cut(state_ptr, meta_ptr)


@triton.jit(noinline=True)
def begin_keep(state_ptr, meta_ptr, size):
    """Writes whether all tokens stay, or a range of them, and where those that do are listed, if they are."""
    op, is_first = word(state_ptr, OP), (word(state_ptr, CUT_TURN) == 0) & (word(state_ptr, CUT_TURNS) == 2)
    step_ptr = step_of(state_ptr, meta_ptr)
    if all_stay(state_ptr) & ((is_first & is_by_rank(op)) == 0):
        keep_all(state_ptr)
    else:
        tl.debug_barrier()
        put(state_ptr, ARE_KEPT, op * 0)
        put(state_ptr, INTO_AT, tl.where(is_first & (op == _MIROSTAT), word(state_ptr, FEW_AT), 0))
        put(state_ptr, WRITES, (is_first == 0) | is_by_rank(op))
        # What `keep` weighs is not of the set before.
        put(state_ptr, IS_FRESH, op * 0)
        tl.debug_barrier()
        begin_range(state_ptr, step_ptr, op, size)


@triton.jit
def begin_range(state_ptr, step_ptr, op, size):
    """Writes what a step keeps where that is a range: of a number of the first tokens, so many."""
    # How many tie with the last one of a top-k is not known.
    keeps_ties = (op == _TOP_K) & (word(state_ptr, STAGES) == 2)
    is_weighed = word(state_ptr, IS_WEIGHED_OUT) != 0
    is_prefix = (is_xtc(op) | (op == _GREEDY) | (keeps_ties & (is_weighed == 0))) == 0
    number = tl.where(op == _TOP_K, tl.load(step_ptr + 1), -1)
    keep_range(state_ptr, is_prefix, is_weighed | (op == _TOP_P) | (op == _TOP_K), number, size)


@triton.jit(noinline=True)
def end_cut(state_ptr, meta_ptr):
    """What a turn of a cut leaves to the next, or the last turn to the step behind it."""
    op, step_ptr = word(state_ptr, OP), step_of(state_ptr, meta_ptr)
    turn, turns = word(state_ptr, CUT_TURN), word(state_ptr, CUT_TURNS)
    if (turn + 1 < turns) & (is_by_rank(op) == 0):
        keep_enough(state_ptr)
    if turn + 1 == turns:
        settle(state_ptr, op, step_ptr)
    count_on(state_ptr, CUT_TURN)


@triton.jit
def keep_all(state_ptr):
    """What `keep` writes where all tokens stay, but for their list."""
    number, high, low = word(state_ptr, NUMBER), word(state_ptr, TOP_KEY), word(state_ptr, LOW_KEY)
    tl.debug_barrier()
    put(state_ptr, ARE_KEPT, number * 0 + 1)
    put(state_ptr, KEPT, number)
    put(state_ptr, KEPT_TOP, high)
    put(state_ptr, KEPT_LOW, low)
    tl.debug_barrier()


@triton.jit
def begin_cut(state_ptr, op, step_ptr):
    """Writes by what the step keeps tokens, before it looks for a cut."""
    is_leveled, mean = (op == _TYPICAL) | (op == _BY_RANK), tl.full((), 0, tl.int64)
    if is_leveled:
        mean = mean_of(state_ptr + SUMS_AT)
    least, limit, key = thresholds_of(state_ptr, op, step_ptr)
    goal = goal_of(state_ptr, op, step_ptr)
    tl.debug_barrier()
    put(state_ptr, LEAST, least)
    put(state_ptr, LIMIT, limit)
    put(state_ptr, LEVEL, goal * 0 + ALL)
    put(state_ptr, CUT_KEY, key)
    put(state_ptr, CUT_ID, goal * 0 + NO_ID)
    put(state_ptr, MEAN, mean)
    put(state_ptr, IS_SIGMA, op == _SIGMA)
    put(state_ptr, IS_REMOVED, is_xtc(op))
    # It leaves some of the first tokens, in the order of its search, unless another rule asks for a greater number.
    put(state_ptr, IS_PREFIX, floor_of(step_ptr) <= 1)
    put(state_ptr, GOAL, goal)
    put(state_ptr, HAS_LISTED, goal * 0)
    put(state_ptr, IS_WEIGHED_OUT, goal * 0)
    put(state_ptr, IS_WEIGHED, (op == _TOP_P) | is_leveled)
    put(state_ptr, IS_LEVELED, is_leveled)
    put(state_ptr, STAGES, stages_of(op, step_ptr))
    put(state_ptr, LEAST_WEIGHT, tl.where(is_xtc(op), least, 0))
    put(state_ptr, FLOOR, floor_of(step_ptr))
    put(state_ptr, CUT_TOKEN, goal * 0 - 1)
    put(state_ptr, CUT_TURNS, tl.where(is_by_rank(op) | (floor_of(step_ptr) > 1), 2, 1))
    tl.debug_barrier()


@triton.jit(noinline=True)
def apply_cut(x_ptr, state_ptr, meta_ptr):
    """Writes by what the step keeps tokens, once its cut is found in this turn."""
    op, step_ptr, turn = word(state_ptr, OP), step_of(state_ptr, meta_ptr), word(state_ptr, CUT_TURN)
    level, last_id, stages = word(state_ptr, LEVEL), word(state_ptr, CUT_ID), word(state_ptr, STAGES)
    rest, reaching, is_removed = word(state_ptr, GOAL), word(state_ptr, REACHING), word(state_ptr, IS_REMOVED)
    least, is_leveled = word(state_ptr, LEAST), word(state_ptr, IS_LEVELED)
    trimmed, left = word(state_ptr, CUT_TOKEN), tl.full((), 0, tl.int64)
    if is_removed != 0:
        # Before the id 0 there is none: with all ties kept, only greater keys go. One token alone stays.
        last_id = tl.where(stages == 2, -1, last_id - 1)
        least, is_removed = tl.where(reaching < 2, 0, least), (reaching > 1).to(tl.int64)
    elif (op == _TOP_P) & (turn == 0):
        if tl.load(step_ptr + 2) == _TRUNCATED:
            # The last token keeps of its weight what is needed.
            m, c, before, before_left = scales_of(state_ptr)
            x = tl.load(x_ptr + last_id)
            _, w = weights_at(last_id, x, key_of(x), m, c, before, before_left)
            trimmed, left = last_id, tl.minimum(rest, w)
        last_id = tl.where(tl.load(step_ptr + 3) > 0, NO_ID, last_id)
    tl.debug_barrier()
    put(state_ptr, LEAST, least)
    put(state_ptr, LIMIT, tl.where(is_leveled != 0, tl.where(stages == 1, level, level - 1), -1))
    put(state_ptr, LEVEL, tl.where(is_leveled != 0, level, ALL))
    put(state_ptr, CUT_ID, last_id)
    put(state_ptr, IS_REMOVED, is_removed)
    put(state_ptr, CUT_TOKEN, trimmed)
    put(state_ptr, CUT_LEFT, left)
    put(state_ptr, GOAL, rest * 0)
    tl.debug_barrier()


@triton.jit
def keep_enough(state_ptr):
    """Where a step would leave fewer tokens than its least number, the first so many stay in their place, or all."""
    number, before, floor = word(state_ptr, KEPT), word(state_ptr, NUMBER), word(state_ptr, FLOOR)
    is_removed = word(state_ptr, IS_REMOVED)
    tl.debug_barrier()
    if number < tl.minimum(before, floor):
        goal = tl.where((floor < before) & (is_removed == 0), floor, 0)
        put(state_ptr, GOAL, goal)
        put(state_ptr, LEAST, tl.where(goal > 0, NEVER, goal))
        put(state_ptr, LEAST_WEIGHT, goal * 0)
        put(state_ptr, IS_REMOVED, goal * 0)
        put(state_ptr, IS_WEIGHED, goal * 0)
        put(state_ptr, STAGES, goal * 0 + 3)
        put(state_ptr, CUT_TOKEN, goal * 0 - 1)
    tl.debug_barrier()


@triton.jit(noinline=True)
def keep_prefix(x_ptr, list_ptr, state_ptr, meta_ptr, size):
    """Writes how many of the first tokens top-h or Mirostat 1 keeps, once the first ones are listed."""
    op, step_ptr = word(state_ptr, OP), step_of(state_ptr, meta_ptr)
    few_ptr = list_ptr + word(state_ptr, FEW_AT)
    goal, number = tl.full((), 0, tl.int64), word(state_ptr, KEPT).to(tl.int32)
    if op == _TOP_H:
        # It keeps none but these: they are the set now.
        lanes = tl.arange(0, _FEW)
        tl.store(few_ptr + lanes, tl.load(list_ptr + lanes, mask=lanes < number, other=0))
        put(state_ptr, NUMBER, number)
        put(state_ptr, IS_LISTED, goal + 1)
        tl.debug_barrier()
    rank_first(x_ptr, few_ptr, number)
    if op == _TOP_H:
        goal += entropy_prefix(x_ptr, few_ptr, state_ptr, number, tl.load(step_ptr + 1))
    else:
        goal += zipf_prefix(x_ptr, few_ptr, state_ptr, number, tl.load(step_ptr + 1), size)
    # The last of them is known, unless Mirostat keeps more than are in order.
    is_known = goal <= number
    last_id = tl.load(few_ptr + goal - 1, mask=is_known, other=0)
    last_key = key_of(tl.load(x_ptr + last_id))
    count, was_listed = word(state_ptr, SET_NUMBER), word(state_ptr, WAS_LISTED)
    tl.debug_barrier()
    put(state_ptr, CUT_KEY, last_key)
    put(state_ptr, CUT_ID, last_id)
    put(state_ptr, LIMIT, goal * 0 - 1)
    # What the search for the first ones weighed is not what stays.
    put(state_ptr, IS_WEIGHED_OUT, goal * 0)
    put(state_ptr, GOAL, tl.where(is_known | (goal >= count), 0, goal))
    if is_known == 0:
        # It goes on from the set, of which the first tokens may be listed now.
        put(state_ptr, IS_LISTED, was_listed)
        put(state_ptr, NUMBER, count)
        put(state_ptr, IS_PREFIX, goal * 0 + 1)
        put(state_ptr, LEAST, tl.where(goal >= count, 0, NEVER))
    tl.debug_barrier()


@triton.jit
def settle(state_ptr, op, step_ptr):
    """Writes what a step has made of the set; where all tokens stay, they are listed, and weighed, as before."""
    gone, before, floor = word(state_ptr, REMOVED), word(state_ptr, NUMBER), word(state_ptr, FLOOR)
    number, high, low = word(state_ptr, KEPT), word(state_ptr, KEPT_TOP), word(state_ptr, KEPT_LOW)
    trimmed, left, stays = word(state_ptr, CUT_TOKEN), word(state_ptr, CUT_LEFT), word(state_ptr, ARE_KEPT)
    # Of the tokens at -inf in llama.cpp's list XTC removes none, and top-n-sigma adds what it removes.
    listed = tl.where(is_xtc(op), gone, tl.where(op == _SIGMA, gone + before - number, 0))
    # A top-k of more than there are leaves some.
    listed = tl.where(op == _TOP_K, tl.maximum(tl.minimum(gone, tl.load(step_ptr + 1) - number), 0), listed)
    listed = tl.where(floor > 1, tl.maximum(listed, tl.minimum(gone, floor - before)), listed)
    tl.debug_barrier()
    put(state_ptr, NUMBER, number)
    if stays == 0:
        put(state_ptr, IS_LISTED, gone * 0 + 1)
        put(state_ptr, IS_FRESH, (trimmed < 0) & (op != _GREEDY))
        put(state_ptr, ARE_SUMMED, gone * 0)
    elif stays == AS_RANGE:
        settle_range(state_ptr, trimmed)
    put(state_ptr, TOP_KEY, high)
    put(state_ptr, LOW_KEY, low)
    put(state_ptr, REMOVED, listed)
    # What the row without XTC left stands: its list, and its masses, which a first turn overwrites.
    put(state_ptr, IS_SAME, is_xtc(op) & (stays == 1) & (floor <= 1) & (word(state_ptr, RESUMED) >= 0))
    if op == _GREEDY:
        put(state_ptr, IS_ONE, gone * 0 + 1)
        put(state_ptr, IS_FRESH, gone * 0)
    if trimmed >= 0:
        put(state_ptr, TRIMMED, trimmed)
        put(state_ptr, LEFT, left)
    tl.debug_barrier()
# fmt: on
