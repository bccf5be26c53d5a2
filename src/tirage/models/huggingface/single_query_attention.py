"""Attention of one query per row on a CPU, in float32 and for a few rows at a time.

PyTorch's own kernel for CPUs runs many tiny products there, which took a third of a decode step in bfloat16
(`benchmarks/engine_streams.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Elements of the keys that each thread converts at a time, so that they stay in a processor's cache.
_ELEMENTS = 1 << 18
_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
# Arguments of attention functions that change the result, all of them off when None.
_SPECIAL = ("softcap", "position_bias", "cache", "s_aux")
_plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
_local = threading.local()


@contextmanager
def single_query_attention() -> Iterator[None]:
    """Has the models that this thread runs meanwhile use `attend` where it can stand for transformers' "sdpa"."""
    _local.active = True
    try:
        yield
    finally:
        _local.active = False


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The output [B, T, heads, head_dim] of transformers' "sdpa", of which this is the registered function."""
    active = getattr(_local, "active", False)
    if not active or not is_single(query, key, attention_mask) or options.get("dropout"):
        return _plain(module, query, key, value, attention_mask, **options)
    if any(options.get(name) is not None for name in _SPECIAL):
        return _plain(module, query, key, value, attention_mask, **options)
    scaling = options.get("scaling")
    return attend(query, key, value, attention_mask, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def is_single(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Whether there is one query [B, heads, 1, head_dim] per row, on a CPU, and a mask for all heads or none."""
    if query.shape[2] != 1 or query.device.type != "cpu" or query.dtype not in _DTYPES:
        return False
    return mask is None or (mask.ndim == 4 and mask.shape[1:] == (1, 1, key.shape[2]))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention [B, 1, heads, head_dim], in the dtype of the query, computed in float32.

    `query` is [B, heads, 1, head_dim], `key` and `value` [B, shared heads, T, head_dim], `mask` bool or added to the
    scores, [B or 1, 1, 1, T].
    """
    rows, shared, length, size = key.shape
    queries = query.reshape(rows, shared, -1, size).float() * scaling
    bias = mask
    if mask is not None and mask.dtype == torch.bool:
        bias = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    count = max(1, _ELEMENTS * torch.get_num_threads() // (shared * length * size))
    parts = []
    for start in range(0, rows, count):
        part = slice(start, start + count)
        scores = queries[part] @ key[part].float().transpose(-1, -2)
        if bias is not None:
            scores += bias if len(bias) == 1 else bias[part]
        parts.append(scores.softmax(-1) @ value[part].float())
    found = parts[0] if len(parts) == 1 else torch.cat(parts)
    return found.to(query.dtype).reshape(rows, 1, -1, value.shape[-1])


AttentionInterface.register("sdpa", attention)
