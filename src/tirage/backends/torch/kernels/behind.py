"""An eta or a p-less behind another cut, whose set is not listed for its sums: bounds of them, or the exact ones.

Mostly the histogram tells already that the threshold lies below all tokens of the set. Else the pass before the last
opens the range of the cuts before it alone, and adds up what the tokens above that are to the sums. The last program of
the row finds where the set ends, and so its sums and the threshold. Either that removes nothing, and the step is left
out from then on, or it removes all that the cuts before it removed, and these are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.averages import edges_of, weighed_by
from tirage.backends.torch.kernels.cuts import cut_top_p
from tirage.backends.torch.kernels.layout import (
    ADDED,
    ADDENDS,
    ALL_FIRST,
    BASE,
    BEHIND,
    FIRST_C,
    HIGH,
    IDLE,
    LANES,
    NOT_COUNTED,
    PROGRAM,
    SUMMED,
    WHOLE,
    constant,
    sum_of,
)
from tirage.backends.torch.kernels.lists import WAYS, sum_terms
from tirage.backends.torch.kernels.resolve import cut_to_key, cut_to_number, range_of
from tirage.backends.torch.kernels.rule import NEG_INF, NO_ID, target_of, value_of
from tirage.backends.torch.kernels.thresholds import (
    is_by_logit,
    is_min_p,
    is_top_p,
    judged,
    least_kept,
    least_number,
    number_of_sums,
    reads_mass,
    share_of,
    summed,
    term,
)
from tirage.backends.torch.kernels.totals import lower_mass, set_mass, step_at, store_base
from tirage.backends.torch.plan import FEW
from tirage.operators import FIRST_FILTER
from tirage.operators.eta import ETA
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K

_ETA, _P_LESS, _TOP_K = tl.constexpr(int(ETA)), tl.constexpr(int(P_LESS)), tl.constexpr(int(TOP_K))
_TEMPERATURE, _FIRST_FILTER = tl.constexpr(int(TEMPERATURE)), tl.constexpr(int(FIRST_FILTER))
_UNIT = tl.constexpr(2.0**40)
_ROUNDED = tl.constexpr(2.0**-40)
_FEW = tl.constexpr(FEW)
_PART = tl.constexpr(16)
"""A set of fewer tokens, or of no more than one in so many, is listed sooner than its row is read once more."""
_CERTAIN = tl.constexpr(False)


@triton.jit
def is_by_average(op):
    """Whether a step's threshold follows from an average over its set, by weight."""
    return (op == _ETA) | (op == _P_LESS)


# --- what the histogram tells ----------------------------------------------------------------------------------------


@triton.jit
def mean_in(op, counts, edge_ptr, low, high, c, first, last, least_mass, most_mass):
    """What `mean_bound` gives of a set that holds the lanes before `first`, none behind `last` and may cut between: the
    bound by which least is kept."""
    m, lanes = value_of(high), tl.arange(0, LANES)
    # One token of the greatest logit is known; of all others the set may have lost any in the lanes that may be cut.
    n = (counts - (lanes == tl.min(tl.where(counts > 0, lanes, LANES), 0)).to(tl.int32)).to(tl.float64)
    n = tl.where(lanes <= last, n, 0.0)
    edge, before = edges_of(edge_ptr, high)
    light, one = weighed_by(op, value_of(tl.minimum(tl.maximum(edge, low), high)), m, c)
    heavy, other = weighed_by(op, value_of(tl.minimum(tl.maximum(before - 1, low), high)), m, c)
    known = tl.where(op == _ETA, 0.0, _UNIT).to(tl.float64)
    middle = n * (light + heavy) * 0.5
    about = (tl.sum(middle * (one + other) * 0.5, 0) + known * _UNIT) / (tl.sum(middle, 0) + _UNIT)
    # Of an eta the least mean keeps least, of a p-less the greatest does.
    side = tl.where(op == _ETA, 0, 1)
    distance = tl.where(side == 0, tl.minimum(one, other), tl.maximum(one, other)) - about
    is_beyond = (distance >= 0) == (side == 1)
    parts = n * tl.where(is_beyond, heavy, light) * distance
    parts = tl.where((lanes < first) | is_beyond, parts, 0.0)
    sign = tl.where(side == 0, -1.0, 1.0).to(tl.float64)
    end = _UNIT * (known - about)
    doubt = (tl.sum(tl.abs(parts), 0) + _UNIT * about + tl.abs(end)) * _ROUNDED
    total = tl.sum(parts, 0) + end + sign * doubt
    mass = tl.where((total >= 0) == (side == 0), most_mass, least_mass).to(tl.float64)
    return about + total / mass + sign * 2.0


@triton.jit
def greatest_threshold(op, step_ptr, counts, number, edge_ptr, low, high, c, first, last, least_mass, most_mass):
    """The greatest key that the threshold of an eta or a p-less may have, of a set of `number` tokens at most: see
    `mean_in`."""
    limit, least = tl.full((), -1, tl.int64), tl.full((), 0, tl.int64)
    mean = mean_in(op, counts, edge_ptr, low, high, c, first, last, least_mass, most_mass)
    if op == _ETA:
        limit = mean.to(tl.int64) + tl.load(step_ptr + 3)
        least = share_of(op, step_ptr, most_mass)
    else:
        if tl.load(step_ptr + 1) > 0:
            # The average less a part of how far it is below the mass, as `threshold_bound` has it.
            others = tl.maximum(number - 1, 1).to(tl.float64)
            mean += tl.minimum(mean - least_mass.to(tl.float64), 0.0) / others + 2.0
        least = tl.maximum(mean, 0.0).to(tl.int64) + 1
    return least_kept(op, limit, least, value_of(high), c, high, 0)


@triton.jit
def is_last_of_kind(op, meta_ptr, s, steps):
    """Whether no step behind the step s has the same operation."""
    found = tl.full((), True, tl.int1)
    for at in range(steps):
        found = found & ((at <= s) | (tl.load(meta_ptr + PROGRAM + at * 6) != op))
    return found


@triton.jit
def puts_off(op, meta_ptr, row_ptr, number, first, size, s, steps, weighs):
    """Whether the row is read for the sums of the step s, as its set may have many tokens; writes that it is.

    What stands behind the step is left out until its threshold is known.
    """
    is_many = (number > _FEW) | (number > size // _PART)
    is_alone = (tl.load(row_ptr + ADDED, cache_modifier=".cg") == 0) & is_last_of_kind(op, meta_ptr, s, steps)
    is_put = (weighs != 0) & (op == tl.load(meta_ptr + SUMMED)) & (first > 0) & is_many & is_alone
    if is_put:
        tl.debug_barrier()
        tl.store(row_ptr + ADDED, BEHIND)
        tl.store(row_ptr + WHOLE, 1)
        behind = ~((tl.full((), 1, tl.int32) << s) - 1) & 0x7FFFFFFF
        tl.store(row_ptr + IDLE, tl.load(row_ptr + IDLE, cache_modifier=".cg") | behind)
        tl.debug_barrier()
    return is_put


# --- the exact sums --------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def cut_before(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, at, lowest, top, ties, m, c,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties) after the steps before the step `at`, each a cut by a key, a mass or a number, as
    `draw_row` runs them."""
    store_base(sums_ptr, sum_of(mass_ptr, ALL_FIRST, blocks, PADDED), True)
    cut_key, cut_id, trimmed = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32), tl.full((), -1, tl.int32)
    for s in range(at):
        step_ptr, op = step_at(
            x_ptr, count_ptr, list_ptr, meta_ptr, row_ptr, n, ties, s, lowest, top, cut_key, cut_id, blocks, PADDED,
            TILE,
        )
        total, above = set_mass(
            x_ptr, mass_ptr, list_ptr, sums_ptr, meta_ptr, row_ptr, n, ties, op, lowest, cut_key, cut_id, m, c,
            blocks, PADDED, TILE,
        )
        if is_min_p(op, step_ptr) | is_by_logit(op) | reads_mass(op):
            cut_key, cut_id, ties = cut_to_key(
                x_ptr, list_ptr, sums_ptr, n, ties, op, step_ptr, meta_ptr, row_ptr, total, lowest, cut_key, cut_id, m,
                c, TILE,
            )
        if is_top_p(op):
            total += lower_mass(list_ptr, sums_ptr, meta_ptr, row_ptr, cut_key, m, c, size, TILE)
            base = tl.load(sums_ptr + BASE, cache_modifier=".cg")
            judged_on = tl.where(tl.load(step_ptr + 4) > 0, base, total)
            target = target_of(tl.load(step_ptr + 1), judged_on, tl.load(step_ptr + 2))
            if target <= total:
                cut_key, cut_id, ties, _ = cut_top_p(
                    x_ptr, count_ptr, sums_ptr, list_ptr, n, ties, above, target, _CERTAIN, step_ptr, lowest, top,
                    cut_key, cut_id, m, c, size, blocks, BLOCK, PADDED, TILE,
                )
        if ((op == _TOP_K) | (least_number(op, step_ptr) > 1)) & (lowest < top):
            cut_key, cut_id, ties, trimmed = cut_to_number(
                x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, lowest, top, cut_key, cut_id, trimmed, size, blocks,
                BLOCK, PADDED, TILE,
            )
    return cut_key, cut_id, ties


@triton.jit
def add_open(
    x_ptr, list_ptr, sums_ptr, n, ties, op, lowest, cut_key, cut_id, m, c, TILE: tl.constexpr
):
    """Add what the open tokens of a set are to the sums of those above, which are there."""
    at = tl.arange(0, WAYS)
    sums = tl.load(sums_ptr + at, mask=at < ADDENDS, other=0, cache_modifier=".cg")
    tl.debug_barrier()
    if ties < 0:
        sum_terms(x_ptr, list_ptr, sums_ptr, n, op, lowest, cut_key, cut_id, m, c, 0, TILE)
        sums += tl.load(sums_ptr + at, mask=at < ADDENDS, other=0, cache_modifier=".cg")
    else:
        x = value_of(lowest)
        for j in range(number_of_sums(op)):
            sums += tl.where(at == j, term(op, j, x, m, c, 0) * ties, 0)
    tl.debug_barrier()
    tl.store(sums_ptr + at, sums, mask=at < ADDENDS)
    tl.debug_barrier()


@triton.jit
def place_of(op, meta_ptr, steps):
    """Which step is the first with an operation."""
    at = tl.full((), 0, tl.int32)
    for s in range(steps):
        at = tl.where((at == s) & (tl.load(meta_ptr + PROGRAM + s * 6) != op), s + 1, at)
    return at


@triton.jit
def filters_behind(at, meta_ptr, steps):
    """Whether filters other than temperatures stand behind the step `at`."""
    found = tl.full((), False, tl.int1)
    for s in range(steps):
        op = tl.load(meta_ptr + PROGRAM + s * 6)
        found = found | ((s > at) & (op >= _FIRST_FILTER) & (op != _TEMPERATURE))
    return found


@triton.jit(noinline=True)
def settle_behind(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """Whether the row is split as it has to be, int32, once it is known what the sums of the set are that was put off.

    Writes which steps are left out, and the sums. All programs of the row have come: what they stored was acquired.
    """
    op, at = tl.load(meta_ptr + SUMMED), place_of(tl.load(meta_ptr + SUMMED), meta_ptr, steps)
    m, c = value_of(tl.load(row_ptr + HIGH)), constant(meta_ptr, FIRST_C)
    one = tl.full((), 1, tl.int32)
    before = tl.load(row_ptr + IDLE, cache_modifier=".cg") & ((one << at) - 1)
    lowest, top, ties = range_of(row_ptr, count_ptr, n, blocks, PADDED)
    cut_key, cut_id, ties = cut_before(
        x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, at, lowest, top, ties, m, c,
        BLOCK, PADDED, TILE,
    )
    add_open(x_ptr, list_ptr, sums_ptr, n, ties, op, lowest, cut_key, cut_id, m, c, TILE)
    limit, least = judged(op, meta_ptr + PROGRAM + at * 6, summed(sums_ptr, 1).to(tl.int64), sums_ptr)
    high = tl.load(row_ptr + HIGH)
    is_idle = least_kept(op, limit, least, m, c, high, 0) <= cut_key
    tl.store(row_ptr + IDLE, tl.where(is_idle, before | (one << at), (one << at) - 1))
    tl.debug_barrier()
    return (is_idle & (filters_behind(at, meta_ptr, steps) == 0)).to(tl.int32)
# fmt: on
