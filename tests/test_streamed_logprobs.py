"""The log-probabilities of a stream, joined, are those of the whole answer, and come no earlier than is certain."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
from responses_wire import same
from test_openai import USER, chat, complete, stream

from tirage import SamplingParams
from tirage.engine import Delta
from tirage.engine.completion import LogprobEntry
from tirage.server.request_group import RunningRequest
from tirage.server.routes.openai_answer import UnsentText
from tirage.server.routes.openai_shapes import bare_start, is_start_certain
from tirage.text import Stop

STORY = [{"role": "user", "content": "tell a story"}]
HELD: tuple[dict[str, Any], ...] = (
    {"stop_regex": "[aeiou]{2}"},
    {"stop": ["e ", ". "]},
    {"stop": [". "], "ignore_eos": True},
    {"stop": [" w", "the "], "include_stop_str_in_output": True},
    {"stop": ["was a", "he"], "stream_interval": 3},
    {"guided_regex": "(é|日)[ab ]{2,9}", "stop": ["b a"]},
    {"stop_regex": " w", "skip_special_tokens": False},
    {"stop_token_ids": [*range(250, 300)], "stop": ["a."]},
)
"""What holds text back, or leaves out text whose tokens have come."""
SEEDS = range(4)


def joined(parts: list[Any]) -> Any:
    """The lists of logprobs put together by their names."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in (part or {}).items():
            found.setdefault(name, []).extend(values or [])
    return {name: values for name, values in found.items() if values}


CLOSED: tuple[dict[str, Any], ...] = (
    {"guided_regex": "([ab]*cde)?", "close_grammar": True, "max_tokens": 5, "logit_bias": {"2": -60, "1": -60}},
    {"guided_regex": '"[ab]*"', "close_grammar": True, "max_tokens": 5, "logit_bias": {"265": -60}},
    {"guided_regex": "Ann close_grammar X", "stop": ["close_grammar"], "max_tokens": 20},
)


@pytest.mark.parametrize("body", CLOSED)
def test_the_logprobs_of_a_closed_constraint_are_those_of_its_text(body: dict[str, Any]) -> None:
    for seed in range(8):
        [choice] = complete(prompt="Once", seed=seed, logprobs=1, **body)["choices"]
        scored = choice["logprobs"]
        assert "".join(scored["tokens"]).startswith(choice["text"])
        assert all(offset < len("Once" + choice["text"]) for offset in scored["text_offset"])


@pytest.mark.parametrize("body", HELD)
@pytest.mark.parametrize("echo", [False, True])
def test_the_logprobs_of_a_streamed_completion_are_those_of_the_whole(body: dict[str, Any], echo: bool) -> None:
    for seed in SEEDS:
        asked = {"prompt": "Once upon a time", "seed": seed, "max_tokens": 30, "logprobs": 1, "echo": echo, **body}
        [choice] = complete(**asked)["choices"]
        choices = [chunk["choices"][0] for chunk in stream("/v1/completions", **asked)]
        assert "".join(each["text"] for each in choices) == choice["text"]
        assert joined([each["logprobs"] for each in choices]) == joined([choice["logprobs"]])


@pytest.mark.parametrize("body", HELD)
def test_the_logprobs_of_a_streamed_chat_are_those_of_the_whole(body: dict[str, Any]) -> None:
    for seed, more in itertools.product(SEEDS, ({}, {"separate_reasoning": True})):
        asked = {"messages": STORY, "seed": seed, "max_tokens": 30, "logprobs": True, "top_logprobs": 1, **body, **more}
        [choice] = chat(**asked)["choices"]
        choices = [chunk["choices"][0] for chunk in stream("/v1/chat/completions", **asked)]
        assert joined([each["logprobs"] for each in choices]) == joined([choice["logprobs"]])


@pytest.mark.parametrize("body", HELD)
def test_the_logprobs_of_a_streamed_response_are_those_of_the_whole(body: dict[str, Any]) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "max_output_tokens": 30}
    for seed, more in itertools.product(SEEDS, ({}, {"tools": tools})):
        same(**wanted, input="tell a story", seed=seed, **body, **more)


@pytest.mark.parametrize("body", [{"regex": ' \\{"a": 1\\}'}, {"regex": " (ab|b)c{2,6}"}, {"stop": ["e "]}])
@pytest.mark.parametrize("n", [2, 3])
def test_the_logprobs_of_a_streamed_beam_search_are_those_of_the_whole(body: dict[str, Any], n: int) -> None:
    beams = {"use_beam_search": True, "n": n, "temperature": 0, "max_tokens": 12, **body}
    asked = {"messages": STORY, "logprobs": True, "top_logprobs": 1, **beams}
    whole = chat(**asked)["choices"]
    choices = [chunk["choices"][0] for chunk in stream("/v1/chat/completions", **asked)]
    for index, choice in enumerate(whole):
        own = [each for each in choices if each["index"] == index]
        assert "".join(each["delta"].get("content") or "" for each in own) == choice["message"]["content"]
        assert joined([each["logprobs"] for each in own]) == joined([choice["logprobs"]])


@pytest.mark.parametrize("body", [{"max_tokens": 3}, {"max_tokens": 0}, {"n": 2, "max_tokens": 2}])
def test_a_prompt_without_text_is_echoed_with_its_logprobs(body: dict[str, Any]) -> None:
    asked = {"prompt": [1, 2, 3], "echo": True, "logprobs": 2, "seed": 1, **body}
    choices = [chunk["choices"][0] for chunk in stream("/v1/completions", **asked)]
    for whole in complete(**asked)["choices"]:
        own = [each["logprobs"] for each in choices if each["index"] == whole["index"]]
        assert joined(own) == joined([whole["logprobs"]])
        assert len(whole["logprobs"]["tokens"]) == 3 + body["max_tokens"]


def test_text_that_nothing_holds_back_comes_with_its_logprobs() -> None:
    asked = {"messages": USER, "seed": 1, "max_tokens": 8, "logprobs": True}
    for chunk in stream("/v1/chat/completions", **asked):
        [choice] = chunk["choices"]
        entries = (choice["logprobs"] or {"content": []})["content"]
        assert "".join(each["token"] for each in entries) == choice["delta"]["content"]


def entry(text: str, offset: int) -> LogprobEntry:
    return LogprobEntry(token_id=5, logprob=-1.0, rank=1, text=text, bytes=text.encode(), offset=offset)


def test_a_token_whose_text_a_stop_may_leave_out_waits_for_it() -> None:
    params = SamplingParams(stop=[". "])
    unsent = UnsentText(cast(RunningRequest, SimpleNamespace(engine_input=SimpleNamespace(params=params))))
    tokens = [entry(" One", 0), entry(".", 3), entry(" Two", 4)]
    unsent.add(Delta(text="One", token_ids=(5,), logprobs=tokens[:1]))
    assert unsent.take(None, ended=False).entries == tokens[:1]
    unsent.add(Delta(text="", token_ids=(5,), logprobs=tokens[1:2]))
    held = unsent.take(None, ended=False)
    assert (held.ids, held.entries) == ([5], [])
    unsent.add(Delta(text="", token_ids=(5,), logprobs=tokens[2:]))
    assert unsent.take(Stop(kind="string", matched=". ", matched_text=". "), ended=True).entries == []


def test_a_token_that_the_limit_finds_held_comes_at_the_end() -> None:
    unsent = UnsentText(cast(RunningRequest, SimpleNamespace(engine_input=SimpleNamespace(params=SamplingParams()))))
    unsent.add(Delta(text="On", token_ids=(5,), logprobs=[entry(" One", 0)]))
    assert unsent.take(None, ended=False).entries == []
    unsent.add(Delta(text="e", token_ids=(), finish_reason="length"))
    assert unsent.take(None, ended=True) == ("e", [], [entry(" One", 0)])


@pytest.mark.parametrize("spelled", ["Once", " Once", "", " ", "  ", "   "])
@pytest.mark.parametrize("token", [" Once", " ", "  ", "Once"])
@pytest.mark.parametrize("has_more", [True, False])
def test_a_start_that_is_certain_has_the_space_of_the_whole(token: str, spelled: str, has_more: bool) -> None:
    if spelled not in (token, token[1:]):
        return
    entries = [entry(token, 0), *([entry("x", len(spelled))] if has_more else [])]
    whole = bare_start(entries, len(spelled) + has_more)[0]
    for size, known in itertools.product(range(len(spelled) + 1), range(1, len(entries) + 1)):
        if is_start_certain(entries[:known], spelled[:size]):
            # No more than what has come is shown: a next token whose text has not come is not.
            assert bare_start([entries[0]], size)[0] == whole
