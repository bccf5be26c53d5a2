"""Which path draws which row of a tensor: an operation that a path does not know sends the row to one that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from platforms import needs_triton
from random_rows import assert_same, expected_drawn, random_case

from tirage.backends.sharded.agreement import ShardLayout
from tirage.backends.sharded.communicators import ThreadGroup
from tirage.backends.sharded.shard_draw import draw_shard
from tirage.backends.torch import dispatch, eager, edits, filters
from tirage.backends.torch.dispatch import draw_on_device
from tirage.backends.torch.plan import smooths_last
from tirage.operators import END, FIRST_FILTER, OPERATIONS, Operation
from tirage.operators.operator import keep_by_weight
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH
from tirage.operators.temperature import GREEDY
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.sampling_metadata import Drawn, SamplingMetadata

V = 57


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


def cases(op: Operation) -> Iterator[tuple[NDArray[np.float32], SamplingMetadata]]:
    """Random rows of which some, not all, run `op`."""
    for seed in range(60):
        logits, rows = random_case(40_000 + seed, V)
        runs = (rows.programs[:, :, 0] == op).any(axis=1)
        if runs.any() and not runs.all():
            yield logits, rows


@pytest.mark.parametrize("path", DRAWN_BY)
@pytest.mark.parametrize(
    ("table", "op"),
    [*[(filters.STEPS, op) for op in (GREEDY, TOP_K, TYPICAL)], (edits.STEPS, SCALE)],
)
def test_an_operation_that_is_in_no_table_sends_its_rows_to_the_host(
    path: str, table: dict[Operation, Any], op: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(table, op)
    logits, rows = next(cases(op))
    assert eager.supports(rows).tolist() == (~(rows.programs[:, :, 0] == op).any(axis=1)).tolist()
    with np.errstate(all="ignore"):
        assert_same(expected_drawn(logits, rows), DRAWN_BY[path](logits, rows))


def test_a_row_that_the_tables_do_not_cover_would_fail_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(filters.STEPS, TOP_K)
    monkeypatch.setattr(dispatch, "supports", lambda rows: np.ones(rows.count, bool))
    with pytest.raises(KeyError):
        whole(*next(cases(TOP_K)))


@pytest.fixture
def unheard_of() -> Iterator[Operation]:
    """An operation that has its plain rule and nothing else."""
    op = Operation("EVEN", run=lambda row, step: row.keep((row.ids % 2 == 0) | row.is_top()))
    yield op
    del OPERATIONS[op]


@pytest.fixture
def by_weight() -> Iterator[Operation]:
    """A filter that keeps what weighs at least half of the largest."""
    op = Operation("HALF", run=keep_by_weight, weight_bound=lambda operands, total, largest: max(largest // 2, 1))
    yield op
    del OPERATIONS[op]


def with_filter(op: Operation, rows: SamplingMetadata, some: list[int]) -> SamplingMetadata:
    """`rows`, of which `some` run `op` before their other filters."""
    programs = np.pad(rows.programs, ((0, 0), (0, 1), (0, 0)))
    for row in some:
        ops = rows.programs[row, :, 0]
        at = np.argmax((ops == END) | (ops >= FIRST_FILTER))
        programs[row, at + 1 :], programs[row, at] = rows.programs[row, at:], [op, 0, 0, 0, 0, 0]
    return replace(rows, programs=programs)


@pytest.mark.slow
@pytest.mark.parametrize("path", DRAWN_BY)
def test_an_operation_that_has_only_its_plain_rule_is_drawn_right(path: str, unheard_of: Operation) -> None:
    felt = 0
    for seed in range(6):
        logits, rows = random_case(60_000 + seed, V)
        changed = with_filter(unheard_of, rows, [1, 3, 4, 6])
        assert np.flatnonzero(~eager.supports(changed)).tolist() == [1, 3, 4, 6]
        with np.errstate(all="ignore"):
            expected = expected_drawn(logits, changed)
            felt += expected.support.tolist() != expected_drawn(logits, rows).support.tolist()
            assert_same(expected, DRAWN_BY[path](logits, changed))
    assert felt >= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", DRAWN_BY)
def test_a_filter_by_weight_needs_no_step_of_its_own(
    path: str, by_weight: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(filters.STEPS, by_weight, filters._by_weight(by_weight))
    for seed in range(6):
        logits, rows = random_case(70_000 + seed, V)
        changed = with_filter(by_weight, rows, [0, 2, 5])
        assert eager.supports(changed).all()
        with np.errstate(all="ignore"):
            assert_same(expected_drawn(logits, changed), DRAWN_BY[path](logits, changed))


@pytest.mark.slow
@needs_triton
def test_triton_is_given_only_rows_whose_operations_its_kernels_run(
    unheard_of: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirage.backends.torch import triton

    known = {END, *edits.STEPS, SMOOTH, *triton.SETS}
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
    in_order = smooths_last(rows.programs)
    able = [row for row, ops in enumerate(rows.programs[:, :, 0].tolist()) if known.issuperset(ops) and in_order[row]]
    with np.errstate(all="ignore"):
        assert len(able) > 2
        assert given_to_triton(rows, logits) == able
        monkeypatch.setattr(triton, "SETS", tuple(op for op in triton.SETS if op != TOP_P))
        fewer = [row for row in able if TOP_P not in rows.programs[row, :, 0]]
        assert len(fewer) < len(able)
        assert given_to_triton(rows, logits) == fewer
        assert given_to_triton(with_filter(unheard_of, rows, fewer[:2]), logits) == fewer[2:]
