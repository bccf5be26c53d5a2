"""The keys and values of one sequence as bytes, which fit every context of the model.

libllama writes a header, the number of streams, the cells in each stream, 0 for all but that of the sequence, and its
content. A context whose sequences have cells of their own has a stream for each, another one has one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = NDArray[np.uint8]
"""uint8 [size]: the header, the number of cells and the content."""
_NUMBER = np.dtype("<u4")


class SequenceStates:
    """Reads and writes the states of the sequences of a context, which is empty yet, with so many streams.

    `are_known` says whether libllama writes them as it did when this was made; else nothing is read.
    """

    def __init__(self, library: Any, context: Any, *, streams: int) -> None:
        self._library, self._context, self._streams = library, context, streams
        self._others = np.array([streams] + [0] * (streams - 1), _NUMBER).view(np.uint8)
        last = self._whole(streams - 1)
        self._header = 0 if last is None else last.size - _size(streams + 1)
        # An empty stream has no cells.
        told = np.concatenate([self._others, np.zeros(_size(1), np.uint8)])
        self.are_known = last is not None and self._header >= 0 and np.array_equal(last[self._header :], told)

    def read(self, sequence: int) -> State | None:
        """The state uint8 [size] of a sequence; None where libllama cannot make it."""
        whole = self._whole(sequence)
        if whole is None or not self.are_known:
            return None
        stream = min(sequence, self._streams - 1)
        first, last = self._header + _size(1 + stream), whole.size - _size(self._streams - 1 - stream)
        return np.concatenate([whole[: self._header], whole[first:last]])

    def write(self, sequence: int, state: State) -> bool:
        """Fills an empty sequence from a state uint8 [size]; False where the cache has no room."""
        parts = (state[: self._header], self._others[: _size(1)], state[self._header :], self._others[_size(1) :])
        whole = np.concatenate(parts)
        return bool(self._library.llama_state_seq_set_data(self._context, _bytes_at(whole), whole.size, sequence))

    def _whole(self, sequence: int) -> State | None:
        """All that libllama writes of a sequence."""
        size = self._library.llama_state_seq_get_size(self._context, sequence)
        state = np.empty(size, np.uint8)
        written = self._library.llama_state_seq_get_data(self._context, _bytes_at(state), size, sequence)
        return state if written == size else None


def _bytes_at(array: State) -> Any:
    """A pointer to the bytes of an array, as libllama's functions take it."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _size(numbers: int) -> int:
    return numbers * _NUMBER.itemsize
