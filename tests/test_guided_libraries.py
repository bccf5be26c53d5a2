"""One constraint, one seed, one model: the same text whichever library its logits come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from guided_cases import VOCABULARY, compiled
from numpy.typing import NDArray
from small_tokenizers import byte_level_tokenizer

import tirage
from tirage import LLM, BeamSearchParams, GuidedDecodingParams, SamplingParams

EOS, WIDTH = 260, 270
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4}
LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "torch": torch.from_numpy,
    "jax": jnp.asarray,
}


class Noise:
    """A model whose logits depend on the tokens so far, as arrays of one library."""

    vocab_size, max_length = WIDTH, 400

    def __init__(self, library: str) -> None:
        self._as = LIBRARIES[library]

    def prefill(self, token_ids: Sequence[int]) -> tuple[Any, list[int]]:
        return self._as(noise(list(token_ids))), list(token_ids)

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> Any:
        for cache, token in zip(caches, token_ids, strict=True):
            cache.append(token)
        return self._as(np.stack([noise(cache) for cache in caches]))

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)


def noise(tokens: list[int]) -> NDArray[np.float32]:
    logits = np.random.default_rng(tokens).normal(size=WIDTH) * 2
    logits[[*b'"}]', EOS]] += 2
    return logits.astype(np.float32)


@pytest.fixture(scope="module")
def llms() -> dict[str, LLM]:
    end = {"eos_token_id": EOS}
    return {name: LLM(Noise(name), tokenizer=byte_level_tokenizer(), generation_config=end) for name in LIBRARIES}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0},
        {"n": 3, "top_k": 20, "logprobs": 2},
        {"n": 2, "best_of": 4, "top_p": 0.9},
        {"repetition_penalty": 1.4, "bad_words": ["1"], "logit_bias": {ord("x"): 60.0}},
        {"min_tokens": 2, "min_p": 0.01},
        {"close_grammar": True, "max_tokens": 7, "logit_bias": {ord("]"): -90.0}},
        *({"semantics": name, "top_k": 20} for name in ("hf", "vllm", "sglang", "llamacpp")),
        {"semantics": "openai"},
        {"semantics": "llamacpp", "n": 2, "top_k": 5, "temperature": 1.5},
    ],
    ids=str,
)
def test_a_constrained_text_is_the_same_with_every_library(llms: dict[str, LLM], params: dict[str, Any]) -> None:
    given = {"seed": 5, "max_tokens": 60, **params}
    asked = SamplingParams(**given, guided_decoding=GuidedDecodingParams(json=NUMBERS))
    found = {name: llm.generate(["p", "q"], asked) for name, llm in llms.items()}
    ended = [sample for one in found["numpy"] for sample in one.samples if sample.finish_reason == "stop"]
    assert ended
    for sample in ended:
        assert all(0 <= number <= 99 for number in json.loads(sample.text))
    texts = {name: [sample.token_ids for one in each for sample in one.samples] for name, each in found.items()}
    assert texts["torch"] == texts["numpy"]
    assert texts["jax"] == texts["numpy"]


def test_constrained_and_free_rows_share_the_steps_of_every_library(llms: dict[str, LLM]) -> None:
    modes = [None, {"regex": "[a-f]{3,9}"}, {"json": NUMBERS}, {"choice": ["up", "down"]}]
    asked = [
        SamplingParams(seed=i, max_tokens=30, guided_decoding=mode and GuidedDecodingParams(**mode))
        for i, mode in enumerate(modes)
    ]
    for llm in llms.values():
        together = [one.token_ids for one in llm.generate(["p"] * 4, asked)]
        assert together == [llm.generate("p", params)[0].token_ids for params in asked]


@pytest.mark.parametrize("semantics", ["canonical", "hf"])
@pytest.mark.parametrize("close", [False, True])
def test_constrained_beams_are_the_same_with_every_library(llms: dict[str, LLM], semantics: str, close: bool) -> None:
    sampling = SamplingParams(
        guided_decoding=GuidedDecodingParams(json=NUMBERS), semantics=semantics, close_grammar=close
    )
    beams = BeamSearchParams(beam_width=3, max_tokens=9 if close else 40)
    found = {name: llm.beam_search("p", beams, sampling=sampling)[0].samples for name, llm in llms.items()}
    assert [json.loads(sample.text) for sample in found["numpy"]]
    texts = {name: [sample.token_ids for sample in samples] for name, samples in found.items()}
    assert texts["torch"] == texts["numpy"] == texts["jax"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("semantics", ["canonical", "llamacpp"])
def test_a_matchers_mask_goes_with_the_logits_of_every_library(library: str, semantics: str) -> None:
    rng, params = np.random.default_rng(3), SamplingParams(seed=4, semantics=semantics)
    logits = rng.normal(size=(16, VOCABULARY.width)).astype(np.float32)
    mask = np.zeros((16, VOCABULARY.words), np.int32)
    for row, matcher in enumerate(compiled(regex="[a-z]{3}|\\d+").matcher() for _ in range(16)):
        matcher.fill_mask(mask[row])
    before = mask.copy()
    given = LIBRARIES[library](logits)
    batch = tirage.Batch(VOCABULARY.width, 17)
    for _ in range(16):
        batch.add(params)
    expected = tirage.sample(logits, params, mask=mask)
    law = tirage.law(logits, params, mask=mask)
    assert set(expected.status.tolist()) == {0}
    for drawn in (
        tirage.sample(given, params, mask=mask),
        tirage.sample(given, params, mask=LIBRARIES[library](mask)),
        batch.sample(given, mask),
    ):
        assert np.asarray(drawn.token_ids).tolist() == expected.token_ids.tolist()
    assert (tirage.law(given, params, mask=mask) == law).all()
    assert (mask == before).all()
    padded = np.vstack([mask, mask[:1]])
    with_empty = batch.sample(LIBRARIES[library](np.vstack([logits, logits[:1]])), padded)
    assert np.asarray(with_empty.token_ids).tolist() == [*expected.token_ids.tolist(), -1]
