"""PaliGemma: all of a prompt sees all of it, so prompts are read whole and nothing that was read serves another one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from small_media import build_media
from small_torch import alone

from tirage import LLM, Prompt, SamplingParams
from tirage.models.huggingface import HuggingFaceModel, wrap_module

NEW = 14
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 255, shape, dtype=np.uint8) for shape in ((40, 50, 3), (60, 30, 3))]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any]:
    module, processor = build_media("paligemma")
    torch.manual_seed(1)
    for part in module.model.language_model.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, std=1.5 * part.in_features**-0.5)
    return module, processor


def lone(module: Any, processor: Any, prompt: Prompt) -> list[int]:
    inputs = processor(text=[prompt.text], images=list(prompt.images), return_tensors="pt")
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return module.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.slow
def test_texts_are_those_of_generate_in_company_and_when_they_share_a_beginning(parts: tuple[Any, Any]) -> None:
    module, processor = parts
    whole = RNG.integers(4, 250, 400).tolist()
    prompts = [whole[:30], whole[:70], whole[:300], whole[:30] + whole[100:140]]
    with LLM(wrap_module(module, processor=processor), tokenizer=processor.tokenizer) as llm:
        expected = [alone(module, prompt, NEW) for prompt in prompts]
        for _ in range(2):
            done = llm.generate(prompts, GREEDY)
            assert [list(one.token_ids) for one in done] == expected
            assert [one.usage.cached_tokens for one in done] == [0] * 4


@pytest.mark.slow
def test_images_are_taken_and_texts_beside_them_stay_the_same(parts: tuple[Any, Any]) -> None:
    module, processor = parts
    pictures = [
        Prompt(text="<image>what is it", images=PICTURES[:1]),
        Prompt(text="<image><image>compare both", images=PICTURES),
        Prompt(text="<image>what is it", images=PICTURES[1:]),
    ]
    words = RNG.integers(4, 250, 20).tolist()
    expected = [*(lone(module, processor, prompt) for prompt in pictures), alone(module, words, NEW)]
    with LLM(wrap_module(module, processor=processor), tokenizer=processor.tokenizer) as llm:
        for _ in range(2):
            assert [list(one.token_ids) for one in llm.generate([*pictures, words], GREEDY)] == expected


def test_the_log_says_that_prompts_are_read_in_one_piece(
    parts: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tirage"):
        model: HuggingFaceModel = wrap_module(parts[0])
    assert (model.path, model.chunk, model.resumes) == ("joined", None, False)
    assert "decodes rows joined (prompts are read in one piece: logits differ by" in caplog.text
