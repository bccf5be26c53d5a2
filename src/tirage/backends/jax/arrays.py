"""JAX arrays as `sample` accepts them, concrete or traced, checked, as float32 [B, V]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from numpy.typing import NDArray

from tirage.backends import type_name
from tirage.backends.numpy.arrays import as_mask as numpy_mask
from tirage.errors import ParamsError
from tirage.sampling_metadata import MAX_VOCAB

_LOGIT_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_TINY = 2.0**-126


def as_logits(logits: Any) -> Array:
    """`logits` as float32 [B, V], without gradient; ParamsError for another type, dtype, rank or vocabulary size."""
    if not isinstance(logits, Array):
        raise ParamsError(f"logits must be a JAX array, got {type_name(logits)}; convert it with jnp.asarray")
    if logits.dtype.name not in _LOGIT_TYPES:
        raise ParamsError(f"logits must be float16, bfloat16, float32 or float64, got {logits.dtype}; cast them")
    if logits.ndim not in {1, 2}:
        raise ParamsError(f"logits must have shape [V] or [B, V], got {logits.shape}; reshape them")
    if not 1 <= logits.shape[-1] <= MAX_VOCAB:
        raise ParamsError(f"logits must have 1 to {MAX_VOCAB} columns, got {logits.shape[-1]}")
    matrix = _float32(lax.stop_gradient(logits) if is_traced(logits) else logits)
    return matrix[None] if matrix.ndim == 1 else matrix


def _float32(logits: Array) -> Array:
    if logits.dtype != jnp.float64:
        return logits.astype(jnp.float32)
    # XLA would flush what becomes subnormal; its bits are made from an integer instead.
    steps = jnp.round(jnp.abs(logits) * 2.0**149)
    small = jnp.where(jnp.abs(logits) < _TINY, steps, 0).astype(jnp.int32)
    signed = jnp.where(jnp.signbit(logits), small | jnp.int32(-0x80000000), small)
    subnormal = lax.bitcast_convert_type(signed, jnp.float32)
    return jnp.where(jnp.abs(logits) < _TINY, subnormal, logits.astype(jnp.float32))


def as_mask(mask: Any, shape: tuple[int, ...]) -> Array | NDArray[np.int32] | None:
    """`mask`, a JAX or NumPy array, as int32 [B, ceil(V / 32)]; [ceil(V / 32)] is accepted for one row.

    Raises ParamsError for another type or shape.
    """
    if mask is None or isinstance(mask, np.ndarray):
        return numpy_mask(mask, shape)
    if not isinstance(mask, Array) or mask.dtype.name not in {"int32", "uint32"}:
        kind = mask.dtype if isinstance(mask, Array) else type_name(mask)
        raise ParamsError(f"mask must be an int32 array of bits, got {kind}; pack 32 tokens to a word")
    wanted = (shape[0], -(-shape[1] // 32))
    words = mask[None] if mask.ndim == 1 and shape[0] == 1 else mask
    if words.shape != wanted:
        raise ParamsError(f"mask must have shape {list(wanted)} for logits {list(shape)}, got {list(mask.shape)}")
    return lax.bitcast_convert_type(words, jnp.int32)


def is_traced(*arrays: Any) -> bool:
    """True when any of the arrays is a tracer of jit, vmap or scan."""
    return any(isinstance(array, Tracer) for array in arrays)


def to_numpy(array: Any) -> NDArray:
    """A concrete array of any shape as NumPy, without a copy from host memory; ParamsError for a traced one."""
    if is_traced(array):
        raise ParamsError("logits must be concrete here, got a traced array; call law and explain outside jit")
    return np.asarray(array)


def from_numpy(array: NDArray, like: Any) -> Any:
    """Host values of any shape where `like` lives; int64 becomes int32, seeds keep all their bits as a NumPy array.

    Without x64 JAX has no 64-bit integers: it would silently drop the upper half of a seed.
    """
    if array.dtype == np.int64:
        return array.copy()
    if is_traced(like):
        return jnp.asarray(array)
    return jax.device_put(array, like.sharding)
