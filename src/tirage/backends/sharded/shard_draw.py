"""One shard's draw: by kernels or tensor operations on its own columns, or of gathered logits for what neither runs.

Gathered are rows with custom processors, which need whole logits, and with operations that neither path knows; the
first shard draws them on the host, so that all agree whatever a processor returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from tirage.backends.groups import Ids, taken
from tirage.backends.sharded.agreement import ShardLayout
from tirage.backends.sharded.local_ids import localised
from tirage.backends.torch.communicator import Communicator
from tirage.backends.torch.dispatch import draw_on_host
from tirage.backends.torch.eager import draw_into, supports
from tirage.backends.torch.results import blank, write_rows
from tirage.backends.torch.rule import integers
from tirage.operators.row import Process
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.token_records import TokenRecords


def draw_shard(
    comm: Communicator,
    layout: ShardLayout,
    logits: Tensor,
    rows: SamplingMetadata,
    processes: Sequence[Process | None] | None = None,
) -> Drawn:
    """One token for each of `rows`, the same on every shard, from this shard's float32 logits [B, N].

    N is 1, at -inf, for an empty shard. `processes` are the custom processors of the rows, if any has some.
    """
    out, own = blank(rows, logits), localised(rows, *layout.bounds[comm.rank])
    fast = _draw_by_kernels(out, logits, rows, own, comm, layout) if layout.has_kernels else np.zeros(rows.count, bool)
    able = supports(rows) & ~fast
    if not (able | fast).all():
        which = np.flatnonzero(~(able | fast))
        part = logits[integers(which, logits)]
        write_rows(out, _draw_gathered(comm, layout, part, rows, which, processes), rows, which)
    if able.any():
        draw_into(out, logits, own, np.flatnonzero(able), shard=layout.shard(comm))
    return out


def _draw_by_kernels(
    out: Drawn, logits: Tensor, rows: SamplingMetadata, own: SamplingMetadata, comm: Communicator, layout: ShardLayout
) -> NDArray[np.bool_]:
    """bool [B]: the rows that the Triton kernels draw of shards, which are drawn into `out`; `own` are `rows` here."""
    from tirage.backends.torch import triton_shards

    able = triton_shards.supports(rows)
    if able.any():
        triton_shards.draw_into(out, logits, rows, own, np.flatnonzero(able), comm=comm, bounds=layout.bounds)
    return able


def _draw_gathered(
    comm: Communicator,
    layout: ShardLayout,
    logits: Tensor,
    rows: SamplingMetadata,
    which: Ids,
    processes: Sequence[Process | None] | None,
) -> Drawn:
    """One token for each of the rows `which` [n], from this shard's part [n, N] of their logits. Two rounds."""
    matrix = gathered(comm, layout, logits)
    out = blank(taken(rows, which), logits)
    if comm.rank == 0:
        out = draw_on_host(matrix, rows, which, processes)
    if rows.records is not None:
        _share_records(comm, rows.records, which, matrix)
    if rows.chances is not None:
        bits = integers(rows.chances[which].view(np.int64), matrix)
        rows.chances[which] = comm.gather(bits)[0].cpu().numpy().view(np.float64)
    return _unpacked(comm.gather(_packed(out))[0], out)


def _share_records(comm: Communicator, records: TokenRecords, which: Ids, like: Tensor) -> None:
    """Give every shard the records of the rows `which` [n] that the first one drew. Two rounds."""
    sizes = integers(np.array([records.kept[row].size for row in which.tolist()], np.int64), like)
    sizes = comm.gather(sizes)[0].tolist()
    widest = max(sizes, default=0)
    mine = np.zeros((which.size, widest + 3), np.int64)
    for at, row in enumerate(which.tolist()):
        numbers = np.array([records.logmass[row], records.raw[row], records.processed[row]], np.float32)
        kept = records.kept[row][:widest]
        mine[at, : kept.size], mine[at, widest:] = kept, numbers.view(np.int32)
    for row, size, found in zip(which.tolist(), sizes, comm.gather(integers(mine, like))[0].cpu().numpy(), strict=True):
        logmass, raw, processed = found[widest:].astype(np.int32).view(np.float32)
        records.put(row, kept=found[:size].astype(np.int32), logmass=logmass, raw=raw, processed=processed)


def gathered(comm: Communicator, layout: ShardLayout, logits: Tensor) -> Tensor:
    """The whole logits float32 [B, V], on every shard, from each one's [B, N].

    One round; each contributes what the widest of them holds, 4 bytes per logit.
    """
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


def _unpacked(packed: Tensor, like: Drawn) -> Drawn:
    """The Drawn that was packed; it has the shapes and dtypes of `like`."""
    shapes = [getattr(like, f.name) for f in fields(Drawn)]
    flat = packed.split([values.numel() for values in shapes])
    return Drawn(*(_as(values, kind) for values, kind in zip(flat, shapes, strict=True)))  # type: ignore[arg-type]


def _as(values: Tensor, like: Tensor) -> Tensor:
    whole = values.to(torch.int32).view(torch.float32) if like.is_floating_point() else values.to(like.dtype)
    return whole.reshape(like.shape)
