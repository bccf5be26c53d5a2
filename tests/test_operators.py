"""An operator that exists only here: every path draws it, because none has to know it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from platforms import needs_triton

import tirage
from tirage import ParamsError, SamplingParams, Semantics
from tirage.backends import sharded
from tirage.backends.numpy import kernels
from tirage.operators import OPERATIONS, OPERATORS, Operation, Operator, Step
from tirage.operators.row import RowState
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch

ROWS = 24


def _drop_even(row: RowState, step: Step) -> None:
    kept = row.ids % 2 == step.a
    row.keep(kept | row.is_top() if not kept.any() else kept)


@pytest.fixture(scope="module")
def odd() -> Iterator[Semantics]:
    """A semantics with a stage of its own between top-k and top-p: only odd tokens stay."""
    op = Operation("ODD", "rest:int", run=_drop_even)
    operator = Operator(
        name="odd",
        rule="S-X1",
        operations=(op,),
        lower=lambda: Step(op, 1),
        note=lambda moment: f"{moment.left} odd tokens left",
    )
    OPERATORS["odd"] = operator
    # Another version for each operation: what is compiled for a semantics is kept.
    yield Semantics(
        name="odd",
        version=str(int(op)),
        stages=("logit_bias", "presence", "temperature", "top_k", "odd", "top_p", "xtc"),
    )
    del OPERATORS["odd"], OPERATIONS[int(op)]


def requests(semantics: Semantics) -> list[SamplingParams]:
    common = {"semantics": semantics, "temperature": 0.8}
    kinds = [{}, {"top_k": 9}, {"top_p": 0.7}, {"top_k": 20, "top_p": 0.9, "logprobs": 3}, {"xtc_probability": 0.5}]
    kinds.append({"presence_penalty": 1.0, "logprobs": 2, "logprobs_mode": "sampled"})
    return [SamplingParams(seed=seed, **common, **kinds[seed % len(kinds)]) for seed in range(ROWS)]


def logits() -> np.ndarray:
    return (np.random.default_rng(5).standard_normal((ROWS, 64)) * 2).astype(np.float32)


def expected(semantics: Semantics) -> list[int]:
    """The tokens, drawn one by one by the plain rules: top-k, then the odd ones, then top-p, from laws by hand."""
    found = []
    for x, params in zip(logits(), requests(semantics), strict=True):
        law = tirage.law(x, params, history=[((), ())])[0]
        assert not law[::2].any()
        assert law.sum() == pytest.approx(1)
        (token,) = tirage.sample(x, params, history=[((), ())]).token_ids
        assert law[token] > 0
        found.append(int(token))
    return found


def drawn(matrix: object, semantics: Semantics) -> list[int]:
    result = tirage.sample(matrix, requests(semantics), history=[((), ())] * ROWS)
    return [int(token) for token in np.asarray(result.token_ids)]


def test_a_semantics_may_list_it_only_while_it_is_registered(odd: Semantics) -> None:
    assert odd.stages[4] == "odd"
    with pytest.raises(ParamsError, match="known stages, got 'odd_one'"):
        odd.replace(stages=("odd_one",))


def test_numpy_draws_it_with_and_without_kernels(odd: Semantics) -> None:
    alone = expected(odd)
    assert kernels.wait()
    plain = requests(odd)
    mixed = [p if r % 2 else SamplingParams(seed=r, temperature=0.8, top_k=9) for r, p in enumerate(plain)]
    tokens = tirage.sample(logits(), mixed, history=[((), ())] * ROWS).token_ids.tolist()
    assert drawn(logits(), odd) == alone
    assert tokens[1::2] == alone[1::2]
    assert len(set(alone)) > 5


def test_explain_shows_it(odd: Semantics) -> None:
    params = SamplingParams(seed=3, semantics=odd, top_k=9)
    explained = tirage.explain(logits()[0], params)
    stage = next(stage for stage in explained.stages if stage.name == "odd")
    assert (stage.rule, stage.reached, stage.note) == ("S-X1", True, f"{stage.candidates_after} odd tokens left")
    assert explained.token_id == tirage.sample(logits()[0], params).token_ids[0]
    assert explained.token_id % 2 == 1


def test_tensors_draw_it_whole_and_in_shards(odd: Semantics) -> None:
    alone, x = expected(odd), torch.from_numpy(logits())
    assert drawn(x, odd) == alone
    parts = [x[:, :20].contiguous(), x[:, 20:].contiguous()]
    assert drawn(sharded.Shards(parts), odd) == alone


@pytest.mark.slow
def test_jax_draws_it_eagerly_inside_jit_and_on_a_mesh(odd: Semantics) -> None:
    alone, x = expected(odd), jnp.asarray(logits())
    assert drawn(x, odd) == alone
    compiled = jax.jit(lambda x: tirage.sample(x, requests(odd), history=[((), ())] * ROWS).token_ids)
    assert compiled(x).tolist() == alone
    mesh = jax.make_mesh((1,), ("vocab",))
    assert drawn(sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab"), odd) == alone


@needs_triton
def test_triton_leaves_it_to_others(odd: Semantics) -> None:
    from tirage.backends.torch import triton

    rows = SamplingBatch.of(row_states((ROWS, 64), requests(odd), [((), ())] * ROWS, None, 0), 64).metadata(None)
    assert not triton.supports(rows).any()
