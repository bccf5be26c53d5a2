"""Torch tensors that callers pass in: checked, and made float32 [B, V] on the device where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends import type_name
from tirage.backends.numpy.arrays import as_mask as numpy_mask
from tirage.errors import ParamsError
from tirage.sampling_metadata import MAX_VOCAB

_LOGIT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def as_logits(logits: Any) -> Tensor:
    """`logits` as contiguous float32 [B, V], detached; ParamsError for another type, dtype, layout, rank or size.

    A contiguous float32 tensor is not copied. float16 and bfloat16 are widened exactly, float64 is rounded.
    """
    given = as_given(logits)
    ready = given.dtype is torch.float32 and given.is_contiguous()
    return given if ready else given.to(torch.float32).contiguous()


def as_given(logits: Any) -> Tensor:
    """`logits` as a tensor [B, V] of their own dtype, detached, not lazily negated; ParamsError as for `as_logits`."""
    if type(logits) not in _PLAIN_TYPES or not _is_dense(logits) or logits.is_meta:
        raise ParamsError(f"logits must be a dense torch.Tensor with data, got {_kind(logits)}; pass the local tensor")
    dtype = logits.dtype
    if dtype not in _LOGIT_TYPES:
        raise ParamsError(f"logits must be float16, bfloat16, float32 or float64, got {dtype}; cast them")
    shape = logits.shape
    if len(shape) not in {1, 2}:
        raise ParamsError(f"logits must have shape [V] or [B, V], got {tuple(shape)}; reshape them")
    if not 1 <= shape[-1] <= MAX_VOCAB:
        raise ParamsError(f"logits must have 1 to {MAX_VOCAB} columns, got {shape[-1]}")
    matrix = logits.detach().resolve_neg() if logits.requires_grad or logits.is_neg() else logits
    return matrix[None] if len(shape) == 1 else matrix


def as_mask(mask: Any, shape: tuple[int, ...]) -> Tensor | NDArray[np.int32] | None:
    """`mask` as int32 [B, ceil(V / 32)]; [ceil(V / 32)] is accepted for one row. None and NumPy masks stay such.

    ParamsError for another type, dtype, layout or shape.
    """
    if mask is None or isinstance(mask, np.ndarray):
        # Grammars write their masks in NumPy, and the host reads them: a tensor would only be converted back.
        return numpy_mask(mask, shape)
    if not isinstance(mask, Tensor):
        raise ParamsError(f"mask must be a torch.Tensor or NumPy array, got {type_name(mask)}; use torch.from_numpy")
    if not _is_dense(mask):
        raise ParamsError(f"mask must be a dense torch.Tensor, got {_kind(mask)}; use mask.to_dense()")
    if mask.dtype not in {torch.int32, torch.uint32}:
        raise ParamsError(f"mask must be an int32 tensor of bits, got {mask.dtype}; pack 32 tokens to a word")
    wanted = (shape[0], -(-shape[1] // 32))
    words = mask[None] if mask.ndim == 1 and shape[0] == 1 else mask
    if tuple(words.shape) != wanted:
        raise ParamsError(f"mask must have shape {list(wanted)} for logits {list(shape)}, got {list(mask.shape)}")
    return words.contiguous().view(torch.int32)


def check_device(mask: Tensor | NDArray[np.int32] | None, logits: Tensor) -> None:
    """Raise ParamsError when the mask, [B, ceil(V / 32)], is a tensor on another device than the logits [B, V]."""
    if isinstance(mask, Tensor) and mask.device != logits.device:
        raise ParamsError(
            f"mask must be on the device of the logits, {logits.device}, got {mask.device}; move it with mask.to"
        )


def to_numpy(array: Any) -> NDArray:
    """A tensor of any shape as NumPy, without a copy when it is on the CPU."""
    return array.detach().cpu().numpy()


def borrowed(tensor: Tensor) -> NDArray:
    """Logits [B, V] on the CPU as NumPy, sharing their memory; ParamsError inside a transform, where they have none."""
    try:
        return tensor.numpy()
    except RuntimeError:
        raise ParamsError(
            "logits must be a dense torch.Tensor with data, got one inside a transform of torch.func; "
            "call sample outside, with all rows at once"
        ) from None


def from_numpy(array: NDArray, like: Any) -> Tensor:
    """A copy of host values, of any shape, as a tensor on the device of `like`."""
    tensor = torch.from_numpy(array.copy())
    return tensor if like.is_cpu else tensor.to(like.device)


def _kind(value: Any) -> str:
    if type(value) not in _PLAIN_TYPES:
        return type_name(value)
    return f"a {'nested' if value.is_nested else value.layout} tensor on {value.device}"


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested
