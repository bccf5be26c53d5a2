"""The EasyDeL door's host classes: the values EasyDeL takes, lists that read as lists, and pytrees."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import tirage
from tirage.compat.easydel import BeamSearchParams, GuidedDecodingParams, SamplingParams

LISTS: dict[str, Any] = {
    "stop": ["a", "b"],
    "stop_token_ids": [3, 1],
    "bad_words": ["x"],
    "allowed_token_ids": [4],
    "bad_words_token_ids": [[1, 2], [3]],
}


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "bad_words_token_ids"])
def test_none_is_an_empty_list(name: str) -> None:
    assert SamplingParams(**{name: None}) == SamplingParams() == tirage.SamplingParams()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"logprobs": True}, {"logprobs": 1}),
        ({"logprobs": False}, {"logprobs": None}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"prompt_logprobs": True}, {"prompt_logprobs": 1}),
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"max_tokens": np.int64(-5)}, {"max_tokens": None}),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"extra_args": None}, {"extra_args": {}}),
        ({"temperature": None}, {"temperature": 1.0}),
    ],
)
def test_values_that_easydel_takes_mean_what_they_mean_there(given: dict[str, Any], read: dict[str, Any]) -> None:
    params = SamplingParams(**given)
    assert {name: getattr(params, name) for name in read} == read
    assert {name: getattr(params.replace(n=2), name) for name in read} == read


def test_tirages_own_class_still_refuses_what_only_easydel_takes() -> None:
    for options in ({"logprobs": True}, {"max_tokens": -1}):
        with pytest.raises(tirage.ParamsError, match=next(iter(options))):
            tirage.SamplingParams(**options)


@pytest.mark.parametrize("name", LISTS)
def test_documented_lists_are_lists(name: str) -> None:
    value = getattr(SamplingParams(**{name: LISTS[name]}), name)
    assert value == LISTS[name]
    assert isinstance(value, list)
    assert (value[0], value[-1], value[:1]) == (LISTS[name][0], LISTS[name][-1], LISTS[name][:1])
    assert value + [9] == [*LISTS[name], 9]  # noqa: RUF005 - concatenation is what is tested
    assert json.loads(json.dumps(value)) == LISTS[name]
    assert value == tuple(LISTS[name]) or name == "bad_words_token_ids"
    assert hash(value) == hash(getattr(tirage.SamplingParams(**{name: LISTS[name]}), name))


def test_lists_are_read_only_and_the_refusal_says_what_to_do() -> None:
    params = SamplingParams(stop=["a"])
    for change in (
        lambda: params.stop.append("b"),
        lambda: params.stop.__setitem__(0, "b"),
        lambda: params.stop.clear(),
    ):
        with pytest.raises(TypeError, match=r"make new parameters with replace\(name="):
            change()
    assert params.replace(stop=[*params.stop, "b"]).stop == ["a", "b"]


def test_defaults_are_those_of_the_documentation() -> None:
    params = SamplingParams()
    assert (params.stop, params.stop_token_ids, params.bad_words) == ([], [], [])
    assert (params.bad_words_token_ids, params.allowed_token_ids, params.extra_args) == (None, None, {})
    assert GuidedDecodingParams(choice=["a", "b"]).choice == ["a", "b"]


class _Tokenizer:
    """A token for each of nine letters; there are no others."""

    letters = "ano .q0A\n"
    vocab_size = len(letters)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [self.letters.index(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return "".join(self.letters[token] for token in token_ids)


def test_bad_words_have_ids_once_they_are_tokenised() -> None:
    params = SamplingParams(bad_words=["no"], bad_words_token_ids=[5])
    known = params.update_with_tokenizer(_Tokenizer())
    assert isinstance(known, SamplingParams)
    assert (params.bad_words_token_ids, known.bad_words_token_ids) == ([[5]], [[5], [1, 2]])
    ended = known.update_with_generation_config({"eos_token_id": 8}, 2)
    assert isinstance(ended, SamplingParams)
    assert ended.all_stop_token_ids == {2, 8}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=3, extra_args={}, **LISTS),
        SamplingParams(stop="x", logprobs=True),
        GuidedDecodingParams(choice=["a"]),
        BeamSearchParams(4, 64),
    ],
)
def test_copies_and_json_are_equal_to_the_object_and_to_tirages_own(params: Any) -> None:
    own = getattr(tirage, type(params).__name__)
    for again in (
        copy.deepcopy(params),
        pickle.loads(pickle.dumps(params)),
        type(params).from_json(params.to_json()),
        own.from_json(params.to_json()),
    ):
        assert (again == params, params == again, hash(again), repr(again)) == (True, True, hash(params), repr(params))


def test_the_sampler_takes_them_as_it_takes_its_own() -> None:
    logits = np.random.default_rng(0).normal(0, 2, (40, 9)).astype(np.float32)
    options = {"seed": 5, "bad_words_token_ids": [[1, 2], 3], "allowed_token_ids": [1, 2, 3, 4]}
    history = [([], [1])] * 40
    theirs = tirage.sample(logits, SamplingParams(**options), history=history, step=list(range(40)))
    own = tirage.sample(logits, tirage.SamplingParams(**options), history=history, step=list(range(40)))
    assert theirs.token_ids.tolist() == own.token_ids.tolist()
    assert set(own.token_ids.tolist()) == {1, 4}
    plain = tirage.sample(logits[0], SamplingParams(seed=5), step=3)
    assert plain.token_ids == tirage.sample(logits[0], tirage.SamplingParams(seed=5), step=3).token_ids
    assert tirage.dialects.to_vllm(SamplingParams(stop=["a"])) == tirage.dialects.to_vllm(
        tirage.SamplingParams(stop=["a"])
    )


# --- pytrees ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (BeamSearchParams(4, 64), "beam_width"),
        (tirage.BeamSearchParams(beam_width=4, max_tokens=64), "beam_width"),
        (SamplingParams(temperature=4.0, stop=["x"], logit_bias={1: 2.0}), "temperature"),
        (tirage.SamplingParams(temperature=4.0, stop=["x"]), "temperature"),
    ],
)
def test_a_host_object_passes_through_compiled_functions(params: Any, name: str) -> None:
    traces = []

    @jax.jit
    def scaled(p: Any, x: Any) -> Any:
        traces.append(1)
        return p, x * getattr(p, name)

    for given in (params, copy.deepcopy(params), params.replace(max_tokens=7)):
        back, product = scaled(given, 2.0)
        assert (back, type(back), float(product)) == (given, type(given), 8.0)
    assert len(traces) == 2
    assert jax.tree.leaves(params) == []
    assert jax.tree.map(lambda leaf: leaf, params) == params


@pytest.mark.slow
def test_a_compiled_draw_reads_host_parameters_passed_to_it() -> None:
    logits = np.linspace(-1, 1, 8, dtype=np.float32)
    drawn = jax.jit(lambda p, x: tirage.sample(x, p, step=4).token_ids)
    for seed in (1, 2**40):
        params = SamplingParams(temperature=0.0, seed=seed)
        assert drawn(params, logits).tolist() == [7]


def test_guided_parameters_are_pytrees_too() -> None:
    guided = GuidedDecodingParams(regex="a+")
    assert jax.jit(lambda g, x: (g, x))(guided, 1)[0] == guided


@pytest.mark.slow
def test_the_core_imports_no_jax_and_registers_its_classes_once_jax_is_there() -> None:
    code = """
import sys, tirage
tirage.BeamSearchParams(beam_width=4, max_tokens=8)
assert "jax" not in sys.modules
import jax
made = tirage.BeamSearchParams(beam_width=4, max_tokens=8)
assert jax.tree.leaves(made) == []
assert "tirage.compat.easydel" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
