"""What the layers of a transformers cache allow: batching, cropping, and their size."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tirage.models.huggingface.batched_cache import KNOWN_LAYERS, PLAIN_LAYERS
from tirage.models.huggingface.preallocated_layer import PreallocatedLayer


def is_plain(cache: Any) -> bool:
    """Whether every layer of a cache is of a class that a BatchedKVCache can hold."""
    return all(type(layer) in PLAIN_LAYERS for layer in cache.layers)


def is_known(cache: Any) -> bool:
    """Whether every layer of a cache is of a class that can be batched."""
    return bool(cache.layers) and all(type(layer) in KNOWN_LAYERS for layer in cache.layers)


def is_croppable(cache: Any, length: int) -> bool:
    """Whether every layer of a cache still holds all of its `length` positions."""
    return all(
        type(layer) in PLAIN_LAYERS and (layer.keys is None or layer.keys.shape[-2] == length) for layer in cache.layers
    )


def cropped(cache: Any, count: int) -> Any:
    """The first `count` positions of a croppable cache. The tensors are shared, because rows never overwrite them."""
    part = copy.copy(cache)
    part.layers = [crop_layer(layer, count) for layer in cache.layers]
    return part


def forked(cache: Any, length: int) -> Any:
    """A second cache of `length` positions, on the same tensors where it is croppable; None for none."""
    return cropped(cache, length) if cache is not None and is_croppable(cache, length) else copy.deepcopy(cache)


def truncated(cache: Any, length: int) -> Any:
    """A row's own cache with its first `length` positions; it goes on in the same buffers."""
    part = copy.copy(cache)
    part.layers = [
        layer.truncated(length)
        if isinstance(layer, PreallocatedLayer) and layer.keys is not None
        else crop_layer(layer, length)
        for layer in cache.layers
    ]
    return part


def crop_layer(layer: Any, count: int) -> Any:
    """The first `count` positions of a layer, on the same tensors; a sliding window keeps its last ones."""
    part = copy.copy(layer)
    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        return part
    first = 0
    if isinstance(part, DynamicSlidingWindowLayer):
        first = max(0, count - part.sliding_window + 1)
        part.cumulative_length = count
    part.keys, part.values = layer.keys[:, :, first:count], layer.values[:, :, first:count]
    return part


def size_of(cache: Any) -> int:
    """The size of a cache's tensors in bytes."""
    total = 0
    for layer in cache.layers:
        tensors = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
        for name in ("conv_states", "recurrent_states"):
            tensors += getattr(layer, name, {}).values()
        # A view keeps its whole storage alive.
        total += sum(t.untyped_storage().nbytes() for t in tensors if isinstance(t, Tensor))
    return total
