"""One token per row of a head: rows by what they need of their logits, and where their results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, by_program, taken
from tirage.backends.head.blocks import Head
from tirage.backends.head.candidates import Candidates, find
from tirage.backends.head.passes import RowBlocks
from tirage.backends.head.plan import Plan, plan
from tirage.backends.head.weighed import draw_weighed
from tirage.backends.numpy.dispatch import draw_rows
from tirage.backends.torch.arrays import borrowed, to_numpy
from tirage.backends.torch.dispatch import draw_on_device, kernels_for
from tirage.backends.torch.eager import NO_TOKEN, NON_FINITE, OK
from tirage.backends.torch.results import blank, write_rows
from tirage.backends.torch.rule import integers, values
from tirage.exact.keys import NEG_INF_KEY
from tirage.operators.row import Process
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata

_NONE, _NO_VALUES, _NO_MASKS = np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((0, 0), np.int32)


def draw(logits: Head, batch: SamplingBatch, mask: Tensor | NDArray[np.int32] | None) -> Drawn:
    """One token for each row of a head, as tensors where its hidden states are; `mask` int32 [B, ceil(V / 32)]."""
    rows = batch.metadata(to_numpy(mask) if isinstance(mask, Tensor) else mask)
    return draw_from_head(logits, rows, batch.processes)


def draw_from_head(head: Head, rows: SamplingMetadata, processes: Sequence[Process | None] | None = None) -> Drawn:
    """One token for each of `rows` [B] from a head of as many; `processes` are their custom processors, if any."""
    out = blank(rows, head.hidden)
    whole = []
    for group in by_program(rows, np.arange(rows.count)):
        how = plan(rows, group)
        whole += group.tolist() if how is None else _draw_group(out, head, rows, how)
    for some in head.batches(sorted(whole)):
        _draw_whole(out, head, rows, np.array(some), processes)
    return out


def _draw_whole(
    out: Drawn, head: Head, rows: SamplingMetadata, which: Ids, processes: Sequence[Process | None] | None
) -> None:
    """Draws the rows `which` from all of their logits."""
    some, part = None if processes is None else [processes[r] for r in which.tolist()], taken(rows, which)
    write_rows(out, _drawn(head.whole(which.tolist()), part, some), rows, which)
    rows.take_back(which, part)


def _drawn(logits: Tensor, rows: SamplingMetadata, processes: Sequence[Process | None] | None = None) -> Drawn:
    if logits.is_cpu:
        return draw_rows(borrowed(logits), rows, processes).moved(torch.from_numpy)
    return draw_on_device(logits, rows, processes, kernels=kernels_for(logits))


def _draw_group(out: Drawn, head: Head, rows: SamplingMetadata, how: Plan) -> list[int]:
    """Draws the rows of a plan block by block; those that have too many candidates are left, and returned."""
    blocks = RowBlocks.of(head, rows, how.which)
    read = blocks.read(how.most)
    status = torch.where(read.first > NEG_INF_KEY, OK, NO_TOKEN).masked_fill(read.bad, NON_FINITE)
    at = integers(how.which, out.token_ids)  # type: ignore[arg-type]
    out.status[at] = status.to(torch.int8)  # type: ignore[call-overload]
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((status != OK)[:, None], torch.nan)  # type: ignore[call-overload]
    good = np.flatnonzero(to_numpy(status) == OK)
    if not good.size:
        return []
    kept, read = how.of(good), read.of(integers(good, status))
    blocks = RowBlocks.of(head, rows, kept.which)
    if kept.first is None:
        draw_weighed(out, blocks, kept, read)
        return []
    found = find(blocks, kept, read)
    few = np.flatnonzero(found.few)
    if few.size:
        _draw_candidates(out, rows, kept.of(few), found.of(few))
    return kept.which[~found.few].tolist()


def _draw_candidates(out: Drawn, rows: SamplingMetadata, how: Plan, found: Candidates) -> None:
    """Draws rows from the tokens that their first filter left, in id order, as rows of a small vocabulary."""
    some = taken(rows, how.which)
    spared, start = _positions(some, found.ids)
    small = replace(
        some,
        programs=how.programs_of_candidates(),
        edit_ids=_NONE,
        edit_values=_NO_VALUES,
        count_start=np.zeros_like(some.count_start),
        count_ids=_NONE,
        prompt_counts=_NONE,
        output_counts=_NONE,
        masks=_NO_MASKS,
        checks=_NO_MASKS,
        protected_start=start,
        protected_ids=spared,
        memo={},
    )
    drawn = _drawn(torch.where(found.key > NEG_INF_KEY, values(found.key), -torch.inf), small)
    drawn.token_ids = found.ids.gather(1, drawn.token_ids[:, None])[:, 0]  # type: ignore[call-overload]
    write_rows(out, drawn, rows, how.which)


def _positions(rows: SamplingMetadata, ids: Tensor) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The columns of the protected ids of each row among its candidates `ids` [G, n], and where each row's begin."""
    if not rows.protected_ids.size:
        return _NONE, np.zeros(rows.count + 1, np.int64)
    each = []
    for r, have in enumerate(to_numpy(ids)):
        wanted = rows.protected_ids[rows.protected_start[r] : rows.protected_start[r + 1]]
        each.append(np.flatnonzero(np.isin(have, wanted)).astype(np.int32))
    return np.concatenate(each), np.cumsum([0, *map(len, each)]).astype(np.int64)
