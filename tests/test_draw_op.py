"""The draw as an operator of PyTorch's: checked by PyTorch, compiled whole, and compiled once for all batch sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from kernel_keys import kernel_keys
from platforms import needs_triton
from test_batch_torch import EVERYTHING, PLAIN, V, batch_of, logits
from torch._dynamo.testing import CompileCounterWithBackend

import tirage
from tirage.backends.torch import draw_op
from tirage.backends.torch.device.row_form import form_of
from tirage.backends.torch.plan import (
    AS_SET,
    BY_PASSES,
    COUNTS,
    FILTERS,
    HEADER,
    IS_GREEDY,
    LISTS,
    MARKS,
    ORDERS,
    DrawPlan,
    can_run,
    listed,
)
from tirage.history import History
from tirage.operators.logit_bias import ADD
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P
from tirage.operators.operator import Operation
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, GREEDY, TEMPERATURE
from tirage.operators.top_h import TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import XTC, XTC_TIES_KEPT
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch, SamplingRow


def arguments(rows: int, params: tirage.SamplingParams = PLAIN) -> tuple[Any, ...]:
    """What the operator takes, for so many rows of logits [B, V]."""
    batch = SamplingBatch.of(row_states((rows, V), params, [((), ())] * rows, None, 0), V)
    plan = DrawPlan.of(batch.metadata(None))
    bad = torch.arange(rows) == 1
    return logits(3, rows), bad, torch.from_numpy(plan.meta), *plan.needs.values()


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("params", [PLAIN, tirage.SamplingParams(typical_p=0.5, top_h=0.5, seed=3)])
def test_pytorch_finds_nothing_wrong_with_the_operator(rows: int, params: tirage.SamplingParams) -> None:
    x, bad, *others = arguments(rows, params)
    # Rows without a token have NaN, which it takes for a difference.
    found = torch.library.opcheck(torch.ops.tirage.draw.default, (x, torch.zeros_like(bad), *others))
    assert set(found.values()) == {"SUCCESS"}


def test_the_operator_draws_what_sample_draws() -> None:
    given = arguments(5)
    token, logprob, support, status = torch.ops.tirage.draw(*given)
    drawn = tirage.sample(given[0], PLAIN, step=0)
    good = ~given[1]
    assert torch.equal(token[good], drawn.token_ids[good])
    assert torch.equal(logprob[good], drawn.sampled_logprobs[good])
    assert torch.equal(support[good], drawn.support_sizes[good])
    assert (token[1], support[1], status[1]) == (-1, 0, 1)
    assert status[good].tolist() == [0] * 4
    assert torch.isnan(logprob[1])


def steps(backend: str, draw: Callable[..., Any] | None = None) -> tuple[list[list[int]], list[list[int]], int]:
    """(tokens of twenty steps drawn by a compiled function, by a batch, and how often PyTorch compiled)."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend(backend)
    rows = batch_of(EVERYTHING, PLAIN, history_capacity=64).device_rows()
    alone = batch_of(EVERYTHING, PLAIN)
    compiled = torch.compile(rows.step, fullgraph=True, backend=counter)
    tokens, expected = [], []
    for step in range(20):
        tokens.append(compiled(logits(step))[0].tolist())
        drawn = alone.sample(logits(step))
        alone.advance(drawn)
        expected.append(drawn.token_ids.tolist())
    return tokens, expected, counter.frame_count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_a_step_is_compiled_whole_and_once_and_draws_the_same(backend: str) -> None:
    tokens, expected, compiled = steps(backend)
    assert tokens == expected
    assert len({tuple(each) for each in tokens}) > 10
    assert compiled == 1


@pytest.mark.slow
def test_another_batch_size_compiles_nothing_new() -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def draw(x: torch.Tensor, bad: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
        return draw_op.draw(x * 2.0, bad, meta, draws=True, filters=True, sums=True)[0]

    for rows in (3, 2, 7, 64, 5):
        x, bad, meta, *_ = arguments(rows)
        expected = torch.where(bad, -1, tirage.sample(x * 2.0, PLAIN, step=0).token_ids)
        assert torch.equal(draw(x, bad, meta), expected)
        assert counter.frame_count == 1


@needs_triton
def test_the_kernels_run_the_filters_that_rows_on_a_device_may_have() -> None:
    from tirage.backends.torch import kernels

    assert kernels.FILTERS == FILTERS


LISTED = DYNAMIC_TEMPERATURE_LISTED


@pytest.mark.parametrize(
    ("ops", "runs", "counted"),
    [
        ((TEMPERATURE, TOP_K, TEMPERATURE), True, 0),
        ((TOP_K, TEMPERATURE, TEMPERATURE), False, 0),
        ((DYNAMIC_TEMPERATURE, MIN_P), True, 0),
        ((TEMPERATURE, DYNAMIC_TEMPERATURE), False, 0),
        ((DYNAMIC_TEMPERATURE, LISTED), False, 0),
        ((TOP_N_SIGMA, DYNAMIC_TEMPERATURE), True, 0),
        ((LISTED,), True, (1 << 31) - 1),
        ((ADD, LISTED), True, (1 << 31) - 1),
        ((TOP_K, LISTED), True, 7),
        ((ADD, TOP_K, LISTED), True, 7),
        ((TOP_K, MIN_P, LISTED), True, 0),
        ((MIN_P, TOP_K, LISTED), False, 7),
        ((TOP_N_SIGMA, LISTED), False, 0),
        ((FLOORED[MIN_P], LISTED), False, 0),
        ((ADD, TOP_K, MIN_P, XTC), True, 0),
        ((DYNAMIC_TEMPERATURE, XTC_TIES_KEPT), True, 0),
        ((XTC, TEMPERATURE), True, 0),
        ((XTC, TEMPERATURE, MIN_P), False, 0),
        ((TOP_K, XTC, DYNAMIC_TEMPERATURE), False, 0),
        ((XTC, GREEDY), False, 0),
        ((TOP_H, DYNAMIC_TEMPERATURE), True, 0),
        ((TOP_H, TOP_P, XTC), True, 0),
        ((TOP_H, LISTED), False, 0),
        ((XTC, XTC_TIES_KEPT), False, 0),
    ],
)
def test_a_dynamic_temperature_and_xtc_run_in_the_kernels_where_these_have_all_the_sums(
    ops: tuple[Operation, ...], runs: bool, counted: int
) -> None:
    """`counted` is how many tokens a dynamic temperature counts at least, where it runs."""
    program = np.array([[[op, 7, 0, 0, 0, 0] for op in (*ops, *[0] * (4 - len(ops)))]], np.int64)
    assert can_run(program).tolist() == [runs]
    assert not runs or listed(program).tolist() == [counted]


def test_xtc_runs_there_where_no_top_p_cuts_a_weight() -> None:
    for rule, runs in ((0, True), (1, True), (2, False)):
        program = np.array([[[TOP_P, 1 << 31, rule, 0, 0, 0], [XTC, 1 << 31, 1 << 31, 33, 0, 0]]], np.int64)
        assert can_run(program).tolist() == [runs]


def test_rows_with_protected_tokens_of_xtc_are_drawn_by_passes_unless_another_filter_is_not() -> None:
    for protected, typical, kind in (((), 1.0, BY_PASSES), ((3,), 1.0, BY_PASSES), ((3,), 0.9, AS_SET)):
        params = tirage.SamplingParams(xtc_probability=0.5, xtc_protected_ids=protected, typical_p=typical)
        form = form_of(SamplingRow.of(params, History.of((), (), vocab_size=V)))
        assert form is not None
        assert form.meta[IS_GREEDY] == kind


@pytest.mark.parametrize("given", [{}, {"xtc_probability": 0.5, "xtc_threshold": 0.1}, {"typical_p": 0.5}])
@pytest.mark.parametrize("mode", ["raw", "processed", "sampled"])
def test_draws_tell_what_logprobs_follow_from(mode: str, given: dict[str, float]) -> None:
    params = tirage.SamplingParams(dynatemp_range=0.5, logprobs=2, logprobs_mode=mode, **given)
    form = form_of(SamplingRow.of(params, History.of((), (), vocab_size=V)))
    assert form is not None
    assert form.keeps == (mode == "sampled" and form.meta[IS_GREEDY] == AS_SET)
    assert form.mixes == (mode == "sampled" and "xtc_probability" in given)


@needs_triton
@pytest.mark.skipif("TIRAGE_OLDEST" in os.environ, reason="reads how Triton 3.9 names a compiled kernel")
def test_another_batch_or_program_compiles_no_kernel_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.backends.torch import triton

    found = kernel_keys(monkeypatch)

    def launched(rows: int, filters: int, set_needs: int) -> None:
        meta = torch.empty(rows, HEADER + 6 * filters, dtype=torch.int64, device="meta")
        bad = torch.empty(rows, dtype=torch.bool, device="meta")
        x = torch.empty(rows, 128_256, device="meta")
        triton.launch(x, bad, meta, draws=True, filters=True, sums=True, set_needs=set_needs)

    for rows in (1, 2, 3, 16, 17, 512):
        for filters in (1, 2, 8, 16, 17):
            for set_needs in (0, *(LISTS | more for more in (0, MARKS, ORDERS, COUNTS))):
                launched(rows, filters, set_needs)
    assert {name: len(keys) for name, keys in found.items()} == dict.fromkeys(
        ("measure", "bound", "split_first", "split", "resolve", "general"), 1
    )
    for name in ("measure", "bound", "resolve"):
        for parameter in getattr(triton, f"_{name.upper()}").params:
            parameter.do_not_specialize = False
    launched(1, 1, 0)
    assert len(found["resolve"]) > 1
    assert np.all([len(keys) <= 2 for keys in found.values()])
