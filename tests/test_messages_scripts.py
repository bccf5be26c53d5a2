"""Messages of a model whose marks of calls and reasoning are special tokens, made to write a given text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from field_answers import said
from servers import Server
from test_messages import USER, WEATHER, ask, events_of, settled
from test_openai_scripts import ids_of, mistral_server

CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
TOLD = "[THINK]", "Rome, é?", "[/THINK]", "Wait. ", "[TOOL_CALLS]", f"[{CALL}, {CALL}]"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from mistral_server(tmp_path_factory.mktemp("mistral"))


def answers(server: Server, *parts: str, **body: Any) -> tuple[Any, list[Any]]:
    """A scripted message, and the events of the same as a stream, which come to it."""
    given = {"custom_logit_processor": "script", "custom_params": {"ids": ids_of(*parts)}, "max_tokens": 160, **body}
    whole, events = ask(server, **given), events_of(server, **given)
    streamed = {**said(events), "usage": events[-2]["usage"]}
    assert settled(streamed) == settled(whole)
    return whole, events


def test_thoughts_text_and_calls_are_blocks_in_their_order(mistral: Server) -> None:
    whole, events = answers(mistral, *TOLD, tools=[WEATHER])
    thought, text, first, second = whole["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Rome, é?")
    assert text == {"type": "text", "text": "Wait."}
    for call in (first, second):
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert first["id"] != second["id"]
    assert whole["stop_reason"] == "tool_use"
    assert whole["usage"]["output_tokens_details"] == {"thinking_tokens": 2 + len("Rome, é?".encode())}
    kinds = [(event["index"], event["content_block"]["type"]) for event in events if "content_block" in event]
    assert kinds == [(0, "thinking"), (1, "text"), (2, "tool_use"), (3, "tool_use")]
    signed = [event for event in events if event.get("delta", {}).get("type") == "signature_delta"]
    assert [event["index"] for event in signed] == [0]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "rain"} for call in (first, second)]
    more = [*USER, {"role": "assistant", "content": whole["content"]}, {"role": "user", "content": results}]
    after, _ = answers(mistral, "Rain.", messages=more, tools=[WEATHER])
    assert after["content"] == [{"type": "text", "text": "Rain."}]


def test_one_call_at_most_and_no_thoughts_shown(mistral: Server) -> None:
    alone = {"type": "auto", "disable_parallel_tool_use": True}
    whole, _ = answers(mistral, *TOLD, tools=[WEATHER], tool_choice=alone, thinking={"type": "disabled"})
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]


def test_a_strict_tool_holds_for_calls_of_the_models_own_choice(mistral: Server) -> None:
    wrong = f"[{CALL.replace('Rome', 'Oslo')}]"
    free, _ = answers(mistral, "[TOOL_CALLS]", wrong, tools=[WEATHER])
    assert free["content"][0]["input"] == {"city": "Oslo"}
    strict = {"custom_logit_processor": "script", "custom_params": {"ids": ids_of("[TOOL_CALLS]", wrong)}}
    held = events_of(mistral, **strict, tools=[{**WEATHER, "strict": True}], max_tokens=120)
    assert held[-1]["type"] == "error"
    assert "left no token" in held[-1]["error"]["message"]
