"""The numeric rule on tensors: keys, exponents and weights with the bits of `tirage.exact`, on any device.

int64 throughout, since torch has no arithmetic on unsigned integers. Products and sums are separate operations:
`torch.sub(..., alpha=)` and `addcmul` would round once where the rule rounds twice. SPEC.md rules S-N3, S-N7, S-W.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.exact.keys import FLT_MAX as FLOAT_MAX
from tirage.exact.keys import NEG_INF_KEY, TINY_BITS
from tirage.exact.weights import COEFFICIENTS, Q_LIMIT

FLT_MAX = float(FLOAT_MAX)
_COEFFICIENTS = tuple(float(b) for b in COEFFICIENTS)
_MAGNITUDE = 0x7FFFFFFF
_LOW = 0xFFFFFFFF


def keys(x: Tensor) -> Tensor:
    """int32 keys of float32 `x`, same shape: b if b >= 0 else -(b & 0x7fffffff). Rule S-N3."""
    bits = x.view(torch.int32)
    # Negation of the negative ones without a branch, which a CPU would mispredict for half of the logits.
    sign = bits >> 31
    return (bits & _MAGNITUDE).bitwise_xor_(sign).sub_(sign)


def values(key: Tensor) -> Tensor:
    """float32 logits of int32 keys, same shape; -0.0 comes back as +0.0."""
    return torch.where(key >= 0, key, ~_MAGNITUDE | -key).view(torch.float32)


def cleaned(x: Tensor) -> Tensor:
    """float32 `x`, same shape, with every |v| <= 2^-126 made +0.0, decided on bits (S-N7)."""
    return x.masked_fill((x.view(torch.int32) & _MAGNITUDE) <= TINY_BITS, 0.0)


def clamped(x: Tensor) -> Tensor:
    """float32 `x`, same shape, held within the finite range, then cleaned (S-N7)."""
    return cleaned(x.clamp(-FLT_MAX, FLT_MAX))


def scaled(x: Tensor, m: Tensor, factor: Tensor, *, limit: float) -> Tensor:
    """min((m - x) * factor, limit) for rows [G, N], `m` and `factor` [G]: each operation rounded once."""
    return (m[:, None] - x).mul_(factor[:, None]).clamp_(max=limit)


def exponents(x: Tensor, m: Tensor, c: Tensor) -> Tensor:
    """q = trunc(min((m - x) * c, 41 * 2^23)), int32 [G, N]. Rule S-W1; NaN, of bad rows only, counts as the limit."""
    return scaled(x, m, c, limit=float(Q_LIMIT)).nan_to_num_(nan=float(Q_LIMIT)).to(torch.int32)


def weights(q: Tensor) -> Tensor:
    """Integer weights of int32 exponents `q` in [0, 41 * 2^23], int64, same shape; rule S-W2."""
    f = ((q & 0x7FFFFF) | 0x3F800000).view(torch.float32) - 1.0
    r = torch.full_like(f, _COEFFICIENTS[5])
    for b in _COEFFICIENTS[4::-1]:
        r.mul_(f).clamp_(max=FLT_MAX).add_(b)
    # From 40 octaves on the weight is below 1, so the limit itself comes out as 0 like all beyond it.
    return (r.view(torch.int32) - (q & -0x800000)).view(torch.float32).to(torch.int64)


def split_sum(products: Tensor) -> tuple[Tensor, Tensor]:
    """Row sums of int64 [G, N] below 2^63, as (high, low) parts [G] that are each a sum of 32-bit halves."""
    return (products >> 32).sum(1), (products & _LOW).sum(1)


def joined(high: Sequence[int], low: Sequence[int]) -> list[int]:
    """Exact integers of the two parts that `split_sum` gave."""
    return [(h << 32) + rest for h, rest in zip(high, low, strict=True)]


def integers(numbers: Sequence[int] | NDArray, like: Tensor) -> Tensor:
    """Host integers as an int64 tensor of the same shape on the device of `like`."""
    return torch.from_numpy(np.array(numbers, np.int64)).to(like.device)


def floats(numbers: Sequence[np.float32] | NDArray, like: Tensor) -> Tensor:
    """Host float32 numbers as a float32 tensor of the same shape on the device of `like`."""
    return torch.from_numpy(np.array(numbers, np.float32)).to(like.device)


def smoothed(x: Tensor, square: Tensor, cube: Tensor) -> Tensor:
    """Logits float32 [B, V] at a distance that is squared, and cubed, from the largest one; factors [B, 1] (S-N8)."""
    top = cleaned(values(keys(x).amax(1)))[:, None]
    d = clamped(top - cleaned(x))
    growth = clamped(square + clamped(cube * d))
    return torch.where(keys(x) > NEG_INF_KEY, clamped(top - clamped(growth * clamped(d * d))), x)
