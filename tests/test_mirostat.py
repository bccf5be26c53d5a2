"""Mirostat: what it keeps by formulas in float64, the state that a row carries, and who carries it."""

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
import tirage.torch
from tirage import LLM, Batch, BeamSearchParams, ParamsError, Prompt, SamplingParams
from tirage.exact.logs import OCTAVE, exp2
from tirage.integrations.rows import EngineRows

VERSIONS = (1, 2)


def kept_by_surprise(x: NDArray[np.float32], mu: float) -> NDArray[np.bool_]:
    """Version 2 as llama.cpp has it."""
    return (-np.log2(softmax(x)) <= mu) | (x == x.max())


def kept_by_zipf(x: NDArray[np.float32], mu: float) -> NDArray[np.bool_]:
    """Version 1 as llama.cpp has it, in float64."""
    p = np.sort(softmax(x))[::-1][:100]
    t = np.log(np.arange(2, p.size + 1) / np.arange(1, p.size))
    slope = (t * np.log(p[:-1] / p[1:])).sum() / (t * t).sum()
    away = slope - 1
    k = (away * 2.0**mu / (1 - float(x.size) ** -away)) ** (1 / slope)
    return x >= np.sort(x)[::-1][max(1, min(int(k), x.size)) - 1]


FORMULAS = {1: kept_by_zipf, 2: kept_by_surprise}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_keeps_what_the_float64_formula_keeps(version: int) -> None:
    for shape in ("normal", "medium", "peaked"):
        for seed in range(6):
            x = logits_of(shape, 400, seed)
            for mu in (0.3, 1.9, 3.3, 5.1, 7.7):
                kept = FORMULAS[version](x, mu)
                law = tirage.law(x, SamplingParams(mirostat=version), state=mu)[0]
                assert np.flatnonzero(law).tolist() == np.flatnonzero(kept).tolist()
                np.testing.assert_allclose(law[kept], softmax(np.where(kept, x, -np.inf))[kept], atol=3e-7)


def test_powers_of_two_are_exact_to_fifteen_digits() -> None:
    for a in (0, 1, 12345, OCTAVE - 1, OCTAVE, 3 * OCTAVE + 7, 19 * OCTAVE + 5_000_001):
        assert exp2(a) / 2.0**62 == pytest.approx(2.0 ** (a / OCTAVE), rel=1e-15)


def test_a_flat_row_keeps_everything_under_version_1() -> None:
    law = tirage.law(np.zeros(50, np.float32), SamplingParams(mirostat=1))[0]
    assert (law > 0).all()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lower_state_keeps_a_part_of_what_a_higher_one_keeps(version: int) -> None:
    x = logits()
    sizes = [(tirage.law(x, SamplingParams(mirostat=version), state=mu)[0] > 0).sum() for mu in np.arange(-1, 42, 1.5)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, SIZE)


# --- the state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_state_follows_the_surprise_of_each_token(version: int) -> None:
    params = SamplingParams(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.25, seed=5)
    mu = 6.0
    for step, (token, state) in enumerate(zip(*text(params), strict=True)):
        kept = FORMULAS[version](logits(step)[0], mu)
        surprise = -math.log2(softmax(np.where(kept, logits(step)[0], -np.inf))[token])
        assert state == pytest.approx(mu - 0.25 * (surprise - 3.0), abs=1e-5)
        mu = state


def test_the_reference_moves_the_state_to_the_same_bits() -> None:
    params, state = SamplingParams(mirostat=2, mirostat_tau=2.3, mirostat_eta=0.7, seed=5), None
    for step, (token, after) in enumerate(zip(*text(params), strict=True)):
        found = reference.draw(logits(step)[0].tolist(), params, seed=5, step=step, state=state)
        before = reference.first_state(params) if state is None else state
        state = reference.next_state(params, before, found.sampled_logprob)
        assert (found.token, state) == (token, after)


def test_the_surprise_settles_at_the_target() -> None:
    """Over a long text the mean surprise under the kept law is tau, as the paper has it."""
    for version in VERSIONS:
        params, state, surprises = SamplingParams(mirostat=version, mirostat_tau=2.0, seed=1), None, []
        for step in range(300):
            drawn = tirage.sample(logits(step % 40), params, step=step, state=state)
            state = drawn.states
            surprises.append(-float(drawn.sampled_logprobs[0]) / math.log(2))
        assert np.mean(surprises[50:]) == pytest.approx(2.0, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_library_carries_the_same_bits(version: int) -> None:
    params = SamplingParams(mirostat=version, mirostat_tau=2.0, seed=9, temperature=0.8)
    expected = text(params)
    assert text(params, array=torch.from_numpy) == expected
    assert text(params, array=jnp.asarray) == expected

    assert text(params, array=two_shards) == expected


def test_rows_of_a_batch_do_not_share_it() -> None:
    rows = [
        SamplingParams(mirostat=2, mirostat_tau=2.0, seed=1),
        SamplingParams(seed=2, top_p=0.9),
        SamplingParams(mirostat=1, mirostat_tau=4.0, seed=3),
    ]
    x = logits(rows=3)
    drawn = tirage.sample(x, rows, step=4, state=[1.5, 0.0, 6.0])
    alone = [
        tirage.sample(x[r], p, step=4, state=s) for r, (p, s) in enumerate(zip(rows, (1.5, None, 6.0), strict=True))
    ]
    assert drawn.token_ids.tolist() == [int(each.token_ids[0]) for each in alone]
    assert drawn.states is not None
    assert alone[1].states is None
    assert np.isnan(drawn.states[1])
    assert [drawn.states[0], drawn.states[2]] == [each.states[0] for each in (alone[0], alone[2])]  # type: ignore[index]


def test_a_row_without_a_token_keeps_its_state() -> None:
    drawn = tirage.sample(np.full(5, np.nan, np.float32), SamplingParams(mirostat=2), step=3, state=1.25)
    assert (drawn.token_ids.tolist(), drawn.states) == ([-1], [1.25])


def test_the_state_must_be_given_after_the_first_token() -> None:
    x, params = logits(), SamplingParams(mirostat=2)
    with pytest.raises(
        ParamsError, match=r"state must be given with mirostat after the first token, got None at step 2"
    ):
        tirage.sample(x, params, step=2)
    with pytest.raises(ParamsError, match="state must be given with mirostat"):
        tirage.explain(x, params, step=2)
    with pytest.raises(ParamsError, match="state must be a finite number with mirostat, got nan"):
        tirage.sample(x, params, state=math.nan)
    with pytest.raises(ParamsError, match=r"state must be a number or 1 of them, got shape \[2\]"):
        tirage.sample(x, params, state=[1.0, 2.0])
    with pytest.raises(ParamsError, match="state must be a number or 1 of them, got 'x'"):
        tirage.sample(x, params, state="x")  # type: ignore[arg-type]
    assert tirage.sample(x, SamplingParams(top_p=0.9), step=2).states is None


def test_what_cannot_carry_it_refuses_it_by_name() -> None:
    params = SamplingParams(mirostat=2, seed=1)
    with pytest.raises(ParamsError, match="mirostat must be off in verify"):
        tirage.verify(logits()[:, None].repeat(2, 1), [[3]], params)
    with pytest.raises(ParamsError, match=r"mirostat must be off inside jax\.jit"):
        jax.jit(lambda x: tirage.sample(x, params).token_ids)(jnp.asarray(logits()))
    with pytest.raises(ParamsError, match="mirostat must be a filter that JAX compiles"):
        Batch(SIZE, 1, like=jnp.asarray(logits())).add(params)


# --- who carries it ------------------------------------------------------------------------------------------------


def test_a_batch_carries_it_through_other_slots_and_forced_tokens() -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.5, seed=4)
    tokens, _ = text(params, 8)
    batch = Batch(SIZE, 3)
    batch.add(SamplingParams(seed=1))
    batch.add(params)
    found = []
    for step in range(8):
        drawn = batch.sample(np.concatenate([logits(step), logits(step)]))
        batch.sample(np.concatenate([logits(step), logits(step)]))  # a second draw of the same place counts once
        found.append(int(drawn.token_ids[1 if step < 4 else 0]))
        batch.advance(drawn if step % 2 else drawn.token_ids.tolist())
        if step == 3:
            batch.reorder([1, 0])
    assert found == tokens


def test_a_token_that_was_not_drawn_leaves_it() -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=2.0, seed=4)
    batch = Batch(SIZE, 1)
    batch.add(params)
    drawn = batch.sample(logits())
    batch.advance([(int(drawn.token_ids[0]) + 1) % SIZE])
    token = tirage.sample(logits(1), params, step=1, state=4.0).token_ids
    assert batch.sample(logits(1)).token_ids.tolist() == token.tolist()


def test_rows_of_other_engines_find_it_again_after_preemption() -> None:
    params = SamplingParams(mirostat=1, mirostat_tau=2.0, mirostat_eta=0.5, seed=4)
    tokens, _ = text(params, 8)
    rows = EngineRows(SIZE)
    rows.add("a", params)
    for step in (0, 1, 2, 2, 3, 1, 4, 5, 6, 7):
        assert rows.draw(logits(step), ["a"], [tokens[:step]]).token_ids.tolist() == [tokens[step]]
    other = [*tokens[:2], (tokens[2] + 1) % SIZE]
    state = tirage_state(params, tokens[:2])
    expected = tirage.sample(logits(3), params, step=3, state=state).token_ids
    assert rows.draw(logits(3), ["a"], [other]).token_ids.tolist() == expected.tolist()


def tirage_state(params: SamplingParams, tokens: list[int]) -> float:
    """The state after tokens that were drawn from the logits of their steps."""
    found, states = text(params, len(tokens))
    assert found == tokens
    return states[-1]


def test_the_semantics_of_llamacpp_runs_the_temperature_alone_beside_it() -> None:
    x, given = logits(), {"mirostat": 2, "top_k": 2, "min_p": 0.5, "temperature": 0.7, "repetition_penalty": 2.0}
    history = [((), (int(x.argmax()),))]
    law = tirage.law(x, SamplingParams(semantics="llamacpp", **given), history=history, state=4.0)[0]
    kept = kept_by_surprise(x[0] / np.float32(0.7), 4.0)
    assert np.flatnonzero(law).tolist() == np.flatnonzero(kept).tolist()
    assert (tirage.law(x, SamplingParams(**given), history=history, state=4.0)[0] > 0).sum() <= 2


def test_log_law_is_what_was_drawn_and_its_slope_is_that_of_the_kept_ids() -> None:
    params = SamplingParams(mirostat=2, seed=3, return_kept=True)
    x = torch.from_numpy(logits(2)).requires_grad_()
    drawn = tirage.sample(logits(2), params, step=2, state=3.0)
    value = tirage.torch.log_law(x, params, drawn.token_ids, step=2, state=3.0)
    value.sum().backward()
    assert value.detach().numpy().tolist() == drawn.sampled_logprobs.tolist()
    law = tirage.law(logits(2), params, step=2, state=3.0)[0]
    one_hot = np.arange(SIZE) == drawn.token_ids[0]
    assert x.grad is not None
    np.testing.assert_allclose(x.grad[0].numpy(), one_hot - law, atol=1e-6)


# --- texts -----------------------------------------------------------------------------------------------------------

STORY = "Once upon a time"


def params_of(version: int, **changes: object) -> SamplingParams:
    given = {
        "mirostat": version,
        "mirostat_tau": 2.0,
        "mirostat_eta": 0.5,
        "seed": 7,
        "max_tokens": 12,
        "temperature": 3.0,
    }
    return SamplingParams(**{**given, "ignore_eos": True, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny")


def own_loop(llm: LLM, params: SamplingParams, sample_index: int) -> list[int]:
    """The text by `tirage.sample` alone, from the model's logits."""
    request = llm.request(STORY, params)
    prompt, output, state = list(request.prompt_ids), [], None
    for step in range(params.max_tokens or 0):
        drawn = tirage.sample(
            llm.engine.next_logits([*prompt, *output]),
            params.replace(n=1),
            history=[(prompt, output)],
            step=step,
            sample_index=[sample_index],
            state=state,
        )
        state = drawn.states
        output.append(int(drawn.token_ids[0]))
    return output


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engine_carries_it_for_every_sample(llm: LLM, version: int) -> None:
    params = params_of(version, n=2)
    (completion,) = llm.generate([STORY], params)
    found = [list(sample.token_ids) for sample in completion.samples]
    assert found == [own_loop(llm, params, index) for index in range(2)]
    fixed = llm.generate([STORY], params.replace(mirostat=0))[0].samples[0].token_ids
    assert list(fixed) != found[0]


@pytest.mark.slow
def test_speculation_and_neighbours_change_nothing(llm: LLM) -> None:
    params = [params_of(1 + seed % 2, seed=seed, stop_token_ids=[5]) for seed in range(5)]
    expected = [each.samples[0].token_ids for each in llm.generate([STORY] * 5, params)]
    with LLM("tiny", draft="tiny", max_running=2) as other:
        assert [each.samples[0].token_ids for each in other.generate([STORY] * 5, params)] == expected


def test_every_draw_of_a_text_is_explained_in_its_state(llm: LLM) -> None:
    params = params_of(2)
    drawn = list(llm.generate([STORY], params)[0].samples[0].token_ids)
    explained = llm.explain_text(STORY, params, output_ids=drawn)
    assert [token.token.token_id for token in explained.tokens] == drawn
    assert all(token.drawn for token in explained.tokens)


def test_a_begun_text_and_beams_refuse_it_by_name(llm: LLM) -> None:
    with pytest.raises(ParamsError, match="output_ids must come without mirostat"):
        llm.generate([Prompt(text=STORY, output_ids=[3])], params_of(2))
    with pytest.raises(ParamsError, match="mirostat must keep its default 0 in a beam search"):
        llm.beam_search([STORY], BeamSearchParams(beam_width=2, max_tokens=3), sampling=SamplingParams(mirostat=1))
