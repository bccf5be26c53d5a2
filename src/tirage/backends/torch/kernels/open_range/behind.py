"""An eta or a p-less behind another cut, whose set is not listed for its sums: bounds of them, or the exact ones.

Mostly the histogram tells already that the threshold lies below all tokens of the set. Else the pass before the last
opens the range of the cuts before it alone, and adds up what the tokens above that are to the sums. The last program of
the row finds where the set ends, and so its sums and the threshold. Either that removes nothing, and the step is left
out from then on, or it removes all that the cuts before it removed, and these are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, NO_ID, target_of, value_of
from tirage.backends.torch.kernels.exact.thresholds import (
    is_by_logit,
    is_min_p,
    is_top_p,
    judged,
    least_by_key,
    least_kept,
    least_number,
    number_of_sums,
    reads_mass,
    share_of,
    summed,
    term,
)
from tirage.backends.torch.kernels.histogram.averages import edges_of, weighed_by
from tirage.backends.torch.kernels.histogram.lanes import at_lane, lane_of_key
from tirage.backends.torch.kernels.histogram.masses import total_of
from tirage.backends.torch.kernels.layout import (
    ADDED,
    ADDENDS,
    ALL_FIRST,
    BASE,
    BEHIND,
    FIRST_C,
    GREATEST,
    HIGH,
    IDLE,
    LANES,
    LEAST,
    LOW,
    LOWER,
    LOWER_LENGTH,
    LOWER_TOP,
    LOWEST,
    MANY,
    OPEN,
    PROGRAM,
    SUMMED,
    TOP,
    WHOLE,
    constant,
    sum_of,
)
from tirage.backends.torch.kernels.open_range.cuts import cut_top_k, cut_top_p
from tirage.backends.torch.kernels.open_range.lists import WAYS, open_count, open_mass, sum_terms
from tirage.backends.torch.kernels.open_range.totals import store_base
from tirage.backends.torch.plan import FEW
from tirage.operators import FIRST_FILTER
from tirage.operators.eta import ETA
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K

_ETA, _P_LESS, _TOP_K = tl.constexpr(int(ETA)), tl.constexpr(int(P_LESS)), tl.constexpr(int(TOP_K))
_TEMPERATURE, _FIRST_FILTER = tl.constexpr(int(TEMPERATURE)), tl.constexpr(int(FIRST_FILTER))
_UNIT, _HEAVIEST = tl.constexpr(2.0**40), tl.constexpr(1 << 40)
_ROUNDED = tl.constexpr(2.0**-40)
_FEW = tl.constexpr(FEW)
"""A set of so many tokens, or of one in `MANY`, is listed sooner than its row is read once more."""
_ALL = tl.constexpr(0x7FFFFFFF)
_CERTAIN = tl.constexpr(False)


@triton.jit
def is_by_average(op):
    """Whether a step's threshold follows from an average over its set, by weight."""
    return (op == _ETA) | (op == _P_LESS)


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


# --- what the histogram tells ----------------------------------------------------------------------------------------


@triton.jit
def mean_in(op, side, counts, edge_ptr, low, high, c, first, last, least_mass, most_mass):
    """What `mean_bound` gives of a set that holds the lanes before `first`, none behind `last` and may cut between."""
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
def threshold_in(op, step_ptr, side, counts, number, edge_ptr, low, high, c, first, last, least_mass, most_mass):
    """The key of the threshold of an eta or a p-less of a set of `number` tokens at most (see `mean_in`): on the `side`
    0 no less than the true one, on the other no greater."""
    limit, least = tl.full((), -1, tl.int64), tl.full((), 0, tl.int64)
    # The greater the average weight is that p-less compares with, the less it keeps.
    mean = mean_in(
        op, tl.where(op == _ETA, side, 1 - side), counts, edge_ptr, low, high, c, first, last, least_mass, most_mass
    )  # fmt: skip
    if op == _ETA:
        limit = mean.to(tl.int64) + tl.load(step_ptr + 3)
        least = share_of(op, step_ptr, tl.where(side == 0, most_mass, least_mass))
    else:
        if tl.load(step_ptr + 1) > 0:
            # The average less a part of how far it is below the mass; how many tokens there are is known between two.
            fewest = tl.sum(tl.where(tl.arange(0, LANES) < first, counts, 0), 0)
            others = tl.maximum(tl.where(side == 0, number, fewest) - 1, 1).to(tl.float64)
            mass = tl.where(side == 0, least_mass, most_mass).to(tl.float64)
            mean += tl.minimum(mean - mass, 0.0) / others + tl.where(side == 0, 2.0, -2.0)
        least = tl.maximum(mean, 0.0).to(tl.int64) + tl.where(side == 0, 1, 0)
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
    """Whether the cut of the step s is looked for later, as its set may have many tokens; writes that it is.

    What stands behind the step is left out until then.
    """
    is_many = (number > _FEW) | (number > size // MANY)
    is_alone = (tl.load(row_ptr + ADDED, cache_modifier=".cg") == 0) & is_last_of_kind(op, meta_ptr, s, steps)
    is_able = (weighs != 0) | (filters_behind(s, meta_ptr, steps) == 0)
    is_put = is_able & (op == tl.load(meta_ptr + SUMMED)) & (first > 0) & is_many & is_alone
    if is_put:
        idle = tl.load(row_ptr + IDLE, cache_modifier=".cg")
        tl.debug_barrier()
        tl.store(row_ptr + ADDED, BEHIND)
        tl.store(row_ptr + IDLE, idle | (~((tl.full((), 1, tl.int32) << s) - 1) & _ALL))
        tl.debug_barrier()
    return is_put


@triton.jit
def take_back(row_ptr, at, takes_back, is_idle):
    """Write that a step is not put off, if it `takes_back` that, and whether it is left out: the last filter."""
    idle = tl.load(row_ptr + IDLE, cache_modifier=".cg")
    tl.debug_barrier()
    if takes_back:
        one = tl.full((), 1, tl.int32)
        tl.store(row_ptr + ADDED, 0)
        tl.store(row_ptr + IDLE, idle & ((one << (at + is_idle.to(tl.int32))) - 1))
    tl.debug_barrier()


@triton.jit
def ranges_behind(
    counts, numbers, least, most, edge_ptr, first, last, reach, second, meta_ptr, row_ptr, high, size, steps, weighs
):  # fmt: skip
    """The lanes `first`, `reach` and `second` of the open ranges where a step is put off whose set may end in the lanes
    `first` to `last`: they hold its cut too, unless too many tokens lie there."""
    at = place_of(tl.load(meta_ptr + SUMMED), meta_ptr, steps)
    op, step_ptr = tl.load(meta_ptr + SUMMED), meta_ptr + PROGRAM + at * 6
    c, low, number = constant(meta_ptr, FIRST_C), tl.load(row_ptr + LOW), at_lane(numbers, last)
    low_total, high_total = total_of(least, most, first, last)
    low_total = tl.maximum(low_total, _HEAVIEST)
    begin, end = tl.full((), 0, tl.int32), tl.full((), LANES, tl.int32)
    for side in range(2):
        # What both sides read is read again: held in registers it would leave too few.
        tl.debug_barrier()
        key = threshold_in(
            op, step_ptr, side, counts, number, edge_ptr, low, high, c, first, last, low_total, high_total
        )  # fmt: skip
        begin, end = end, lane_of_key(key, row_ptr)
    if (begin > last) | (weighs == 0):
        takes_back = (weighs == 0) | (filters_behind(at, meta_ptr, steps) == 0)
        take_back(row_ptr, at, takes_back, begin > last)
        # The whole set is listed, where no other pass adds it up.
        first = tl.where((weighs == 0) & (begin <= last), 0, first)
    else:
        is_apart = end < first
        before = tl.where(begin > 0, at_lane(numbers, begin - 1), 0)
        between = at_lane(numbers, first - 1) - at_lane(numbers, tl.minimum(end, first - 1))  # pyright: ignore[reportOperatorIssue]
        if number - before - tl.where(is_apart, between, 0) <= size // MANY:
            second, reach = tl.where(is_apart, first, second), tl.where(is_apart, end, reach)
            first = tl.minimum(begin, first)
    is_put = tl.load(row_ptr + ADDED, cache_modifier=".cg") == BEHIND
    tl.store(row_ptr + WHOLE, 1, mask=is_put)
    return first, reach, second


# --- the exact sums --------------------------------------------------------------------------------------------------


# fmt: off
@triton.jit
def cut_before(
    x_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, at, lowest, top, ties, m, c,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties) after the steps before the step `at` of a row whose mass is written as the base, each a
    cut by a key, a mass or a number, as `draw_row` runs them. The first two sums are of what lies above the range."""
    cut_key, cut_id = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32)
    for s in range(at):
        # Read again for each step: held in registers they would leave too few.
        number, above = summed(sums_ptr, 0).to(tl.int64), summed(sums_ptr, 1).to(tl.int64)
        whole = tl.load(sums_ptr + BASE, cache_modifier=".cg")
        step_ptr = meta_ptr + PROGRAM + s * 6
        op = tl.where(((tl.load(row_ptr + IDLE, cache_modifier=".cg") >> s) & 1) != 0, 0, tl.load(step_ptr))
        floor = least_number(op, step_ptr)
        if floor > 1:
            there = number + open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE)
            op, floor = tl.where(there < floor, 0, op), tl.where(there < floor, 0, floor)
        total = whole
        if cut_key > NEG_INF:
            total = above + open_mass(x_ptr, list_ptr, n, ties, lowest, lowest, cut_key, cut_id, m, c, TILE)
        key = tl.full((), NEG_INF, tl.int32)
        if is_min_p(op, step_ptr) | is_by_logit(op):
            key = least_by_key(op, step_ptr, m, c, tl.load(row_ptr + HIGH))
        if reads_mass(op):
            limit, least = judged(op, step_ptr, total, sums_ptr)
            key = least_kept(op, limit, least, m, c, tl.load(row_ptr + HIGH), 0)
        if key > cut_key:
            cut_key, cut_id = key, tl.full((), NO_ID, tl.int32)
            ties = tl.where((ties >= 0) & (key > lowest), 0, ties)  # pyright: ignore[reportOperatorIssue]
        if is_top_p(op):
            judged_on = tl.where(tl.load(step_ptr + 4) > 0, whole, total)
            target = target_of(tl.load(step_ptr + 1), judged_on, tl.load(step_ptr + 2))
            if target <= total:
                cut_key, cut_id, ties, _ = cut_top_p(
                    x_ptr, count_ptr, sums_ptr, list_ptr, n, ties, target - above, _CERTAIN, step_ptr, lowest, top,
                    cut_key, cut_id, m, c, size, blocks, BLOCK, PADDED, TILE,
                )
        if (op == _TOP_K) | (floor > 1):
            cut_key, cut_id, ties = cut_number(
                x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, number, floor, lowest, top, cut_key, cut_id, size,
                blocks, BLOCK, PADDED, TILE,
            )
    return cut_key, cut_id, ties


@triton.jit
def cut_number(
    x_ptr, count_ptr, list_ptr, n, ties, op, step_ptr, number, floor, lowest, top, cut_key, cut_id, size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """(cut_key, cut_id, ties) after a top-k, or another step that leaves a least number of tokens, `floor`."""
    is_top_k, all_ties = op == _TOP_K, tl.full((), 0, tl.int64)
    k = floor
    if is_top_k:
        k, all_ties = tl.load(step_ptr + 1), tl.load(step_ptr + 2)
    kept = number + open_count(x_ptr, list_ptr, n, ties, lowest, cut_key, cut_id, TILE)
    if (is_top_k == 0) & (kept < k):
        # The first of what the step was given, and that is a prefix: the first of all.
        cut_key, cut_id = tl.full((), NEG_INF, tl.int32), tl.full((), -1, tl.int32)
        if ties >= 0:
            ties = sum_of(count_ptr, OPEN, blocks, PADDED)
    if is_top_k == (kept >= k):
        cut_key, cut_id, ties = cut_top_k(
            x_ptr, count_ptr, list_ptr, n, ties, number, k, all_ties, lowest, top, cut_key, cut_id, size, blocks, BLOCK,
            PADDED, TILE,
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
def searched_range(row_ptr, count_ptr, list_ptr, n, size, blocks, PADDED: tl.constexpr):
    """(list, its length, lowest key, key above, ties) of the range where the steps before the one put off cut: the
    lower one where there is one, of which all is listed, else the only one."""
    lowest, top, ties = tl.load(row_ptr + LOWER), tl.load(row_ptr + LOWER_TOP), tl.full((), -1, tl.int32)
    if lowest < top:
        n = tl.load(row_ptr + LOWER_LENGTH, cache_modifier=".cg")
        list_ptr += size - n
    else:
        lowest, top = tl.load(row_ptr + LOWEST), tl.load(row_ptr + TOP)
        least = tl.load(row_ptr + LEAST, cache_modifier=".cg")
        greatest = tl.load(row_ptr + GREATEST, cache_modifier=".cg")
        if (n > 0) & (least <= greatest):
            lowest = least
            top = greatest + 1
        if lowest + 1 == top:
            ties = sum_of(count_ptr, OPEN, blocks, PADDED)
    return list_ptr, n, lowest, top, ties


@triton.jit(noinline=True)
def settle_behind(
    x_ptr, mass_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, steps,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):
    """Whether the row is split as it has to be, int32, once it is known what the sums of the set are that was put off.

    Writes which steps are left out, and the sums. All programs of the row have come: what they stored is acquired.
    """
    op, at = tl.load(meta_ptr + SUMMED), place_of(tl.load(meta_ptr + SUMMED), meta_ptr, steps)
    high, c = tl.load(row_ptr + HIGH), constant(meta_ptr, FIRST_C)
    m, step_ptr = value_of(high), meta_ptr + PROGRAM + at * 6
    list_ptr, n, lowest, top, ties = searched_range(row_ptr, count_ptr, list_ptr, n, size, blocks, PADDED)
    store_base(sums_ptr, sum_of(mass_ptr, ALL_FIRST, blocks, PADDED), True)
    cut_key, cut_id, ties = cut_before(
        x_ptr, count_ptr, sums_ptr, list_ptr, n, meta_ptr, row_ptr, size, blocks, at, lowest, top, ties, m, c, BLOCK,
        PADDED, TILE,
    )
    add_open(x_ptr, list_ptr, sums_ptr, n, ties, op, lowest, cut_key, cut_id, m, c, TILE)
    limit, least = judged(op, step_ptr, summed(sums_ptr, 1).to(tl.int64), sums_ptr)
    key = least_kept(op, limit, least, m, c, high, 0)
    is_idle, is_apart = key <= cut_key, tl.load(row_ptr + LOWER) < tl.load(row_ptr + LOWER_TOP)
    is_open = (key >= tl.load(row_ptr + LOWEST)) & (key < tl.load(row_ptr + TOP))
    is_split = tl.where(is_apart, is_open & (is_idle == 0), is_open | is_idle)
    one = tl.full((), 1, tl.int32)
    kept = tl.load(row_ptr + IDLE, cache_modifier=".cg") & ((one << at) - 1)
    tl.debug_barrier()
    tl.store(row_ptr + IDLE, tl.where(is_idle, kept | (one << at), (one << at) - 1))
    # What stands between the ranges, and below them, is not in the set.
    tl.store(row_ptr + LOWER, NEG_INF)
    tl.store(row_ptr + LOWER_TOP, NEG_INF)
    tl.store(row_ptr + LOWER_LENGTH, 0)
    tl.debug_barrier()
    return (is_split & (filters_behind(at, meta_ptr, steps) == 0)).to(tl.int32)
# fmt: on
