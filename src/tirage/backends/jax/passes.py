"""Sums and extremes over whole rows in the form that XLA makes one vector loop of on a CPU.

A reduction of one array becomes a scalar loop, or one per result; a reduction of several arrays at once is vectorised
and reads what they share once (benchmarks/jax_cpu.py). All are exact: integers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

_SHORT = 1024
"""Rows up to this length gain nothing from being halved."""
_GROUPS = range(1024, 639, -32)
"""Sizes of the groups that columns are summed in: sums of 1024 halves of a weight fit a word."""


def group_size(size: int) -> int | None:
    """How many columns of a row of `size` are summed at once, a divisor of it; None for a row to be padded."""
    if size <= _GROUPS[0]:
        return size if size % 32 == 0 else None
    return next((group for group in _GROUPS if size % group == 0 and size // group <= _GROUPS[0]), None)


def padded_size(size: int) -> int:
    """The length, at least `size`, that a row is padded to so that its columns can be summed in groups."""
    if group_size(size) is not None:
        return size
    unit = 32 if size <= _GROUPS[0] else _GROUPS[0]
    return -(-size // unit) * unit


def grouped(v: Array) -> Array:
    """[..., N] as [..., N / n, n], n at most 1024; N is a `padded_size`."""
    group = group_size(v.shape[-1])
    assert group is not None
    return block(v, group)


def block(v: Array, size: int) -> Array:
    """[..., N] as [..., N / size, size]; N must be a multiple of `size`."""
    return v.reshape(*v.shape[:-1], v.shape[-1] // size, size)


def sums(parts: Sequence[Array]) -> list[Array]:
    """Sums over the last axis of integer arrays [..., V] of one dtype, modulo 2^32, in one pass."""
    return reduced(parts, lax.add, 0)


def largest(v: Array) -> Array:
    """The largest entry of the last axis of `v` [..., V], int32 or uint32 [...]."""
    return _halved(v, lax.max, np.iinfo(v.dtype).min)


def smallest(v: Array) -> Array:
    """The smallest entry of the last axis of `v` [..., V], int32 or uint32 [...]."""
    return _halved(v, lax.min, np.iinfo(v.dtype).max)


def count(chosen: Array) -> Array:
    """How many entries of the last axis of `chosen` [..., V] are True, int32 [...]."""
    return _halved(chosen.astype(jnp.int32), lax.add, 0)


def _halved(v: Array, join: Callable[[Any, Any], Any], start: int) -> Array:
    if v.shape[-1] <= _SHORT or v.shape[-1] % 2:
        return reduced([v], join, start)[0]
    halves = block(v, v.shape[-1] // 2)
    return join(*reduced([halves[..., 0, :], halves[..., 1, :]], join, start))


def reduced(parts: Sequence[Array], join: Callable[[Any, Any], Any], start: int, *, axis: int = -1) -> list[Array]:
    """Arrays [..., N, ...] of one shape, each joined over `axis`, in one pass."""
    first = np.array(start, parts[0].dtype)
    together = lambda a, b: tuple(map(join, a, b))  # noqa: E731
    return list(lax.reduce(tuple(parts), (first,) * len(parts), together, (axis % parts[0].ndim,)))
