"""Searches for the token at which the first tokens of a set reach a goal, in the order of a cut.

A reading counts the tokens of a range by parts; from their numbers follows which part is read next. Once few are left
they are listed, and the row is not read again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import (
    NEG_INF,
    NO_ID,
    POS_INF,
    exponent_of,
    log2_fixed,
    value_of,
    weight_of,
)
from tirage.backends.torch.kernels.layout import LANES, NOT_COUNTED
from tirage.backends.torch.kernels.sets.brackets import FEWER, are_listed, enclose_by_key, enclose_by_level
from tirage.backends.torch.kernels.sets.listing import MASS_AT, NUMBER_AT, list_between
from tirage.backends.torch.kernels.sets.places import BY_ID, BY_KEY, BY_LEVEL, place_of, places_of
from tirage.backends.torch.kernels.sets.segments import segments_of, shift_of
from tirage.backends.torch.kernels.sets.tokens import is_whole, length_of, members_at, put_number, scales_of, weights_at
from tirage.backends.torch.kernels.sets.words import (
    AHEAD,
    ALL,
    BETWEEN,
    COUNTINGS,
    CUT_ID,
    CUT_KEY,
    EACH,
    GOAL,
    HAS_LANES,
    HAS_LISTED,
    IS_LEVELED,
    IS_LISTED,
    IS_PREFIX,
    IS_SCANNED,
    IS_TOLD,
    IS_WEIGHED,
    LARGEST,
    LEAST_WEIGHT,
    LEVEL,
    LISTED_NUMBER,
    LOOKED,
    LOW_KEY,
    MEAN,
    NEVER,
    NUMBER,
    ONLY_TIED,
    PARTS_AT,
    PLACE_END,
    PLACE_LOW,
    PLACED_MASS,
    REACHED,
    REACHING,
    SCAN_END,
    SCAN_LOW,
    SEGMENTS,
    SET_NUMBER,
    STAGE,
    STAGE_GOAL,
    STAGES,
    SUMS_AT,
    SURE_AT,
    TIED,
    TOP_KEY,
    TRIMMED,
    UNLISTED,
    WAS_LISTED,
    count_on,
    put,
    word,
)

_TURNS = tl.constexpr(6)
"""How often a weighed search counts by parts; then it weighs, for two bits of a place."""


# fmt: off
@triton.jit
def part_of(kind, lane):
    """(part int32, whether it is that above the mean exponent, the last part) of a lane: levels have both sides."""
    sides = tl.where(kind == BY_LEVEL, 1, 0)
    last = tl.where(kind == BY_LEVEL, 126, 254)
    return tl.minimum(lane >> sides, last), (lane & sides) > 0, last


@triton.jit
def count_parts(x_ptr, list_ptr, state_ptr, kind, low, end, shift, size, TILE: tl.constexpr):
    """(tokens in each part of ]low, end] int32 [LANES], the mass of those before it, the mass in it), of those that are
    looked at. The first part and the last are one place each, as many tokens may tie there; the one before the last has
    what is left. By id, tokens before are not read, and nor is their mass.
    """
    PART: tl.constexpr = TILE // 8
    m, c, _, _ = scales_of(state_ptr)
    mean, is_weighed = word(state_ptr, MEAN).to(tl.int32), word(state_ptr, IS_WEIGHED) != 0
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    is_range = (kind == BY_ID) & (is_listed == 0)
    first = tl.where(is_range, (low + 1) // TILE * TILE, 0).to(tl.int32)
    length = tl.where(is_range, end + 1, length).to(tl.int32)
    sides, last = tl.where(kind == BY_LEVEL, 1, 0), tl.where(kind == BY_LEVEL, 126, 254)
    found, lanes = tl.arange(0, LANES) * 0, (tl.arange(0, PART) * 0).to(tl.int64)
    before, within = lanes, lanes
    for start in range(0, length - first, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, first + start + part, length, is_listed, PART)
            q = exponent_of(x, m, c)
            looked, place = place_of(state_ptr, kind, ids, q, key)
            w = tl.where(looked, tl.where(is_weighed, weight_of(q), 1), 0)
            inside = looked & (place > low) & (place <= end)
            before += tl.where(place <= low, w, 0)
            within += tl.where(inside, w, 0)
            at = tl.minimum(((place - low - 2) >> shift) + 1, last - 1).to(tl.int32)
            at = tl.where(place == end, last, tl.where(place == low + 1, 0, at))
            lane = (at << sides) + tl.where(q > mean, sides, 0)
            found += tl.histogram(tl.where(inside, lane, NOT_COUNTED), LANES)
    return tl.where(tl.arange(0, LANES) < NOT_COUNTED, found, 0), tl.sum(before, 0), tl.sum(within, 0)


@triton.jit
def narrowed(state_ptr, kind, counts, within, goal, low, end, shift):
    """(low, end, number, ahead, reached): the tokens up to `low` do not reach the goal, and those up to `end` do.

    What a token weighs is known but for the width of its part, and what all weigh exactly. The number is that of tokens
    between both, and so many are up to `low`; what these reach is exact where tokens are counted.
    """
    m, c, _, _ = scales_of(state_ptr)
    mean, is_weighed = word(state_ptr, MEAN).to(tl.int32), word(state_ptr, IS_WEIGHED) != 0
    part, is_above, last = part_of(kind, tl.arange(0, LANES))
    near = tl.minimum(low + 2 + ((part - 1).to(tl.int64) << shift), end - 1)
    far = tl.where(part < last - 1, tl.minimum(near + ((tl.full((), 1, tl.int64) << shift) - 1), end - 1), end - 1)
    near, far = tl.where(part == 0, low + 1, near), tl.where(part == 0, low + 1, far)
    near, far = tl.where(part == last, end, near), tl.where(part == last, end, far)
    is_level, is_key = kind == BY_LEVEL, kind == BY_KEY
    near_q = exponent_of(value_of(tl.where(is_key, -near + POS_INF, 0).to(tl.int32)), m, c)
    far_q = exponent_of(value_of(tl.where(is_key, -far + POS_INF, 0).to(tl.int32)), m, c)
    near_level, far_level = near.to(tl.int32), far.to(tl.int32)
    light = tl.where(is_level, tl.where(is_above, mean + far_level, tl.maximum(mean - near_level, 0)), far_q)
    heavy = tl.where(is_level, tl.where(is_above, mean + near_level, tl.maximum(mean - far_level, 0)), near_q)
    least = counts * tl.where(is_weighed, weight_of(light), 1)
    most = counts * tl.where(is_weighed, weight_of(heavy), 1)
    all_least, all_most, least, most = tl.sum(least, 0), tl.sum(most, 0), tl.cumsum(least, 0), tl.cumsum(most, 0)
    # What comes after a part bounds what comes before.
    sure, most = tl.maximum(least, within - all_most + most), tl.minimum(most, within - all_least + least)
    # Behind an even lane of levels, the tokens above the mean of the same part are still to come.
    is_below = (is_above | (kind != BY_LEVEL)) & (most < goal)
    new_low = tl.max(tl.where(is_below, far, low), 0)
    new_end = tl.min(tl.where(sure >= goal, far, end), 0)
    new_low = tl.minimum(new_low, new_end - 1)  # pyright: ignore[reportOperatorIssue]
    number = tl.sum(tl.where((near > new_low) & (far <= new_end), counts, 0), 0)
    ahead = tl.sum(tl.where(far <= new_low, counts, 0), 0)
    return new_low, new_end, number, ahead, tl.max(tl.where(is_below, most, 0), 0)


@triton.jit
def masses_to(x_ptr, list_ptr, state_ptr, kind, low, step, size, TILE: tl.constexpr):
    """The masses of the tokens that are looked at up to the places `low` + 1, 2 and 3 times `step`, int64."""
    PART: tl.constexpr = TILE // 8
    m, c, trimmed, left = scales_of(state_ptr)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    one = (tl.arange(0, PART) * 0).to(tl.int64)
    two, three = one, one
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, is_listed, PART)
            q, w = weights_at(ids, x, key, m, c, trimmed, left)
            looked, place = place_of(state_ptr, kind, ids, q, key)
            w = tl.where(looked, w, 0)
            one += tl.where(place <= low + step, w, 0)
            two += tl.where(place <= low + 2 * step, w, 0)
            three += tl.where(place <= low + 3 * step, w, 0)
    return tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0)


@triton.jit
def last_of(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """(number, key, id) of the tokens that have at least `LEAST_WEIGHT`: of the last one in order."""
    PART: tl.constexpr = TILE // 8
    m, c, trimmed, left = scales_of(state_ptr)
    length, is_listed = length_of(state_ptr, size), word(state_ptr, IS_LISTED)
    least = word(state_ptr, LEAST_WEIGHT)
    length = tl.where(word(state_ptr, LARGEST) < least, 0, length)
    number, last = tl.arange(0, PART) * 0, (tl.arange(0, PART) * 0 - 1).to(tl.int64)
    for start in range(0, length, TILE):
        for part in range(0, TILE, PART):
            ids, x, key = members_at(x_ptr, list_ptr, state_ptr, start + part, length, is_listed, PART)
            _, w = weights_at(ids, x, key, m, c, trimmed, left)
            looked = (key > NEG_INF) & (w >= least)
            number += looked.to(tl.int32)
            last = tl.maximum(last, tl.where(looked, ((-key.to(tl.int64) + POS_INF) << 31) + ids, -1))
    found = tl.max(last, 0)
    is_none = found < 0  # pyright: ignore[reportOperatorIssue]
    key = -(found >> 31) + POS_INF  # pyright: ignore[reportOperatorIssue]
    at = found & NO_ID  # pyright: ignore[reportOperatorIssue]
    return tl.sum(number, 0), tl.where(is_none, POS_INF, key), tl.where(is_none, NO_ID, at)


@triton.jit(noinline=True)
def list_few(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Lists the tokens between the places of a search, once they are few, in the place of a set that is not listed;
    writes the mass of those before them. Where what the step keeps is among them it lists all from the first on.

    Of tokens at one key, among which an id is looked for, those are listed that the step keeps, or ids are counted.
    """
    kind, goal, key = word(state_ptr, STAGE).to(tl.int32), word(state_ptr, GOAL), word(state_ptr, CUT_KEY)
    is_tied, is_ranked = kind == BY_ID, word(state_ptr, LEVEL) < 0
    number = tl.where(is_tied, goal, word(state_ptr, BETWEEN))
    is_prefix = (word(state_ptr, IS_PREFIX) != 0) & is_ranked
    is_prefix &= are_listed(state_ptr, word(state_ptr, AHEAD), number, size)
    is_few = is_prefix | tl.where(is_tied, is_ranked, number <= size // FEWER)
    is_few &= (word(state_ptr, IS_LISTED) == 0) & (word(state_ptr, HAS_LISTED) == 0)
    if is_few & ((is_tied == 0) | (word(state_ptr, IS_WEIGHED) == 0)):
        end = tl.where(is_tied, -key + POS_INF, word(state_ptr, PLACE_END))  # pyright: ignore[reportOperatorIssue]
        low = tl.where(is_prefix, -1, tl.where(is_tied, end - 1, word(state_ptr, PLACE_LOW)))
        most = tl.where(is_tied, tl.where(is_prefix, goal, 0), ALL)
        if (is_tied == 0) | (word(state_ptr, IS_SCANNED) != ONLY_TIED):
            by = tl.where(is_tied, BY_KEY, kind)
            list_between(x_ptr, list_ptr, state_ptr, by, low, end, most, size, TILE)
        if is_tied & (is_prefix == 0):
            put_tied(state_ptr, size, TILE)
        else:
            # By key at one level, others are not among those before.
            put_listed(state_ptr, tl.where(is_prefix, 2, 0), (is_prefix | (is_ranked == 0)) == 0)


@triton.jit
def put_tied(state_ptr, size, TILE: tl.constexpr):
    """Writes in which segment of the row the id lies that is looked for, once ties are counted by segments."""
    segments, number, tied = tl.arange(0, SEGMENTS), segments_of(size, TILE), word(state_ptr, TIED)
    whole, goal = word(state_ptr, STAGE_GOAL), word(state_ptr, GOAL)
    # More are asked for of a set all of which ties, if its number was not known.
    whole, goal = tl.minimum(whole, tied * word(state_ptr, EACH)), tl.minimum(goal, tied)
    before = tl.load(state_ptr + PARTS_AT + segments, mask=segments < number, other=NEVER)
    at = tl.sum((before < goal).to(tl.int64), 0) - 1  # pyright: ignore[reportOperatorIssue]
    reached, length = tl.max(tl.where(before < goal, before, 0), 0), TILE << shift_of(size, TILE)
    tl.debug_barrier()
    put(state_ptr, GOAL, goal)
    put(state_ptr, STAGE_GOAL, whole)
    put(state_ptr, PLACE_LOW, at * length - 1)
    put(state_ptr, PLACE_END, tl.minimum((at + 1) * length, size) - 1)
    put(state_ptr, REACHED, reached)
    put(state_ptr, HAS_LISTED, goal * 0 + ONLY_TIED)
    tl.debug_barrier()


@triton.jit
def put_listed(state_ptr, is_prefix, has_listed):
    """Goes on with what is listed, in the place of the set; those before them are weighed, or counted."""
    number, is_weighed = word(state_ptr, LISTED_NUMBER), word(state_ptr, IS_WEIGHED) != 0
    before = tl.where(is_weighed, word(state_ptr + SURE_AT, MASS_AT), word(state_ptr + SURE_AT, NUMBER_AT))
    tl.debug_barrier()
    put(state_ptr, IS_LISTED, number * 0 + 1)
    put(state_ptr, NUMBER, number)
    put(state_ptr, IS_PREFIX, is_prefix)
    put(state_ptr, HAS_LISTED, has_listed)
    put(state_ptr, UNLISTED, before)
    tl.debug_barrier()


@triton.jit(noinline=True)
def begin_stage(state_ptr, size):
    """Writes between which places a stage of a search looks for the token that reaches the `GOAL`."""
    goal, kind = word(state_ptr, GOAL), word(state_ptr, STAGE).to(tl.int32)
    # By id, those before are not looked at; how many they are is known if they were counted.
    ahead = tl.where(word(state_ptr, IS_WEIGHED) != 0, size, word(state_ptr, REACHED))
    ahead = tl.where(kind == BY_ID, ahead, 0)
    each = count_ties(state_ptr, kind)
    low, end = places_of(state_ptr, kind, size)
    is_weighed = word(state_ptr, IS_WEIGHED) != 0
    is_first = (word(state_ptr, GOAL) == 1) & (is_weighed == 0) & (kind == BY_KEY) & (word(state_ptr, LEVEL) < 0)
    # A token whose weight was cut may be among them.
    turns = tl.where(is_weighed & (word(state_ptr, TRIMMED) >= 0), 0, _TURNS)
    number = word(state_ptr, LOOKED)
    tl.debug_barrier()
    put(state_ptr, STAGE_GOAL, goal)
    put(state_ptr, EACH, each)
    put(state_ptr, PLACE_LOW, low)
    put(state_ptr, PLACE_END, tl.where(is_first, low + 1, end))
    put(state_ptr, COUNTINGS, turns)
    put(state_ptr, UNLISTED, goal * 0)
    put(state_ptr, REACHED, goal * 0)
    put(state_ptr, BETWEEN, tl.where(number < 0, size, number))
    put(state_ptr, AHEAD, ahead)
    put(state_ptr, IS_TOLD, goal * 0 + 1)
    tl.debug_barrier()


@triton.jit(noinline=True)
def enclose(state_ptr, size):
    """Brings the places of a search nearer to each other by the histogram, where it tells of the set."""
    kind, is_weighed = word(state_ptr, STAGE).to(tl.int32), word(state_ptr, IS_WEIGHED) != 0
    is_open = word(state_ptr, PLACE_LOW) + 1 < word(state_ptr, PLACE_END)
    is_open &= (word(state_ptr, HAS_LANES) != 0) & (word(state_ptr, IS_LISTED) == 0) & (word(state_ptr, TRIMMED) < 0)
    # It tells how many tokens the row has.
    is_open &= (word(state_ptr, LEVEL) < 0) & (is_weighed | is_whole(state_ptr))
    goal, before = word(state_ptr, GOAL), word(state_ptr + SURE_AT, MASS_AT)
    is_scanned = (word(state_ptr, IS_SCANNED) != 0) & (before < goal) & (goal <= word(state_ptr, PLACED_MASS))
    is_tied = is_scanned & (word(state_ptr, IS_SCANNED) == ONLY_TIED)
    if is_tied & (kind == BY_KEY) & is_weighed:
        # All between have one key, and were counted.
        low, end, stages = word(state_ptr, SCAN_LOW), word(state_ptr, SCAN_END), word(state_ptr, STAGES)
        tl.debug_barrier()
        put(state_ptr, PLACE_LOW, low)
        put(state_ptr, PLACE_END, end)
        put(state_ptr, REACHED, before)
        put(state_ptr, HAS_LISTED, tl.where(stages == 2, ONLY_TIED, 0))
    elif is_scanned & (kind == BY_KEY) & is_weighed:
        # It was looked for, and listed, while the set was summed.
        low, end, number = word(state_ptr, SCAN_LOW), word(state_ptr, SCAN_END), word(state_ptr, LISTED_NUMBER)
        tl.debug_barrier()
        put(state_ptr, PLACE_LOW, low)
        put(state_ptr, PLACE_END, end)
        put(state_ptr, BETWEEN, number)
        is_prefix = word(state_ptr, IS_SCANNED) == 2
        put_listed(state_ptr, tl.where(is_prefix, 2, 0), is_prefix == 0)
    elif is_open & (kind == BY_KEY):
        total = word(state_ptr, SUMS_AT + 1)
        enclose_by_key(state_ptr, goal, goal, total, total, size)
    # Levels are looked at by number, too, where a step leaves a least number of tokens.
    if is_open & (kind == BY_LEVEL) & is_weighed:
        enclose_by_level(state_ptr)
    if (is_scanned | is_open) & (kind != BY_ID):
        # What those before the places reach is not known yet.
        tl.debug_barrier()
        put(state_ptr, IS_TOLD, is_tied | ((is_weighed & (word(state_ptr, STAGES) > 1)) == 0))
        tl.debug_barrier()
    if (is_tied == 0) & (kind == BY_KEY) & (word(state_ptr, IS_SCANNED) == ONLY_TIED):
        # It does not end where it likely does.
        tl.debug_barrier()
        put(state_ptr, IS_SCANNED, goal * 0)
        tl.debug_barrier()


@triton.jit(noinline=True)
def narrow(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Counts the tokens between the places of a search by parts, and brings these nearer to each other."""
    kind, goal = word(state_ptr, STAGE).to(tl.int32), word(state_ptr, GOAL)
    low, end = word(state_ptr, PLACE_LOW), word(state_ptr, PLACE_END)
    bits = (log2_fixed((end - low).to(tl.uint64)) >> 23) - tl.where(kind == BY_LEVEL, 6, 7)
    shift = tl.maximum(bits, 0)
    counts, before, within = count_parts(x_ptr, list_ptr, state_ptr, kind, low, end, shift, size, TILE)
    is_one = word(state_ptr, TOP_KEY) == word(state_ptr, LOW_KEY)
    if (word(state_ptr, NUMBER) < 0) & (is_one | (kind == BY_KEY)):
        put_number(state_ptr, within, size)
        put(state_ptr, GOAL, tl.minimum(goal, within))
        tl.debug_barrier()
    goal, is_weighed = word(state_ptr, GOAL), word(state_ptr, IS_WEIGHED) != 0
    reached = tl.where(is_weighed, before + word(state_ptr, UNLISTED), word(state_ptr, REACHED))
    low, end, number, before, more = narrowed(state_ptr, kind, counts, within, goal - reached, low, end, shift)
    ahead, turns = word(state_ptr, AHEAD), word(state_ptr, COUNTINGS)
    is_asked = is_weighed & (word(state_ptr, STAGES) > 1)
    tl.debug_barrier()
    put(state_ptr, PLACE_LOW, low)
    put(state_ptr, PLACE_END, end)
    put(state_ptr, BETWEEN, number)
    put(state_ptr, AHEAD, ahead + before)
    put(state_ptr, REACHED, reached + more)
    put(state_ptr, IS_TOLD, is_asked == 0)
    put(state_ptr, COUNTINGS, turns - 1)
    tl.debug_barrier()


@triton.jit(noinline=True)
def narrow_by_mass(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Weighs the tokens up to three places of a search, and brings its places nearer to each other; at last what those
    before the place weigh is asked."""
    kind, goal = word(state_ptr, STAGE).to(tl.int32), word(state_ptr, GOAL)
    low, end = word(state_ptr, PLACE_LOW), word(state_ptr, PLACE_END)
    is_found = low + 1 >= end
    step = tl.where(is_found, 0, (end - low + 3) // 4)
    one, two, three = masses_to(x_ptr, list_ptr, state_ptr, kind, low, step, size, TILE)
    base, reached, is_told = word(state_ptr, UNLISTED), word(state_ptr, REACHED), word(state_ptr, IS_TOLD)
    one, two, three = one + base, two + base, three + base
    passed = (one < goal).to(tl.int64) + (two < goal).to(tl.int64) + (three < goal).to(tl.int64)
    reached = tl.where((passed == 1) | is_found, one, reached)
    reached = tl.where(passed == 3, three, tl.where(passed == 2, two, reached))
    low += passed * step
    tl.debug_barrier()
    put(state_ptr, PLACE_LOW, low)
    put(state_ptr, PLACE_END, tl.where(is_found, end, tl.minimum(low + step, end)))
    put(state_ptr, REACHED, reached)
    put(state_ptr, IS_TOLD, tl.where(is_found | (passed > 0), 1, is_told))
    tl.debug_barrier()


@triton.jit
def find(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes the first place up to which the tokens reach the `GOAL`, and what those before it sum up to.

    They are summed by weight or by number. The sum is not told where no other stage follows.
    """
    begin_stage(state_ptr, size)
    enclose(state_ptr, size)
    while (word(state_ptr, PLACE_LOW) + 1 < word(state_ptr, PLACE_END)) | (word(state_ptr, IS_TOLD) == 0):
        list_few(x_ptr, list_ptr, state_ptr, size, TILE)
        is_open = word(state_ptr, PLACE_LOW) + 1 < word(state_ptr, PLACE_END)
        if is_open & ((word(state_ptr, IS_WEIGHED) == 0) | (word(state_ptr, COUNTINGS) > 0)):
            narrow(x_ptr, list_ptr, state_ptr, size, TILE)
        else:
            narrow_by_mass(x_ptr, list_ptr, state_ptr, size, TILE)
    end_stage(state_ptr)


@triton.jit(noinline=True)
def end_stage(state_ptr):
    """Writes level, key or id of the token that a stage found, and the goal that is left."""
    stage, place, number = word(state_ptr, STAGE), word(state_ptr, PLACE_END), word(state_ptr, BETWEEN)
    goal = word(state_ptr, STAGE_GOAL) - word(state_ptr, REACHED) * word(state_ptr, EACH)
    tl.debug_barrier()
    put(state_ptr, LOOKED, number)
    put(state_ptr, GOAL, goal)
    if stage == BY_LEVEL:
        put(state_ptr, LEVEL, place)
    elif stage == BY_KEY:
        put(state_ptr, CUT_KEY, -place + POS_INF)  # pyright: ignore[reportOperatorIssue]
    else:
        put(state_ptr, CUT_ID, place)
    tl.debug_barrier()


@triton.jit
def cut_at(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes level, key and id of the token at which the first tokens reach the `GOAL`, which is then what that token
    must add. The goal `NEVER` is reached at the last of those that have at least some weight: they are counted.

    They are in the order of rank, or by how far their exponents are from the mean one, at one level by rank. Level, key
    and id are looked for in so many `STAGES`; the level is -1 by rank alone.
    """
    begin_search(state_ptr)
    if word(state_ptr, GOAL) == NEVER:
        find_last(x_ptr, list_ptr, state_ptr, size, TILE)
    else:
        while word(state_ptr, STAGE) < word(state_ptr, STAGES):
            if (word(state_ptr, STAGE) > 0) | (word(state_ptr, IS_LEVELED) != 0):
                find(x_ptr, list_ptr, state_ptr, size, TILE)
            count_on(state_ptr, STAGE)
        end_search(state_ptr)


@triton.jit(noinline=True)
def begin_search(state_ptr):
    """Writes what a search begins with, and what is known of the set before it."""
    number, is_listed = word(state_ptr, NUMBER), word(state_ptr, IS_LISTED)
    tl.debug_barrier()
    put(state_ptr, SET_NUMBER, number)
    put(state_ptr, WAS_LISTED, is_listed)
    put(state_ptr, LEVEL, number * 0 - 1)
    put(state_ptr, CUT_KEY, number * 0 + POS_INF)
    put(state_ptr, CUT_ID, number * 0 + NO_ID)
    put(state_ptr, LOOKED, number)
    put(state_ptr, HAS_LISTED, number * 0)
    put(state_ptr, REACHED, number * 0)
    put(state_ptr, STAGE, number * 0)
    tl.debug_barrier()


@triton.jit(noinline=True)
def end_search(state_ptr):
    """Writes what is known of the set again, unless what a step keeps of the first tokens is all listed."""
    number, is_listed = word(state_ptr, SET_NUMBER), word(state_ptr, WAS_LISTED)
    is_whole = word(state_ptr, IS_PREFIX) < 2
    tl.debug_barrier()
    if is_whole:
        put(state_ptr, NUMBER, number)
        put(state_ptr, IS_LISTED, is_listed)
    tl.debug_barrier()


@triton.jit(noinline=True)
def find_last(x_ptr, list_ptr, state_ptr, size, TILE: tl.constexpr):
    """Writes how many tokens have at least `LEAST_WEIGHT`, and key and id of the last one."""
    number, key, last = last_of(x_ptr, list_ptr, state_ptr, size, TILE)
    tl.debug_barrier()
    put(state_ptr, REACHING, number)
    put(state_ptr, CUT_KEY, key)
    put(state_ptr, CUT_ID, last)
    tl.debug_barrier()


@triton.jit
def count_ties(state_ptr, stage):
    """What each of the tokens weighs that a search looks at, int64, where it looks at one key: from then on the goal is
    a number of tokens, of which one reading tells eight bits. Otherwise nothing changes, and that is 1."""
    m, c, trimmed, _ = scales_of(state_ptr)
    goal, each = word(state_ptr, GOAL), tl.full((), 1, tl.int64)
    # A token whose weight was cut may be among them.
    if (stage == BY_ID) & (word(state_ptr, IS_WEIGHED) != 0) & (goal != NEVER) & (trimmed < 0):
        each = weight_of(exponent_of(value_of(word(state_ptr, CUT_KEY).to(tl.int32)), m, c))
        tl.debug_barrier()
        put(state_ptr, GOAL, (goal + each - 1) // each)
        put(state_ptr, IS_WEIGHED, each * 0)
        tl.debug_barrier()
    return each
# fmt: on
