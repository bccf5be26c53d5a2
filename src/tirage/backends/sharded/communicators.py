"""How shards talk: three collectives on small int64 tensors, over processes, threads, or any other transport.

What crosses between shards are integers of a row, thresholds and candidates; logits only of rows that need them whole
(`shard_draw`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tirage.backends import type_name
from tirage.backends.torch.communicator import Communicator
from tirage.errors import ParamsError

BYTES = 8
"""Bytes of one int64."""


def communicator(group: Any = None) -> Communicator:
    """`group` as a Communicator: one already, a `torch.distributed` group, or None for the default group.

    ParamsError for anything else, and when there is no default group.
    """
    if isinstance(group, Communicator):
        return group
    return Distributed(group)


class Distributed:
    """A `torch.distributed` process group (None: the default one); gloo carries tensors of any device over the host.

    ParamsError when torch.distributed has no such group, or this process is not in it.
    """

    __slots__ = ("_device", "_group", "rank", "size")

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ParamsError(
                "group must be a process group or a Communicator, got None without a default group; "
                "call torch.distributed.init_process_group first"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ParamsError(f"group must be a torch.distributed group or a Communicator, got {type_name(group)}")
        self._group = group
        self._device = {"gloo": "cpu", "nccl": "cuda"}.get(dist.get_backend(group))
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
        mine = self._sendable(values)
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(theirs, mine, group=self._group)
        return torch.stack(theirs).to(values.device)

    def _reduced(self, values: Tensor, op: Any) -> Tensor:
        reduced = self._sendable(values)
        dist.all_reduce(reduced, op, group=self._group)
        return reduced.to(values.device)

    def _sendable(self, values: Tensor) -> Tensor:
        """A private contiguous copy where the transport wants it."""
        return values.to(self._device or values.device, copy=True).contiguous()


class ThreadGroup:
    """Shards of one process, each a thread of its own: where their values meet, and a barrier that breaks when one
    of them fails."""

    __slots__ = ("barrier", "values")

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def communicators(self) -> list[Communicator]:
        """One Communicator per shard, for one thread each."""
        return [ThreadComm(self, rank) for rank in range(len(self.values))]

    def run(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each shard's `work` returns, by rank; the error of the lowest rank that failed by itself, if any did."""
        found: list[Any] = [None] * len(work)
        failed: dict[int, BaseException] = {}

        def run_one(rank: int) -> None:
            try:
                found[rank] = work[rank]()
            except threading.BrokenBarrierError:
                return
            except BaseException as error:
                failed[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=run_one, args=(rank,), daemon=True) for rank in range(1, len(work))]
        for thread in threads:
            thread.start()
        run_one(0)
        for thread in threads:
            thread.join()
        if failed:
            raise failed[min(failed)]
        return found


class ThreadComm:
    """The communicator of one shard of a ThreadGroup."""

    __slots__ = ("_group", "rank", "size")

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = len(group.values)

    def max(self, values: Tensor) -> Tensor:
        """The elementwise maximum over shards, same shape."""
        return self.gather(values).amax(0)

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over shards, same shape."""
        return self.gather(values).sum(0)

    def gather(self, values: Tensor) -> Tensor:
        """The values of every shard, stacked by rank: [size, ...]."""
        group = self._group
        group.values[self.rank] = values
        group.barrier.wait()
        together = torch.stack([theirs.to(values.device) for theirs in group.values])
        # Nobody may put down the next values before all have read these.
        group.barrier.wait()
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
