"""The ids of a window, written ascending: what a record holds of a wide row (S-R1).

Processors with AVX-512 pack the ids of 8 logits by one instruction; others look them up by bytes of a bit mask.
`benchmarks.record` has what a record costs by each, beside a copy of as many ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    MIN_KEY,
    hits,
    i32,
    i64,
    inline,
    intrinsic,
    kernel,
    key_of,
    once,
    out_of_line,
    splat,
    u64,
    value_of,
)
from tirage.backends.numpy.kernels.passes import cut
from tirage.backends.numpy.kernels.vectors import BLOCK

_context: Any = cpu_target.target_context
PACKS = "+avx512vl" in _context.codegen().magic_tuple()[2]
"""Whether the processor that Numba compiles for has the instruction."""
_COUNTS = np.array([bin(byte).count("1") for byte in range(256)], np.int32)
"""How many bits a byte has, and where they are."""
_PLACES = np.array([sorted(range(8), key=lambda bit: not byte >> bit & 1) for byte in range(256)], np.int32)
_AT_ONCE = 8
"""Logits of an instruction. 16 are slower: their stores all cross a line of the cache."""
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES, _REALS = (ir.VectorType(kind, _AT_ONCE) for kind in (_I32, ir.FloatType()))


def _constant(values):
    return ir.Constant(_LANES, values)


@intrinsic
def _pack_word(_context, x, _start, _low, _high, ids, _end):
    """The new length of `ids`, int64, after `_end` of them; writes over the 64 behind.

    The ends are float32: NaN below holds nothing, above all.
    """

    def build(ctx, builder, signature, args):
        start, low, high, end = args[1], splat(builder, args[2], _REALS), splat(builder, args[3], _REALS), args[5]
        given = ctx.make_array(signature.args[0])(ctx, builder, args[0]).data
        out = ctx.make_array(signature.args[4])(ctx, builder, args[4]).data
        mask = ir.VectorType(ir.IntType(1), _AT_ONCE)
        pack = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LANES, [_LANES, _LANES, mask]), "llvm.x86.avx512.mask.compress.v8i32"
        )
        ones = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I8, [_I8]), "llvm.ctpop.i8")
        first = splat(builder, builder.trunc(start, _I32), _LANES)
        for part in range(0, 64, _AT_ONCE):
            at = builder.add(start, ir.Constant(_I64, part))
            logits = builder.load(builder.bitcast(builder.gep(given, [at]), _REALS.as_pointer()))
            logits.align = 4
            found = builder.and_(builder.fcmp_ordered(">=", logits, low), builder.fcmp_unordered("<=", logits, high))
            lanes = builder.add(first, _constant([part + lane for lane in range(_AT_ONCE)]))
            packed = builder.call(pack, [lanes, _constant([0] * _AT_ONCE), found])
            written = builder.store(packed, builder.bitcast(builder.gep(out, [end]), _LANES.as_pointer()))
            written.align = 4
            end = builder.add(end, builder.zext(builder.call(ones, [builder.bitcast(found, _I8)]), _I64))
        return end

    return types.int64(x, types.int64, types.float32, types.float32, ids, types.int64), build


@inline
def write_packed(x, at, low, high, ids, n):
    """The new length of `ids` after the 64 logits from `at` on, with keys in [low, high]; needs room for 64 more."""
    # Logits are ordered as their keys are.
    return _pack_word(x, at, value_of(low), value_of(high), ids, n)


@inline
def write_by_bytes(x, at, low, high, ids, n):
    """`write_packed`, which writes no further than `ids` goes."""
    word = hits(x, at, low, high, MAX_KEY, MIN_KEY)
    # Unsigned places, which Numba does not look at for being negative.
    end, first = u64(n), i32(at)
    if word == ~u64(0):
        for i in range(u64(64)):
            ids[end + i] = first + i32(i)
        return n + 64
    while word != u64(0):
        byte = word & u64(0xFF)
        if end + u64(8) <= u64(ids.size):
            # Eight at once, the last of which the next byte overwrites.
            for i in range(u64(8)):
                ids[end + i] = first + _PLACES[byte, i]
        else:
            for i in range(u64(_COUNTS[byte])):
                ids[end + i] = first + _PLACES[byte, i]
        end += u64(_COUNTS[byte])
        word >>= u64(8)
        first += i32(8)
    return i64(end)


_fast = write_packed if PACKS else write_by_bytes


@once
def write_ids(x, block_max, low_key, low_id, high_key, high_id, ids):
    """Number of tokens in the window; writes their ids, ascending, into `ids`, which has room for them."""
    n = i64(0)
    for j in range(block_max.size):
        if block_max[j] >= low_key:
            n = _write_block(x, j, low_key, low_id, high_key, high_id, ids, n)
    return n


@kernel
def _write_block(x, j, low_key, low_id, high_key, high_id, ids, n):
    out_of_line()
    mixed, low, high = cut(j, x.size, low_key, low_id, high_key, high_id)
    at, stop = j * BLOCK, min((j + 1) * BLOCK, x.size)
    while at + 64 <= stop and not mixed:
        n = _fast(x, at, low, high, ids, n) if n + 64 <= ids.size else write_by_bytes(x, at, low, high, ids, n)
        at += 64
    for i in range(at, stop):
        k = key_of(x[i])
        above = (k > low_key) | ((k == low_key) & (i <= low_id))
        if above & ((k < high_key) | ((k == high_key) & (i >= high_id))):
            ids[n] = i
            n += 1
    return n
