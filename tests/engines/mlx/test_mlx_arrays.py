"""MLX arrays in, MLX arrays out: what NumPy arrays of the same values give."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from every_parameter import requests

import tirage
from tirage import Batch, ParamsError, SamplingParams

V = 300
LOGITS = np.random.default_rng(5).standard_normal((4, V)).astype(np.float32) * 3
PAST = [([1, 2, 3], [4, 4, 5])] * 4
STATES = (0.3, 2.0, 4.5, 9.0)
"""Where Mirostat or adaptive-p stands after these histories; other parameters have none."""
ARRAYS = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")


@pytest.mark.parametrize("fields", requests(), ids=str)
def test_every_parameter_draws_the_token_that_numpy_gives(fields: dict[str, Any]) -> None:
    params = [
        SamplingParams.from_dict(fields).replace(seed=seed, logprobs=2, logprob_token_ids=(1,)) for seed in range(4)
    ]
    drawn, expected = (tirage.sample(x, params, history=PAST, state=STATES) for x in (mx.array(LOGITS), LOGITS))
    for name in (*ARRAYS, "logprobs", "ranks", "top_token_ids", "top_logprobs"):
        found, wanted = getattr(drawn, name), getattr(expected, name)
        assert isinstance(found, mx.array)
        np.testing.assert_array_equal(np.array(found), wanted)
    assert drawn.given_logprobs == expected.given_logprobs
    np.testing.assert_array_equal(drawn.states, expected.states)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_narrow_logits_are_widened_exactly(dtype: Any) -> None:
    narrow = mx.array(LOGITS).astype(dtype)
    wide = np.array(narrow.astype(mx.float32))
    params = SamplingParams(seed=1, top_p=0.9)
    drawn = tirage.sample(narrow[:, ::2], params, step=0)
    assert drawn.token_ids.tolist() == tirage.sample(wide[:, ::2], params, step=0).token_ids.tolist()


def test_float32_logits_are_not_copied() -> None:
    logits = mx.array(LOGITS)
    mx.eval(logits)
    assert np.shares_memory(tirage.backends.find(logits).as_logits(logits), np.asarray(logits))


def test_one_row_law_explain_and_masks() -> None:
    logits, params = mx.array(LOGITS), SamplingParams(seed=1, top_p=0.9)
    mask = np.full((4, -(-V // 32)), 0x0F0F0F0F, np.int32)
    assert tirage.sample(logits[0], params, step=0).token_ids.shape == (1,)
    np.testing.assert_array_equal(tirage.law(logits, params, step=0), tirage.law(LOGITS, params, step=0))
    assert str(tirage.explain(logits[0], params, step=0)) == str(tirage.explain(LOGITS[0], params, step=0))
    for given in (mask, mx.array(mask)):
        drawn = tirage.sample(logits, params, step=0, mask=given).token_ids.tolist()
        assert drawn == tirage.sample(LOGITS, params, step=0, mask=mask).token_ids.tolist()


def test_a_batch_of_mlx_arrays() -> None:
    logits, params = mx.array(LOGITS), SamplingParams(seed=1, top_p=0.9, presence_penalty=0.5)
    ours, other = Batch(V, 4, like=logits), Batch(V, 4)
    for batch in (ours, other):
        for slot in range(4):
            batch.add(params.replace(seed=slot), [1, 2])
    for _ in range(3):
        found, wanted = ours.sample(logits), other.sample(LOGITS)
        assert isinstance(found.token_ids, mx.array)
        assert found.token_ids.tolist() == wanted.token_ids.tolist()


def test_what_is_no_logits_is_refused() -> None:
    params = SamplingParams(seed=1)
    with pytest.raises(ParamsError, match="float16, bfloat16, float32 or float64, got int32"):
        tirage.sample(mx.zeros((2, 5), mx.int32), params, step=0)
    with pytest.raises(ParamsError, match="shape"):
        tirage.sample(mx.zeros((1, 2, 5)), params, step=0)
    with pytest.raises(ParamsError, match="mask"):
        tirage.sample(mx.zeros((2, 5)), params, step=0, mask=mx.zeros((2, 3), mx.int32))
