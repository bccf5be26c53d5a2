"""The first pass: ends, mass and histogram of each row, and what the last of its programs makes of them.

Programs of a row come in any order, and none waits for another. Each adds one to the row's counter once it has stored
what it found; the one that finds all others counted goes on with the row, and leaves the counter at 0.
The largest logit is not known yet, so masses are counted from the largest of a sample, in float32: they only bound the
row's mass, within a share of 2^-15. What rounding adds up to, over distances of up to 80 octaves, is less than that.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tirage.backends.torch.kernels.exact.rule import NEG_INF, POS_INF, key_of, power_of, value_of
from tirage.backends.torch.kernels.histogram.lanes import lane_of, sample_of, store_knots, stored_knots
from tirage.backends.torch.kernels.layout import (
    ARRIVED,
    FIRST_C,
    GREATEST,
    HIGH,
    IS_GREEDY,
    LANES,
    LEAST,
    LOW,
    MASS_FROM,
    MASS_TO,
    NOT_COUNTED,
    RATE,
    SEED,
    SUMMANDS,
    VARYING,
    WIDTH,
    constant,
)
from tirage.backends.torch.plan import AS_SET, GREEDILY

_AS_SET, _GREEDILY = tl.constexpr(AS_SET), tl.constexpr(GREEDILY)
_UNIT, _NOT_BFLOAT = tl.constexpr(1 << 40), tl.constexpr(False)
_HIGHEST, _LOWEST = (tl.constexpr(octaves * 2.0**23) for octaves in (-60, 100))
"""Exponents of what is far above the sample, and far below."""
_CERTAIN = tl.constexpr(40 * 2.0**23)
DOUBT = tl.constexpr(15)
"""Masses that count from a sample are known but for a share of 2^-15."""
_LEAST_SHARE, _MOST_SHARE = (tl.constexpr(1 + side * 2.0**-15) for side in (-1, 1))


@triton.jit
def is_last(arrived_ptr, programs):
    """Whether all `programs` that count there have come: to the last of them, and to no other.

    What they stored before can be read from then on, past the nearest cache.
    """
    # All threads store before the first barrier. One thread's addition then releases their stores, and acquires those
    # of the programs before; behind the second barrier that holds for the other threads too.
    tl.debug_barrier()
    before = tl.atomic_add(arrived_ptr, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    if before == programs - 1:
        tl.store(arrived_ptr, 0)
    return before == programs - 1


@triton.jit
def is_counted(counts, kind):
    """Whether the histogram of a row is counted: `counts` has a bit for rows that passes draw, and one for sets."""
    return ((counts >> tl.where(kind == _AS_SET, 1, 0)) & tl.where(kind == _GREEDILY, 0, 1)) != 0


# fmt: off
@triton.jit(do_not_specialize=VARYING)
def measure(
    x_ptr, bad_ptr, meta_ptr, ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, plane, columns, size,
    blocks, run, counts, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):
    """The ends, masses and histogram of `run` blocks of one row; the last program settles the row."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * run
    meta_ptr += row * columns
    c, counts = constant(meta_ptr, FIRST_C), is_counted(counts, tl.load(meta_ptr + IS_GREEDY))
    if counts:
        store_knots(row_ptr + row * WIDTH, sample_of(x_ptr + row * size, size, _NOT_BFLOAT))
    measure_run(
        x_ptr + row * size, ends_ptr + row * blocks, row_ptr + row * WIDTH, bins_ptr + row * LANES, first, run, c,
        counts, plane, size, blocks, BLOCK,
    )
    if is_last(meta_ptr + ARRIVED, (blocks + run - 1) // run):
        given = (tl.load(bad_ptr + row) != 0).to(tl.int32)
        settle_row(
            ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, c, counts, plane, size,
            blocks, PADDED,
        )


@triton.jit(do_not_specialize=VARYING)
def measure_slots(
    x_ptr, slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, arrived_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr,
    status_ptr, bins_ptr, sums_ptr, length_ptr, room, plane, columns, size, blocks, run, counts,
    BLOCK: tl.constexpr, PADDED: tl.constexpr, FULL: tl.constexpr, EMPTY: tl.constexpr,
):
    """The same for rows whose tables lie at slots."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * run
    own_ptr = slots_meta_ptr + tl.load(slots_ptr + row) * columns
    c, counts = constant(own_ptr, FIRST_C), is_counted(counts, tl.load(own_ptr + IS_GREEDY))
    if counts:
        store_knots(row_ptr + row * WIDTH, sample_of(x_ptr + row * size, size, _NOT_BFLOAT))
    measure_run(
        x_ptr + row * size, ends_ptr + row * blocks, row_ptr + row * WIDTH, bins_ptr + row * LANES, first, run, c,
        counts, plane, size, blocks, BLOCK,
    )
    if is_last(arrived_ptr + row, (blocks + run - 1) // run):
        settle_slot(
            slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr,
            bins_ptr, sums_ptr, length_ptr, row, c, counts, room, plane, columns, size, blocks, PADDED, FULL,
            EMPTY,
        )


@triton.jit
def measure_run(
    x_ptr, ends_ptr, row_ptr, bins_ptr, first, run, c, counts, plane, size, blocks, BLOCK: tl.constexpr
):
    """Measures blocks of a row, and counts their logits where `counts` says so; the knots are stored."""
    lanes = tl.arange(0, LANES)
    found, knots = lanes * 0, stored_knots(row_ptr)
    for at in range(tl.minimum(run, blocks - first)):
        ids = (first + at) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + ids, mask=ids < size, other=float("-inf"))
        store_ends(ends_ptr + first + at, key_of(x), 0, plane)
        if counts:
            found += count_block(x, ends_ptr + first + at, knots, c, plane)
    if counts:
        add_counts(bins_ptr, found)


@triton.jit
def store_ends(ends_ptr, key, spoiled, plane):
    """The largest of the keys of a block, and the smallest but that of -inf, in two planes of so many numbers.

    A row with NaN or +inf where an edit wrote is `spoiled`: it has no token, whatever became of it.
    """
    tl.store(ends_ptr, tl.where(spoiled != 0, POS_INF, tl.max(key, 0)))
    tl.store(ends_ptr + plane, tl.min(tl.where(key != NEG_INF, key, POS_INF), 0))


@triton.jit
def count_block(x, ends_ptr, knots, c, plane):
    """The histogram [BINS] of a block's logits x; its mass, from the first of the knots, goes into the third plane."""
    q = tl.minimum(tl.maximum((tl.max(knots, 0) - x) * c, _HIGHEST), _LOWEST).to(tl.int32)
    mass = tl.sum(tl.where(key_of(x) > NEG_INF, power_of(q), 0.0), 0)
    tl.store(ends_ptr + 2 * plane, mass.to(tl.int32, bitcast=True))
    return tl.histogram(lane_of(x, knots), LANES)


@triton.jit
def add_counts(bins_ptr, found):
    """Adds a histogram [BINS] to that of its row: one addition for each lane, as they cost more than the logits."""
    lanes = tl.arange(0, LANES)
    tl.atomic_add(bins_ptr + lanes, found, mask=(found > 0) & (lanes < NOT_COUNTED), sem="relaxed")


@triton.jit
def settle_slot(
    slots_ptr, used_ptr, tokens_ptr, slots_meta_ptr, ends_ptr, meta_ptr, seed_ptr, row_ptr, status_ptr, bins_ptr,
    sums_ptr, length_ptr, row, c, counts, room, plane, columns, size, blocks,
    PADDED: tl.constexpr, FULL: tl.constexpr, EMPTY: tl.constexpr,
):
    """Settles a row whose tables lie at a slot, and brings its numbers and its seed there.

    `tokens` is how many it has, `room` how many it may have.
    """
    slot = tl.load(slots_ptr + row)
    slots_meta_ptr += slot * columns
    for start in range(0, columns, 32):
        at = start + tl.arange(0, 32)
        read = tl.load(slots_meta_ptr + at, mask=at < columns, other=0)
        tl.store(meta_ptr + row * columns + at, read, mask=at < columns)
    used = tl.load(used_ptr + slot) != 0
    given = tl.where(used, tl.where(tl.load(tokens_ptr + slot) > room, FULL, 0), EMPTY)
    tl.store(seed_ptr + row, tl.where(used, tl.load(slots_meta_ptr + SEED), 0))
    settle_row(
        ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, c, counts, plane, size,
        blocks, PADDED,
    )


@triton.jit
def settle_row(
    ends_ptr, row_ptr, status_ptr, bins_ptr, sums_ptr, length_ptr, row, given, c, counts, plane, size, blocks,
    PADDED: tl.constexpr,
):
    """Largest and least key of a row, its status and, if it `counts`, the bounds of its mass.

    Its status is `given` where that is not 0. Its sums and its list are emptied.
    """
    at = tl.arange(0, PADDED)
    ends_ptr += row * blocks
    row_ptr += row * WIDTH
    sums_ptr += row * SUMMANDS
    top = tl.max(tl.load(ends_ptr + at, mask=at < blocks, other=NEG_INF, cache_modifier=".cg"), 0)
    low = tl.min(tl.load(ends_ptr + plane + at, mask=at < blocks, other=POS_INF, cache_modifier=".cg"), 0)
    found = tl.where((top >= POS_INF) | (low < NEG_INF), 1, tl.where(top > NEG_INF, 0, 2))
    status = tl.where(given != 0, given, found)
    tl.store(status_ptr + row, status.to(tl.int8))
    tl.store(row_ptr + HIGH, top)
    tl.store(row_ptr + LOW, low)
    tl.store(row_ptr + LEAST, POS_INF)
    tl.store(row_ptr + GREATEST, NEG_INF)
    at = tl.arange(0, 16)
    tl.store(sums_ptr + at, (at * 0).to(tl.int64), mask=at < SUMMANDS)
    tl.store(length_ptr + row, 0)
    if counts:
        tl.debug_barrier()
        reference = tl.max(stored_knots(row_ptr), 0)
        store_mass(ends_ptr + 2 * plane, row_ptr, sums_ptr, value_of(top), reference, c, size, blocks, PADDED)
        if status != 0:
            # Nothing reads the histogram of a row that has no token.
            lanes = tl.arange(0, LANES)
            tl.store(bins_ptr + row * LANES + lanes, lanes * 0)


@triton.jit
def store_mass(mass_ptr, row_ptr, sums_ptr, m, reference, c, size, blocks, PADDED: tl.constexpr):
    """Writes the bounds of the mass of a row from those of its blocks, which count from a reference."""
    at = tl.arange(0, PADDED)
    each = tl.load(mass_ptr + at, mask=at < blocks, other=0, cache_modifier=".cg").to(tl.float32, bitcast=True)
    octaves = (m - reference) * c
    is_near = (octaves <= _CERTAIN) & (octaves >= -_CERTAIN)
    rate = tl.where(is_near, power_of(tl.where(is_near, octaves, 0.0).to(tl.int32)) * 9.094947017729282e-13, 0.0)
    low, high = bounds_of(tl.sum(each, 0), rate, size)
    tl.store(row_ptr + RATE, rate.to(tl.int32, bitcast=True))
    # The likeliest token weighs 2^40.
    tl.store(sums_ptr + MASS_FROM, tl.maximum(low, _UNIT))
    tl.store(sums_ptr + MASS_TO, high)


@triton.jit
def bounds_of(mass, rate, size):
    """(least, greatest) mass of `size` logits, int64, whose float32 mass from the first knot is known.

    Exact weights are rounded down, and none is more than 2^40.
    """
    low = tl.maximum((mass * rate * _LEAST_SHARE).to(tl.int64) - size, 0)
    high = (mass * rate * _MOST_SHARE).to(tl.int64) + 1
    return tl.where(rate > 0.0, low, 0), tl.where(rate > 0.0, high, tl.full((), 1 << 40, tl.int64) * size)
# fmt: on
