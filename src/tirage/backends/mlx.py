"""MLX arrays: drawn from by the NumPy backend, in their own memory, which the CPU shares with the GPU."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import type_name
from tirage.backends.numpy import arrays, dispatch
from tirage.errors import ParamsError
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn

# Not installed where the code is checked.
mx: Any = import_module("mlx.core")


def as_logits(logits: Any) -> NDArray[np.float32]:
    """`logits` as float32 [B, V] in NumPy, evaluated; ParamsError for another type, dtype, rank or vocabulary size.

    A contiguous float32 array is not copied; bfloat16, which NumPy does not have, is widened by MLX.
    """
    if not isinstance(logits, mx.array):
        raise ParamsError(f"logits must be an mlx.core.array, got {type_name(logits)}; convert it with mx.array")
    return arrays.as_logits(to_numpy(logits))


def as_mask(mask: Any, shape: tuple[int, ...]) -> NDArray[np.int32] | None:
    """`mask`, of MLX or NumPy, as int32 [B, ceil(V / 32)] in NumPy; None stays None. ParamsError otherwise."""
    return arrays.as_mask(to_numpy(mask) if isinstance(mask, mx.array) else mask, shape)


def draw(logits: NDArray[np.float32], batch: SamplingBatch, mask: NDArray[np.int32] | None) -> Drawn:
    """A Drawn of float32 logits [B, V], as MLX arrays."""
    drawn = dispatch.draw(logits, batch, mask)
    return replace(drawn, **{f.name: mx.array(getattr(drawn, f.name)) for f in fields(drawn)})


def to_numpy(array: Any) -> NDArray[Any]:
    """An array of any shape as NumPy, in the same memory unless it is bfloat16; a NumPy array as it is."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


def from_numpy(array: NDArray[Any], like: Any) -> Any:
    """A copy of host values, of any shape, as an MLX array."""
    return mx.array(array)
