"""The masks and edits of a row in one launch: each thread block copies its part of the logits and edits it there.

A block writes to no other part, so blocks need not wait for each other; its threads do, before each edit. The last one
of a row settles it; where a smoothing stands before other edits, it first runs these and those on all parts, as only
then the largest logit is known. Lists of ids are looked through by every block, for those that lie in its part. Logits
that are read again are read past the nearest cache, which does not see what atomic operations do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.device.past_form import ANY
from tirage.backends.torch.device.row_form import (
    AVERAGED,
    COMPLETED,
    EDIT,
    FIRST,
    PROLONGED,
    SCOPE,
    SECOND,
)
from tirage.backends.torch.kernels.exact.rule import (
    LARGEST,
    NEG_INF,
    POS_INF,
    clamped,
    cleaned,
    is_spoiled,
    key_of,
    logits_at,
    smoothed,
    value_of,
)
from tirage.backends.torch.kernels.histogram.lanes import sample_of, store_knots, stored_knots
from tirage.backends.torch.kernels.layout import FIRST_C, HIGH, IS_GREEDY, LANES, STEP, WIDTH, constant
from tirage.backends.torch.kernels.measure import (
    add_counts,
    count_block,
    is_counted,
    is_last,
    settle_slot,
    store_ends,
)
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH

_ADD, _REPETITION, _FREQUENCY, _PRESENCE, _SCALE, _SMOOTH = (
    tl.constexpr(int(op)) for op in (ADD, REPETITION, FREQUENCY, PRESENCE, SCALE, SMOOTH)
)
_AVERAGED, _COMPLETED, _PROLONGED = (tl.constexpr(op) for op in (AVERAGED, COMPLETED, PROLONGED))
_EDIT, _SCOPE, _FIRST, _SECOND = (tl.constexpr(at) for at in (EDIT, SCOPE, FIRST, SECOND))
_ANY = tl.constexpr(ANY)
_BANS, _BIASES = tl.constexpr(True), tl.constexpr(False)

SIZES = (
    "room", "plane", "columns", "counted", "given", "masks", "early", "places", "biases", "counts", "ring", "ngrams",
    "powers", "phrases", "phrase",
)  # fmt: skip
"""Sizes of tables, and whether there are some: kernels are not compiled anew for their values."""


@triton.jit
def operand(edit_ptr, at: tl.constexpr):
    """A float32 operand of an edit, from its bits."""
    return tl.load(edit_ptr + at).to(tl.float32, bitcast=True)


@triton.jit
def current(y_ptr, ids, there, other=0.0):
    """The logits of `ids`, any shape, as they are now; `other` where they are not `there`."""
    return tl.load(y_ptr + ids, mask=there, other=other, cache_modifier=".cg")


@triton.jit
def any_spoiled(key, touched):
    """1 where something that is touched is not finite, else 0."""
    return tl.max((touched & is_spoiled(key)).to(tl.int32), 0)


@triton.jit
def changed(old, touched, new):
    """`new` where it is touched and not -inf, else `old`, any shape."""
    return tl.where(touched & (key_of(old) != NEG_INF), clamped(new), old)


# fmt: off
@triton.jit(do_not_specialize=SIZES)
def edit(
    x_ptr, given_ptr, slots_ptr, y_ptr, candidates_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr, bins_ptr,
    sums_ptr, length_ptr,
    used_ptr, tokens_ptr, slots_meta_ptr, arrived_ptr, least_ptr, words_ptr, early_ptr, edits_ptr, bias_ids_ptr,
    bias_values_ptr, count_ids_ptr, in_prompt_ptr, in_output_ptr, distinct_ptr, ring_ptr, ahead_ptr, prompt_ptr,
    ngram_ptr, powers_ptr, last_power_ptr, breaks_ptr, unbroken_ptr, phrases_ptr, phrase_ids_ptr, phrase_bias_ptr,
    phrase_own_ptr,
    room, plane, columns, counted, given, masks, early, places, biases, counts, ring, ngrams, powers, phrases, phrase,
    size, blocks,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, PART: tl.constexpr, COPIED: tl.constexpr, TILE: tl.constexpr,
    IS_BFLOAT: tl.constexpr, FULL: tl.constexpr, EMPTY: tl.constexpr,
):
    """Logits of one part of one row after its masks and edits, what `measure` finds of it; the last part settles it."""
    row, slot = tl.program_id(0).to(tl.int64), tl.load(slots_ptr + tl.program_id(0))
    own_ptr = slots_meta_ptr + slot * columns
    if counts_once(counted, own_ptr, edits_ptr, slots_ptr + row, places):
        sample = sample_of(x_ptr + row * size, size, IS_BFLOAT)
        store_knots(row_ptr + row * WIDTH, scaled(sample, edits_ptr + slot * places * 4, places))
    mask_part(
        x_ptr + row * size, given_ptr + row * ((size + 31) // 32), y_ptr + row * size, tokens_ptr, own_ptr, least_ptr,
        words_ptr, early_ptr, ring_ptr, ahead_ptr, prompt_ptr, ngram_ptr, phrases_ptr, phrase_ids_ptr, phrase_bias_ptr,
        phrase_own_ptr, slot, tl.program_id(1) * PART, given, masks, early, ring, ngrams, phrases, phrase, size,
        PART, COPIED, TILE, IS_BFLOAT,
    )
    turn, parts = tl.full((), -1, tl.int32), (size + PART - 1) // PART
    while turn < parts:
        slot, part = tl.load(slots_ptr + tl.program_id(0)), tl.where(turn < 0, tl.program_id(1), turn)
        # No slot has such bits, as only the load tells: pointers to the row take no registers where none is used.
        row = tl.program_id(0) + (slot >> 62)
        spoiled = edit_part(
            y_ptr + row * size, candidates_ptr + row * ring, row_ptr + row * WIDTH, tokens_ptr, edits_ptr, bias_ids_ptr,
            bias_values_ptr, count_ids_ptr, in_prompt_ptr, in_output_ptr, distinct_ptr, ring_ptr, ahead_ptr, prompt_ptr,
            powers_ptr, last_power_ptr, breaks_ptr, unbroken_ptr, phrases_ptr, phrase_ids_ptr, phrase_bias_ptr,
            phrase_own_ptr, slot, part * PART, turn, places, biases, counts, ring, powers, phrases, phrase, size,
            PART, COPIED, TILE,
        )
        tl.debug_barrier()
        own_ptr = slots_meta_ptr + tl.load(slots_ptr + tl.program_id(0)) * columns
        c, counts_row = constant(own_ptr, FIRST_C), counts_once(counted, own_ptr, edits_ptr, slots_ptr + row, places)
        measure_part(
            y_ptr + row * size, ends_ptr + row * blocks, row_ptr + row * WIDTH, bins_ptr + row * LANES, part * PART,
            spoiled, c, counts_row, plane, size, PART, BLOCK,
        )
        if turn < 0:
            # Behind its own part the last block goes on with all of them, or with none; the others skip what follows.
            turn = parts + 1
            if is_last(arrived_ptr + row, parts):
                turn, slot = parts, tl.load(slots_ptr + tl.program_id(0))
                if place_of_smoothing(edits_ptr + slot * places * 4, places) < places:
                    turn = tl.full((), 0, tl.int32)
                    store_top(ends_ptr + row * blocks, row_ptr + row * WIDTH, plane, blocks, PADDED)
        else:
            turn += 1
    if turn == parts:
        own_ptr = slots_meta_ptr + tl.load(slots_ptr + tl.program_id(0)) * columns
        c, counts_row = constant(own_ptr, FIRST_C), counts_once(counted, own_ptr, edits_ptr, slots_ptr + row, places)
        settle_slot(
            slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr,
            bins_ptr, sums_ptr, length_ptr, row, c, counts_row, room, plane, columns, size, blocks, PADDED, FULL,
            EMPTY,
        )


@triton.jit
def mask_part(
    x_ptr, given_ptr, y_ptr, tokens_ptr, own_ptr, least_ptr, words_ptr, early_ptr, ring_ptr, ahead_ptr, prompt_ptr,
    ngram_ptr, phrases_ptr, phrase_ids_ptr, phrase_bias_ptr, phrase_own_ptr, slot, first, given, masks, early, ring,
    ngrams, phrases, phrase, size,
    PART: tl.constexpr, COPIED: tl.constexpr, TILE: tl.constexpr, IS_BFLOAT: tl.constexpr,
):
    """Writes one part of a row's logits after the masks of its slot, and what its tokens forbid."""
    last, words = tl.minimum(first + PART, size), (size + 31) // 32
    waits = (early != 0) & (tl.load(own_ptr + STEP) < tl.load(least_ptr + slot))
    copy_masked(
        x_ptr, y_ptr, first, last, given_ptr, words_ptr + slot * words, early_ptr + slot * words, given, masks, waits,
        PART, COPIED, IS_BFLOAT,
    )
    tl.debug_barrier()
    length = tl.load(tokens_ptr + slot).to(tl.int32)
    ring_ptr, ahead_ptr = ring_ptr + slot * ring, ahead_ptr + slot * ring
    if ngrams != 0:
        ban_ngrams(y_ptr, first, last, ring_ptr, ahead_ptr, tl.load(ngram_ptr + slot), length, ring, TILE)
    if phrases != 0:
        complete(
            y_ptr, first, last, phrases_ptr, phrase_ids_ptr, phrase_bias_ptr, phrase_own_ptr, prompt_ptr, ring_ptr,
            slot, phrases, phrase, length, ring, _BANS, TILE,
        )


@triton.jit
def edit_part(
    y_ptr, candidates_ptr, row_ptr, tokens_ptr, edits_ptr, bias_ids_ptr, bias_values_ptr, count_ids_ptr, in_prompt_ptr,
    in_output_ptr, distinct_ptr, ring_ptr, ahead_ptr, prompt_ptr, powers_ptr, last_power_ptr, breaks_ptr, unbroken_ptr,
    phrases_ptr, phrase_ids_ptr, phrase_bias_ptr, phrase_own_ptr, slot, first, turn, places, biases, counts, ring,
    powers, phrases, phrase, size,
    PART: tl.constexpr, COPIED: tl.constexpr, TILE: tl.constexpr,
):
    """Runs the edits of a slot on one part of its row: 1 where a logit is not finite that one changes, else 0.

    In the turn -1 edits run up to a smoothing that stands before others, in those after it that one and all behind it.
    """
    last, words = tl.minimum(first + PART, size), (size + 31) // 32
    length, spoiled = tl.load(tokens_ptr + slot).to(tl.int32), tl.full((), 0, tl.int32)
    ring_ptr, ahead_ptr = ring_ptr + slot * ring, ahead_ptr + slot * ring
    edits_ptr += slot * places * 4
    place, end = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    if turn >= 0:
        place += place_of_smoothing(edits_ptr, places)
    while place < places:
        tl.debug_barrier()
        edit_ptr = edits_ptr + place * 4
        op, end = tl.load(edit_ptr + _EDIT), place + 1
        if op == _ADD:
            spoiled |= add(
                y_ptr, first, last, bias_ids_ptr + slot * biases, bias_values_ptr + slot * biases, biases, TILE
            )
        if op == _COMPLETED:
            spoiled |= complete(
                y_ptr, first, last, phrases_ptr, phrase_ids_ptr, phrase_bias_ptr, phrase_own_ptr, prompt_ptr, ring_ptr,
                slot, phrases, phrase, length, ring, _BIASES, TILE,
            )
        if op == _PROLONGED:
            spoiled |= punish_prolonged(
                y_ptr, candidates_ptr, first, last, edit_ptr, ring_ptr, ahead_ptr,
                powers_ptr + slot * powers, tl.load(last_power_ptr + slot).to(tl.int32), breaks_ptr + slot * words,
                tl.load(unbroken_ptr + slot).to(tl.int32), length, ring, TILE,
            )
        if is_counting(op):
            end = end_of_counting(edits_ptr, place, places)
            spoiled |= penalise(
                y_ptr, first, last, edits_ptr, place, end, count_ids_ptr + slot * counts, in_prompt_ptr + slot * counts,
                in_output_ptr + slot * counts, tl.load(distinct_ptr + slot).to(tl.int32), length, TILE,
            )
        if op == _SCALE:
            spoiled |= scale(y_ptr, first, last, operand(edit_ptr, _FIRST), PART, COPIED)
        if op == _SMOOTH:
            if turn < 0:
                end = places
            else:
                spoiled |= smooth_part(y_ptr, first, last, edit_ptr, tl.load(row_ptr + HIGH), TILE)
        place = end
    return spoiled


@triton.jit
def counts_once(counted, own_ptr, edits_ptr, slot_ptr, places):
    """Whether the histogram of a row is counted: not where a smoothing changes logits that were measured before."""
    is_smoothed = place_of_smoothing(edits_ptr + tl.load(slot_ptr) * places * 4, places) < places
    return is_counted(counted, tl.load(own_ptr + IS_GREEDY)) & (is_smoothed == 0)


@triton.jit
def place_of_smoothing(edits_ptr, places):
    """The place of a row's smoothing that stands before other edits, `places` where there is none."""
    found = places
    for place in range(places):
        found = tl.where(tl.load(edits_ptr + place * 4 + _EDIT) == _SMOOTH, place, found)
    return found


@triton.jit
def store_top(ends_ptr, row_ptr, plane, blocks, PADDED: tl.constexpr):
    """Writes the largest key of a row, or that of a NaN, from the ends of its blocks."""
    at = tl.arange(0, PADDED)
    top = tl.max(tl.load(ends_ptr + at, mask=at < blocks, other=NEG_INF, cache_modifier=".cg"), 0)
    low = tl.min(tl.load(ends_ptr + plane + at, mask=at < blocks, other=POS_INF, cache_modifier=".cg"), 0)
    tl.store(row_ptr + HIGH, tl.where(low < NEG_INF, low, top))
    tl.debug_barrier()


@triton.jit
def smooth_part(y_ptr, first, last, edit_ptr, top, TILE: tl.constexpr):
    """Smooths the logits of the part, by their distances from the largest one of the row (S-N8): 1 if that is none."""
    square, cube, largest = operand(edit_ptr, _FIRST), operand(edit_ptr, _SECOND), cleaned(value_of(top))
    for start in range(0, last - first, TILE):
        ids = first + start + tl.arange(0, TILE)
        x = current(y_ptr, ids, ids < last, float("-inf"))
        new = tl.where(key_of(x) > NEG_INF, smoothed(x, largest, square, cube), x)
        tl.store(y_ptr + ids, new, mask=ids < last)
    return is_spoiled(top).to(tl.int32)


@triton.jit
def copy_masked(
    x_ptr, y_ptr, first, last, given_ptr, words_ptr, early_ptr, given, masks, waits,
    PART: tl.constexpr, COPIED: tl.constexpr, IS_BFLOAT: tl.constexpr,
):
    """Writes the logits of the part where the bits of all masks that there are allow them, else -inf."""
    for start in range(0, PART, COPIED):
        ids = first + start + tl.arange(0, COPIED)
        inside = ids < last
        x = logits_at(x_ptr, ids, inside, IS_BFLOAT)
        word = tl.full((COPIED,), -1, tl.int32)
        if given != 0:
            word &= tl.load(given_ptr + (ids >> 5), mask=inside, other=0)
        if masks != 0:
            word &= tl.load(words_ptr + (ids >> 5), mask=inside, other=0)
        if waits:
            word &= tl.load(early_ptr + (ids >> 5), mask=inside, other=0)
        tl.store(y_ptr + ids, tl.where(((word >> (ids & 31)) & 1) != 0, x, float("-inf")), mask=inside)


@triton.jit
def measure_part(
    y_ptr, ends_ptr, row_ptr, bins_ptr, first, spoiled, c, counts, plane, size, PART: tl.constexpr, BLOCK: tl.constexpr
):
    """The ends of each block of the part; masses and the histogram where it `counts`."""
    lanes = tl.arange(0, LANES)
    found, knots = lanes * 0, stored_knots(row_ptr)
    for start in range(0, tl.minimum(PART, size - first), BLOCK):
        ids = first + start + tl.arange(0, BLOCK)
        y, at = current(y_ptr, ids, ids < size, float("-inf")), ends_ptr + (first + start) // BLOCK
        store_ends(at, key_of(y), spoiled, plane)
        if counts:
            found += count_block(y, at, knots, c, plane)
    if counts:
        add_counts(bins_ptr, found)


@triton.jit
def scaled(x, edits_ptr, places):
    """A sample, any shape, times the factors by which all logits of its row are multiplied."""
    for place in range(places):
        if tl.load(edits_ptr + place * 4 + _EDIT) == _SCALE:
            x *= operand(edits_ptr + place * 4, _FIRST)
    return x


@triton.jit
def ban_ngrams(y_ptr, first, last, ring_ptr, ahead_ptr, ngram, length, ring, TILE: tl.constexpr):
    """Forbids the tokens that would complete a sequence of `ngram` tokens once more (S-H4)."""
    if ngram > 0:
        for start in range(0, tl.minimum(length, ring), TILE):
            at = start + tl.arange(0, TILE)
            there = at < tl.minimum(length, ring)
            ids = tl.load(ring_ptr + at, mask=there, other=-1)
            mine = (ids >= first) & (ids < last)
            due = mine & (tl.load(ahead_ptr + at, mask=mine, other=0) >= ngram - 1)
            tl.store(y_ptr + ids, tl.full((TILE,), float("-inf"), tl.float32), mask=due)


@triton.jit
def complete(
    y_ptr, first, last, phrases_ptr, ids_ptr, bias_ptr, own_ptr, prompt_ptr, ring_ptr, slot, phrases, phrase, length,
    ring, BANS: tl.constexpr, TILE: tl.constexpr,
):
    """Forbids what would complete a sequence, or adds its bias; no two biased ones end alike (S-H3, S-H7)."""
    spoiled = tl.full((), 0, tl.int32)
    own = length - tl.load(prompt_ptr + slot).to(tl.int32)
    for start in range(0, phrases, TILE):
        at = slot * phrases + start + tl.arange(0, TILE)
        there = start + tl.arange(0, TILE) < phrases
        ids = tl.load(ids_ptr + at, mask=there, other=-1).to(tl.int32)
        due = (ids >= first) & (ids < last)
        bias = tl.load(bias_ptr + at, mask=due, other=0.0)
        is_own = tl.load(own_ptr + at, mask=due, other=0) != 0
        for back in range(phrase):
            wanted = tl.load(phrases_ptr + at * phrase + back, mask=due, other=_ANY)
            token = tl.load(ring_ptr + ((length - 1 - back) & (ring - 1)))
            known = back < tl.where(is_own, own, length)
            due = due & ((wanted == _ANY) | (known & (wanted == token)))
        if BANS:
            tl.store(y_ptr + ids, bias, mask=due & (bias == float("-inf")))
        else:
            due = due & (bias > float("-inf"))
            old = current(y_ptr, ids, due)
            tl.store(y_ptr + ids, changed(old, due, cleaned(old) + bias), mask=due)
            spoiled |= any_spoiled(key_of(old), due)
    return spoiled


@triton.jit
def add(y_ptr, first, last, ids_ptr, values_ptr, biases, TILE: tl.constexpr):
    """Adds the biases of tokens."""
    spoiled, begun = tl.full((), 0, tl.int32), tl.load(ids_ptr)
    for start in range(0, biases, TILE):
        at = start + tl.arange(0, TILE)
        ids = tl.load(ids_ptr + at, mask=at < biases, other=-1)
        # Entries past the last repeat the first one.
        mine = (ids >= first) & (ids < last) & ((at == 0) | (ids != begun))
        old = current(y_ptr, ids, mine)
        new = cleaned(old) + tl.load(values_ptr + at, mask=mine, other=0.0)
        tl.store(y_ptr + ids, changed(old, mine, new), mask=mine)
        spoiled |= any_spoiled(key_of(old), mine)
    return spoiled


@triton.jit
def is_counting(op):
    """Whether an edit reads counts."""
    return (op == _REPETITION) | (op == _FREQUENCY) | (op == _PRESENCE) | (op == _AVERAGED)


@triton.jit
def end_of_counting(edits_ptr, place, places):
    """The place behind the edits that read counts, and follow one another, from `place` on."""
    end = place + 1
    while (end < places) & is_counting(tl.load(edits_ptr + end * 4 + _EDIT, mask=end < places, other=0)):
        end += 1
    return end


@triton.jit
def penalise(
    y_ptr, first, last, edits_ptr, place, end, ids_ptr, in_prompt_ptr, in_output_ptr, number, length,
    TILE: tl.constexpr,
):
    """Runs the penalties in places from `place` to `end` on the tokens that are counted."""
    spoiled = tl.full((), 0, tl.int32)
    for start in range(0, number, TILE):
        at = start + tl.arange(0, TILE)
        ids = tl.load(ids_ptr + at, mask=at < number, other=-1)
        mine = (ids >= first) & (ids < last)
        in_prompt = tl.load(in_prompt_ptr + at, mask=mine, other=0)
        in_output = tl.load(in_output_ptr + at, mask=mine, other=0)
        v = current(y_ptr, ids, mine)
        p = place
        while p < end:
            op, scope = tl.load(edits_ptr + p * 4 + _EDIT), tl.load(edits_ptr + p * 4 + _SCOPE)
            a, b = operand(edits_ptr + p * 4, _FIRST), operand(edits_ptr + p * 4, _SECOND)
            n = tl.where(scope != 1, in_prompt, 0) + tl.where(scope != 2, in_output, 0)
            if op == _AVERAGED:
                a = averaged(a, tl.load(edits_ptr + p * 4 + _SECOND), length)
            w = cleaned(v)
            subtracted = tl.where(op == _PRESENCE, a, tl.minimum(a * n.to(tl.float32), LARGEST))
            scaled = tl.minimum(w * tl.where(key_of(w) > 0, b, a), LARGEST)
            touched = mine & (n > 0)
            spoiled |= any_spoiled(key_of(v), touched)
            v = changed(v, touched, tl.where(op == _REPETITION, scaled, w - subtracted))
            p += 1
        tl.store(y_ptr + ids, v, mask=mine)
    return spoiled


@triton.jit(noinline=True)
def averaged(penalty, window, length):
    """`penalty` divided by how many tokens count: those in the window, or all where it is 0.

    A quotient in float64 rounds to that in float32; `div_rn` flushes subnormal ones to 0 under Triton 3.4.
    """
    counted = tl.where(window > 0, tl.minimum(length, window), length)
    return cleaned((penalty.to(tl.float64) / tl.maximum(counted, 1).to(tl.float64)).to(tl.float32))


@triton.jit
def punish_prolonged(
    y_ptr, candidates_ptr, first, last, edit_ptr, ring_ptr, ahead_ptr, powers_ptr, last_power, breaks_ptr, unbroken,
    length, ring, TILE: tl.constexpr,
):
    """Subtracts DRY's penalties; of a token that comes several times the largest: the least logit (S-H5)."""
    spoiled = tl.full((), 0, tl.int32)
    allowed, window = tl.load(edit_ptr + _FIRST), tl.load(edit_ptr + _SECOND)
    number, seen = tl.minimum(length, ring), tl.minimum(length, window)
    for start in range(0, number, TILE):
        at = start + tl.arange(0, TILE)
        ids = tl.load(ring_ptr + at, mask=at < number, other=-1)
        mine = (ids >= first) & (ids < last)
        # In the window lie as many tokens before each as are left of it.
        before = seen - 1 - ((length - 1 - at) & (ring - 1))
        match = tl.minimum(tl.minimum(tl.load(ahead_ptr + at, mask=mine, other=0), before), unbroken)
        due = mine & (match >= allowed) & (breaks(breaks_ptr, ids, mine) == 0)
        power = tl.load(powers_ptr + tl.minimum(tl.maximum(match - allowed, 0), last_power), mask=due, other=0.0)
        old = current(y_ptr, ids, due)
        spoiled |= any_spoiled(key_of(old), due)
        new = changed(old, due, cleaned(old) - power)
        tl.store(candidates_ptr + at, tl.where(due, new, float("inf")), mask=mine)
        # Cleaned twice it is the same, and none of the new values lies above it.
        tl.store(y_ptr + ids, cleaned(old), mask=due)
    tl.debug_barrier()
    for start in range(0, number, TILE):
        at = start + tl.arange(0, TILE)
        ids = tl.load(ring_ptr + at, mask=at < number, other=-1)
        mine = (ids >= first) & (ids < last)
        new = tl.load(candidates_ptr + at, mask=mine, other=float("inf"))
        tl.atomic_min(y_ptr + ids, new, mask=mine & (new < float("inf")), sem="relaxed")
    return spoiled


@triton.jit
def breaks(breaks_ptr, ids, there):
    """1 where DRY's matches do not cross these tokens, any shape, else 0."""
    return (tl.load(breaks_ptr + (ids >> 5), mask=there, other=0) >> (ids & 31).to(tl.int32)) & 1


@triton.jit
def scale(y_ptr, first, last, factor, PART: tl.constexpr, COPIED: tl.constexpr):
    """Multiplies all logits of the part."""
    spoiled = tl.full((), 0, tl.int32)
    for start in range(0, PART, COPIED):
        ids = first + start + tl.arange(0, COPIED)
        inside = ids < last
        old = current(y_ptr, ids, inside)
        tl.store(y_ptr + ids, changed(old, inside, tl.minimum(cleaned(old) * factor, LARGEST)), mask=inside)
        spoiled |= any_spoiled(key_of(old), inside)
    return spoiled
# fmt: on
