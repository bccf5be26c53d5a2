"""Where the tokens of a row lie: all of them here, or spread over shards that talk through a communicator.

Every filter, the draw and the report are written once, over a communicator. The local one answers with its own
argument, so whole rows are a group of one shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Communicator(Protocol):
    """The collectives that shards need. Every shard calls the same methods in the same order with equal shapes.

    `values` are int64 tensors of any shape on the shard's device; results live there too.
    """

    @property
    def rank(self) -> int:
        """Which of the shards this is, in [0, size)."""
        ...

    @property
    def size(self) -> int:
        """How many shards there are."""
        ...

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over shards, same shape."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over shards, same shape."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """The values of every shard, stacked by rank: [size, ...]."""
        ...


class LocalComm:
    """The communicator of a single shard: nothing is sent or copied."""

    __slots__ = ()
    rank = 0
    size = 1

    def max(self, values: Tensor) -> Tensor:
        """`values`, any shape."""
        return values

    def sum(self, values: Tensor) -> Tensor:
        """`values`, any shape."""
        return values

    def gather(self, values: Tensor) -> Tensor:
        """`values`, any shape, with a leading axis of 1."""
        return values[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabShard:
    """The token ids that one process holds: from `start` on, as many as its logits have columns.

    `lower` are the ranks whose tokens have lower ids.
    """

    comm: Communicator
    start: int = 0
    lower: tuple[int, ...] = ()

    def ids(self, like: Tensor) -> Tensor:
        """Token ids of the columns of `like` [G, N], int64 [N] on its device."""
        return torch.arange(self.start, self.start + like.shape[1], device=like.device)


WHOLE = VocabShard(comm=LocalComm())
"""The whole vocabulary in one place."""
