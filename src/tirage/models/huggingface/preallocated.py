"""Keys and values of a lone row, with free columns behind them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

# Free columns behind what is held, at least; so that a turn of a chat rarely moves its history.
_SPARE = 64


class PreallocatedLayer(DynamicLayer):
    """A `DynamicLayer` that writes the next keys behind the last, where that one makes a copy of all for each piece.

    A layer cut from another shares its buffers. Only one that ends where the written part ends may write on in them;
    any other moves its own part out first, so none ever sees what another has written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor] | None = None
        # One list for all layers that share the buffers: the number of columns that were written.
        self._written = [0]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values with those of the next positions behind them."""
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

    def _move(self, key_states: Tensor, value_states: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Buffers of its own, with the columns so far and room for those up to `end` and more."""
        moved = []
        for old, new in ((self.keys, key_states), (self.values, value_states)):
            buffer = new.new_empty((*new.shape[:2], end + max(_SPARE, end // 4), new.shape[3]))
            if start and old is not None:
                buffer[:, :, :start] = old
            moved.append(buffer)
        self._buffers, self._written = (moved[0], moved[1]), [start]
        return self._buffers
