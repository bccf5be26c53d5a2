"""A Drawn of tensors: blank to begin with, then filled row by row."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, asked_of
from tirage.backends.torch.communicator import VocabShard
from tirage.backends.torch.rule import integers
from tirage.sampling_metadata import Drawn, SamplingMetadata


def blank(rows: SamplingMetadata, like: Tensor) -> Drawn:
    """A Drawn of tensors where `like` (any shape) lives, filled with the sentinels of rows that asked for nothing."""
    return Drawn.empty(rows).moved(lambda array: torch.from_numpy(array).to(like.device))


def write_rows(out: Drawn, drawn: Drawn, rows: SamplingMetadata, which: Ids) -> None:
    """Put `drawn`, a Drawn of the rows `which` [n] alone, into their places in `out`."""
    status: Any = out.status
    at = integers(which, status)
    n = drawn.top_ids.shape[1]
    for f in fields(Drawn):
        value, target = getattr(drawn, f.name), getattr(out, f.name)
        if f.name == "asked_logprobs":
            target[integers(asked_of(rows, which), target)] = value
        elif f.name in {"top_ids", "top_logprobs"}:
            target[at, :n] = value
        else:
            target[at] = value
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((out.status[at] != 0)[:, None], torch.nan)


def gathered_ids(shard: VocabShard, held: Tensor, widest: int) -> list[NDArray[np.int32]]:
    """Of each row the ids int32 [n], ascending, of the tokens that any shard `held` bool [G, N], at most `widest`.

    The same on every shard. One round.
    """
    row, column = torch.nonzero(held, as_tuple=True)
    counts = held.sum(1)
    within = torch.arange(row.numel(), device=row.device) - (counts.cumsum(0) - counts)[row]
    ids = torch.full((held.shape[0], max(widest, 1)), -1, dtype=torch.int64, device=row.device)
    ids[row, within] = column + shard.start
    each = shard.comm.gather(ids).transpose(0, 1).reshape(held.shape[0], -1).cpu().numpy()
    return [np.sort(found[found >= 0]).astype(np.int32) for found in each]
