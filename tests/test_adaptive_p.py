"""Adaptive-p: the law by llama.cpp's formula in float64, its state, and who carries or refuses it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray
from paths import two_shards
from state_loop import SIZE, logits, softmax, text
from strategies import logits_of

import tirage
from tirage import LLM, Batch, ParamsError, SamplingParams, Semantics

PARAMS = SamplingParams(adaptive_target=0.3, adaptive_decay=0.7, min_p=0.02, seed=5)


def by_formula(x: NDArray[np.float32], target: float, mean: float, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    p = softmax(np.where(kept, x, -np.inf))
    distance = np.abs(p - min(max(2 * target - mean, 0.0), 1.0)) / 0.3
    return softmax(np.where(kept, 5 - 10 * distance**2 / (1 + distance), -np.inf))


@pytest.mark.parametrize("target", [0.0, 0.2, 0.55, 1.0])
def test_the_law_is_the_float64_formulas(target: float) -> None:
    for shape in ("normal", "medium", "peaked", "ties"):
        for mean in (0.0, 0.3, 0.9):
            x = logits_of(shape, 300, 4)
            kept = softmax(x) >= np.float32(0.05) * softmax(x).max()
            law = tirage.law(x, SamplingParams(adaptive_target=target, min_p=0.05), state=mean)[0]
            np.testing.assert_allclose(law, by_formula(x, target, mean, kept), atol=2e-6)


def test_the_state_is_the_mean_of_what_the_tokens_had_before() -> None:
    mean = float(np.float32(0.3))
    for step, (token, state) in enumerate(zip(*text(PARAMS), strict=True)):
        x = logits(step)[0]
        kept = softmax(x) >= np.float32(0.02) * softmax(x).max()
        mean = 0.3 * softmax(np.where(kept, x, -np.inf))[token] + 0.7 * mean
        assert state == pytest.approx(mean, abs=1e-6)


def test_the_reference_draws_the_same_tokens_and_states() -> None:
    state = None
    for step, (token, after) in enumerate(zip(*text(PARAMS), strict=True)):
        found = reference.draw(logits(step)[0].tolist(), PARAMS, seed=5, step=step, state=state)
        before = reference.first_state(PARAMS) if state is None else state
        state = reference.next_state(PARAMS, before, found.sampled_logprob, found.chance)
        assert (found.token, state) == (token, after)


def test_every_library_carries_the_same_bits() -> None:
    expected = text(PARAMS)
    assert text(PARAMS, array=torch.from_numpy) == expected
    assert text(PARAMS, array=jnp.asarray) == expected

    assert text(PARAMS, array=two_shards) == expected


def test_a_batch_carries_it_beside_other_rows() -> None:
    tokens, _ = text(PARAMS, 6)
    batch, found = Batch(SIZE, 2), []
    batch.add(SamplingParams(seed=1, top_p=0.9))
    batch.add(PARAMS)
    for step in range(6):
        drawn = batch.sample(np.concatenate([logits(step), logits(step)]))
        found.append(int(drawn.token_ids[1]))
        batch.advance(drawn)
    assert found == tokens


def test_the_chance_of_a_token_is_that_of_the_pass_that_drew_it() -> None:
    """Under llama.cpp's order a constraint counts after the draw: what it rejects is drawn again, from other shares."""
    params = SamplingParams(adaptive_target=0.2, adaptive_decay=0.0, semantics="llamacpp")
    x = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    for seed in range(20):
        drawn = tirage.sample(x, params.replace(seed=seed), mask=np.array([[0b110]], np.int32))
        free = tirage.sample(x, params.replace(seed=seed))
        token = int(drawn.token_ids[0])
        share = {1: 0.3, 2: 0.2} if int(free.token_ids[0]) else {1: 0.6, 2: 0.4}
        assert drawn.states is not None
        assert drawn.states[0] == pytest.approx(share[token], abs=1e-6)


def test_greedy_rows_keep_their_state() -> None:
    drawn = tirage.sample(logits(), PARAMS.replace(temperature=0.0), step=3, state=0.125)
    assert (drawn.states, drawn.sampled_logprobs.tolist()) == ([0.125], [0.0])


def test_top_lists_of_the_sampled_view_are_in_the_order_of_the_law() -> None:
    params = SamplingParams(adaptive_target=0.0, logprobs=SIZE, logprobs_mode="sampled", seed=2)
    listed = tirage.sample(logits(), params).top_logprobs[0]
    assert listed.tolist() == sorted(listed.tolist(), reverse=True)
    assert int(tirage.sample(logits(), params).top_token_ids[0][0]) != int(logits().argmax())


def test_the_engine_carries_it() -> None:
    params = SamplingParams(adaptive_target=0.2, min_p=0.01, temperature=3.0, seed=3, max_tokens=8, ignore_eos=True)
    with LLM("tiny") as llm:
        (completion,) = llm.generate(["Once upon a time"], params)
        prompt, output, state = list(completion.prompt_token_ids), [], None
        for step in range(8):
            x, history = llm.engine.next_logits([*prompt, *output]), [(prompt, output)]
            drawn = tirage.sample(x, params, history=history, step=step, state=state)
            state = drawn.states
            output.append(int(drawn.token_ids[0]))
        assert list(completion.samples[0].token_ids) == output


def test_it_is_refused_by_name_where_it_cannot_be_right() -> None:
    x = logits()
    with pytest.raises(ParamsError, match="state must be given with adaptive_target after the first token"):
        tirage.sample(x, PARAMS, step=1)
    with pytest.raises(ParamsError, match=r"adaptive_target must be below 0 with mirostat, got 0\.3"):
        PARAMS.replace(mirostat=2)
    with pytest.raises(ParamsError, match="adaptive_target must be off in verify"):
        tirage.verify(x[:, None].repeat(2, 1), [[3]], PARAMS)
    with pytest.raises(ParamsError, match=r"adaptive_target must be off inside jax\.jit"):
        jax.jit(lambda x: tirage.sample(x, PARAMS).token_ids)(jnp.asarray(x))
    with pytest.raises(ParamsError, match="adaptive_p as the last stage, got 'top_p'"):
        Semantics(name="own", stages=("temperature", "adaptive_p", "top_p"))


def test_below_zero_it_is_off() -> None:
    x = logits()
    assert tirage.sample(x, SamplingParams(adaptive_target=-0.5, seed=1), step=4).states is None
    plain, off = SamplingParams(), SamplingParams(adaptive_target=-0.5)
    assert np.array_equal(tirage.law(x, plain), tirage.law(x, off))
    assert math.isclose(tirage.law(x, SamplingParams(adaptive_target=0.0)).sum(), 1.0)
