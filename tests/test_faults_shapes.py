"""Logits of a shape or type that no model should give end the request that they belong to, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters

from tirage import LLM, BeamSearchParams, SamplingParams

LETTERS = SamplingParams(temperature=0, max_tokens=4)
BAD = {
    "narrow": (lambda row: row[:7], "ModelError: read must give logits of shape [1, 300], got [1, 7]"),
    "two": (lambda row: np.stack([row] * 2), "ModelError: read must give logits of shape [1, 300], got [1, 2, 300]"),
    "whole numbers": (lambda row: row.astype(int), "ModelError: read must give float32 logits, got int64"),
    "objects": (lambda row: row.astype(object), "ModelError: read must give float32 logits, got object"),
    "complex": (lambda row: row.astype(complex), "ModelError: read must give float32 logits, got complex128"),
}  # fmt: skip


class Odd(Script):
    """Gives prompts of q, and scores of s, another shape or type than asked for."""

    def __init__(self, text: str, change: Any) -> None:
        super().__init__(text)
        self._change = change

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        logits, cache = super().prefill(token_ids)
        return (self._change(logits) if token_ids[0] == ord("q") else logits), cache

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        scores = super().score(token_ids)
        return scores[:1] if token_ids[0] == ord("s") else scores


@pytest.mark.parametrize("name", BAD)
def test_a_prompt_of_the_wrong_shape_or_type_ends_alone(name: str) -> None:
    change, message = BAD[name]
    with LLM(Odd("abcdef", change), tokenizer=Letters()) as llm:
        first = llm.stream("r", LETTERS.replace(max_tokens=6))
        text = next(first).text
        done = llm.generate(["p", "q", "r"], LETTERS)
        assert [one.text for one in done] == ["abcd", "", "abcd"]
        assert done[1].stop is not None
        assert done[1].stop.matched_text == message
        assert text + "".join(delta.text for delta in first) == "abcdef"


def test_a_search_and_scores_of_the_wrong_shape_end_alone() -> None:
    with LLM(Odd("abcdef", lambda row: row[:7]), tokenizer=Letters()) as llm:
        requests = [
            llm.beam_request("q", BeamSearchParams(beam_width=2, max_tokens=3)),
            llm.request("st", LETTERS.replace(prompt_logprobs=0)),
            llm.request("pt", LETTERS.replace(prompt_logprobs=0)),
        ]
        beams, scored, good = [stream.wait(60) for stream in llm.engine.submit_all(requests)]
        assert [one.finish_reason for one in (beams, scored)] == ["error", "error"]
        assert scored.stop is not None
        assert scored.stop.matched_text == "ModelError: read must give logits of shape [2, 300], got [1, 300]"
        assert good.finish_reason == "length"


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_logits_of_another_float_type_write_the_same_text_in_company(dtype: Any) -> None:
    with LLM(Odd("abcdef", lambda row: row.astype(dtype)), tokenizer=Letters()) as llm:
        assert [one.text for one in llm.generate(["p", "q"], LETTERS)] == ["abcd", "abcd"]
