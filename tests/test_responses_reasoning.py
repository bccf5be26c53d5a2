"""Reasoning in /v1/responses: an item before the answer, its summary, its effort, and how it comes back as input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from responses_wire import ROUTE, ask, events, refused, same, writes
from servers import Server, shared
from test_openai_tools import CALL
from test_reasoning import TEXT
from test_responses import LOGPROBS, WEATHER

THINKS: dict[str, Any] = {**writes(TEXT), "separate_reasoning": True}
LINES = "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content or '' }}|{{ m.content }}\n{% endfor %}"
TOGGLE = LINES + "{% if enable_thinking is not defined or enable_thinking %}on{% else %}off{% endif %}"
EFFORT = LINES + "{{ reasoning_effort or 'none' }}"

pytestmark = pytest.mark.slow


def test_reasoning_is_an_item_of_its_own() -> None:
    response = same(**THINKS)
    reasoning, message = response["output"]
    assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [])
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm, 1 < 2."}]
    assert message["content"][0]["text"] == "Yes."
    counted = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 0 < counted < response["usage"]["output_tokens"]
    hidden = same(**THINKS, include_reasoning=False)
    assert [item["type"] for item in hidden["output"]] == ["message"]
    assert hidden["usage"]["output_tokens_details"]["reasoning_tokens"] == counted
    [plain] = same(**writes(TEXT))["output"]
    assert plain["content"][0]["text"] == TEXT


def test_the_events_of_reasoning_come_before_those_of_the_answer() -> None:
    kinds = [event["type"].removeprefix("response.") for event in events(**THINKS)]
    several = [kind for number, kind in enumerate(kinds) if kind != kinds[number - 1]]
    assert several == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
def test_a_summary_is_the_whole_reasoning(name: str) -> None:
    response = same(**THINKS, reasoning={name: "auto"})
    assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm, 1 < 2."}]
    assert "content" not in response["output"][0]
    assert response["reasoning"] == {"effort": None, "summary": "auto"}
    kinds = {event["type"] for event in events(**THINKS, reasoning={name: "auto"})}
    assert {f"response.reasoning_summary_{each}" for each in ("part.added", "text.delta", "text.done")} <= kinds


def test_log_probabilities_are_those_of_the_answer_alone() -> None:
    response = same(**THINKS, **LOGPROBS)
    [part] = response["output"][1]["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == "Yes."


def test_a_call_may_follow_reasoning() -> None:
    text = f"<think>Rome.</think>\n<tool_call>{CALL}</tool_call>"
    response = same(**{**THINKS, **writes(text)}, tools=[WEATHER], **LOGPROBS)
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]


def test_reasoning_that_is_cut_is_incomplete() -> None:
    response = same(**{**THINKS, "max_output_tokens": 12})
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["output"][0]["type"] == "reasoning"


@pytest.mark.parametrize("name", ["reasoning_max_tokens", "thinking_budget"])
def test_reasoning_ends_within_its_budget(name: str) -> None:
    budget = {
        "separate_reasoning": True,
        "logit_bias": {"291": 100.0},
        "regex": "[0-9]{3}",
        "reasoning_parser": "think",
    }
    free, held = same(**budget), same(**budget, **{name: 2})
    counts = [each["usage"]["output_tokens_details"]["reasoning_tokens"] for each in (free, held)]
    assert counts[1] < counts[0]


@pytest.mark.parametrize(
    ("reasoning", "param", "rule"),
    [
        ("high", "reasoning", "an object of effort and summary"),
        ({"effort": "huge"}, "reasoning.effort", "one of 'none', 'minimal'"),
        ({"summary": "concise"}, "reasoning.summary", "one of 'auto', 'detailed'"),
        ({"context": "all_turns"}, "reasoning.context", "the chat template says"),
        ({"mode": "pro"}, "reasoning.mode", "there is one mode"),
        ({"colour": 1}, "reasoning", "got 'colour'"),
        ({"effort": "low"}, "reasoning.effort", "whose chat template has no such variable"),
    ],
)
def test_reasoning_that_cannot_be_had_is_refused(reasoning: Any, param: str, rule: str) -> None:
    found = refused(reasoning=reasoning)
    assert found["param"] == param
    assert rule in found["message"]


@pytest.fixture(scope="module")
def toggled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("toggled"), TOGGLE)


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("graded"), EFFORT)


def served(folder: Path, template: str) -> Iterator[Server]:
    (folder / "template.jinja").write_text(template)
    with Server("tiny", "--chat-template", str(folder / "template.jinja")) as server:
        yield server


def prompt(server: Server, stream: bool, **body: Any) -> str:
    """The text of the prompt that a request becomes."""
    asked = {"max_output_tokens": 1, "return_token_ids": True, **body}
    response = events(server, **asked)[-1]["response"] if stream else ask(server, **asked)
    return server.post("/detokenize", {"tokens": response["prompt_token_ids"]}).json()["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_effort_reaches_the_template(graded: Server, toggled: Server, stream: bool) -> None:
    for effort in ("none", "low", "high"):
        assert prompt(graded, stream, reasoning={"effort": effort}).endswith(effort)
        told = prompt(toggled, stream, reasoning={"effort": effort})
        assert told.endswith("off" if effort == "none" else "on")
    assert prompt(toggled, stream, enable_thinking=False).endswith("off")
    found = refused(toggled, reasoning={"effort": "low"}, enable_thinking=False)
    assert found["param"] == "reasoning.effort"


def test_reasoning_comes_back_as_input(graded: Server) -> None:
    first = ask(graded, **THINKS)
    text = prompt(graded, False, previous_response_id=first["id"], input="Why?")
    assert "assistant: Hm, 1 < 2.|Yes." in text
    again = [{"role": "user", "content": "How old are you"}, *first["output"], {"role": "user", "content": "Why?"}]
    assert prompt(graded, False, input=again) == text


def test_a_template_without_a_place_for_reasoning_has_it_between_its_tags() -> None:
    first = ask(**THINKS)
    text = prompt(shared(), False, previous_response_id=first["id"], input="Why?")
    assert TEXT in text


def test_encrypted_reasoning_is_refused_and_none_is_made() -> None:
    response = ask(**THINKS, include=["reasoning.encrypted_content"])
    assert "encrypted_content" not in response["output"][0]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    reply = shared().post(ROUTE, {"input": [item]})
    assert reply.json()["error"]["param"] == "input[0].encrypted_content"
