"""Random requests to a server, one by one and in batches: each gives the tokens that `LLM.generate` gives."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers import Server, shared

from tirage import LLM, Completion, ParamsError, SamplingParams
from tirage.dialects import from_sglang

PROMPTS = ("One day", "The dog", "The capital of France is", "<|user|>\nHello", "A", "She said:")
VALUES: dict[str, list[Any]] = {
    "temperature": [0, 0.3, 1.0, 1.7],
    "top_p": [0.2, 0.9, 1.0],
    "top_k": [-1, 1, 5, 40],
    "min_p": [0.0, 0.05, 0.5],
    "frequency_penalty": [-0.5, 0.5, 2.0],
    "presence_penalty": [-1.0, 0.7],
    "repetition_penalty": [0.8, 1.3, 2.0],
    "max_new_tokens": [0, 1, 9, 20],
    "min_new_tokens": [0, 1],
    "stop": [".", ["the", " a"], ["zzz"]],
    "stop_token_ids": [[277], [5, 360]],
    "stop_regex": ["[.!?]", ["s$", r"\w\w ing"]],
    "logit_bias": [{"277": -100.0}, {"360": 5.0, "5": -1.0}],
    "n": [1, 2, 3],
    "regex": ["[a-z ]{3,8}"],
    "json_schema": ['{"type": "integer", "minimum": 0, "maximum": 99}'],
    "ignore_eos": [True],
    "skip_special_tokens": [False],
    "no_stop_trim": [True],
    "semantics": ["canonical", "vllm", "hf", "fastdeploy-air", "mindie"],
}


def random_request(rng: random.Random) -> tuple[str, dict[str, Any], SamplingParams]:
    """A prompt with parameters that fit together, and what they are in process."""
    while True:
        names = rng.sample(sorted(VALUES), rng.randint(0, 7))
        plain = {"sampling_seed": rng.randrange(-(2**63), 2**63), "max_new_tokens": 16}
        plain |= {name: rng.choice(VALUES[name]) for name in names}
        semantics = plain.get("semantics", "sglang")
        try:
            params = from_sglang({name: value for name, value in plain.items() if name != "semantics"})
            return rng.choice(PROMPTS), plain, params.replace(semantics=semantics)
        except ParamsError:
            continue


def flat(completions: list[Completion]) -> list[tuple[list[int], str, str | None]]:
    return [
        (list(sample.token_ids), sample.text, sample.finish_reason) for one in completions for sample in one.samples
    ]


def shown(answer: Any) -> list[tuple[list[int], str, str]]:
    entries = answer if isinstance(answer, list) else [answer]
    return [(one["output_ids"], one["text"], one["meta_info"]["finish_reason"]["type"]) for one in entries]


def sweep(server: Server, llm: LLM, seed: int, count: int) -> None:
    rng = random.Random(seed)
    cases = [random_request(rng) for _ in range(count)]
    expected = [flat(llm.generate([prompt], [params])) for prompt, _, params in cases]
    with ThreadPoolExecutor(6) as pool:
        bodies = [{"text": prompt, "sampling_params": plain} for prompt, plain, _ in cases]
        answers = [pool.submit(server.post, "/generate", body) for body in bodies]
        for body, answer, wanted in zip(bodies, answers, expected, strict=True):
            response = answer.result()
            assert response.status_code == 200, (body, response.text)
            assert shown(response.json()) == wanted, body
    together = {"text": [prompt for prompt, _, _ in cases], "sampling_params": [plain for _, plain, _ in cases]}
    assert shown(server.post("/generate", together).json()) == [entry for one in expected for entry in one]


@pytest.fixture(scope="module")
def server() -> Server:
    return shared("tiny")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny")


@pytest.mark.slow
def test_a_server_draws_what_the_library_draws(server: Server, llm: LLM) -> None:
    sweep(server, llm, seed=0, count=16)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_server_draws_what_the_library_draws_for_many_more(server: Server, llm: LLM, seed: int) -> None:
    sweep(server, llm, seed=seed, count=40)
