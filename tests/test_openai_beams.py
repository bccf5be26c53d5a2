"""Beam searches on OpenAI's routes: what vLLM's `use_beam_search` asks for, as JSON and as a stream."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from servers import shared

from tirage import LLM, BeamSearchParams, Completion, SamplingParams

PROMPT = "Once upon a time"
USER = [{"role": "user", "content": "Tell me a story"}]


@cache
def tiny() -> LLM:
    """The model of the server, in this process."""
    return LLM("tiny")


def post(path: str, status: int = 200, **body: Any) -> Any:
    answer = shared().post(path, {"use_beam_search": True, "max_tokens": 12, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def complete(status: int = 200, **body: Any) -> Any:
    return post("/v1/completions", status, **{"prompt": PROMPT, **body})


def search(width: int, sampling: SamplingParams | None = None, **options: Any) -> Completion:
    params = BeamSearchParams(**{"beam_width": width, "max_tokens": 12, "temperature": 1.0, **options})
    return tiny().beam_search(PROMPT, params, sampling=sampling)[0]


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_n_is_the_width_and_all_hypotheses_come_back_best_first() -> None:
    answer, expected = complete(n=3), search(3)
    assert texts(answer) == [sample.text for sample in expected.samples]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == expected.usage.completion_tokens
    assert texts(complete(n=3, seed=1)) == texts(complete(n=3, seed=2)) == texts(answer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"beam_width": 4, "n": 2}, {"num_return_sequences": 2}),
        (
            {"beam_width": 4, "n": 4, "length_penalty": -3.0, "max_tokens": 40},
            {"length_penalty": -3.0, "max_tokens": 40},
        ),
        ({"n": 4, "early_stopping": True, "max_tokens": 60}, {"early_stopping": True, "max_tokens": 60}),
        ({"n": 4, "temperature": 2.0}, {"temperature": 2.0}),
        ({"n": 4, "temperature": 0}, {"temperature": 0.0}),
        ({"n": 4, "ignore_eos": True, "max_tokens": 60}, {"ignore_eos": True, "max_tokens": 60}),
    ],
)
def test_each_field_is_that_of_the_search(fields: dict[str, Any], options: dict[str, Any]) -> None:
    expected = search(4, **options)
    assert texts(complete(**fields)) == [sample.text for sample in expected.samples]


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"stop": ["a"]}, SamplingParams(stop=["a"])),
        ({"repetition_penalty": 3.0}, SamplingParams(repetition_penalty=3.0)),
        ({"logit_bias": {"5": -100}}, SamplingParams(logit_bias={5: -100.0})),
    ],
)
def test_stops_and_edits_hold_in_every_hypothesis(fields: dict[str, Any], sampling: SamplingParams) -> None:
    assert texts(complete(n=3, **fields)) == [sample.text for sample in search(3, sampling).samples]


def test_a_chat_is_searched_without_the_models_own_way_to_draw() -> None:
    answer = post("/v1/chat/completions", messages=USER, n=2, beam_width=3)
    params = BeamSearchParams(beam_width=3, max_tokens=12, temperature=1.0, num_return_sequences=2)
    request = tiny().chat_request(USER, beams=params)
    expected = tiny().engine.submit(request).wait(60)
    assert [choice["message"]["content"] for choice in answer["choices"]] == [s.text for s in expected.samples]
    assert len(answer["choices"]) == 2


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_adds_up_to_the_answer(path: str) -> None:
    body: dict[str, Any] = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": USER}
    whole = post(path, n=2, beam_width=3, **body)
    sent = {"use_beam_search": True, "max_tokens": 12, "n": 2, "beam_width": 3, "stream": True, **body}
    answer = shared().post(path, sent)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    chunks = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    told = {0: "", 1: ""}
    for chunk in chunks:
        told[chunk["index"]] += chunk["text"] if "text" in chunk else chunk["delta"].get("content") or ""
    expected = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in whole["choices"]]
    assert list(told.values()) == expected
    ends = [chunk["index"] for chunk in chunks if chunk["finish_reason"] is not None]
    assert sorted(ends) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 3, "beam_width": 2}, "n", "n must be at most beam_width, 2, got 3"),
        ({"n": 2, "top_p": 0.5}, "top_p", "top_p must keep its default 1.0 in a beam search"),
        ({"n": 2, "best_of": 3}, "best_of", "best_of must keep its default null in a beam search"),
        ({"n": 2, "length_penalty": "a"}, "length_penalty", "length_penalty must be a number"),
        ({"n": 2, "beam_width": 300}, None, "beam_width"),
        ({"n": 129}, "n", "n must be at most 128"),
        (
            {"use_beam_search": False, "length_penalty": 0.5},
            "length_penalty",
            "length_penalty must go with use_beam_search",
        ),
        ({"use_beam_search": False, "beam_width": 2}, "beam_width", "beam_width must go with use_beam_search, got 2"),
        ({"use_beam_search": None, "early_stopping": True}, "early_stopping", "must go with use_beam_search, got true"),
    ],
)
def test_what_a_search_cannot_use_is_refused_by_name(fields: dict[str, Any], param: str | None, message: str) -> None:
    error = complete(400, **fields)["error"]
    assert message in error["message"]
    assert param is None or error["param"] == param


def test_every_field_reaches_the_search() -> None:
    sent = {"beam_width": 3, "length_penalty": 0.5, "early_stopping": "never", "temperature": 1.5, "ignore_eos": True}
    answer = complete(n=2, include_stop_str_in_output=True, return_effective_params=True, **sent)
    [effective] = answer["effective_params"]
    expected = {**sent, "num_return_sequences": 2, "include_stop_str_in_output": True, "max_tokens": 12}
    assert {name: effective["beams"][name] for name in expected} == expected


def streamed(path: str, **body: Any) -> dict[int, list[Any]]:
    """The choices of a stream by their index."""
    answer = shared().post(path, {"use_beam_search": True, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    found: dict[int, list[Any]] = {}
    for choice in (choice for line in lines[:-1] for choice in json.loads(line)["choices"]):
        found.setdefault(choice["index"], []).append(choice)
    return found


@pytest.mark.parametrize(("path", "prompt"), [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {})])
@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"n": 2, "max_tokens": 0}, 2),
        ({"n": 3, "beam_width": 4, "max_tokens": 0, "logprobs": 0}, 3),
        # Fewer texts exist.
        ({"n": 9, "regex": "a"}, None),
    ],
)
def test_every_choice_of_a_search_that_is_opened_is_finished(
    path: str, prompt: dict[str, Any], fields: dict[str, Any], count: int | None
) -> None:
    body = {**(prompt or {"messages": USER}), **fields}
    if path != "/v1/completions" and "logprobs" in body:
        body |= {"logprobs": True, "top_logprobs": 0}
    whole = post(path, **body)["choices"]
    assert len(whole) == count if count is not None else 1 < len(whole) < fields["n"]
    choices = streamed(path, **{"max_tokens": 12, **body})
    assert sorted(choices) == [choice["index"] for choice in whole] == [*range(len(whole))]
    for index, own in choices.items():
        assert [each["finish_reason"] for each in own] == [None] * (len(own) - 1) + [whole[index]["finish_reason"]]
        if "delta" in own[0]:
            assert own[0]["delta"]["role"] == "assistant"


def test_choices_of_several_prompts_are_numbered_alike_in_a_stream_where_fewer_texts_are_found_than_asked_for() -> None:
    body = {"prompt": [PROMPT, "One day"], "n": 4, "regex": "a", "max_tokens": 12}
    whole = post("/v1/completions", **body)["choices"]
    choices = streamed("/v1/completions", **body)
    assert sorted(choices) == [choice["index"] for choice in whole]
    assert {choice["index"] // 4 for choice in whole} == {0, 1}
    assert len(whole) < 8
    told = {index: "".join(each["text"] for each in own) for index, own in choices.items()}
    assert told == {choice["index"]: choice["text"] for choice in whole}


def test_an_echoed_prompt_is_in_every_empty_choice() -> None:
    body = {"prompt": PROMPT, "n": 2, "max_tokens": 0, "echo": True, "logprobs": 0}
    assert texts(post("/v1/completions", **body)) == [PROMPT, PROMPT]
    told = {index: "".join(each["text"] for each in own) for index, own in streamed("/v1/completions", **body).items()}
    assert told == {0: PROMPT, 1: PROMPT}
