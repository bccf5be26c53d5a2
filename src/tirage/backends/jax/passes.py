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

_SHORT = 32
"""Rows up to this length gain nothing from being halved. XLA makes two kernels or three of a longer one's reduction."""
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


def entries(v: Array, ids: Array) -> Array:
    """The entries [B, n] of rows [B, N] at positions `ids` [B, n], which must lie within them.

    By positions in all rows at once: a row's number beside each would be an array of its own, made for every use.
    """
    rows, size = v.shape
    flat = (ids + size * lax.broadcasted_iota(ids.dtype, (rows, 1), 0)).reshape(-1, 1)
    numbers = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    inside = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(v.reshape(-1), flat, numbers, (1,), mode=inside).reshape(ids.shape)


def sums(parts: Sequence[Array]) -> list[Array]:
    """Sums over the last axis of integer arrays [..., V] of one dtype, modulo 2^32, in one pass."""
    return reduced(parts, lax.add, 0)


def largest(v: Array) -> Array:
    """The largest entry of the last axis of `v` [..., V], int32 or uint32 [...]."""
    return joined(v, lax.max, np.iinfo(v.dtype).min)


def smallest(v: Array) -> Array:
    """The smallest entry of the last axis of `v` [..., V], int32 or uint32 [...]."""
    return joined(v, lax.min, np.iinfo(v.dtype).max)


def count(chosen: Array) -> Array:
    """How many entries of the last axis of `chosen` [..., V] are True, int32 [...]."""
    return joined(chosen.astype(jnp.int32), lax.add, 0)


def joined(v: Array, join: Callable[[Any, Any], Any], start: int) -> Array:
    """The entries of the last axis of `v` [..., N] joined, [...]: its halves as one pair of arrays."""
    if v.shape[-1] <= _SHORT:
        return reduced([v], join, start)[0]
    if v.shape[-1] % 2:
        v = jnp.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 1)], constant_values=np.array(start, v.dtype))
    halves = block(v, v.shape[-1] // 2)
    return join(*reduced([halves[..., 0, :], halves[..., 1, :]], join, start))


def reduced(parts: Sequence[Array], join: Callable[[Any, Any], Any], start: int, *, axis: int = -1) -> list[Array]:
    """Arrays [..., N, ...] of one shape, each joined over `axis`, in one pass."""
    first = np.array(start, parts[0].dtype)
    together = lambda a, b: tuple(map(join, a, b))  # noqa: E731
    return list(lax.reduce(tuple(parts), (first,) * len(parts), together, (axis % parts[0].ndim,)))
