"""-1 logprobs: those of the whole vocabulary, as vLLM has them, as far as the operator allows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from servers import Server, shared
from test_openai import PROMPT, USER, error, tiny

from tirage import SamplingParams
from tirage.engine.entry_lists import ranks_of

VOCABULARY = 1536
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"max_tokens": 3, "seed": 1, "return_tokens_as_token_ids": True}


def server() -> Server:
    return shared("tiny", f"--max-top-logprobs={VOCABULARY}")


def tops(path: str, *, stream: bool, **body: Any) -> list[dict[str, float]]:
    """The logprobs by token of each drawn one."""
    asked = (
        {"messages": USER, "logprobs": True, "top_logprobs": -1} if path == CHAT else {"prompt": PROMPT, "logprobs": -1}
    )
    reply = server().post(path, {**BODY, **asked, "stream": stream, **body})
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line and "[DONE]" not in line]
    choices = [choice for line in lines for choice in json.loads(line)["choices"] if choice["logprobs"]]
    if path == COMPLETIONS:
        return [top for choice in choices for top in choice["logprobs"]["top_logprobs"]]
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    return [{each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_minus_one_is_the_whole_vocabulary(path: str, stream: bool) -> None:
    found = tops(path, stream=stream)
    assert [len(top) for top in found] == [VOCABULARY] * 3
    assert found[0].keys() == {f"token_id:{token}" for token in range(VOCABULARY)}
    for top in found:
        assert sum(map(math.exp, top.values())) == pytest.approx(1.0, abs=1e-4)
        assert list(top.values()) == sorted(top.values(), reverse=True)


def test_minus_one_of_the_prompt_is_the_whole_vocabulary() -> None:
    body = {**BODY, "prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": -1}
    first, *rest = server().post(COMPLETIONS, body).json()["choices"][0]["prompt_logprobs"]
    assert first is None
    assert [len(each) for each in rest] == [VOCABULARY] * (len(tiny().tokenizer.encode(PROMPT)) - 1)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"messages": USER, "prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": PROMPT, "logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"prompt": PROMPT, "prompt_logprobs": -1}, "prompt_logprobs"),
    ],
)
def test_what_the_operator_has_not_allowed_is_refused_with_the_flag(
    path: str, body: dict[str, Any], param: str
) -> None:
    found = error(path, body)
    assert found["param"] == param
    assert "--max-top-logprobs" in found["message"]
    for wrong in (-2, "all", 1.5):
        assert error(path, {**body, param: wrong})["param"] == param


def test_the_whole_vocabulary_counts_against_the_entries_of_an_answer() -> None:
    reply = server().post(COMPLETIONS, {"prompt": "a " * 20, "max_tokens": 400, "n": 2, "logprobs": -1})
    assert reply.status_code == 400
    assert "--max-logprob-entries" in reply.json()["error"]["message"]


def test_equal_logits_have_the_rank_of_the_first() -> None:
    assert ranks_of([-1.0, -2.0, -2.0, -3.0]) == [1, 2, 2, 4]
    params = SamplingParams(seed=1, max_tokens=1, logprobs=VOCABULARY)
    entries = tiny().generate(PROMPT, params)[0].logprobs[0].top
    logits = tiny().engine.next_logits(tiny().tokenizer.encode(PROMPT))
    assert [entry.rank for entry in entries] == [1 + int((logits > logits[entry.token_id]).sum()) for entry in entries]
