"""The ids of a window, written ascending: what a record holds of a wide row (S-R1).

A cut by mass notes a bit for each token that it keeps while it weighs the row; after any other the window is looked
for once more. `benchmarks.record` has what a record costs, beside a copy of as many ids.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    MIN_KEY,
    bit_count,
    hits,
    i32,
    i64,
    inline,
    intrinsic,
    kernel,
    key_of,
    out_of_line,
    splat,
    trailing_zeros,
    u64,
)
from tirage.backends.numpy.kernels.passes import cut
from tirage.backends.numpy.kernels.vectors import BLOCK

_PLACES = np.array(
    [[*(bit for bit in range(8) if byte >> bit & 1), *[0] * (8 - bin(byte).count("1"))] for byte in range(256)],
    np.uint8,
).view(np.uint64)[:, 0]
"""Where the bits of a byte are, in the bytes of a word."""
_FEW = u64(4)
"""Bits of a word that are written one by one."""
_BYTES, _LANES = (ir.VectorType(ir.IntType(width), 8) for width in (8, 32))


@inline
def write_word(word, first, ids, n):
    """The new length of `ids` after the id `first` + i of each bit i of a word; writes no further than `ids` goes."""
    # Unsigned places, which Numba does not look at for being negative.
    end, count = u64(n), bit_count(word)
    if end + u64(64) > u64(ids.size):
        _write_bits(word, first, ids, end, count)
    elif count <= _FEW:
        # Always as many, the last of which the next word overwrites: no branch depends on the bits.
        _write_bits(word, first, ids, end, _FEW)
    else:
        _write_bytes(word, first, ids, end)
    return n + i64(count)


@inline
def _write_bits(word, first, ids, end, count):
    """Writes an id for each of the lowest `count` bits that are set, and others where there are fewer."""
    for i in range(count):
        ids[end + i] = first + i32(trailing_zeros(word))
        word &= word - u64(1)


@inline
def _write_bytes(word, first, ids, end):
    """Writes 8 ids for each byte, the last of which the next byte overwrites: no branch depends on it."""
    for k in range(u64(8)):
        byte = (word >> (k * u64(8))) & u64(0xFF)
        _write_eight(ids, end, first + i32(k * u64(8)), _PLACES[byte])
        end += bit_count(byte)


@intrinsic
def _write_eight(_context, ids, _at, _first, _places):
    """Writes `first` + each byte of `places` to the 8 `ids` from `at` on, as one vector."""

    def build(ctx, builder, signature, args):
        out = ctx.make_array(signature.args[0])(ctx, builder, args[0]).data
        places = builder.zext(builder.bitcast(args[3], _BYTES), _LANES)
        found = builder.add(places, splat(builder, args[2], _LANES))
        written = builder.store(found, builder.bitcast(builder.gep(out, [args[1]]), _LANES.as_pointer()))
        written.align = 4
        return ctx.get_dummy_value()

    return types.void(ids, types.uint64, types.int32, types.uint64), build


@inline
def write_ids(x, block_max, low_key, low_id, high_key, high_id, ids):
    """Number of tokens in the window; writes their ids, ascending, into `ids`, which has room for them."""
    n = i64(0)
    for j in range(block_max.size):
        if block_max[j] >= low_key:
            n = _write_block(x, j, low_key, low_id, high_key, high_id, ids, n)
    return n


@inline
def write_noted(kept, support, ids):
    """Write the ids of the `support` bits that are set in `kept`, ascending."""
    n = i64(0)
    for k in range(kept.size):
        if n == support:
            break
        n = write_word(kept[k], i32(k * 64), ids, n)


@kernel
def _write_block(x, j, low_key, low_id, high_key, high_id, ids, n):
    out_of_line()
    mixed, low, high = cut(j, x.size, low_key, low_id, high_key, high_id)
    at, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
    while at + 64 <= stop and not mixed:
        n = write_word(hits(x, at, low, high, MAX_KEY, MIN_KEY), i32(at), ids, n)
        at += 64
    for i in range(at, stop):
        k = key_of(x[i])
        above = (k > low_key) | ((k == low_key) & (i <= low_id))
        if above & ((k < high_key) | ((k == high_key) & (i >= high_id))):
            ids[n] = i
            n += 1
    return n
