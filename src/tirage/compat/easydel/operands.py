"""The integers of S-N1 and S-N2 for the arrays of a JitableSamplingParams, inside a program.

Elsewhere they are made on the host from a request's parameters; here the parameters may be traced. Quotients and
logarithms are therefore computed in integers, and equal the host's for every float32.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.rule import bits_of, float_of
from tirage.backends.jax.wide import Wide, u32
from tirage.exact.numbers import LOG2E_23
from tirage.exact.weights import Q_LIMIT

_LOG2E = int(LOG2E_23 * 2.0**40)
"""log2(e) * 2^63, all 53 bits of the float64 that S-N2 divides."""


def temperature_constant(temperature: Array) -> Array:
    """c of S-N2 for float32 temperatures [B] in [1e-20, 1e20].

    The rule rounds twice, to float64 and to float32. For none of the 2^23 mantissas does one rounding differ.
    """
    return _quotient(_LOG2E, temperature, 23)


def reciprocal(value: Array) -> Array:
    """RN32(1 / v) for positive normal float32 [B] whose reciprocals are normal too."""
    return _quotient(1 << 63, value, 0)


def mass_fraction(p: Array) -> Array:
    """P of S-W4 for p [B] below 1, uint32: a product with a power of two is exact, and its rounding is to even."""
    return jnp.round(jnp.minimum(p, jnp.float32(1 - 2.0**-24)) * jnp.float32(2.0**32)).astype(jnp.uint32)


def ratio_threshold(ratio: Array) -> Array:
    """floor(-log2(r) * 2^23) for r [B] in (0, 1], at most Q_LIMIT.

    The mantissa is squared 23 times in 64 bits, which gives the right bits for every float32 mantissa.
    """
    exponent, mantissa = _parts(ratio)

    def body(_: int, state: tuple[Wide, Array]) -> tuple[Wide, Array]:
        square = wide.mul(state[0], state[0])
        carry = square[3] >> 31
        upper = wide.select(carry == 1, square, wide.left(square, 1))
        return upper[2:], (state[1] << 1) | carry.astype(jnp.int32)

    start = (jnp.zeros_like(mantissa), mantissa << 8)
    log2 = lax.fori_loop(0, 23, body, (start, jnp.zeros_like(exponent)))[1]
    return jnp.minimum((-exponent << 23) - log2 - (mantissa != 1 << 23), Q_LIMIT)


def _parts(value: Array) -> tuple[Array, Array]:
    """Exponent and 24-bit mantissa, v = mantissa * 2^(exponent - 23), of positive normal float32."""
    pattern = u32(bits_of(value))
    return (pattern >> 23).astype(jnp.int32) - 127, (pattern & 0x7FFFFF) | 0x800000


def _quotient(numerator: int, value: Array, exponent: int) -> Array:
    """numerator * 2^(exponent - 63) / value, rounded once to float32."""
    own, mantissa = _parts(value)
    divisor, dividend = wide.wide(mantissa, 2), wide.constant(numerator, mantissa, 2)
    found = wide.divide(dividend, divisor)
    inexact = ~wide.is_zero(wide.sub(dividend, wide.mul(found, divisor, 2)))
    # The quotient has at least 39 bits; its lowest is a sticky bit, set when there is a remainder.
    rounded = wide.to_float32((found[0] | inexact.astype(jnp.uint32), found[1]))
    scale = exponent - 63 - own + 23
    return float_of(bits_of(rounded) + (scale << 23))
