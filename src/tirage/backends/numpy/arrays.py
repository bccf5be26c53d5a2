"""NumPy arrays as `sample` accepts them, checked, as float32 [B, V]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import type_name
from tirage.errors import ParamsError
from tirage.history import is_masked
from tirage.sampling_metadata import MAX_VOCAB

_FLOAT32 = np.dtype(np.float32)
_LOGIT_TYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


def as_logits(logits: Any) -> NDArray[np.float32]:
    """`logits` as contiguous float32 [B, V]; ParamsError for another type, dtype, rank or vocabulary size."""
    if type(logits) is np.ndarray and logits.dtype == _FLOAT32 and logits.ndim == 2 and logits.flags.c_contiguous:
        return _sized(logits)
    if not isinstance(logits, np.ndarray) or is_masked(logits):
        raise ParamsError(f"logits must be a NumPy array, got {type_name(logits)}; convert it with np.asarray")
    if logits.dtype.name not in _LOGIT_TYPES:
        raise ParamsError(f"logits must be float16, bfloat16, float32 or float64, got {logits.dtype}; cast them")
    if logits.ndim not in {1, 2}:
        raise ParamsError(f"logits must have shape [V] or [B, V], got {logits.shape}; reshape them")
    _sized(logits)
    with np.errstate(all="ignore"):
        matrix = np.ascontiguousarray(logits, dtype=np.float32)
    return matrix[None] if matrix.ndim == 1 else matrix


def _sized(logits: NDArray) -> NDArray:
    if not 1 <= logits.shape[-1] <= MAX_VOCAB:
        raise ParamsError(f"logits must have 1 to {MAX_VOCAB} columns, got {logits.shape[-1]}")
    return logits


def as_mask(mask: Any, shape: tuple[int, ...]) -> NDArray[np.int32] | None:
    """`mask` as int32 [B, ceil(V / 32)], or [ceil(V / 32)] for one row; None stays None. ParamsError otherwise.

    Its bytes may be in either order.
    """
    if mask is None:
        return None
    if not isinstance(mask, np.ndarray) or mask.dtype.name not in {"int32", "uint32"}:
        kind = mask.dtype if isinstance(mask, np.ndarray) else type_name(mask)
        raise ParamsError(f"mask must be an int32 array of bits, got {kind}; pack 32 tokens to a word")
    wanted = (shape[0], -(-shape[1] // 32))
    words = mask[None] if mask.ndim == 1 and shape[0] == 1 else mask
    if words.shape != wanted:
        raise ParamsError(f"mask must have shape {list(wanted)} for logits {list(shape)}, got {list(mask.shape)}")
    return np.ascontiguousarray(words, words.dtype.newbyteorder("=")).view(np.int32)


def to_numpy(array: Any) -> NDArray:
    """The array itself, of any shape."""
    return array


def from_numpy(array: NDArray, like: Any) -> NDArray:
    """A copy of host values, same shape, for the caller to keep."""
    return array.copy()
