"""Which path draws which row of a tensor: an operation that a path does not know sends the row to one that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from platforms import needs_triton
from random_rows import assert_same, expected_drawn, random_case

from tirage.backends import Drawn, SamplingMetadata
from tirage.backends.sharded.agreement import ShardLayout
from tirage.backends.sharded.communicators import ThreadGroup
from tirage.backends.sharded.shard_draw import draw_shard
from tirage.backends.torch import dispatch, eager, edits, filters
from tirage.backends.torch.dispatch import draw_on_device
from tirage.stages import Op

V = 57
UNKNOWN = 99


def whole(logits: NDArray[np.float32], rows: SamplingMetadata) -> Drawn:
    return draw_on_device(torch.from_numpy(logits), rows).moved(torch.Tensor.numpy)


def in_shards(logits: NDArray[np.float32], rows: SamplingMetadata) -> Drawn:
    group, layout = ThreadGroup(2), ShardLayout.of([(0, 20), (20, V)], V)

    def work(comm: Any) -> Callable[[], Drawn]:
        start, stop = layout.bounds[comm.rank]
        part = torch.from_numpy(logits[:, start:stop].copy())
        return lambda: draw_shard(comm, layout, part, rows)

    return group.run([work(comm) for comm in group.communicators()])[0].moved(torch.Tensor.numpy)


DRAWN_BY = {"whole rows": whole, "shards": in_shards}


def cases(op: Op) -> Iterator[tuple[NDArray[np.float32], SamplingMetadata]]:
    """Random rows of which some, not all, run `op`."""
    for seed in range(60):
        logits, rows = random_case(40_000 + seed, V)
        runs = (rows.programs[:, :, 0] == op).any(axis=1)
        if runs.any() and not runs.all():
            yield logits, rows


@pytest.mark.parametrize("path", DRAWN_BY)
@pytest.mark.parametrize(
    ("table", "op"),
    [*[(filters.STEPS, op) for op in (Op.GREEDY, Op.TOP_K, Op.TYPICAL)], (edits.STEPS, Op.SCALE)],
)
def test_an_operation_that_is_in_no_table_sends_its_rows_to_the_host(
    path: str, table: dict[int, Any], op: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(table, op)
    logits, rows = next(cases(op))
    assert eager.supports(rows).tolist() == (~(rows.programs[:, :, 0] == op).any(axis=1)).tolist()
    with np.errstate(all="ignore"):
        assert_same(expected_drawn(logits, rows), DRAWN_BY[path](logits, rows))


def test_a_row_that_the_tables_do_not_cover_would_fail_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(filters.STEPS, Op.TOP_K)
    monkeypatch.setattr(dispatch, "supports", lambda rows: np.ones(rows.count, bool))
    with pytest.raises(KeyError):
        whole(*next(cases(Op.TOP_K)))


def with_unknown(rows: SamplingMetadata, row: int) -> SamplingMetadata:
    """`rows`, of which one ends with an operation that exists nowhere."""
    rows.programs[row, -1, 0] = UNKNOWN
    return rows


def test_an_operation_that_nobody_has_heard_of_is_not_supported() -> None:
    rows = with_unknown(random_case(1, V)[1], 3)
    assert np.flatnonzero(~eager.supports(rows)).tolist() == [3]


@needs_triton
def test_triton_is_given_only_rows_whose_operations_its_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.backends.torch import kernels, triton

    known = {Op.END, *edits.STEPS, Op.GREEDY, Op.TEMPERATURE, Op.TOP_K, Op.TOP_P, Op.MIN_P}
    given: list[int] = []

    def draw_into(out: Drawn, logits: torch.Tensor, rows: SamplingMetadata, which: NDArray[np.int64]) -> None:
        given.extend(which.tolist())
        eager.draw_into(out, logits, rows, which)

    def given_to_triton(rows: SamplingMetadata, logits: NDArray[np.float32]) -> list[int]:
        given.clear()
        stand_in: Any = SimpleNamespace(supports=triton.supports, draw_into=draw_into)
        drawn = draw_on_device(torch.from_numpy(logits), rows, kernels=stand_in).moved(torch.Tensor.numpy)
        assert_same(expected_drawn(logits, rows), drawn)
        return given.copy()

    logits, rows = random_case(50_001, V, 40, reports=False)
    able = [row for row, ops in enumerate(rows.programs[:, :, 0].tolist()) if known.issuperset(ops)]
    with np.errstate(all="ignore"):
        assert 2 < len(able) < 38
        assert given_to_triton(rows, logits) == able
        monkeypatch.setattr(kernels, "FILTERS", tuple(op for op in kernels.FILTERS if op != Op.TOP_P))
        fewer = [row for row in able if Op.TOP_P not in rows.programs[row, :, 0]]
        assert len(fewer) < len(able)
        assert given_to_triton(rows, logits) == fewer
    assert not triton.supports(with_unknown(rows, able[0]))[able[0]]
