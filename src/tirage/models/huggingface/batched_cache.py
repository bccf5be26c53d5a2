"""Rows of several requests side by side: caches joined for a decode step, and taken apart again.

Rows are right-aligned: all end at the same column and shorter ones are padded on the left. Sliding windows,
chunked attention, ALiBi and positions read off the mask then hold without code for any one model.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from tirage.models.huggingface.preallocated import PreallocatedLayer

PLAIN_LAYERS: frozenset[type] = frozenset({DynamicLayer, PreallocatedLayer, DynamicSlidingWindowLayer, DummyLayer})
KNOWN_LAYERS = PLAIN_LAYERS | {
    DynamicIndexedLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
}
# A buffer that is full grows by this many columns at least, so that moving it stays rare.
_SPARE = 64


class Member(Protocol):
    """A row as the groups see it: its length, its cache while it is alone, and the group that holds it."""

    length: int
    cache: Any
    group: Any
    closed: bool


class SharedKeys(DynamicLayer):
    """Keys and values of one layer for all rows of an arena, as columns [start, end) of one buffer."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.is_sliding = window is not None
        self.sliding_window = window
        self.start = self.end = self.count = 0
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values of every row with the new column written behind them."""
        assert self.keys is not None
        assert self.values is not None
        self.keys[: self.count, :, self.end] = key_states[:, :, 0]
        self.values[: self.count, :, self.end] = value_states[:, :, 0]
        self.end += 1
        low = self.start if self.sliding_window is None else max(self.start, self.end - self.sliding_window)
        return self.keys[: self.count, :, low : self.end], self.values[: self.count, :, low : self.end]

    def get_seq_length(self) -> int:
        return self.end - self.start

    def get_max_length(self) -> int:
        return -1 if self.sliding_window is None else self.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = self.end - self.start
        if self.sliding_window is None:
            return length + query_length, 0
        return min(length, self.sliding_window - 1) + query_length, max(length - self.sliding_window + 1, 0)

    def take_in(self, source: Any, slot: int, length: int) -> None:
        """Copies a lone row's layer into a slot, ending at `end`; a sliding layer may hold less than `length`."""
        assert self.keys is not None
        assert self.values is not None
        held = min(length, source.keys.shape[-2])
        self.keys[slot, :, self.end - held : self.end] = source.keys[0, :, -held:]
        self.values[slot, :, self.end - held : self.end] = source.values[0, :, -held:]

    def hand_out(self, slot: int, length: int) -> DynamicLayer:
        """A slot's row as a layer of its own."""
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
    """Rows of plain attention layers in preallocated buffers: joining copies one row, a step copies none."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.cache: Any = DynamicCache()
        self._places = self._columns = self._before = 0

    def hold(self, rows: Sequence[Any]) -> list[Any]:
        """Makes these the rows of the arena; returns them in the arena's order."""
        wanted = {id(row) for row in rows}
        joining = [row for row in rows if row.group is not self]
        for row in joining:
            if row.group is not None:
                leave(row)
        for row in [row for row in self.rows if row is not None and id(row) not in wanted]:
            leave(row)
        holes = [slot for slot, row in enumerate(self.rows) if row is None]
        self._make_room(rows, joining)
        for slot in range(len(self.rows), len(self.rows) + len(joining) - len(holes)):
            self.rows.append(None)
            holes.append(slot)
        for row in joining:
            self._enter(row, holes.pop(0))
        for slot in sorted(holes, reverse=True):
            self._fill(slot)
        self._align()
        return self.rows

    def stepped(self) -> None:
        """Notes that every row has one more column."""
        for row in self.rows:
            row.length += 1

    def undo(self) -> bool:
        """Takes back what a step that failed has written; True, since here that can be done."""
        for layer in self._shared:
            layer.end = self._before
        return True

    def lone(self, row: Any) -> Cache:
        """A copy of one row's cache, as a cache of its own."""
        slot = place_of(row, self.rows)
        cache: Any = DynamicCache()
        cache.layer_class_to_replicate = None
        cache.layers = [
            layer.hand_out(slot, row.length) if isinstance(layer, SharedKeys) else DummyLayer()
            for layer in self.cache.layers
        ]
        return cache

    @property
    def _shared(self) -> list[SharedKeys]:
        return [layer for layer in self.cache.layers if isinstance(layer, SharedKeys)]

    @property
    def _end(self) -> int:
        shared = self._shared
        return shared[0].end if shared else 0

    def _enter(self, row: Any, slot: int) -> None:
        for layer, own in zip(self.cache.layers, row.cache.layers, strict=True):
            if isinstance(layer, SharedKeys):
                layer.take_in(own, slot, row.length)
        self.rows[slot] = row
        row.cache, row.group = None, self

    def _fill(self, hole: int) -> None:
        """Moves the last row into a hole."""
        last = len(self.rows) - 1
        if hole != last:
            length = self.rows[last].length
            for layer in self._shared:
                for buffer in (layer.keys, layer.values):
                    assert buffer is not None
                    buffer[hole, :, layer.end - length : layer.end] = buffer[last, :, layer.end - length : layer.end]
            self.rows[hole] = self.rows[last]
        self.rows.pop()

    def _align(self) -> None:
        longest, self._before = max(row.length for row in self.rows), self._end
        for layer in self._shared:
            layer.count, layer.start = len(self.rows), layer.end - longest

    def _make_room(self, rows: Sequence[Any], joining: Sequence[Any]) -> None:
        """Buffers that have a place for every row, its columns, and the next one."""
        longest = max(row.length for row in rows)
        places = max(len(rows), len(self.rows))
        if places <= self._places and longest <= self._end and self._end < self._columns:
            return
        if not self.cache.layers:
            self._lay_out(joining[0].cache)
        places = self._places if places <= self._places else 2 ** (places - 1).bit_length()
        columns = longest + max(_SPARE, longest // 2)
        for index, layer in enumerate(self.cache.layers):
            if isinstance(layer, SharedKeys):
                like = joining[0].cache.layers[index] if layer.keys is None else layer
                self._move(layer, like, (places, columns), longest)
        self._places, self._columns = places, columns

    def _lay_out(self, cache: Cache) -> None:
        self.cache.layer_class_to_replicate = None
        self.cache.layers = [
            DummyLayer() if getattr(layer, "keys", None) is None else SharedKeys(getattr(layer, "sliding_window", None))
            for layer in cache.layers
        ]

    def _move(self, layer: SharedKeys, like: Any, size: tuple[int, int], end: int) -> None:
        """Bigger or freshly aligned buffers for a layer, whose rows now end at column `end`."""
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


class Joined:
    """Rows of any known layer class in a cache of that class, built anew when the rows change."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.cache: Any = None
        self._width = 0

    def hold(self, rows: Sequence[Any]) -> list[Any]:
        """Makes these the rows of the group; returns them in its order."""
        if len(rows) == len(self.rows) and all(map(operator.is_, rows, self.rows)):
            return self.rows
        for row in [*self.rows, *rows]:
            if row is not None and row.group is not None:
                leave(row)
        self.rows = list(rows)
        self._width = max(row.length for row in rows)
        self.cache = join([row.cache for row in rows], [row.length for row in rows])
        for row in rows:
            row.cache, row.group = None, self
        return self.rows

    def stepped(self) -> None:
        """Notes that every row has one more column."""
        self._width += 1
        for row in self.rows:
            row.length += 1

    def undo(self) -> bool:
        """False: layers of these classes may keep no trace of what they held before a step that failed."""
        return False

    def lone(self, row: Any) -> Cache:
        """A copy of one row's cache, as a cache of its own."""
        slot = place_of(row, self.rows)
        cache = copy.copy(self.cache)
        cache.layers = [pick_layer(layer, slot, row.length) for layer in self.cache.layers]
        return cache


def leave(row: Any) -> None:
    """Takes a row out of the group that holds it; unless the row is closed, it takes its cache along."""
    group = row.group
    row.cache = None if row.closed else group.lone(row)
    row.group = None
    group.rows[place_of(row, group.rows)] = None


def place_of(row: Any, rows: Sequence[Any]) -> int:
    """The index of the very row, which may equal others."""
    return next(slot for slot, held in enumerate(rows) if held is row)


def join(caches: Sequence[Any], lengths: Sequence[int]) -> Any:
    """One cache of several, right-aligned; every layer must be one of KNOWN_LAYERS."""
    joined = copy.copy(caches[0])
    columns = zip(*(cache.layers for cache in caches), strict=True)
    joined.layers = [join_layer(layers, max(lengths)) for layers in columns]
    return joined


def join_layer(layers: Sequence[Any], width: int) -> Any:
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
    """States [B, ...] of rows [1, ...]; None where a layer has no such state."""
    present = [state for state in states if state is not None]
    return torch.cat(present) if present else None


def right_aligned(parts: Sequence[Tensor]) -> Tensor:
    """[1, ..., T_i, D] tensors as one [B, ..., max T, D], zeros on the left."""
    width = max(part.shape[-2] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts])


def pick_layer(layer: Any, slot: int, length: int) -> Any:
    """One row of a layer, copied, without its padding."""
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
