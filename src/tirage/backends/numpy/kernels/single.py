"""The entry that draws one row again and again: `draw_rows` with arguments that lie ready, side by side.

To take its three dozen arrays from Python costs more than a draw once they are out of the processor's caches, as after
a forward pass. Here they are one array: what a step gives, what is drawn, and the addresses of all the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array, populate_array
from numpy.typing import NDArray

from tirage.backends.numpy.kernels.bits import f64, float_of, i32, i64, intrinsic
from tirage.backends.numpy.kernels.rows import draw_signature

STEP, TOKEN, LOGPROB, STATUS, ARGUMENTS = range(5)
"""The words of a table: the Philox step, what is drawn, and where the address and the arguments begin."""
WORDS = 128
"""The size of a table."""
_WORD = ir.IntType(64)


def single_entry(digest: int) -> Any:
    """The function that is compiled; `digest` as for `rows.draw_entry`."""

    def draw_single(logits, step, table):
        if digest == 0:
            return i64(-1), f64(0)
        table[STEP] = step
        call(logits, table)
        if table[STATUS] & 255:
            return i64(-1), f64(0)
        return table[TOKEN], f64(float_of(i32(table[LOGPROB])))

    return draw_single


def single_signature() -> Any:
    """(logits float32 [1, V], Philox step, table int64 [n]) -> token, -1 for a bad row, and its log-probability."""
    logits = types.Array(types.float32, 2, "C", readonly=True)
    return types.Tuple((types.int64, types.float64))(logits, types.int64, types.Array(types.int64, 1, "C"))


@functools.cache
def address_of(entry: Any) -> int:
    """The address of a compiled entry's machine code, which lives as long as the entry."""
    (result,) = entry.overloads.values()
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)


def fill(table: NDArray[np.int64], address: int, arguments: tuple[Any, ...]) -> None:
    """Writes the address of `draw_rows` and its arguments to a table int64 [n]; the caller must keep the arguments."""
    words = [address, *_words(arguments)]
    table[ARGUMENTS : ARGUMENTS + len(words)] = words


def _words(arguments: tuple[Any, ...]) -> Iterator[int]:
    for each in arguments:
        if isinstance(each, tuple):
            yield from _words(each)
        elif isinstance(each, np.ndarray):
            yield from (each.ctypes.data, *each.shape)
        else:
            yield each


@intrinsic
def call(_context, logits, table):
    """Call `draw_rows` with the logits float32 [1, V] and the arguments of the table int64 [n]."""
    kinds = draw_signature().args

    def build(context, builder, _signature, args):
        words = _reader(builder, make_array(table)(context, builder, args[1]).data)
        kind = context.call_conv.get_function_type(types.void, kinds)
        function = builder.inttoptr(next(words), kind.as_pointer())
        rest = [_argument(context, builder, each, words) for each in kinds[1:]]
        context.call_conv.call_function(builder, function, types.void, kinds, [args[0], *rest])
        return context.get_dummy_value()

    return types.void(logits, table), build


def _reader(builder: Any, data: Any) -> Iterator[Any]:
    """The words of a table from its arguments on, as values of the function that is built."""
    at = ARGUMENTS
    while True:
        yield builder.load(builder.gep(data, [ir.Constant(_WORD, at)]))
        at += 1


def _argument(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """A value of a Numba type: an integer, an array or a named tuple of arrays, from the next words."""
    if isinstance(kind, types.NamedTuple):
        return context.make_tuple(builder, kind, [_argument(context, builder, each, words) for each in kind.types])
    if not isinstance(kind, types.Array):
        return next(words)
    made = make_array(kind)(context, builder)
    data = builder.inttoptr(next(words), made.data.type)
    shape = [next(words) for _ in range(kind.ndim)]
    itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [context.get_constant(types.intp, itemsize)]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    size = context.get_constant(types.intp, itemsize)
    populate_array(made, data, cgutils.pack_array(builder, shape), cgutils.pack_array(builder, strides), size, None)
    return made._getvalue()
