"""Requests stopped halfway on real classes: their neighbours write on, and what they had read serves the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from small_media import build_media
from small_torch import Numbers, alone, build

from tirage import LLM, Completion, Prompt, SamplingParams
from tirage.models.huggingface import wrap_module

LONG = SamplingParams(temperature=0, max_tokens=180, ignore_eos=True)
SHORT = LONG.replace(max_tokens=30)


def stop_halfway(llm: LLM, stopped: Sequence[Any], others: Sequence[Any]) -> tuple[list[Completion], list[Completion]]:
    """The completions of requests that are aborted once each has begun to write, and of those beside them."""
    streams = llm.engine.submit_all([llm.request(prompt, LONG) for prompt in stopped])
    beside = llm.engine.submit_all([llm.request(prompt, SHORT) for prompt in others], buffer=0)
    deltas = [iter(stream) for stream in streams]
    for each in deltas:
        next(each)
    for stream in streams:
        stream.abort()
    return [stream.wait(120) for stream in streams], [stream.wait(120) for stream in beside]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_aborted_rows_leave_their_neighbours_alone(name: str) -> None:
    module, rng = build(name), np.random.default_rng(4)
    prompts = [rng.integers(4, 196, length).tolist() for length in (20, 9, 31, 14)]
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        stopped, others = stop_halfway(llm, prompts[:2], prompts[2:])
        for prompt, done in zip(prompts[:2], stopped, strict=True):
            written = list(done.token_ids)
            assert done.finish_reason == "abort"
            assert 0 < len(written) < 180
            assert written == alone(module, prompt, len(written))
        assert [list(done.token_ids) for done in others] == [alone(module, prompt, 30) for prompt in prompts[2:]]
        # What an aborted row had read is as good as any other's.
        again = llm.generate(prompts[0], SHORT)[0]
        assert list(again.token_ids) == alone(module, prompts[0], 30)
        assert (again.usage.cached_tokens > 0) == (name == "llama")


@pytest.mark.slow
def test_aborted_images_leave_their_neighbours_alone() -> None:
    module, processor = build_media("llava")
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, shape, dtype=np.uint8) for shape in ((40, 50, 3), (60, 30, 3))]
    prompts = [Prompt(text=f"See <image> {word}", images=[p]) for word, p in zip("ab", pictures, strict=True)]
    with LLM(wrap_module(module, processor=processor), tokenizer=processor.tokenizer) as llm:
        expected = [list(done.token_ids) for done in llm.generate([*prompts, "plain words"], SHORT)]
        stopped, others = stop_halfway(llm, prompts, ["plain words", prompts[0]])
        assert [done.finish_reason for done in stopped] == ["abort", "abort"]
        assert [list(done.token_ids) for done in others] == [expected[2], expected[0]]


def test_an_empty_prompt_is_bos_alone_where_the_tokenizer_adds_one() -> None:
    with LLM("tiny") as llm:
        done = llm.generate("", SHORT.replace(max_tokens=3))[0]
        assert done.prompt_token_ids == (llm.tokenizer.raw.token_to_id(llm.tokenizer.bos_token),)
        assert len(done.token_ids) == 3
