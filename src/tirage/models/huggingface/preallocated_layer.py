"""A cache layer for a single row whose buffers have spare columns."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

# Spare columns at least, so that a turn of a chat seldom moves its history.
_SPARE_COLUMNS = 64


class PreallocatedLayer(DynamicLayer):
    """A `DynamicLayer` that appends in place, where `DynamicLayer` copies all keys and values for every chunk.

    A cropped layer shares the buffers of its original. Only a layer that ends where the written part ends may append to
    them; any other one moves its part to new buffers first, so that no layer sees what another has written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor] | None = None
        # The number of columns written, in a list that all layers on the same buffers share.
        self._written = [0]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values [1, heads, T, head_dim], with those of n new positions, [1, heads, n, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        buffers = self._buffers
        if buffers is None or self._written[0] != start or end > buffers[0].shape[-2]:
            buffers = self._move(key_states, value_states, start, end)
        for buffer, new in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self._written[0] = end
        self.keys, self.values = (buffer[:, :, :end] for buffer in buffers)
        return self.keys, self.values

    def truncated(self, length: int) -> PreallocatedLayer:
        """The layer with its first `length` positions, which goes on in the same buffers.

        Only the row that has written the rest may have this: what other layers see of the buffers must be shorter.
        """
        part = copy.copy(self)
        assert self.keys is not None
        assert self.values is not None
        if self._written[0] == self.get_seq_length():
            self._written[0] = length
        part.keys, part.values = self.keys[:, :, :length], self.values[:, :, :length]
        return part

    def _move(self, key_states: Tensor, value_states: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """New buffers with the columns so far, and with capacity for those up to `end` and more."""
        moved = []
        for old, new in ((self.keys, key_states), (self.values, value_states)):
            buffer = new.new_empty((*new.shape[:2], end + max(_SPARE_COLUMNS, end // 4), new.shape[3]))
            if start and old is not None:
                buffer[:, :, :start] = old
            moved.append(buffer)
        self._buffers, self._written = (moved[0], moved[1]), [start]
        return self._buffers
