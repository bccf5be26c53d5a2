"""Mistakes that many make get an error that says what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tirage.semantics
from tirage import LLM, BeamSearchParams, GuidedDecodingParams, ModelError, ParamsError, SamplingParams
from tirage.fields.record import specs
from tirage.params import FIELDS
from tirage.params.other_names import OTHER_NAMES


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.mark.parametrize("wrong", [5, None, {"prompt": "a"}])
def test_what_is_no_prompt_is_named_with_what_would_be_one(tiny: LLM, wrong: Any) -> None:
    with pytest.raises(ParamsError, match=r"prompts must be a text, .* got .*; give a text such as 'Once upon a time'"):
        tiny.generate(wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate("hi", temperature=0.3), r"give params=SamplingParams\(temperature=0.3\)"),
        (lambda llm: llm.stream("hi", top_p=0.3), r"stream\(\) .* give params=SamplingParams\(top_p=0.3\)"),
        (lambda llm: llm.astream("hi", top_p=0.3), "give params=SamplingParams"),
        (lambda llm: llm.chat([], seed=1), "give params=SamplingParams"),
        (lambda llm: llm.chat_stream([], seed=1), "give params=SamplingParams"),
        (lambda llm: llm.generate("hi", max_new_tokens=3), r"params=SamplingParams\(...\): did you mean 'max_tokens'"),
        (lambda llm: llm.generate("hi", maxOutputTokens=3), r"params=SamplingParams\(...\): did you mean 'max_tokens'"),
        (lambda llm: llm.generate("hi", TOP_K=3), "did you mean in params 'top_k'"),
        (lambda llm: llm.generate("hi", prgress=True), "did you mean 'progress'"),
        (lambda llm: llm.generate("hi", temprature=1), "did you mean in params 'temperature'"),
        (lambda llm: LLM("tiny", tokeniser=1), "did you mean 'tokenizer'"),
    ],
)
def test_a_wrong_keyword_says_where_it_belongs(tiny: LLM, call: Callable[[LLM], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(tiny)


def test_parameters_in_a_dict_become_sampling_params(tiny: LLM) -> None:
    with pytest.raises(ParamsError, match=r"got dict; use SamplingParams\(\*\*params\)"):
        tiny.generate("hi", {"temperature": 0.3})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_another_library_has_a_hint(name: str) -> None:
    assert name not in FIELDS
    with pytest.raises(ParamsError) as error:
        SamplingParams(**{name: 1})
    assert str(error.value).endswith(f"got {name!r}; {OTHER_NAMES[name]}")
    quoted = [word.strip("'?,") for word in OTHER_NAMES[name].split() if word.startswith("'")]
    assert set(quoted) <= set(FIELDS)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("top_K", "did you mean 'top_k'?"),
        ("TOP_P", "did you mean 'top_p'?"),
        ("topP", "did you mean 'top_p'?"),
        ("Temperature", "did you mean 'temperature'?"),
        ("max_completion_tokens", "did you mean 'max_tokens'?"),
        ("maxOutputTokens", "did you mean 'max_tokens'?"),
        ("max_gen_len", "did you mean 'max_tokens'?"),
        ("num_predict", "did you mean 'max_tokens'?"),
        ("stop_sequences", "did you mean 'stop'?"),
        ("stopSequences", "did you mean 'stop'?"),
        ("stop_word", "did you mean 'stop'?"),
        ("candidateCount", "did you mean 'n'?"),
        ("repeat_last_n", "use semantics=tirage.semantics.resolve('canonical').replace(penalty_window=...)"),
        ("min_tokens_to_keep", "did you mean 'min_keep'?"),
        ("xtc_special_tokens", "did you mean 'xtc_protected_ids'?"),
        ("responseSchema", "use guided_decoding=GuidedDecodingParams(json=...)"),
        ("bad_word", "did you mean 'bad_words'?"),
        ("eos_tokens_ids", "did you mean 'stop_token_ids'?"),
    ],
)
def test_a_name_is_told_apart_from_those_that_only_look_alike(name: str, hint: str) -> None:
    with pytest.raises(ParamsError) as error:
        SamplingParams(**{name: 1})
    assert str(error.value).endswith(f"got {name!r}; {hint}")


@pytest.mark.parametrize("name", ["echo", "lora", "tool_choice", "x" * 101])
def test_a_name_that_means_nothing_here_has_no_hint(name: str) -> None:
    with pytest.raises(ParamsError) as error:
        SamplingParams(**{name: 1})
    assert ";" not in str(error.value)


def test_what_other_names_stand_for_can_be_given() -> None:
    window = tirage.semantics.resolve("canonical").replace(penalty_window=64)
    SamplingParams(semantics=window, repetition_penalty=1.1)
    for name, hint in OTHER_NAMES.items():
        if field := re.search(r"GuidedDecodingParams\((\w+)=", hint):
            assert field[1] in specs(GuidedDecodingParams), name
        if field := re.search(r"BeamSearchParams\((\w+)=", hint):
            assert field[1] in specs(BeamSearchParams), name


def test_an_engine_that_is_no_preset_has_a_hint() -> None:
    for name, meant in (("vlm", "vllm"), ("transformers", "hf"), ("llama.cpp", "llamacpp")):
        with pytest.raises(ParamsError, match=f"did you mean {meant!r}"):
            SamplingParams(semantics=name)


def test_models_of_the_hub_and_missing_files_have_a_hint(tmp_path: Path) -> None:
    (tmp_path / "model-Q4.gguf").touch()
    for model, message in (
        ("Qwen/Qwen3-0.6B", "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`"),
        (str(tmp_path / "model-Q5.gguf"), "no such file; did you mean 'model-Q4.gguf'?"),
        (str(tmp_path / "none" / "model.gguf"), "no such file, as there is no folder"),
        ("tinny", "did you mean 'tiny'?"),
    ):
        with pytest.raises(ModelError) as error:
            LLM(model)
        assert message in str(error.value)
