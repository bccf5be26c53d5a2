"""Samples and searches whose processors take their time: the others go on meanwhile, and nobody gets other tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import tirage
from tirage import LLM, BeamSearchParams, Completion, SamplingParams

pytestmark = pytest.mark.slow

HOUR_S = 3600.0


class Held:
    """A processor that forbids token 5, after it has waited until it is let go."""

    def __init__(self, *, busy: bool) -> None:
        self.busy, self.entered, self.let_go = busy, threading.Event(), threading.Event()

    def __call__(self, logits: np.ndarray, args: Sequence[dict[str, Any]]) -> np.ndarray:
        self.entered.set()
        while not self.let_go.is_set():
            if not self.busy:
                self.let_go.wait()
        logits[:, 5] = -np.inf
        return logits


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", processor_timeout=HOUR_S) as running:
        yield running


def sampled(llm: LLM, params: SamplingParams) -> Completion:
    return llm.generate("One day", params.replace(seed=4, max_tokens=9))[0]


def searched(llm: LLM, params: SamplingParams) -> Completion:
    return llm.beam_search("One day", BeamSearchParams(beam_width=3, max_tokens=9), sampling=params)[0]


@pytest.mark.parametrize("busy", [False, True], ids=["waits", "loops"])
@pytest.mark.parametrize("answer", [sampled, searched])
def test_others_go_on_while_a_processor_has_not_returned(
    llm: LLM, answer: Callable[[LLM, SamplingParams], Completion], busy: bool
) -> None:
    held, answers = Held(busy=busy), list[Completion]()
    tirage.register_processor("held", held, replace=True)
    params = SamplingParams(logits_processors=[("held", {})], logprobs=2)
    thread = threading.Thread(target=lambda: answers.append(answer(llm, params)))
    thread.start()
    try:
        assert held.entered.wait(HOUR_S)
        neighbour = llm.generate("Once upon a time", SamplingParams(seed=7, max_tokens=12))[0]
        assert not answers
    finally:
        held.let_go.set()
        thread.join()
    with LLM("tiny") as plain:
        assert (
            neighbour.token_ids
            == plain.generate("Once upon a time", SamplingParams(seed=7, max_tokens=12))[0].token_ids
        )
        assert answers[0].token_ids == answer(plain, params).token_ids
    assert answers[0].logprobs is not None
    assert len(answers[0].logprobs) == 9


def test_searches_beside_each_other_find_what_each_finds_alone(llm: LLM) -> None:
    held = Held(busy=False)
    held.let_go.set()
    tirage.register_processor("held", held, replace=True)
    params = SamplingParams(logits_processors=[("held", {})])
    prompts, beams = ["One day", "Once upon a time", "The fox"], BeamSearchParams(beam_width=3, max_tokens=12)
    together = llm.beam_search(prompts, beams, sampling=params)
    with LLM("tiny") as plain:
        for prompt, found in zip(prompts, together, strict=True):
            [alone] = plain.beam_search(prompt, beams, sampling=params)
            assert [sample.token_ids for sample in found.samples] == [sample.token_ids for sample in alone.samples]
