"""Some of the rows of a batch, with their tables, and rows that run the same list of operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tirage.operators import END, Operation
from tirage.sampling_metadata import SamplingMetadata

Ids = NDArray[np.int64]


def taken(rows: SamplingMetadata, which: Ids) -> SamplingMetadata:
    """The metadata of the rows `which` [n], in this order, with their tables; edit ids keep their positions."""
    counted, count_start = _spans(rows.count_start, which)
    asked, asked_start = _spans(rows.asked_start, which)
    protected, protected_start = _spans(rows.protected_start, which)
    return replace(
        rows,
        programs=rows.programs[which],
        count_start=count_start,
        count_ids=rows.count_ids[counted],
        prompt_counts=rows.prompt_counts[counted],
        output_counts=rows.output_counts[counted],
        masks=rows.masks[which] if rows.masks.size else rows.masks,
        seeds=rows.seeds[which],
        steps=rows.steps[which],
        samples=rows.samples[which],
        views=rows.views[which],
        top_n=rows.top_n[which],
        asked_start=asked_start,
        asked_ids=rows.asked_ids[asked],
        protected_start=protected_start,
        protected_ids=rows.protected_ids[protected],
        checks=rows.checks[which] if rows.checks.size else rows.checks,
        resample=rows.resample[which],
        memo={},
        records=None if rows.records is None else rows.records.taken(which),
        chances=None if rows.chances is None else rows.chances[which],
    )


def asked_of(rows: SamplingMetadata, which: Ids) -> Ids:
    """Where in `asked_ids` the ids of the rows `which` [n] lie, [A], in the order of `taken`."""
    return _spans(rows.asked_start, which)[0]


def _spans(start: Ids, which: Ids) -> tuple[Ids, Ids]:
    """Positions that lie in the spans of the rows `which`, and where each of these spans starts when joined."""
    sizes = start[which + 1] - start[which]
    return ranges(start[which], start[which + 1])[1], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def ranges(start: Ids, stop: Ids) -> tuple[Ids, Ids]:
    """All positions of `start` [B] to `stop` [B] of each row, joined: (row of each position [n], position [n]).

    ranges([0, 5], [2, 6]) -> ([0, 0, 1], [0, 1, 5])
    """
    sizes = stop - start
    row = np.repeat(np.arange(sizes.size), sizes)
    within = np.arange(row.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return row, np.repeat(start, sizes) + within


def by_program(rows: SamplingMetadata, which: Ids) -> Iterator[Ids]:
    """The rows `which` [n], split into groups [m] that run the same operations."""
    ops = rows.programs[which, :, 0]
    if not which.size or (ops == ops[0]).all():
        yield from [which] if which.size else []
        return
    _, part = np.unique(ops, axis=0, return_inverse=True)
    for p in range(int(part.max()) + 1):
        yield which[part.reshape(-1) == p]


def has(rows: SamplingMetadata, op: Operation) -> NDArray[np.bool_]:
    """bool [B]: rows whose program holds `op`."""
    return (rows.programs[:, :, 0] == int(op)).any(axis=1)


def runs_only(rows: SamplingMetadata, ops: frozenset[Operation] | tuple[Operation, ...]) -> NDArray[np.bool_]:
    """bool [B]: rows whose program holds nothing but `ops`: how a backend tells what it can draw."""
    return np.asarray(_known(ops).take(rows.programs[:, :, 0], mode="clip").all(axis=1))


@cache
def _known(ops: frozenset[Operation] | tuple[Operation, ...]) -> NDArray[np.bool_]:
    """bool by code: whether it is one of `ops`, or the end; the last entry stands for all higher codes."""
    known = np.zeros(2 + max(ops, default=END), bool)
    known[[END, *ops]] = True
    return known
