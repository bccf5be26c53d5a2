"""The state of Gemma's door: the documented fields, as a pytree, and what a call may write in place."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from small_transformers import LetterTokenizer, SmallTransformer, reply, small

from tirage import LLM, ParamsError
from tirage.compat.gemma import RandomSampling, Sampler, SamplingState, batched_runner

PROMPTS = ["hello", "a", "some other prompt", "xy"]
FIELDS = [
    "step", "done", "last_token", "last_token_pos", "predicted_tokens", "cache", "rng", "init_cache_length",
    "full_attention_mask", "used_cache_length", "attention_mask_for_step", "cache_info",
]  # fmt: skip


def under_jax(**options: Any) -> Sampler:
    return small(model=SmallTransformer("jax"), **{"pad_length": 32, **options})


@pytest.mark.slow
def test_a_state_has_the_documented_fields() -> None:
    state = under_jax().sample(PROMPTS[:2], return_state=True, max_new_tokens=3, rng=5).state
    assert all(hasattr(state, name) for name in FIELDS)
    assert (int(state.step), int(state.init_cache_length), int(state.used_cache_length)) == (3, 5, 8)
    assert state.last_token_pos.tolist() == [8, 4]
    assert state.full_attention_mask.sum(-1).tolist() == [9, 5]
    assert state.attention_mask_for_step.tolist() == state.full_attention_mask.tolist()
    assert state.cache["layer_0"]["k"].shape[:2] == (2, 64)
    assert state.cache["layer_0"]["end_index"].tolist() == [8, 4]
    info = state.cache_info
    assert (info.total_cache_length, int(info.end_index), bool(info.is_full)) == (64, 8, False)
    assert bool(info.set_end_index(63).is_full)
    assert info[:1, :32].cache["layer_0"]["v"].shape[:2] == (1, 32)
    assert state.replace(step=9).step == 9


def test_a_states_rng_draws_what_the_call_drew() -> None:
    for sampler in (under_jax(sampling=RandomSampling()), small(sampling=RandomSampling())):
        for rng in (5, [7, 8]):
            state = sampler.sample(["a", "b"], rng=rng, return_state=True).state
            again = sampler.sample(["a", "b"], rng=state.rng, return_state=True).state
            assert again.predicted_tokens.tolist() == state.predicted_tokens.tolist()


@pytest.mark.slow
def test_a_state_is_a_pytree_and_goes_through_jit() -> None:
    sampler = under_jax()
    state = sampler.sample(PROMPTS[:2], return_state=True, max_new_tokens=3).state
    expected = reply(sampler, [" x", "yy"], last_state=state)
    copied = jax.tree.map(lambda leaf: leaf + 0 if leaf.dtype == np.float32 else leaf, state)
    traced = jax.jit(lambda each: each)(state)
    on_host = jax.device_get(state)
    for other in (copied, traced, on_host):
        assert isinstance(other, SamplingState)
        assert reply(sampler, [" x", "yy"], last_state=other) == expected
    used, mask = jax.jit(lambda each: (each.used_cache_length, each.attention_mask_for_step))(state)
    assert int(used) == state.used_cache_length
    assert np.asarray(mask).tolist() == state.attention_mask_for_step.tolist()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state) if leaf.ndim} == {2}


def test_a_model_that_reads_one_prompt_at_a_time_keeps_a_cache_for_each() -> None:
    llm = LLM("tiny")
    sampler = Sampler(model=llm.model, tokenizer=llm.tokenizer, cache_length=64, max_out_length=8)
    states = [out.state for out in sampler.sample(["The", "A dog"], stream=True, return_state=True)]
    assert [len(state.cache) for state in states] == [2] * 8
    # An early state of a stream is not changed by the steps after it.
    assert [list(row.output_ids) for row in states[-1].rows] == [
        [*row.output_ids, *more]
        for row, more in zip(
            states[3].rows, reply(sampler, [[], []], last_state=states[3], max_new_tokens=4), strict=True
        )
    ]
    with pytest.raises(ParamsError, match="cache_info must be of a cache in Gemma's layout"):
        _ = states[0].cache_info


# One forward pass.


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The passes that models make: what for, and over how many rows."""
    made: list[tuple[str, int]] = []
    real = batched_runner.calls_of

    def counted(key: Any) -> Any:
        def call(name: str, compiled: Any) -> Any:
            def run(params: Any, cache: Any, tokens: Any, *inputs: Any, **options: Any) -> Any:
                made.append((name, len(tokens)))
                return compiled(params, cache, tokens, *inputs, **options)

            return run

        return {name: call(name[0], compiled) for name, compiled in real(key).items()}

    monkeypatch.setattr(batched_runner, "calls_of", counted)
    return made


@pytest.mark.slow
def test_all_prompts_of_a_call_go_through_one_pass_for_each_step(passes: list[tuple[str, int]]) -> None:
    sampler = under_jax(pad_length=32)
    together = reply(sampler, PROMPTS, max_new_tokens=6)
    assert passes == [("fill", 4), *[("step", 4)] * 6]
    assert together == [reply(sampler, prompt, max_new_tokens=6) for prompt in PROMPTS]
    assert together == reply(small(), PROMPTS, max_new_tokens=6)


def test_a_seeded_prompt_draws_in_company_what_it_draws_alone() -> None:
    sampler, other = under_jax(sampling=RandomSampling()), small(sampling=RandomSampling())
    together = reply(sampler, PROMPTS, rng=[1, 2, 3, 4])
    assert together == [reply(sampler, p, rng=seed) for seed, p in enumerate(PROMPTS, 1)]
    assert together == reply(other, PROMPTS, rng=[1, 2, 3, 4])


@pytest.mark.slow
def test_rows_of_very_different_lengths_fill_one_cache_to_its_end(passes: list[tuple[str, int]]) -> None:
    sampler = under_jax(cache_length=32, pad_length=(8, 16))
    state = sampler.sample(["a" * 27, "b"], return_state=True, max_new_tokens=1).state
    passes.clear()
    turn = sampler.sample(["c", "d" * 20], last_state=state, return_state=True)
    assert passes[:3] == [("fill", 2), ("fill", 1), ("step", 2)]
    assert turn.finish_reason == ("cache_full", "cache_full")
    for row, prompt in zip(turn.state.rows, (["a" * 27, "c"], ["b", "d" * 20]), strict=True):
        alone = sampler.sample(prompt[0], return_state=True, max_new_tokens=1).state
        expected = sampler.sample(prompt[1], last_state=alone, return_state=True).state.rows[0]
        assert (row.token_ids, len(row.token_ids)) == (expected.token_ids, 32)


@pytest.mark.slow
def test_states_of_a_stream_stay_whole_while_it_goes_on() -> None:
    sampler = under_jax()
    outputs = list(sampler.sample(["hello", "a"], stream=True, return_state=True, max_new_tokens=6))
    final = [list(row.output_ids) for row in outputs[-1].state.rows]
    for steps, out in enumerate(outputs[:-1], 1):
        rest = reply(sampler, [[], []], last_state=out.state, max_new_tokens=6 - steps)
        assert [[*row.output_ids, *more] for row, more in zip(out.state.rows, rest, strict=True)] == final


@pytest.mark.slow
def test_a_model_may_make_all_layers_of_one_array_or_keep_its_cache_in_another_layout() -> None:
    class Lists(SmallTransformer):
        """Keeps its cache as a tuple, which no reader of several prompts can take apart."""

        def init_cache(self, **options: Any) -> Any:
            return tuple(super().init_cache(**options)["layer_0"].values())

        def apply(self, variables: Any, tokens: Any, *, cache: Any, **options: Any) -> Any:
            names = ("k", "v", "end_index")
            out = super().apply(variables, tokens, cache={"layer_0": dict(zip(names, cache, strict=True))}, **options)
            out.cache = tuple(out.cache["layer_0"][name] for name in names)
            return out

    sampler = small(model=Lists("jax"))
    assert reply(sampler, ["hello", "a"], max_new_tokens=5) == reply(small(), ["hello", "a"], max_new_tokens=5)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("devices",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    with pytest.raises(ParamsError, match=r"sharding must be None where .* or the cache is not in Gemma's layout"):
        sampler.sample("a", sharding=sharding)
    with pytest.raises(ParamsError, match="sharding must be a NamedSharding or a tree of them, got int"):
        under_jax().sample("a", sharding=3)


# The namespace.


def test_one_changed_line_brings_the_package_s_own_names(monkeypatch: pytest.MonkeyPatch) -> None:

    from tirage.compat.gemma import gm

    model = SmallTransformer()
    options: dict[str, Any] = {"params": model.params(), "tokenizer": LetterTokenizer(), "cache_length": 64}
    sampler = gm.text.Sampler(model=model, sampling=gm.text.TopPSampling(p=0.9), max_out_length=4, **options)
    assert sampler.sample("hi", rng=1) == small(max_out_length=4).sample("hi", sampling=sampler.sampling, rng=1)
    monkeypatch.setitem(sys.modules, "gemma", None)
    for wanted in ("nn", "ckpts"):
        with pytest.raises(AttributeError, match=rf"gm\.{wanted} needs the gemma package; pip install gemma"):
            getattr(gm, wanted)
    with pytest.raises(AttributeError, match=r"gm\.text\.Gemma3Tokenizer needs the gemma package"):
        _ = gm.text.Gemma3Tokenizer
    package = SimpleNamespace(nn="nn", text=SimpleNamespace(Gemma3Tokenizer="tokenizer"))
    monkeypatch.setitem(sys.modules, "gemma", SimpleNamespace(gm=package))
    assert (gm.nn, gm.text.Gemma3Tokenizer) == ("nn", "tokenizer")
