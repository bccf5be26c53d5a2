"""Batched KV caches: the caches of several rows joined for decode steps, and taken apart again.

Rows are right-aligned: all end at the same column, and shorter ones are padded on the left. Sliding windows, chunked
attention, ALiBi and positions derived from the mask then work without code for particular models.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from tirage.models.huggingface.preallocated_layer import PreallocatedLayer

# A layer without keys and values, which older releases write as a DynamicLayer that nothing has been put into.
EmptyLayer: type[Any] = getattr(cache_utils, "DummyLayer", DynamicLayer)
PLAIN_LAYERS: frozenset[type] = frozenset({DynamicLayer, PreallocatedLayer, DynamicSlidingWindowLayer, EmptyLayer})
# Of these, older releases have some.
_NEWER_LAYERS = ("DynamicIndexedLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
KNOWN_LAYERS = PLAIN_LAYERS | {
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    *(getattr(cache_utils, name) for name in _NEWER_LAYERS if hasattr(cache_utils, name)),
}
# A full buffer grows by at least this many columns, so that it is seldom moved.
_SPARE_COLUMNS = 64


class BatchedLayer(DynamicLayer):
    """The keys and values of one layer for all rows of a BatchedKVCache: columns [start, end) of one buffer.

    `keys` and `values` are [max rows, heads, max columns, head_dim]; the first `count` rows are in use.
    """

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.is_sliding = window is not None
        self.sliding_window = window
        self.start = self.end = self.count = 0
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values [B, heads, T, head_dim] of all rows, with the new column [B, heads, 1, head_dim]."""
        assert self.keys is not None
        assert self.values is not None
        self.keys[: self.count, :, self.end] = key_states[:, :, 0]
        self.values[: self.count, :, self.end] = value_states[:, :, 0]
        self.end += 1
        low = self.start if self.sliding_window is None else max(self.start, self.end - self.sliding_window)
        return self.keys[: self.count, :, low : self.end], self.values[: self.count, :, low : self.end]

    def get_seq_length(self) -> int:
        """The number of positions of the longest row, padding included."""
        return self.end - self.start

    def get_max_length(self) -> int:
        """The length of the sliding window; -1 without one."""
        return -1 if self.sliding_window is None else self.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of positions that new tokens attend to, and the offset of the first of them."""
        length = self.end - self.start
        if self.sliding_window is None:
            return length + query_length, 0
        return min(length, self.sliding_window - 1) + query_length, max(length - self.sliding_window + 1, 0)

    def insert(self, source: Any, slot: int, length: int) -> None:
        """Copies the layer of a single row into a slot, ending at `end`; a sliding layer may have fewer positions."""
        assert self.keys is not None
        assert self.values is not None
        held = min(length, source.keys.shape[-2])
        self.keys[slot, :, self.end - held : self.end] = source.keys[0, :, -held:]
        self.values[slot, :, self.end - held : self.end] = source.values[0, :, -held:]

    def extract(self, slot: int, length: int) -> DynamicLayer:
        """A copy of the row in a slot, as a layer of its own."""
        assert self.keys is not None
        assert self.values is not None
        held = length if self.sliding_window is None else min(length, self.sliding_window - 1)
        columns = slice(self.end - held, self.end)
        keys, values = self.keys[slot : slot + 1, :, columns], self.values[slot : slot + 1, :, columns]
        if self.sliding_window is None:
            layer = PreallocatedLayer()
            layer.update(keys, values)
            return layer
        layer = DynamicSlidingWindowLayer(self.sliding_window)
        layer.cumulative_length = length
        layer.lazy_initialization(keys, keys)
        layer.keys, layer.values = keys.clone(), values.clone()
        return layer


class BatchedKVCache:
    """Rows with plain attention layers in preallocated buffers: a row is copied when it joins, and never by a step."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.cache: Any = DynamicCache()
        self._max_rows = self._max_columns = self._end_before_step = 0

    def set_rows(self, rows: Sequence[Any]) -> list[Any]:
        """Makes these the rows of the batch; returns them in the order of the batch."""
        wanted = {id(row) for row in rows}
        joining = [row for row in rows if row.group is not self]
        for row in joining:
            if row.group is not None:
                leave_group(row)
        for row in [row for row in self.rows if row is not None and id(row) not in wanted]:
            leave_group(row)
        free = [slot for slot, row in enumerate(self.rows) if row is None]
        self._reserve(rows, joining)
        for slot in range(len(self.rows), len(self.rows) + len(joining) - len(free)):
            self.rows.append(None)
            free.append(slot)
        for row in joining:
            self._enter(row, free.pop(0))
        for slot in sorted(free, reverse=True):
            self._fill_slot(slot)
        self._align()
        return self.rows

    def advance(self) -> None:
        """Counts the new position of every row after a step."""
        for row in self.rows:
            row.length += 1

    def rollback(self) -> bool:
        """Takes back what a failed step has written; gives True, because that is possible here."""
        for layer in self._shared:
            layer.end = self._end_before_step
        return True

    def extract(self, row: Any) -> Cache:
        """A copy of one row's cache, as a cache of its own."""
        slot = index_of(row, self.rows)
        cache: Any = DynamicCache()
        cache.layer_class_to_replicate = None
        cache.layers = [
            layer.extract(slot, row.length) if isinstance(layer, BatchedLayer) else EmptyLayer()
            for layer in self.cache.layers
        ]
        return cache

    @property
    def _shared(self) -> list[BatchedLayer]:
        return [layer for layer in self.cache.layers if isinstance(layer, BatchedLayer)]

    @property
    def _end(self) -> int:
        shared = self._shared
        return shared[0].end if shared else 0

    def _enter(self, row: Any, slot: int) -> None:
        for layer, own in zip(self.cache.layers, row.cache.layers, strict=True):
            if isinstance(layer, BatchedLayer):
                layer.insert(own, slot, row.length)
        self.rows[slot] = row
        row.cache, row.group = None, self

    def _fill_slot(self, slot: int) -> None:
        """Moves the last row into a free slot."""
        last = len(self.rows) - 1
        if slot != last:
            length = self.rows[last].length
            for layer in self._shared:
                for buffer in (layer.keys, layer.values):
                    assert buffer is not None
                    buffer[slot, :, layer.end - length : layer.end] = buffer[last, :, layer.end - length : layer.end]
            self.rows[slot] = self.rows[last]
        self.rows.pop()

    def _align(self) -> None:
        longest, self._end_before_step = max(row.length for row in self.rows), self._end
        for layer in self._shared:
            layer.count, layer.start = len(self.rows), layer.end - longest

    def _reserve(self, rows: Sequence[Any], joining: Sequence[Any]) -> None:
        """Allocates buffers for all rows, all their columns, and the next one, if the present ones are too small."""
        longest = max(row.length for row in rows)
        max_rows = max(len(rows), len(self.rows))
        if max_rows <= self._max_rows and longest <= self._end and self._end < self._max_columns:
            return
        if not self.cache.layers:
            self._create_layers(joining[0].cache)
        max_rows = self._max_rows if max_rows <= self._max_rows else 2 ** (max_rows - 1).bit_length()
        columns = longest + max(_SPARE_COLUMNS, longest // 2)
        for index, layer in enumerate(self.cache.layers):
            if isinstance(layer, BatchedLayer):
                like = joining[0].cache.layers[index] if layer.keys is None else layer
                self._move(layer, like, (max_rows, columns), longest)
        self._max_rows, self._max_columns = max_rows, columns

    def _create_layers(self, cache: Cache) -> None:
        self.cache.layer_class_to_replicate = None
        self.cache.layers = [
            EmptyLayer()
            if getattr(layer, "keys", None) is None
            else BatchedLayer(getattr(layer, "sliding_window", None))
            for layer in cache.layers
        ]

    def _move(self, layer: BatchedLayer, like: Any, size: tuple[int, int], end: int) -> None:
        """Moves a layer to new buffers of size (rows, columns), in which its rows end at column `end`."""
        moved = []
        for old, new in ((layer.keys, like.keys), (layer.values, like.values)):
            buffer = new.new_zeros((size[0], new.shape[1], size[1], new.shape[3]))
            if old is not None:
                for slot, row in enumerate(self.rows):
                    kept = 0 if row is None else row.length
                    buffer[slot, :, end - kept : end] = old[slot, :, layer.end - kept : layer.end]
            moved.append(buffer)
        layer.keys, layer.values = moved
        layer.start, layer.end = 0, end


class ConcatenatedCache:
    """Rows of any known layer classes in one cache of these classes, built again whenever the rows change."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.cache: Any = None
        self._width = 0

    def set_rows(self, rows: Sequence[Any]) -> list[Any]:
        """Makes these the rows of the batch; returns them in the order of the batch."""
        if len(rows) == len(self.rows) and all(map(operator.is_, rows, self.rows)):
            return self.rows
        for row in [*self.rows, *rows]:
            if row is not None and row.group is not None:
                leave_group(row)
        self.rows = list(rows)
        self._width = max(row.length for row in rows)
        self.cache = join([row.cache for row in rows], [row.length for row in rows])
        for row in rows:
            row.cache, row.group = None, self
        return self.rows

    def advance(self) -> None:
        """Counts the new position of every row after a step."""
        self._width += 1
        for row in self.rows:
            row.length += 1

    def rollback(self) -> bool:
        """Gives False: layers of these classes cannot take back what a failed step has written."""
        return False

    def extract(self, row: Any) -> Cache:
        """A copy of one row's cache, as a cache of its own."""
        return pick(self.cache, index_of(row, self.rows), row.length)


def leave_group(row: Any) -> None:
    """Takes a row out of its batch; unless the row is closed, it gets a copy of its cache."""
    group = row.group
    row.cache = None if row.closed else group.extract(row)
    row.group = None
    group.rows[index_of(row, group.rows)] = None


def index_of(row: Any, rows: Sequence[Any]) -> int:
    """The index of a row, compared by identity."""
    return next(slot for slot, held in enumerate(rows) if held is row)


def join(caches: Sequence[Any], lengths: Sequence[int]) -> Any:
    """The caches of several rows as one, right-aligned; every layer must be one of KNOWN_LAYERS."""
    joined = copy.copy(caches[0])
    columns = zip(*(cache.layers for cache in caches), strict=True)
    joined.layers = [join_layer(layers, max(lengths)) for layers in columns]
    return joined


def join_layer(layers: Sequence[Any], width: int) -> Any:
    """The layers of several rows as one, right-aligned to `width` positions."""
    joined = copy.copy(layers[0])
    if isinstance(joined, LinearAttentionLayer):
        for name in ("conv_states", "recurrent_states"):
            states = [getattr(layer, name) for layer in layers]
            setattr(joined, name, {key: stack([state[key] for state in states]) for key in states[0]})
    if isinstance(joined, DynamicLayer) and joined.is_initialized:
        for name in ("keys", "values", "indexer_keys"):
            if getattr(joined, name, None) is not None:
                setattr(joined, name, right_aligned([getattr(layer, name) for layer in layers]))
    if isinstance(joined, DynamicSlidingWindowLayer):
        joined.cumulative_length = width
    return joined


def stack(states: Sequence[Tensor | None]) -> Tensor | None:
    """The states [1, ...] of several rows as one tensor [B, ...]; None if the layer has no such state."""
    present = [state for state in states if state is not None]
    return torch.cat(present) if present else None


def right_aligned(parts: Sequence[Tensor]) -> Tensor:
    """Tensors [1, ..., T_i, D] as one [B, ..., max T, D], padded with zeros on the left."""
    width = max(part.shape[-2] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts])


def pick(cache: Any, slot: int, length: int) -> Any:
    """A copy of one row of a cache of several right-aligned rows, without its padding."""
    picked = copy.copy(cache)
    picked.layers = [pick_layer(layer, slot, length) for layer in cache.layers]
    return picked


def pick_layer(layer: Any, slot: int, length: int) -> Any:
    """A copy of one row of a layer, without its padding."""
    if isinstance(layer, PreallocatedLayer) and layer.keys is not None and layer.values is not None:
        own, first = PreallocatedLayer(), layer.keys.shape[-2] - length
        own.update(layer.keys[slot : slot + 1, :, first:], layer.values[slot : slot + 1, :, first:])
        return own
    picked = copy.copy(layer)
    if isinstance(layer, LinearAttentionLayer):
        for name in ("conv_states", "recurrent_states"):
            states = getattr(layer, name)
            picked_states = {k: None if s is None else s[slot : slot + 1].clone() for k, s in states.items()}
            setattr(picked, name, picked_states)
    if isinstance(layer, DynamicLayer) and layer.is_initialized:
        for name in ("keys", "values", "indexer_keys"):
            part = getattr(layer, name, None)
            if part is not None:
                held = min(length, part.shape[-2])
                setattr(picked, name, part[slot : slot + 1, ..., part.shape[-2] - held :, :].clone())
    if isinstance(layer, DynamicSlidingWindowLayer):
        picked.cumulative_length = length
    return picked
