"""Parameters become integers here, once, on the host, from their value rounded to float32 (S-N1, S-N2)."""

from __future__ import annotations

import math

import numpy as np

from tirage.exact.logs import neglog2_floor
from tirage.exact.weights import Q_LIMIT

LOG2E_23 = float.fromhex("0x1.71547652b82fep+23")
"""log2(e) * 2^23 in float64."""

MAX_TEMPERATURE = 1e20


def f32(value: float) -> np.float32:
    """`value` rounded to the nearest float32, ties to even."""
    return np.float32(value)


def operand(value: float | np.floating) -> np.float32:
    """`value` as a float32 that an arithmetic stage may use: |v| <= 2^-126 becomes 0 here as on logits (S-N7)."""
    rounded = np.float32(value)
    return np.float32(0) if abs(rounded) <= np.float32(2.0**-126) else rounded


def bits(value: np.float32) -> int:
    """The float32's bits as a signed Python int: how floats travel in a step."""
    return int(np.float32(value).view(np.int32))


def from_bits(pattern: int) -> np.float32:
    """The float32 whose bits `bits` gave."""
    return np.int32(pattern).view(np.float32)


def temperature_constant(temperature: float) -> np.float32:
    """c = RN32(RN64(log2(e) * 2^23 / T32)); T32 must lie within [1e-20, 1e20]. Rule S-N2."""
    return np.float32(LOG2E_23 / float(f32(temperature)))


def reciprocal(value: float) -> np.float32:
    """RN32(1 / v32): the factor that replaces a division on every device."""
    return np.float32(1.0 / float(f32(value)))


def mass_fraction(p: float) -> int:
    """P = RN(p32 * 2^32), in [0, 2^32]; 2^32 stands for off. Rule S-W4."""
    return round(float(f32(p)) * 2.0**32)


def scaled_fraction(value: float) -> tuple[int, int]:
    """(E, s) with v32 = E / 2^s exactly, 2^31 <= E < 2^32 and s >= 0; (0, 32) for 0.

    Values beyond 2^31 count as 2^31: no threshold made of them can be passed.
    """
    mantissa, exponent = math.frexp(min(float(f32(value)), 2.0**31))
    return round(mantissa * 2.0**32), 32 - exponent


def ratio_threshold(ratio: float) -> int:
    """The largest q whose weight is at least `ratio` of the maximum's: floor(-log2(r32) * 2^23), at most Q_LIMIT."""
    return min(neglog2_floor(float(f32(ratio))), Q_LIMIT)


def half_neglog2(value: float) -> int:
    """floor(-log2(v32) / 2 * 2^23) for 0 < v32 <= 1, exact."""
    return neglog2_floor(float(f32(value)), 22)


def ratio_32(low: float, high: float) -> int:
    """floor(low32 / high32 * 2^32) from exact fractions."""
    a, b = float(f32(low)).as_integer_ratio()
    c, d = float(f32(high)).as_integer_ratio()
    return (a * d << 32) // (b * c)


def repeated_power(base: float, exponent: int, limit: float = 3.4028235e38) -> float:
    """base ** exponent by repeated float64 multiplication, saturating: the same on every libm."""
    result = 1.0
    for _ in range(exponent):
        result *= base
        if result > limit:
            return limit
    return result
