"""Rows with custom processors, which need whole logits: these alone are gathered, and drawn by the first shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from tirage.backends import Drawn, Process, SamplingMetadata
from tirage.backends.numpy.dispatch import draw_rows
from tirage.backends.sharded.agreement import ShardLayout
from tirage.backends.sharded.communicate import Communicator
from tirage.backends.torch.eager import blank


def draw_whole(
    comm: Communicator,
    layout: ShardLayout,
    logits: Tensor,
    rows: SamplingMetadata,
    processes: Sequence[Process | None] | None,
) -> Drawn:
    """One token for each of `rows` from this shard's part [B, N] of their logits, the same on every shard; two rounds.

    The processors are called on the first shard only, so that shards agree whatever a processor returns.
    """
    matrix = gathered(comm, layout, logits)
    out = blank(rows, logits)
    if comm.rank == 0:
        out = draw_rows(matrix.cpu().numpy(), rows, processes).moved(lambda a: torch.from_numpy(a).to(logits.device))
    return _unpacked(comm.gather(_packed(out))[0], out)


def gathered(comm: Communicator, layout: ShardLayout, logits: Tensor) -> Tensor:
    """The whole logits [B, V], on every shard; each contributes what the widest of them holds, 4 bytes per logit."""
    widest = max(stop - start for start, stop in layout.bounds)
    start, stop = layout.bounds[comm.rank]
    mine = pad(logits[:, : stop - start], (0, widest + widest % 2 - (stop - start)))
    each = comm.gather(mine.contiguous().view(torch.int64)).view(torch.float32)
    spans = sorted((span, rank) for rank, span in enumerate(layout.bounds))
    return torch.cat([each[rank, :, : stop - start] for (start, stop), rank in spans], 1)


def _packed(drawn: Drawn) -> Tensor:
    """Every field in one list of int64, floats by their bits."""
    each = [getattr(drawn, f.name) for f in fields(Drawn)]
    bits = [values.view(torch.int32) if values.is_floating_point() else values for values in each]
    return torch.cat([values.reshape(-1).to(torch.int64) for values in bits])


def _unpacked(told: Tensor, like: Drawn) -> Drawn:
    """The Drawn that was packed; it has the shapes and dtypes of `like`."""
    shapes = [getattr(like, f.name) for f in fields(Drawn)]
    flat = told.split([values.numel() for values in shapes])
    return Drawn(*(_as(values, kind) for values, kind in zip(flat, shapes, strict=True)))  # type: ignore[arg-type]


def _as(values: Tensor, like: Tensor) -> Tensor:
    whole = values.to(torch.int32).view(torch.float32) if like.is_floating_point() else values.to(like.dtype)
    return whole.reshape(like.shape)
