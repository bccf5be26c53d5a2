"""Integers wider than 32 bits without x64: tuples of uint32 arrays, least significant limb first.

JAX drops 64-bit types unless asked for them, so sums of weights, their products and quotients are done in limbs.
Every function is elementwise over arrays of one shape, exact, and wraps like machine integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax.passes import entries, grouped, sums

Wide = tuple[Array, ...]
"""Limbs of a non-negative integer, or of one in two's complement where a function says so."""

LN2_31 = 1488522236
"""ln 2 in units of 2^-31."""
OCTAVE = 1 << 23
_16, _LOW = np.uint32(16), np.uint32(0xFFFF)
_plus, _times, _either, _both = lax.add, lax.mul, lax.bitwise_or, lax.bitwise_and
_up, _down = lax.shift_left, lax.shift_right_logical
# Operators of arrays are functions of jnp, each compiled for itself: of what is used hundreds of times in a program,
# they would be half of what it takes to trace.


def u32(value: Any) -> Array:
    """`value` as uint32, its bits kept when it is int32."""
    return jnp.asarray(value).astype(jnp.uint32)


def _zero(like: Array) -> Array:
    return lax.full(like.shape, 0, jnp.uint32)


def wide(value: Array, size: int) -> Wide:
    """A uint32 array as a number of `size` limbs."""
    return (value, *[_zero(value)] * (size - 1))


def constant(value: int, like: Array, size: int) -> Wide:
    """The Python integer `value` as `size` limbs, in the shape of `like`."""
    return tuple(lax.full(like.shape, (value >> 32 * i) & 0xFFFFFFFF, jnp.uint32) for i in range(size))


def resized(a: Wide, size: int) -> Wide:
    """`a` with zero limbs added, or high limbs dropped."""
    return (*a, *[_zero(a[0])] * (size - len(a)))[:size]


def add(a: Wide, b: Wide) -> Wide:
    """a + b, as long as the longer of the two; a carry out of it is lost."""
    size = max(len(a), len(b))
    return _added(resized(a, size), resized(b, size), None)


def _added(a: Wide, b: Wide, carry: Array | None) -> Wide:
    """a + b + carry of one length, with no more operations than each limb needs: programs compile faster."""
    out = []
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        x, y = _of_one_shape(x, y)
        total = _plus(x, y)
        over = lax.lt(total, x) if i + 1 < len(a) else None
        if carry is not None:
            total = _plus(total, carry)
            over = None if over is None else _either(over, lax.lt(total, carry))
        carry = None if over is None else lax.convert_element_type(over, jnp.uint32)
        out.append(total)
    return tuple(out)


def _of_one_shape(x: Array, y: Array) -> Sequence[Array]:
    return (x, y) if x.shape == y.shape else jnp.broadcast_arrays(x, y)


def negated(a: Wide) -> Wide:
    """-a in two's complement."""
    return _added(tuple(~limb for limb in a), wide(_zero(a[0]), len(a)), jnp.ones_like(a[0]))


def sub(a: Wide, b: Wide) -> Wide:
    """a - b, as long as `a`."""
    flipped = tuple(~limb for limb in resized(b, len(a)))
    return _added(a, flipped, jnp.ones_like(a[0]))


def less(a: Wide, b: Wide) -> Array:
    """a < b, unsigned."""
    size = max(len(a), len(b))
    smaller = None
    for x, y in zip(resized(a, size), resized(b, size), strict=True):
        x, y = _of_one_shape(x, y)
        below = lax.lt(x, y)
        smaller = below if smaller is None else _either(below, _both(lax.eq(x, y), smaller))
    assert smaller is not None
    return smaller


def is_zero(a: Wide) -> Array:
    """a == 0."""
    zero = a[0] == 0
    for limb in a[1:]:
        zero &= limb == 0
    return zero


def select(condition: Array, a: Wide, b: Wide) -> Wide:
    """a where the condition holds, else b."""
    same = all(part.shape == condition.shape for part in (*a, *b))
    pick = lax.select if same else jnp.where
    return tuple(pick(condition, x, y) for x, y in zip(a, b, strict=True))


def take(a: Wide, index: Array) -> Wide:
    """The entry of each row at `index` [B], from limbs [B, N]."""
    return tuple(column(limb, index) for limb in a)


def column(values: Array, index: Array) -> Array:
    """The entry of each row of [B, N] at `index` [B]."""
    return entries(values, index[:, None])[:, 0]


def mul32(a: Array, b: Array) -> Wide:
    """a * b of two uint32 arrays, in two limbs, from products of 16-bit halves."""
    a, b = _of_one_shape(a, b)
    a0, a1, b0, b1 = _both(a, _LOW), _down(a, _16), _both(b, _LOW), _down(b, _16)
    low = _times(a0, b0)
    middle = _plus(_times(a1, b0), _down(low, _16))
    other = _plus(_times(a0, b1), _both(middle, _LOW))
    high = _plus(_plus(_times(a1, b1), _down(middle, _16)), _down(other, _16))
    return _either(_up(other, _16), _both(low, _LOW)), high


def mul(a: Wide, b: Wide, size: int | None = None) -> Wide:
    """a * b in len(a) + len(b) limbs, or its lowest `size`."""
    size = len(a) + len(b) if size is None else size
    out = wide(_zero(a[0]), size)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            if i + j < size:
                out = (*out[: i + j], *add(out[i + j :], mul32(x, y)[: size - i - j]))
    return out


def left(a: Wide, n: int) -> Wide:
    """a << n for a Python integer n."""
    limbs, bits = divmod(n, 32)
    moved = resized((*[_zero(a[0])] * limbs, *a), len(a))
    if not bits:
        return moved
    below = (_zero(a[0]), *moved[:-1])
    return tuple((x << bits) | (y >> (32 - bits)) for x, y in zip(moved, below, strict=True))


def right(a: Wide, n: int) -> Wide:
    """a >> n for a Python integer n."""
    limbs, bits = divmod(n, 32)
    moved = resized(a[limbs:], len(a)) if limbs < len(a) else wide(_zero(a[0]), len(a))
    if not bits:
        return moved
    above = (*moved[1:], _zero(a[0]))
    return tuple((x >> bits) | (y << (32 - bits)) for x, y in zip(moved, above, strict=True))


def left_by(a: Wide, n: Array) -> Wide:
    """a << n, n int32 per entry, 0 <= n < 32 * len(a)."""
    a = _limbs_moved(a, n, left)
    bits = u32(n & 31)
    below = (_zero(a[0]), *a[:-1])
    # Two shifts, since one by 32 bits is not defined.
    return tuple((x << bits) | ((y >> 1) >> (31 - bits)) for x, y in zip(a, below, strict=True))


def right_by(a: Wide, n: Array) -> Wide:
    """a >> n, n int32 per entry, n >= 0; 0 when n is at least the width of `a`."""
    inside = n < 32 * len(a)
    a = tuple(lax.select(inside, limb, _zero(limb)) for limb in _limbs_moved(a, n, right))
    bits = u32(n & 31)
    above = (*a[1:], _zero(a[0]))
    return tuple((x >> bits) | ((y << 1) << (31 - bits)) for x, y in zip(a, above, strict=True))


def _limbs_moved(a: Wide, n: Array, move: Callable[[Wide, int], Wide]) -> Wide:
    """`a` shifted by as many whole limbs as n < 32 * len(a) asks for."""
    for step in range((len(a) - 1).bit_length()):
        a = select((n >> (5 + step)) & 1 == 1, move(a, 32 << step), a)
    return a


def divide(a: Wide, b: Wide) -> Wide:
    """floor(a / b), as long as `a`, by restoring division; b = 0 gives all ones."""
    size = len(a)
    divisor = resized(b, size + 1)

    def body(_: Any, state: tuple[Wide, Wide]) -> tuple[Wide, Wide]:
        rest, number = state
        rest = left(rest, 1)
        rest = (rest[0] | (number[-1] >> 31), *rest[1:])
        fits = ~less(rest, divisor)
        number = left(number, 1)
        number = (number[0] | fits.astype(jnp.uint32), *number[1:])
        return select(fits, sub(rest, divisor), rest), number

    zero = tuple(_zero(a[0]) for _ in range(size + 1))
    return lax.fori_loop(0, 32 * size, body, (zero, a))[1]


def divide_short(a: Wide, b: Wide) -> Array:
    """floor(a / b), uint32, where it is below 2^32; `b` has a limb less than `a`."""
    return last(lambda n, a, b: ~less(a, mul(b, (n,))), a, b)


def fraction(a: Wide, b: Wide, bits: int) -> Wide:
    """floor(a * 2^bits / b) of two-limb numbers a <= b < 2^63, for bits < 64; two limbs."""

    def body(_: Any, state: tuple[Wide, Wide]) -> tuple[Wide, Wide]:
        # The barrier for the same reason as in `last`.
        (rest, number), divisor = lax.optimization_barrier((state, b))
        fits = ~less(rest, divisor)
        number = left(number, 1)
        return left(select(fits, sub(rest, divisor), rest), 1), (number[0] | fits.astype(jnp.uint32), number[1])

    return lax.fori_loop(0, bits + 1, body, (a, constant(0, a[0], 2)))[1]


def isqrt(a: Wide) -> Array:
    """floor(sqrt(a)) of a two-limb number, uint32."""
    return last(lambda n, a: ~less(a, mul32(n, n)), a)


def last(holds: Callable[..., Array], *numbers: Wide) -> Array:
    """The largest uint32 for which a condition on it and `numbers` holds that holds for all below it; 0 if for none.

    The loop carries one array, so that its body compiles to little.
    """

    def body(i: Any, found: Array) -> Array:
        # Without the barrier XLA splits the numbers into halves before the loop, in a kernel for each half.
        found, given = lax.optimization_barrier((found, numbers))
        tried = found | (jnp.uint32(1) << u32(31 - i))
        return jnp.where(holds(tried, *given), tried, found)

    return lax.fori_loop(0, 32, body, _zero(numbers[0][0]))


def bit_length(a: Wide) -> Array:
    """Number of bits of `a`, int32; 0 for 0."""
    length = jnp.zeros(a[0].shape, jnp.int32)
    for i, limb in enumerate(a):
        length = jnp.where(limb != 0, 32 * (i + 1) - lax.clz(limb).astype(jnp.int32), length)
    return length


def ilog2(a: Wide) -> Array:
    """log2(a) in units of 2^-23, int32, truncated as `tirage.exact.logs.ilog2` truncates; a >= 1."""
    exponent = bit_length(a) - 1
    mantissa = left_by(a, 32 * len(a) - 1 - jnp.maximum(exponent, 0))[-1]

    def body(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        z, out = state
        low, high = mul32(z, z)
        carry = high >> 31
        z = jnp.where(carry == 1, high, (high << 1) | (low >> 31))
        return z, (out << 1) | carry

    _, fraction = lax.fori_loop(0, 23, body, (mantissa, jnp.zeros_like(mantissa)))
    return (exponent << 23) | fraction.astype(jnp.int32)


def ln_fixed(log2: Array) -> Array:
    """Natural logarithm, float32, of a number whose base-2 logarithm is `log2` (int32) * 2^-23 (S-L1)."""
    negative = log2 < 0
    product = mul32(u32(jnp.abs(log2)), jnp.full(log2.shape, LN2_31, jnp.uint32))
    down = right(product, 31)[0]
    up = right(add(product, constant((1 << 31) - 1, product[0], 2)), 31)[0]
    ln = jnp.where(negative, -up.astype(jnp.int32), down.astype(jnp.int32))
    return ln.astype(jnp.float32) * jnp.float32(2.0**-23)


def to_float32(a: Wide) -> Array:
    """`a` (two limbs, at least 1) rounded to the nearest float32, ties to even, from its bits."""
    exponent = bit_length(a) - 1
    low, high = left_by(a, 63 - jnp.maximum(exponent, 0))
    mantissa, rest = high >> 8, high & 0xFF
    up = (rest > 0x80) | ((rest == 0x80) & ((low != 0) | (mantissa & 1 == 1)))
    pattern = (u32(exponent + 126) << 23) + mantissa + up.astype(jnp.uint32)
    return lax.bitcast_convert_type(pattern, jnp.float32)


def from_digits(digits: Sequence[Array], size: int) -> Wide:
    """The sum of digits[i] * 2^(16 i), each digit a uint32 below 2^31, modulo 2^(32 * size); `size` limbs."""
    carry, halves = None, []
    for digit in digits[: 2 * size]:
        whole = digit if carry is None else _plus(digit, carry)
        carry = _down(whole, _16)
        halves.append(_both(whole, _LOW))
    if len(halves) < 2 * size and carry is not None:
        halves += [_both(carry, _LOW), _down(carry, _16)]
    halves += [_zero(digits[0])] * (2 * size - len(halves))
    return tuple(_either(halves[2 * i], _up(halves[2 * i + 1], _16)) for i in range(size))


def digit_sums(parts: Sequence[Array]) -> list[Array]:
    """Digits of the sum over the last axis of parts[i] * 2^(16 i), at most 1024 entries below 2^31, in one pass."""
    found = sums([half for part in parts for half in (part & 0xFFFF, part >> 16)])
    low, high = found[::2], found[1::2]
    return [low[0], *(a + b for a, b in zip(low[1:], high, strict=False)), high[-1]]


def total_wide(a: Wide, size: int) -> Wide:
    """The sum over the last axis of limbs [..., N], modulo 2^(32 * size); N a `padded_size`, or at most 1024."""
    halves = [half for limb in a for half in (limb & 0xFFFF, limb >> 16)]
    if a[0].shape[-1] <= 1024:
        return from_digits(sums(halves), size)
    return from_digits(digit_sums(sums([grouped(half) for half in halves])), size)
