"""What a filter computes for each row on the host: thresholds and targets from a few sums, in exact Python integers.

A step's operands stand in `Operands`; what each of these rules means is written in SPEC.md, rules S-O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.exact.keys import FLT_MAX
from tirage.exact.logs import OCTAVE, ilog2
from tirage.exact.weights import Q_LIMIT
from tirage.exact.weights import weights as host_weights
from tirage.operators.row import target_mass

Operands = NDArray[np.int64]
"""[G, 5]: a..e of one step for each row."""

_FAR = 1 << 62
"""More than any mass."""


def column(a: Operands, at: int) -> list[int]:
    """One operand of each row, from operands [G, 5]."""
    return a[:, at].tolist()


def per_row(fn: Callable[..., int], *columns: Sequence[int]) -> list[int]:
    """`fn` of each row's integers, one from each of the `columns`."""
    return [fn(*row) for row in zip(*columns, strict=True)]


def share(e: int, s: int, total: int) -> int:
    """ceil(E * W / 2^s): the weight that is this share of the mass."""
    return min(-(-e * total >> s), _FAR)


def dynamic_factors(a: Operands, fractions: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """c and 1 / T [G] between the rows' T min and T max, at these fractions (units of 2^-32) of the way.

    `a` [G, 5] are the operands of a dynamic temperature.
    """
    factors = []
    for low, fraction in zip(column(a, 2), fractions, strict=True):
        t = low + (((1 << 32) - low) * fraction >> 32)
        factors.append(np.float32((1 << 62) // max(t, 1 << 9)) * np.float32(2.0**-30))
    r = np.array(factors, np.float32)
    bits = a[:, :2].astype(np.int32).view(np.float32)
    with np.errstate(over="ignore"):
        return np.minimum(bits[:, 0] * r, FLT_MAX), np.minimum(bits[:, 1] * r, FLT_MAX)


def entropy_fraction(mean: int, total: int, count: int, e: int, s: int) -> int:
    """(H / H max) ** exponent in units of 2^-32, from the mean exponent, mass and size of the set; exponent E / 2^s."""
    entropy, most = mean + ilog2(total) - 40 * OCTAVE, ilog2(max(count, 1))
    if entropy <= 0 or most <= 0:
        return 0
    octaves = max(ilog2(most) - ilog2(entropy), 0)
    power = np.array([min(octaves * e >> s, Q_LIMIT)], np.int32)
    return int(host_weights(power)[0]) >> 8


def sigma_limit(n: int, s1: int, s2: int, e: int, s: int) -> int:
    """The largest v that top-n-sigma keeps, from the count, sum and sum of squares of v."""
    deviation = math.isqrt((n * s2 - s1 * s1) // max(n * n, 1) << 2)
    return min(int(e) * deviation >> int(s) + 1, _FAR)


def top_p_goals(a: Operands, totals: list[int]) -> list[int]:
    """The mass that each row's prefix must reach, from operands [G, 5] of top-p and the rows' masses."""
    # "le" keeps a token while the mass before it is <= floor(P * W): the prefix that reaches one more.
    return per_row(
        lambda p, rule, t: (p * t >> 32) + 1 if rule == 1 else target_mass(p, t), column(a, 0), column(a, 1), totals
    )


def typical_goals(a: Operands, totals: list[int]) -> list[int]:
    """The mass that each row's nearest tokens must reach, from operands [G, 5] of typical-p and the rows' masses."""
    return per_row(lambda p, gt, t: (p * t >> 32) + 1 if gt else target_mass(p, t), column(a, 0), column(a, 1), totals)


def entropy_prefix(q: list[int], w: list[int], count: int, share: int) -> int:
    """How many of the first `count` tokens, with exponents `q` and weights `w`, top-h keeps."""
    log_mass = ilog2(max(sum(w[:count]), 1)) - 40 * OCTAVE
    parts = [wi * (qi + log_mass) for qi, wi in zip(q[:count], w[:count], strict=True)]
    total, reached = sum(parts), 0
    for n, part in enumerate(parts):
        reached += part
        if reached << 32 > share * total:
            return max(n, 1)
    return max(count, 1)


def xtc_share(e: int, s: int, strict: int, total: int) -> int:
    """The weight from which on XTC may remove a token."""
    return min((e * total >> s) + 1, _FAR) if strict else max(1, share(e, s, total))
