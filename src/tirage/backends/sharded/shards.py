"""Logits in shards, as `tirage.sample` takes them: one shard of a process group, or all shards of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from tirage.backends import find, known, type_name
from tirage.backends.sharded.agreement import ShardLayout, ShardShape, agree, digest, is_one_kind, refuse, share_seeds
from tirage.backends.sharded.communicators import ThreadGroup, communicator
from tirage.backends.sharded.shard_draw import draw_shard
from tirage.backends.torch.arrays import as_logits
from tirage.backends.torch.communicator import Communicator
from tirage.backends.torch.dispatch import kernels_for
from tirage.errors import ParamsError
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The logits that this process holds of rows whose vocabulary is spread over a process group.

    `logits`: torch tensor [B, n] or [n] of token ids start .. start + n - 1, n may be 0; `vocab_size` is V. `group`: a
    `torch.distributed` group (None: the default one) or a Communicator. Every process of the group passes its own
    Shard to `tirage.sample`, with the same params, history, step and mask (whole rows, [B, ceil(V / 32)]), and gets
    the same Draw, on the device of its logits; rows without a seed share a fresh one.

    What each process contributes, in bytes per row: entry 16; temperature and min-p 0; greedy 8; top-k 8 k up to
    k = 200, else 1664; top-p 520 where the 64 first tokens of every row suffice, else 2184; typical 1048; the draw 24;
    logprobs at most 32 + 8 top_n + 8 per asked id. Besides, 48 bytes per call and 8 per unseeded row;
    docs/sharding.md has the whole table, and that of shards on CUDA, which kernels draw. Logits are gathered for rows
    with custom processors alone, which the first process draws. What one process refuses, all do: each raises the same
    ParamsError, and the next call works.
    """

    logits: Any
    start: int
    vocab_size: int
    group: Any = None

    def ready(self) -> ReadyShard:
        """This shard, checked by itself; a ParamsError on every shard when its logits or its bounds are wrong."""
        comm = communicator(self.group)
        matrix, refusal = _checked(self.logits, self.start, self.vocab_size)
        if refusal is not None:
            refuse(comm, refusal, matrix)
        return ReadyShard(matrix, comm, self.start, _width(self.logits), self.vocab_size)


@dataclass(frozen=True, slots=True)
class ReadyShard:
    """A checked shard that has not talked to the others yet; `matrix` are its logits float32 [B, n]."""

    matrix: Tensor
    comm: Communicator
    start: int
    width: int
    vocab_size: int

    @property
    def shape(self) -> tuple[int, int]:
        """(B, V): whole rows."""
        return self.matrix.shape[0], self.vocab_size

    @property
    def like(self) -> Tensor:
        """A tensor, [B, n], where the results live."""
        return self.matrix

    def __getitem__(self, rows: Sequence[int]) -> ReadyShard:
        return replace(self, matrix=self.matrix[rows])

    def refuse(self, error: Exception) -> NoReturn:
        """Raise ParamsError for arguments that this shard refused, here and on the shards that wait for it."""
        refuse(self.comm, error, self.matrix)

    def draw(self, batch: SamplingBatch, mask: Any) -> Drawn:
        """One token per row, the same on every shard; `mask` int32 [B, ceil(V / 32)] is of whole rows, or None.

        ParamsError, on every shard, when one refuses its arguments or they do not fit together.
        """
        try:
            rows = batch.metadata(_words(mask))
            own = digest(rows, batch.unseeded, batch.asked())
        except Exception as error:
            self.refuse(error)
        size = self.matrix.shape[0]
        shape = ShardShape(
            rows=size,
            start=self.start,
            width=self.width,
            vocab_size=self.vocab_size,
            digest=own,
            architecture=architecture(self.matrix),
        )
        layout = agree(self.comm, shape, self.matrix)
        share_seeds(self.comm, rows, batch.unseeded, self.matrix)
        return draw_shard(self.comm, layout, self.matrix, rows, batch.processes)


@dataclass(frozen=True, slots=True)
class Shards:
    """All shards of some rows in one process: torch tensors, on one device or several, or NumPy arrays.

    `parts`: [B, n] or [n] each, in token-id order; widths may differ and may be 0. Each shard is drawn by a thread of
    its own; results live with the first one.
    """

    parts: Sequence[Any]

    def ready(self) -> ReadyShards:
        """The shards, checked; ParamsError for parts that are no logits, or whose numbers of rows differ."""
        if isinstance(self.parts, (str, bytes, dict)) or not isinstance(self.parts, Sequence) or not self.parts:
            raise ParamsError(f"parts must be a list of arrays, got {type_name(self.parts)}; list one per shard")
        tensors = [torch.from_numpy(_native(p)) if isinstance(p, np.ndarray) else p for p in self.parts]
        widths = [_width(tensor) for tensor in tensors]
        ends = np.cumsum(widths).tolist()
        size = ends[-1]
        matrices = []
        for tensor, width, end in zip(tensors, widths, ends, strict=True):
            matrix, refusal = _checked(tensor, end - width, size)
            if refusal is not None:
                raise refusal
            matrices.append(matrix)
        counts = [matrix.shape[0] for matrix in matrices]
        if len(set(counts)) > 1:
            raise ParamsError(f"parts must have the same number of rows, got {counts}")
        bounds = [(end - width, end) for width, end in zip(widths, ends, strict=True)]
        return ReadyShards(parts=tuple(matrices), layout=ShardLayout.of(bounds, size), first=self.parts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyShards:
    """All shards, `parts` float32 [B, n] each; `first` is the first as the caller gave it."""

    parts: tuple[Tensor, ...]
    layout: ShardLayout
    first: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(B, V): whole rows."""
        return self.parts[0].shape[0], self.layout.vocab_size

    @property
    def like(self) -> Any:
        """An array, [B, n] or [n], where the results live."""
        return self.first

    def __getitem__(self, rows: Sequence[int]) -> ReadyShards:
        return replace(self, parts=tuple(part[rows] for part in self.parts))

    def draw(self, batch: SamplingBatch, mask: Any) -> Drawn:
        """One token per row; `mask` int32 [B, ceil(V / 32)] is of whole rows, or None."""
        rows = batch.metadata(_words(mask))
        group = ThreadGroup(len(self.parts))
        layout = replace(self.layout, has_kernels=is_one_kind([architecture(part) for part in self.parts]))
        work = [
            partial(draw_shard, comm, layout, part, rows, batch.processes)
            for comm, part in zip(group.communicators(), self.parts, strict=True)
        ]
        drawn = group.run(work)[0]
        return drawn.moved(lambda tensor: tensor.cpu().numpy()) if isinstance(self.first, np.ndarray) else drawn


def architecture(logits: Tensor) -> int:
    """A number above 1 of the kind of GPU that logits [B, n] lie on, 0 where the Triton kernels do not run."""
    if kernels_for(logits) is None:
        return 0
    major, minor = torch.cuda.get_device_capability(logits.device) if logits.is_cuda else (1, 0)
    return 10 * major + minor


def _checked(logits: Any, start: int, vocab_size: int) -> tuple[Tensor, ParamsError | None]:
    """The logits as float32 [B, n] (one column of -inf in place of none), or a stand-in and why they are refused."""
    try:
        for value, name in ((start, "start"), (vocab_size, "vocab_size")):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ParamsError(f"{name} must be a whole number of at least 0, got {value!r}")
        return as_logits(_with_a_column(logits)), None
    except ParamsError as error:
        return torch.zeros(1, 1), error


def _with_a_column(logits: Any) -> Any:
    if isinstance(logits, Tensor) and logits.ndim in {1, 2} and logits.shape[-1] == 0:
        return logits.new_full((*logits.shape[:-1], 1), -torch.inf)
    return logits


def _width(logits: Any) -> int:
    return logits.shape[-1] if isinstance(logits, Tensor) and logits.ndim else 0


def _native(array: np.ndarray) -> np.ndarray:
    """A NumPy array that torch can share: bfloat16 widened, strides positive."""
    wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return np.ascontiguousarray(wide)


def _words(mask: Any) -> Any:
    return None if mask is None else (find(mask).to_numpy(mask) if known(mask) else mask)
