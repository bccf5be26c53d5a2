"""Anthropic's API as clients use it: the official one in Python and in JavaScript, agents, and SGLang's own tests."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from later import anthropic
from node_session import missing, node_session
from pydantic import BaseModel, Field
from servers import shared
from test_messages import PATH, USER, WEATHER, ask, client_of, events_of

DOCS = Path(__file__).parents[1] / "docs"
LACKS = missing("@anthropic-ai/sdk")
SEED = {"seed": 5}
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "messages": USER, "extra_body": SEED}
CLOSED = {**SEED, "close_grammar": True}


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def client() -> Any:
    return client_of(shared(), "null")


@pytest.mark.slow
def test_the_official_client_reads_messages_and_streams() -> None:
    whole = client().messages.create(**ASKED)
    with client().messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert (final.content[0].text, final.stop_reason) == (text, whole.stop_reason)  # type: ignore[union-attr]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert whole._request_id
    raw = [*client().messages.create(**ASKED, stream=True)]
    assert raw[0].type == "message_start"
    counted = client().messages.count_tokens(model="tiny", messages=USER)
    assert counted.input_tokens == 8
    assert [model.id for model in client().models.list()] == ["tiny"]


@pytest.mark.slow
def test_the_asynchronous_client_and_the_beta_route() -> None:
    async def answer() -> Any:
        async with anthropic.AsyncAnthropic(base_url=shared().url, api_key="null", max_retries=0) as client:
            async with client.messages.stream(**ASKED) as stream:
                streamed = await stream.get_final_text()
            return streamed, await client.beta.messages.create(**ASKED, betas=["interleaved-thinking-2025-05-14"])

    streamed, message = asyncio.run(answer())
    assert streamed == message.content[0].text


@pytest.mark.slow
def test_the_official_client_parses_a_pydantic_class() -> None:
    options: Any = {**ASKED, "max_tokens": 80, "extra_body": CLOSED, "output_format": Person}
    parsed = client().messages.parse(**options).parsed_output
    assert isinstance(parsed, Person)
    with client().messages.stream(**options) as stream:
        assert stream.get_final_message().parsed_output == parsed


@pytest.mark.slow
def test_the_clients_tool_runner_calls_tools() -> None:
    called = []

    @anthropic.beta_tool(name="weather", input_schema=WEATHER["input_schema"])
    def weather(city: str) -> str:
        """The weather of a city."""
        called.append(city)
        return "rain"

    runner = client().beta.messages.tool_runner(
        **{**ASKED, "max_tokens": 60, "extra_body": CLOSED},
        tools=[weather],
        tool_choice={"type": "tool", "name": "weather"},
        max_iterations=2,
    )
    messages = [*runner]  # it asks for a thread first, is refused, and does without
    assert [message.stop_reason for message in messages] == ["tool_use", "tool_use"]
    assert called
    assert set(called) <= {"Paris", "Rome"}
    assert messages[1].usage.input_tokens + (messages[1].usage.cache_read_input_tokens or 0) > 8


def test_the_official_client_raises_its_own_errors() -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client().messages.create(**{**ASKED, "extra_body": {"temperature": 9}})
    assert caught.value.type == "invalid_request_error"
    assert str(caught.value.api_message).startswith("temperature must be")
    assert caught.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client().messages.batches.list()


CACHED = {"cache_control": {"type": "ephemeral"}}
MCP = [{**WEATHER, "name": f"mcp__server__tool_{number}", "defer_loading": True} for number in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_as_a_coding_agent_sends_it(stream: bool) -> None:
    """What Claude Code sends: marked system blocks, many tools, betas, metadata, thinking, an effort, reminders."""
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>", **CACHED}
    called = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    body = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"},
            {"type": "text", "text": "You help with code.", **CACHED},
        ],
        "messages": [
            {"role": "user", "content": [reminder, {"type": "text", "text": "How is it?"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "a"}, called]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain", "is_error": False, **CACHED}]},
            {"role": "system", "content": "The user waits."},
        ],
        "tools": [{**WEATHER, "defer_loading": False, **CACHED}],
        "metadata": {"user_id": "user_0_account__session_1"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "max_tokens": 32_000,
        "temperature": 1,
    }  # fmt: skip
    content = events_of(**body)[-3:] if stream else ask(**body)["content"]
    assert content
    tools = {"model": "tiny", "messages": USER, "tools": MCP}
    assert shared().post(f"{PATH}/count_tokens", tools).json()["input_tokens"] > 512


# --- the cases of SGLang's test/registered/openai_server/basic/test_anthropic_server.py ------------------------------


CAPITAL = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "What is the capital?"}]}
TURNS = [
    {"role": "user", "content": "My name is Alice."},
    {"role": "assistant", "content": "Hello Alice! Nice to meet you."},
    {"role": "user", "content": "What is my name?"},
]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"messages": TURNS},
        {"system": "You are a helpful assistant. Always respond in French."},
        {"system": [{"type": "text", "text": "You are helpful."}, {"type": "text", "text": "Be concise."}]},
        {"max_tokens": 5},
        {"temperature": 0.0},
        {"stop_sequences": ["\n"], "max_tokens": 128},
        {"top_p": 0.9, "top_k": 40},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is 2+2?"}]}]},
    ],
)
def test_sglangs_cases(more: dict[str, Any]) -> None:
    body = {**CAPITAL, **more}
    reply = shared().post(PATH, body, headers={"authorization": "Bearer sk-123456"})
    assert reply.status_code == 200
    assert "application/json" in reply.headers["content-type"]
    message = reply.json()
    assert (message["type"], message["role"]) == ("message", "assistant")
    assert message["id"].startswith("msg_")
    assert message["content"][0]["type"] == "text"
    assert message["content"][0]["text"]
    assert message["stop_reason"] in {"end_turn", "max_tokens", "stop_sequence"}
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] > 0
    assert message["usage"]["output_tokens"] > 0
    lines = shared().post(PATH, {**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert "".join(delta["text"] for delta in deltas)
    [ended] = [event for event in events if event["type"] == "message_delta"]
    assert ended["delta"]["stop_reason"] in {"end_turn", "max_tokens", "stop_sequence", "tool_use"}
    assert isinstance(ended["usage"]["output_tokens"], int)


def test_sglangs_errors() -> None:
    assert shared().post(PATH, {**CAPITAL, "max_tokens": -1}).status_code == 400
    assert shared().post(PATH, {**CAPITAL, "messages": []}).status_code == 400
    assert shared().ask("POST", PATH, content=b"not json").status_code == 415


# --- documents and JavaScript ----------------------------------------------------------------------------------------


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"^```py\n(.*?)^```", (DOCS / "messages.md").read_text(), re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(compile(code.replace("http://127.0.0.1:30000", shared().url), "messages.md", "exec"), namespace)
    namespace["client"].close()
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKS), reason=LACKS)
def test_the_javascript_client_works() -> None:
    assert node_session("messages_session.mjs", shared().url) == {
        "whole": True,
        "stream": True,
        "events": ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"],
        "tools": {"reason": "tool_use", "city": True, "same": True},
        "count": 8,
        "errors": ["BadRequestError 400 invalid_request_error", "NotFoundError 404 not_found_error"],
    }
