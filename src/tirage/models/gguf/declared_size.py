"""The sizes that the header of a GGUF file declares, compared with the file before any memory is taken for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tirage.errors import ModelError

_BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""By ggml's number of a type: how many numbers are in a block, and its bytes."""
_DENSEST = 8, 1
"""A block of a type that is not known here: no type has less than a bit for a number."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The description of a tensor: its shape, ggml's number of its type, and where its data begins."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def nbytes(self) -> int:
        """The fewest bytes that its data takes."""
        numbers, size = _BLOCKS.get(self.kind, _DENSEST)
        return -(-math.prod(self.shape) // numbers) * size


def check_tensors(path: Path, tensors: Sequence[TensorInfo], *, start: int, end: int) -> None:
    """Raises ModelError for a tensor whose data is not within the bytes from `start` to `end` of the file."""
    for tensor in tensors:
        needed = start + tensor.offset + tensor.nbytes
        if needed > end:
            raise ModelError(
                f"{path} is truncated or damaged: tensor {tensor.name!r:.80} of shape {list(tensor.shape)} needs "
                f"{needed} bytes of it, got {end}; download or copy it again"
            )


def check_layers(path: Path, layers: int, tensors: int) -> None:
    """Raises ModelError for more layers than tensors: libllama makes room for each before it looks for its weights."""
    if layers > tensors:
        raise ModelError(f"{path}: block_count must be at most {tensors}, the number of tensors, got {layers}")
