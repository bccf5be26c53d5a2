"""Tool calls in answers: what a model's text can do to them, whole and streamed, on every route that has them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from responses_wire import ask as ask_response
from responses_wire import events as response_events
from responses_wire import settled
from servers import Server, shared
from test_messages import ask as ask_messages
from test_messages import events_of as message_events
from test_openai import USER, refuse
from test_openai_tools import gathered

SCHEMA = {"type": "object", "properties": {"x": {}}}
TOOL = {"name": "f", "parameters": SCHEMA}
HERMES = '<tool_call>{{"name":"f","arguments":{}}}</tool_call>'
HARMONY = 'Sure. <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x":1}<|call|>'
NAMED = {"type": "function", "function": {"name": "f"}}
WRONG = ('{"x":"\\ud83d"}', '{"x":NaN}', '{"x":1e999}', "5", "null", '"not json"')


@cache
def harmony() -> Server:
    return shared("tiny", "--tool-call-parser", "gpt-oss")


def chat(server: Server, **body: Any) -> tuple[str, list[Any], str]:
    """The content, the calls and the finish reason, the same whole and streamed."""
    asked = {"messages": USER, "tools": [{"type": "function", "function": TOOL}], "max_tokens": 120, "seed": 1, **body}
    answer = server.post("/v1/chat/completions", asked)
    assert answer.status_code == 200, answer.text
    [choice] = json.loads(answer.text, parse_constant=refuse)["choices"]
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    found = choice["message"]["content"] or "", calls, choice["finish_reason"]
    assert gathered(chunks(server, asked)) == found
    return found


def chunks(server: Server, body: dict[str, Any]) -> list[Any]:
    """The chunks of a streamed chat."""
    frames = server.post("/v1/chat/completions", {**body, "stream": True}).text.split("\n\n")[:-2]
    return [json.loads(frame.removeprefix("data: "), parse_constant=refuse) for frame in frames]


def message(**body: Any) -> list[Any]:
    """The blocks of a message, the same whole and streamed."""
    asked = {"tools": [{"name": "f", "input_schema": SCHEMA}], "max_tokens": 120, **body}
    found = ask_messages(**asked)["content"]
    kinds = [event["content_block"]["type"] for event in message_events(**asked) if "content_block" in event]
    assert kinds == [block["type"] for block in found]
    return found


def response(**body: Any) -> list[Any]:
    """The items of a response, the same whole and streamed."""
    asked = {"tools": [{"type": "function", "strict": False, **TOOL}], "max_output_tokens": 120, **body}
    [*_, last] = response_events(**asked)
    found = ask_response(**asked)
    assert settled(found) == settled(last["response"])
    return found["output"]


@pytest.mark.parametrize("arguments", WRONG)
def test_a_call_whose_arguments_no_answer_can_hold_is_content(arguments: str) -> None:
    text = HERMES.format(arguments)
    assert chat(shared(), guided_choice=[text]) == (text, [], "stop")
    [block] = message(guided_choice=[text])
    assert (block["type"], block["text"]) == ("text", text)
    [item] = response(guided_choice=[text])
    assert (item["type"], item["content"][0]["text"]) == ("message", text)


def test_arguments_that_are_a_text_of_an_object_are_taken() -> None:
    text = HERMES.format('"{\\"x\\": [1]}"')
    assert chat(shared(), guided_choice=[text]) == ("", [{"name": "f", "arguments": '{"x": [1]}'}], "tool_calls")
    [block] = message(guided_choice=[text])
    assert (block["type"], block["input"]) == ("tool_use", {"x": [1]})


def test_a_call_after_words_is_read_the_same_in_a_stream() -> None:
    expected = ("Sure. ", [{"name": "f", "arguments": '{"x":1}'}], "tool_calls")
    assert chat(harmony(), guided_choice=[HARMONY]) == expected


def test_words_come_as_they_are_written() -> None:
    asked = {"messages": USER, "tools": [{"type": "function", "function": TOOL}], "max_tokens": 12, "temperature": 0}
    shown = [chunk["choices"][0]["delta"]["content"] for chunk in chunks(harmony(), asked)]
    assert sum(map(bool, shown)) > 8


CUT: tuple[dict[str, Any], ...] = ({"stop": ["e"], "max_tokens": 90}, {"max_tokens": 12}, {"max_tokens": 30})
"""Answers that end inside their reasoning, inside the mark that begins it, and inside their reasoning at the limit."""
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("mode", ["named", "required"])
@pytest.mark.parametrize("body", CUT)
def test_reasoning_that_has_not_ended_is_followed_by_no_call(body: dict[str, Any], mode: str) -> None:
    choice = NAMED if mode == "named" else "required"
    reason = "stop" if "stop" in body else "length"
    asked = {"messages": HI, "tool_choice": choice, "separate_reasoning": True, "temperature": 1.0, "seed": 5, **body}
    assert chat(shared(), **asked)[1:] == ([], reason)


@pytest.mark.parametrize("body", CUT)
def test_reasoning_that_has_not_ended_is_followed_by_no_call_on_other_routes(body: dict[str, Any]) -> None:
    length, stop, drawn = body["max_tokens"], body.get("stop", []), {"temperature": 1.0, "seed": 5}
    wanted = {"messages": HI, "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "adaptive"}}
    blocks = message(**wanted, max_tokens=length, stop_sequences=stop, **drawn)
    assert {block["type"] for block in blocks} <= {"thinking", "text"}
    wanted = {"input": "hi", "tool_choice": {"type": "function", "name": "f"}, "separate_reasoning": True}
    items = response(**wanted, max_output_tokens=length, stop=stop, **drawn)
    assert {item["type"] for item in items} <= {"reasoning", "message"}
