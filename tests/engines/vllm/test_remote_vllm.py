"""`tirage.LLM` asks vLLM's server: drawn by vLLM, and drawn by tirage inside it with the tokens that it draws here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_folder import PROMPTS
from served import Server

import tirage
from tirage import GuidedDecodingParams, ParamsError, SamplingParams
from tirage.errors import ModelError

TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    made = Server(folder)
    try:
        made.wait()
        yield f"http://127.0.0.1:{made.port}"
    finally:
        made.stop()


@pytest.fixture(scope="module")
def llm(url: str) -> Iterator[Any]:
    with tirage.LLM(url, dialect="vllm", timeout_s=300) as opened:
        yield opened


@pytest.fixture(scope="module")
def inside(url: str) -> Iterator[Any]:
    with tirage.LLM(url, dialect="vllm", sampler="tirage", timeout_s=300) as opened:
        yield opened


@pytest.fixture(scope="module")
def here(folder: Path, url: str) -> Iterator[Any]:
    with tirage.LLM(folder, backend="torch", dtype="float32") as opened:
        yield opened


def whole(text: str) -> str:
    """A text without the half of a character at its end, which tirage shows and vLLM does not."""
    return text.rstrip("\ufffd")


def params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"semantics": "vllm", "seed": 7, "max_tokens": 10, "ignore_eos": True, **given})


def test_greedy_tokens_are_those_of_the_same_model_here(llm: Any, here: Any) -> None:
    given = params(temperature=0.0, logprobs=2)
    for found, expected in zip(llm.generate(list(PROMPTS), given), here.generate(list(PROMPTS), given), strict=True):
        assert found.token_ids == expected.token_ids
        assert found.prompt_token_ids == expected.prompt_token_ids
        assert whole(found.text) == whole(expected.text)
        assert (found.finish_reason, found.stop) == (expected.finish_reason, expected.stop)
        assert found.usage.total_tokens == expected.usage.total_tokens
        for one, other in zip(found.logprobs, expected.logprobs, strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            # The likeliest are listed by their texts, and the halves of characters have the same.
            if not any("\ufffd" in each.text for each in other.top):
                assert one.rank == other.rank
                likeliest = [each.logprob for each in one.top]
                assert likeliest == pytest.approx([each.logprob for each in other.top], abs=1e-3)


DRAWN = [
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05, "semantics": "canonical"},
    {"temperature": 1.1, "top_k": 20, "repetition_penalty": 1.3, "semantics": "sglang"},
    {"temperature": 1.5, "dry_multiplier": 0.8, "xtc_probability": 0.5, "semantics": "llamacpp"},
    {"temperature": 0.9, "typical_p": 0.8, "no_repeat_ngram_size": 2, "semantics": "hf"},
    {"temperature": 2.0, "top_n_sigma": 2.0, "logit_bias": {5: 3.0}, "allowed_token_ids": list(range(400)),
     "semantics": "canonical"},
]  # fmt: skip


@pytest.mark.parametrize("given", DRAWN)
def test_with_tirage_inside_a_seed_gives_the_tokens_that_it_gives_here(inside: Any, here: Any, given: Any) -> None:
    for seed in range(3):
        asked = params(**given).replace(seed=seed)
        found, expected = inside.generate(list(PROMPTS), asked), here.generate(list(PROMPTS), asked)
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
        assert [whole(each.text) for each in found] == [whole(each.text) for each in expected]


def test_with_tirage_inside_samples_streams_and_chats_are_those_of_here(inside: Any, here: Any) -> None:
    asked = params(temperature=1.2, top_p=0.9, n=3)
    found, expected = inside.generate("why? ", asked)[0], here.generate("why? ", asked)[0]
    assert [each.token_ids for each in found.samples] == [each.token_ids for each in expected.samples]
    one = asked.replace(n=1)
    streamed = "".join(delta.text for delta in inside.stream("why? ", one))
    assert whole(streamed) == whole(here.generate("why? ", one)[0].text)
    assert inside.chat(TALK, one).token_ids == here.chat(TALK, one).token_ids


def test_vllm_draws_by_itself_and_repeats_itself(llm: Any) -> None:
    asked = params(temperature=1.0, top_k=50, n=2, stop=["e"], ignore_eos=False)
    first, again = (llm.generate("so it is that", asked)[0] for _ in range(2))
    assert [each.token_ids for each in first.samples] == [each.token_ids for each in again.samples]
    deltas = list(llm.stream("so it is that", asked))
    assert [each.text for each in deltas[-1].completion.samples] == [each.text for each in first.samples]
    assert deltas[-1].completion.usage.completion_tokens == first.usage.completion_tokens
    stopped = [each for each in first.samples if each.finish_reason == "stop"]
    assert all(each.stop.kind in {"string", "eos"} for each in stopped)


def test_constraints_and_prompt_logprobs(llm: Any, here: Any) -> None:
    guided = GuidedDecodingParams(choice=["yes", "no", "maybe"])
    for asked in (params(guided_decoding=guided, ignore_eos=False), params(guided_decoding=guided, temperature=2.0)):
        assert llm.generate("a", asked.replace(ignore_eos=False))[0].text in {"yes", "no", "maybe"}
    asked = params(prompt_logprobs=2, temperature=0.0)
    found, expected = llm.generate(PROMPTS[0], asked)[0], here.generate(PROMPTS[0], asked)[0]
    for one, other in zip(found.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True):
        assert (one.token_id, one.rank) == (other.token_id, other.rank)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_refusals(url: str, llm: Any, inside: Any) -> None:
    with pytest.raises(ParamsError, match="refuses the request"):
        llm.generate([1, 600], params())
    with pytest.raises(ParamsError, match="semantics must be 'vllm' for these parameters"):
        llm.generate("a", params(min_p=0.1, top_p=0.9, semantics="canonical"))
    with pytest.raises(ParamsError, match=r"refuses the request: .*512 columns"):
        inside.generate("a", params(logit_bias={512: 1.0}))
    with tirage.LLM(url, dialect="sglang") as wrong, pytest.raises(ModelError, match="dialect must be 'vllm'"):
        wrong.generate("a", SamplingParams())


def test_every_field_alone_is_taken(llm: Any) -> None:
    for given in (
        {"n": 2}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.2}, {"top_p": 0.8},
        {"min_p": 0.1}, {"top_k": 7}, {"stop": ["a"]}, {"stop_token_ids": [3]}, {"bad_words": ["x"]}, {"min_tokens": 2},
        {"skip_special_tokens": False}, {"spaces_between_special_tokens": False}, {"include_stop_str_in_output": True},
        {"truncate_prompt_tokens": 4}, {"logit_bias": {3: 1.5}}, {"allowed_token_ids": [1, 2]},
    ):  # fmt: skip
        assert llm.generate("the cat sat on the mat", params(**given))[0].usage.completion_tokens > 0
        if "truncate_prompt_tokens" not in given:
            assert llm.chat(TALK, params(**given)).usage.completion_tokens > 0
