"""An operator that exists only here: every path draws it, because none has to know it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from odd_operator import NO_PAST, ROWS, V, drawn, expected, laws, logits, registered, requests
from platforms import needs_triton

import tirage
from tirage import ParamsError, SamplingParams, Semantics
from tirage.backends import sharded
from tirage.backends.numpy import kernels
from tirage.backends.torch import dispatch, eager
from tirage.sample_hidden import sample_hidden
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch

KNOWN = SamplingParams(seed=3, temperature=0.8, top_k=9)
"""What every path runs by itself."""


@pytest.fixture(scope="module")
def odd() -> Iterator[Semantics]:
    with registered() as semantics:
        yield semantics


def packed(params: list[SamplingParams]) -> SamplingBatch:
    return SamplingBatch.of(row_states((ROWS, V), params, NO_PAST, None, 0), V)


def mixed(semantics: Semantics) -> list[SamplingParams]:
    """The requests, each second one replaced by one that every path knows."""
    return [params if r % 2 else KNOWN for r, params in enumerate(requests(semantics))]


def test_a_semantics_may_list_it_only_while_it_is_registered(odd: Semantics) -> None:
    assert odd.stages[4] == "odd"
    with pytest.raises(ParamsError, match="known stages, got 'odd_one'"):
        odd.replace(stages=("odd_one",))


def test_numpy_draws_it_with_and_without_kernels(odd: Semantics) -> None:
    alone = expected(odd)
    assert kernels.wait()
    assert kernels.supports(packed(mixed(odd)).metadata(None)).tolist() == [True, False] * (ROWS // 2)
    tokens = tirage.sample(logits(), mixed(odd), history=NO_PAST).token_ids.tolist()
    assert drawn(logits(), odd) == alone
    assert tokens[1::2] == alone[1::2]
    assert tokens[::2] == tirage.sample(logits()[::2], KNOWN).token_ids.tolist()
    assert len(set(alone)) > 5


def test_explain_shows_it(odd: Semantics) -> None:
    params = SamplingParams(seed=3, semantics=odd, top_k=9)
    explained = tirage.explain(logits()[0], params)
    stage = next(stage for stage in explained.stages if stage.name == "odd")
    assert (stage.rule, stage.reached, stage.note) == ("S-X1", True, f"{stage.candidates_after} odd tokens left")
    assert explained.token_id == tirage.sample(logits()[0], params).token_ids[0]
    assert explained.token_id % 2 == 1


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy, jnp.asarray], ids=["numpy", "torch", "jax"])
def test_its_law_is_the_same_from_every_library(odd: Semantics, of: Any) -> None:
    np.testing.assert_array_equal(tirage.law(of(logits()), requests(odd), history=NO_PAST), laws(odd))


def test_a_batch_draws_it(odd: Semantics) -> None:
    alone = expected(odd)
    for matrix in (logits(), torch.from_numpy(logits())):
        batch = tirage.Batch(V, ROWS)
        for params in requests(odd):
            batch.add(params)
        assert np.asarray(batch.sample(matrix).token_ids).tolist() == alone


def test_a_batch_that_jax_compiles_says_that_it_cannot(odd: Semantics) -> None:
    batch = tirage.Batch(V, ROWS, like=jnp.asarray(logits()))
    with pytest.raises(ParamsError, match=r"odd must be a filter that JAX compiles .* make the batch without like"):
        batch.add(requests(odd)[0])


def test_tensors_draw_it_whole_and_in_shards(odd: Semantics) -> None:
    alone, x = expected(odd), torch.from_numpy(logits())
    assert drawn(x, odd) == alone
    parts = [x[:, :20].contiguous(), x[:, 20:].contiguous()]
    assert drawn(sharded.Shards(parts), odd) == alone


def test_tokens_are_drawn_from_hidden_states_by_it(odd: Semantics) -> None:
    hidden, weight = torch.from_numpy(logits()), torch.eye(V)
    result = sample_hidden(hidden, weight, requests(odd), history=NO_PAST, block=16)
    assert result.token_ids.tolist() == expected(odd)


def test_learners_have_its_law_and_no_slope_beyond_it(odd: Semantics) -> None:
    from tirage.torch import log_law

    tokens = expected(odd)
    x = torch.from_numpy(logits()).requires_grad_()
    values = log_law(x, requests(odd), tokens, history=NO_PAST)
    np.testing.assert_allclose(values.detach().numpy(), np.log(laws(odd)[range(ROWS), tokens]), rtol=1e-5, atol=1e-6)
    values.sum().backward()
    assert x.grad is not None
    assert not x.grad[:, ::2].any()


@pytest.mark.slow
def test_jax_draws_it_eagerly_inside_jit_and_on_a_mesh(odd: Semantics) -> None:
    alone, x = expected(odd), jnp.asarray(logits())
    assert drawn(x, odd) == alone
    compiled = jax.jit(lambda x: tirage.sample(x, requests(odd), history=NO_PAST).token_ids)
    assert compiled(x).tolist() == alone
    # Eight devices are a process of their own: `mesh_process.py`.
    mesh = jax.make_mesh((1,), ("vocab",))
    assert drawn(sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab"), odd) == alone


@needs_triton
def test_triton_and_tensors_leave_it_to_the_host(odd: Semantics) -> None:
    from tirage.backends.torch import triton

    batch = packed(requests(odd))
    rows = batch.metadata(None)
    assert not triton.supports(rows).any()
    assert not eager.supports(rows).any()
    found = dispatch.draw_on_device(torch.from_numpy(logits()), rows, batch.processes, kernels=triton)
    assert found.token_ids.tolist() == expected(odd)


@needs_triton
def test_kernels_get_the_rows_beside_it(odd: Semantics) -> None:
    from tirage.backends.torch import triton

    given: list[int] = []

    def draw_into(out: Any, x: Any, rows: Any, which: Any) -> None:
        given.extend(which.tolist())
        eager.draw_into(out, x, rows, which)

    batch, x = packed(mixed(odd)), torch.from_numpy(logits())
    fast: Any = SimpleNamespace(supports=triton.supports, draw_into=draw_into)
    tokens = dispatch.draw_on_device(x, batch.metadata(None), batch.processes, kernels=fast).token_ids.tolist()
    assert given == list(range(0, ROWS, 2))
    assert tokens == tirage.sample(logits(), mixed(odd), history=NO_PAST).token_ids.tolist()
    assert tokens[1::2] == expected(odd)[1::2]
