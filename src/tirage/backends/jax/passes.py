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


def reduced(parts: Sequence[Array], join: Callable[[Any, Any], Any], start: int) -> list[Array]:
    """Arrays [..., N] of one shape, each joined over its last axis, in one pass."""
    first = np.array(start, parts[0].dtype)
    together = lambda a, b: tuple(map(join, a, b))  # noqa: E731
    return list(lax.reduce(tuple(parts), (first,) * len(parts), together, (parts[0].ndim - 1,)))
