"""How shards talk: three collectives on small int64 tensors, over any transport.

Everything that crosses between shards is an integer of a row, a threshold or a candidate; logits only of rows that need
them whole (`whole`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from tirage.backends import type_name
from tirage.errors import ParamsError

BYTES = 8
"""Bytes of one int64."""


@runtime_checkable
class Communicator(Protocol):
    """What shards need of each other. Every shard calls the same methods in the same order with equal shapes.

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


def communicator(group: Any = None) -> Communicator:
    """`group` as a Communicator: one already, a `torch.distributed` group, or None for the default group."""
    if isinstance(group, Communicator):
        return group
    return Distributed(group)


class Distributed:
    """A `torch.distributed` process group (None: the default one); gloo carries tensors of any device over the host."""

    __slots__ = ("_group", "_home", "rank", "size")

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ParamsError(
                "group must be a process group or a Communicator, got None without a default group; "
                "call torch.distributed.init_process_group first"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ParamsError(f"group must be a torch.distributed group or a Communicator, got {type_name(group)}")
        self._group = group
        self._home = {"gloo": "cpu", "nccl": "cuda"}.get(dist.get_backend(group))
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ParamsError("group must contain this process, got a group without it; call from its members only")

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over shards, same shape."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over shards, same shape."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def gather(self, values: Tensor) -> Tensor:
        """The values of every shard, stacked by rank: [size, ...]."""
        mine = self._carried(values)
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(theirs, mine, group=self._group)
        return torch.stack(theirs).to(values.device)

    def _reduced(self, values: Tensor, op: Any) -> Tensor:
        carried = self._carried(values)
        dist.all_reduce(carried, op, group=self._group)
        return carried.to(values.device)

    def _carried(self, values: Tensor) -> Tensor:
        """A private contiguous copy where the transport wants it."""
        return values.to(self._home or values.device, copy=True).contiguous()


class Table:
    """Where shards of one process meet: a seat per shard, and a barrier that breaks when one of them fails."""

    __slots__ = ("barrier", "seats")

    def __init__(self, size: int) -> None:
        self.seats: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def communicators(self) -> list[Communicator]:
        """One Communicator per shard, for one thread each."""
        return [Seat(self, rank) for rank in range(len(self.seats))]

    def run(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each shard's `work` returns, by rank; the error of the lowest rank that failed of itself, if any did."""
        found: list[Any] = [None] * len(work)
        failed: dict[int, BaseException] = {}

        def turn(rank: int) -> None:
            try:
                found[rank] = work[rank]()
            except threading.BrokenBarrierError:
                return
            except BaseException as error:
                failed[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=turn, args=(rank,), daemon=True) for rank in range(1, len(work))]
        for thread in threads:
            thread.start()
        turn(0)
        for thread in threads:
            thread.join()
        if failed:
            raise failed[min(failed)]
        return found


class Seat:
    """One shard's place at a Table."""

    __slots__ = ("_table", "rank", "size")

    def __init__(self, table: Table, rank: int) -> None:
        self._table = table
        self.rank = rank
        self.size = len(table.seats)

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over shards, same shape."""
        return self.gather(values).amax(0)

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over shards, same shape."""
        return self.gather(values).sum(0)

    def gather(self, values: Tensor) -> Tensor:
        """The values of every shard, stacked by rank: [size, ...]."""
        table = self._table
        table.seats[self.rank] = values
        table.barrier.wait()
        together = torch.stack([theirs.to(values.device) for theirs in table.seats])
        # Nobody may sit down again before all have looked.
        table.barrier.wait()
        return together


class Metered:
    """A Communicator that passes everything on to another and counts it.

    `rounds`: collectives so far; `sent`: bytes that this shard contributed to them. On the wire a ring moves
    2 (n - 1) / n of that for max and sum, and n - 1 times it for gather.
    """

    __slots__ = ("_inner", "rounds", "sent")

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner
        self.rounds = 0
        self.sent = 0

    @property
    def rank(self) -> int:
        """Which of the shards this is, in [0, size)."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """How many shards there are."""
        return self._inner.size

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over shards, same shape."""
        return self._inner.max(self._counted(values))

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over shards, same shape."""
        return self._inner.sum(self._counted(values))

    def gather(self, values: Tensor) -> Tensor:
        """The values of every shard, stacked by rank: [size, ...]."""
        return self._inner.gather(self._counted(values))

    def _counted(self, values: Tensor) -> Tensor:
        self.rounds += 1
        self.sent += values.numel() * BYTES
        return values
