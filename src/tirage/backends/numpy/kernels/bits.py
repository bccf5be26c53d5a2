"""Scalars inside the kernels: keys, exponents, weights, wide integers and Philox, each as `tirage.exact` defines it.

Numba widens int32 arithmetic to int64 unless every result is wrapped: hence the many `i32(...)`. Nothing here may
be compiled with fastmath: a fused multiply-add would change weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic as numba_intrinsic

from tirage.backends.numpy.kernels import parts
from tirage.exact.keys import FLT_MAX, NEG_INF_KEY, POS_INF_KEY, TINY_BITS
from tirage.exact.logs import LN2_31
from tirage.exact.weights import COEFFICIENTS, Q_LIMIT

f32, f64, i32, i64, u32, u64 = np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64

intrinsic: Any = numba_intrinsic
compiler: Any = njit

_BARE = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
    **parts.options(),
}
"""No reference counts: nothing is allocated, and whoever calls `draw` holds every array."""

inline: Any = compiler(forceinline=True, **_BARE)
"""Decorator for scalars, short loops and functions with a single caller: they vanish in it."""

kernel: Any = compiler(nogil=True, forceinline=False, **_BARE)
"""Decorator for functions that are compiled once and called."""

pasted: Any = compiler(inline="always")
"""Decorator for functions that return scratch: no function without reference counts may return an array that it was
not given. Their source becomes part of each caller's, and is typed and lowered there again."""

MIN_KEY = i32(-0x7FFFFFFF)
MAX_KEY = i32(0x7FFFFFFF)
NEG_INF = i32(NEG_INF_KEY)
POS_INF = i32(POS_INF_KEY)
LIMIT = i32(Q_LIMIT)
_SIGN = i32(0x7FFFFFFF)
_TINY = i32(TINY_BITS)
_BIG = f32(FLT_MAX)
_LOW = u64(0xFFFFFFFF)
_32 = u64(32)
_LN2 = i64(LN2_31)
UNIT_LOG = i64(40 << 23)
"""log2 of the largest weight, in units of 2^-23."""


def _operation(result: Any, *arguments: Any) -> Any:
    """Decorator: an inlined scalar operation of these Numba types, from a function of (builder, values)."""

    def decorate(build):
        def generate(_ctx, builder, _signature, args):
            return build(builder, *args)

        # Numba reads the number of arguments from the function's own signature.
        one = lambda _context, _a: (result(*arguments), generate)  # noqa: E731
        three = lambda _context, _a, _b, _c: (result(*arguments), generate)  # noqa: E731
        return intrinsic(one if len(arguments) == 1 else three)

    return decorate


def _word(value):
    return ir.Constant(ir.IntType(32), int(value))


def _real(value):
    return ir.Constant(ir.FloatType(), float(value))


@_operation(types.int32, types.float32)
def bits_of(builder, x):
    """int32 bits of a float32."""
    return builder.bitcast(x, ir.IntType(32))


@_operation(types.float32, types.int32)
def float_of(builder, bits):
    """The float32 with these int32 bits."""
    return builder.bitcast(bits, ir.FloatType())


@_operation(types.int32, types.float32)
def raw_key(builder, x):
    """Like `key_of`, but with key(-0.0) = -1 just below key(+0.0): one operation less; `canonical` mends it."""
    b = builder.bitcast(x, ir.IntType(32))
    return builder.xor(b, builder.and_(builder.ashr(b, _word(31)), _word(0x7FFFFFFF)))


@_operation(types.int32, types.int32)
def canonical(builder, raw):
    """The key of a raw key; monotone, so it may be applied to a maximum."""
    return builder.sub(raw, builder.ashr(raw, _word(31)))


@_operation(types.int32, types.float32)
def key_of(builder, x):
    """int32 key of a float32 (S-N3)."""
    b = builder.bitcast(x, ir.IntType(32))
    sign = builder.ashr(b, _word(31))
    return builder.sub(builder.xor(b, builder.and_(sign, _word(0x7FFFFFFF))), sign)


@_operation(types.float32, types.int32)
def value_of(builder, key):
    """float32 of a key; 0 is +0.0."""
    negative = builder.or_(builder.neg(key), _word(-0x80000000))
    bits = builder.select(builder.icmp_signed("<", key, _word(0)), negative, key)
    return builder.bitcast(bits, ir.FloatType())


@_operation(types.int32, types.float32, types.float32, types.float32)
def exponent(builder, x, m, c):
    """q of the logit x (S-W1)."""
    y = builder.fmul(builder.fsub(m, x), c)
    y = builder.select(builder.fcmp_ordered("<", y, _real(Q_LIMIT)), y, _real(Q_LIMIT))
    return builder.fptosi(y, ir.IntType(32))


def _weight(builder, q):
    one = builder.or_(builder.and_(q, _word(0x7FFFFF)), _word(0x3F800000))
    f = builder.fsub(builder.bitcast(one, ir.FloatType()), _real(1))
    r = _real(COEFFICIENTS[5])
    for b in COEFFICIENTS[4::-1]:
        r = builder.fadd(_real(b), builder.fmul(r, f))
    whole = builder.sub(builder.bitcast(r, ir.IntType(32)), builder.and_(q, _word(-0x800000)))
    return builder.bitcast(whole, ir.FloatType())


@_operation(types.float32, types.int32)
def weight_f(builder, q):
    """The weight as a float32 whose truncation is the integer weight (S-W2); at the limit it is 0.5.

    The guard of other backends, min(product, FLT_MAX), is the identity here: without fastmath flags LLVM may not
    fuse the products into the sums.
    """
    return _weight(builder, q)


@_operation(types.uint64, types.int32)
def weight(builder, q):
    """Integer weight of an exponent (S-W2)."""
    return builder.fptosi(_weight(builder, q), ir.IntType(64))


@intrinsic
def trailing_zeros(_context, _word):
    """Index of the lowest set bit of a uint64; 64 for 0."""

    def build(_ctx, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


@intrinsic
def bit_count(_context, _word):
    """How many bits of a uint64 are set."""

    def build(_ctx, builder, _signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), build


@intrinsic
def frozen(_context, array):
    """The same array, typed read-only, so that scratch rows and callers' rows share one compiled path."""
    view = array.copy(readonly=True)

    def build(_ctx, _builder, _signature, args):
        return args[0]

    return view(array), build


@intrinsic
def out_of_line(_context):
    """Mark the calling function never to be inlined: what is inlined in many places is optimised in each."""

    def build(ctx, builder, _signature, _args):
        builder.function.attributes.add("noinline")
        return ctx.get_dummy_value()

    return types.none(), build


@intrinsic
def hits(_context, x, _start, _low, _high, _skip_low, _skip_high):
    """uint64 whose bit i tells whether key(x[start + i]) is in [low, high] but not in [skip_low, skip_high].

    For 64 logits at once, as one vector operation, because LLVM does not vectorise a loop that collects bits.
    """

    def build(ctx, builder, signature, args):
        wide = ir.VectorType(ir.IntType(32), 64)
        array = ctx.make_array(signature.args[0])(ctx, builder, args[0])
        b = builder.load(builder.bitcast(builder.gep(array.data, [args[1]]), wide.as_pointer()))
        b.align = 4
        constant = lambda v: ir.Constant(wide, [v] * 64)  # noqa: E731
        sign = builder.ashr(b, constant(31))
        key = builder.sub(builder.xor(b, builder.and_(sign, constant(0x7FFFFFFF))), sign)

        def within(low, high):
            above = builder.icmp_signed(">=", key, splat(builder, low, wide))
            return builder.and_(above, builder.icmp_signed("<=", key, splat(builder, high, wide)))

        found = builder.and_(within(args[2], args[3]), builder.not_(within(args[4], args[5])))
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(x, types.int64, *[types.int32] * 4), build


def splat(builder, value, wide):
    """The scalar in every lane of a vector type."""
    one = builder.insert_element(ir.Constant(wide, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), wide.count), [0] * wide.count)
    return builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), zeros)


@inline
def clean(x):
    """x, or +0.0 where |x| <= 2^-126 (S-N7)."""
    return f32(0) if i32(bits_of(x) & _SIGN) <= _TINY else x


@inline
def clamp(x):
    """x held within the finite range, then cleaned (S-N7)."""
    x = x if x > -_BIG else -_BIG
    x = x if x < _BIG else _BIG
    return clean(x)


@inline
def at_most_big(x):
    """min(x, FLT_MAX)."""
    return x if x < _BIG else _BIG


# --- wide integers: (high, low) pairs of uint64 ---------------------------------------------------------------


@inline
def multiply(a, b):
    """128-bit product of two uint64."""
    al, ah, bl, bh = a & _LOW, a >> _32, b & _LOW, b >> _32
    t = al * bl
    u = ah * bl + (t >> _32)
    v = al * bh + (u & _LOW)
    return ah * bh + (u >> _32) + (v >> _32), a * b


@inline
def add(high, low, high2, low2):
    """128-bit sum, modulo 2^128."""
    total = low + low2
    return high + high2 + u64(total < low), total


@inline
def subtract(high, low, high2, low2):
    """128-bit difference, modulo 2^128."""
    return high - high2 - u64(low < low2), low - low2


@kernel
def divide(high, low, divisor):
    """Low 64 bits of floor((high * 2^64 + low) / divisor), 0 < divisor < 2^63, by restoring division."""
    out_of_line()
    rest = u64(0)
    quotient = u64(0)
    for i in range(128):
        word = high if i < 64 else low
        bit = (word >> u64(63 - (i & 63))) & u64(1)
        rest = (rest << u64(1)) | bit
        quotient = quotient << u64(1)
        if rest >= divisor:
            rest -= divisor
            quotient |= u64(1)
    return quotient


@inline
def shifted(e, s, total):
    """(floor, has a rest) of e * total / 2^s for e <= 2^32, total < 2^64; s may be any int >= 0."""
    low = e * (total & _LOW)
    high = e * (total >> _32) + (low >> _32)
    low &= _LOW
    if s >= i64(96):
        return u64(0), (high | low) != u64(0)
    if s >= i64(32):
        by = u64(s - i64(32))
        return high >> by, (low | (high & ((u64(1) << by) - u64(1)))) != u64(0)
    by = u64(s)
    return (high << (_32 - by)) | (low >> by), (low & ((u64(1) << by) - u64(1))) != u64(0)


@inline
def shifted_up(high, low, s):
    """ceil((high * 2^64 + low) / 2^s) in 128 bits; s may be any int > 0."""
    if s >= i64(128):
        return u64(0), u64((high | low) != u64(0))
    if s >= i64(64):
        by = u64(s - i64(64))
        rest = (low | (high & ((u64(1) << by) - u64(1)))) != u64(0)
        return u64(0), (high >> by) + u64(rest)
    by = u64(s)
    rest = (low & ((u64(1) << by) - u64(1))) != u64(0)
    return add(high >> by, (high << (u64(64) - by)) | (low >> by), u64(0), u64(rest))


@inline
def rounded_up(e, s, total):
    """ceil(e * total / 2^s)."""
    floor, rest = shifted(e, s, total)
    return floor + u64(rest)


@kernel
def log2_fixed(n):
    """log2(n) * 2^23 as `exact.logs.ilog2` truncates it, int64; n >= 1."""
    out_of_line()
    e = i64(63)
    while e > 0 and (n >> u64(e)) == u64(0):
        e -= 1
    z = (n << u64(31)) >> u64(e) if e <= 31 else n >> u64(e - 31)
    out = i64(0)
    for _ in range(23):
        z = (z * z) >> u64(31)
        carry = z >> _32
        z >>= carry
        out = (out << 1) | i64(carry)
    return (e << 23) | out


@inline
def ln_of(log2):
    """float32 ln of a number whose log2 * 2^23 is `log2` (S-L1)."""
    return f32(f32((log2 * _LN2) >> 31) * f32(2.0**-23))


@inline
def logprob(x, m, inverse_t, log_mass):
    """ln p of one logit, -inf for -inf (S-L2)."""
    if key_of(x) <= NEG_INF:
        return f32(-np.inf)
    return f32(f32(0) - f32(at_most_big(f32(f32(m - x) * inverse_t)) + log_mass))


@kernel
def uniform(seed, step, sample, domain):
    """U: 64 bits of Philox4x32-10 (S-W7)."""
    out_of_line()
    key = u64(seed)
    c0, c1, c2, c3 = u32(step), u32(sample), u32(domain), u32(0)
    k0, k1 = u32(key), u32(key >> _32)
    for _ in range(10):
        p0 = u64(0xD2511F53) * u64(c0)
        p1 = u64(0xCD9E8D57) * u64(c2)
        c0, c1 = u32(u32(p1 >> _32) ^ c1 ^ k0), u32(p1)
        c2, c3 = u32(u32(p0 >> _32) ^ c3 ^ k1), u32(p0)
        k0, k1 = u32(k0 + u32(0x9E3779B9)), u32(k1 + u32(0xBB67AE85))
    return (u64(c0) << _32) | u64(c1)
