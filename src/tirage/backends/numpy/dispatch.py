"""Which NumPy path draws which row: Numba kernels once they are compiled, plain NumPy until then and for the rest.

Both give the same bits, so the choice can be made row by row and call by call, and nobody can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy import distribution, kernels
from tirage.operators.row import Process
from tirage.operators.temperature import GREEDY
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.token_records import TokenRecords

WORTH_COMPILING = 1 << 22
"""Logits drawn by the plain path after which kernels are made ready in the background: about 30 rows of 128k.

A short run over a small vocabulary ends sooner than a compile would.
"""

_plain_work = 0


def draw(logits: NDArray[np.float32], batch: SamplingBatch, mask: NDArray[np.int32] | None) -> Drawn:
    """One token for each row of float32 logits [B, V]."""
    return draw_rows(logits, batch.metadata(mask), batch.processes)


def draw_rows(
    logits: NDArray[np.float32], rows: SamplingMetadata, processes: Sequence[Process | None] | None = None
) -> Drawn:
    """One token for each row of logits [B, V]; `processes` are the rows' custom processors, if any."""
    if not kernels.ready():
        _count_plain_work(logits.size)
        return distribution.draw(logits, rows, Drawn.empty(rows), processes=processes)
    if "left" not in rows.memo:
        rows.memo["left"] = np.flatnonzero(~kernels.supports(rows))
    left = rows.memo["left"]
    if left.size == rows.count:
        return distribution.draw(logits, rows, Drawn.empty(rows), processes=processes)
    part = _without(rows, left)
    out = kernels.draw(logits, part)
    if part.records is not None and rows.records is not None and part.records is not rows.records:
        rows.records.fill(np.arange(rows.count), part.records)
    return distribution.draw(logits, rows, out, which=left, processes=processes)


def law(logits: NDArray[np.float32], batch: SamplingBatch, mask: NDArray[np.int32] | None) -> NDArray[np.float64]:
    """The law of each row of float32 logits [B, V], float64 [B, V]; NaN for rows that draw nothing."""
    return law_rows(logits, batch.metadata(mask), batch.processes)


def law_rows(
    logits: NDArray[np.float32], rows: SamplingMetadata, processes: Sequence[Process | None] | None = None
) -> NDArray[np.float64]:
    """The law of each row of packed `rows`, float64 [B, V]; arguments as `draw_rows` takes them."""
    out = np.zeros(logits.shape)
    left = np.arange(rows.count)
    if kernels.law_ready():
        rows = replace(rows, views=np.zeros_like(rows.views), memo={}, records=None)
        left = np.flatnonzero(~kernels.supports(rows))
        kernels.law(logits, _without(rows, left), out)
    else:
        _count_plain_work(logits.size)
    for r in left.tolist():
        process = None if processes is None else processes[r]
        out[r] = distribution.outcome(distribution.request_of(logits, rows, r, process)).law()
    return out


def _without(rows: SamplingMetadata, left: NDArray[np.int64]) -> SamplingMetadata:
    """`rows` with those that are `left` to the plain path made greedy: one cheap pass, overwritten afterwards."""
    if not left.size:
        return rows
    programs = rows.programs.copy()
    programs[left] = 0
    programs[left, 0, 0] = GREEDY
    records = rows.records
    if records is not None:
        # Those rows leave their own records.
        limits = records.limits.copy()
        limits[left] = 0
        records = TokenRecords.of(limits)
    return replace(rows, programs=programs, records=records)


def _count_plain_work(size: int) -> None:
    global _plain_work
    _plain_work += size
    if _plain_work >= WORTH_COMPILING:
        kernels.start()
