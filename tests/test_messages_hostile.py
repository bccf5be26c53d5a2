"""Anthropic's routes under values that no sane client sends, in every field and every part of a conversation."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hostile import LEAK, VALUES, Client, Reply
from servers import Server, shared
from test_messages import PATH, WEATHER

from tirage.server.routes.messages_request import MESSAGES

SAMPLE = 250
"""How many of the thousands of attacks the short test sends."""
NORMAL: dict[str, Any] = {"max_tokens": 3, "seed": 1, "messages": [{"role": "user", "content": "hi"}]}
CACHED = {"cache_control": {"type": "ephemeral"}}
RICH: dict[str, Any] = {
    "max_tokens": 3,
    "seed": 1,
    "system": [{"type": "text", "text": "Be brief.", **CACHED}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "a"},
            {"type": "redacted_thinking", "data": "a"},
            {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [{"type": "text", "text": "b"}]},
            {"type": "text", "text": "And?"},
        ]},
        {"role": "assistant", "content": "It"},
    ],
    "tools": [
        {"name": "weather", "input_schema": {"type": "object"}, "strict": True, "input_examples": [{"city": "a"}]},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2, "display": "omitted"},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "a"},
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to every member and every item, at any depth."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def attacks() -> Iterator[dict[str, Any]]:
    """Bodies with one wrong value: in each field, and at each place of a rich conversation."""
    for name in dict.fromkeys((*MESSAGES.fields, *MESSAGES.openai.entries, *MESSAGES.fastdeploy.entries)):
        for value in VALUES:
            yield {**NORMAL, name: value}
    for path in places(RICH):
        for value in VALUES:
            body = copy.deepcopy(RICH)
            inner: Any = body
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            yield body


def check(reply: Reply, body: Any) -> None:
    """Fails unless an answer is sound: a message, a stream with an end, or a short error that tells nothing."""
    what = f"{json.dumps(body)[:300]}: {reply.status} {reply.body[:300]!r}"
    assert reply.status < 500, what
    found = reply.json if not reply.kind.startswith("text/event-stream") else None
    if found is None:
        last = reply.body.decode().removesuffix("\n\n").rpartition("data: ")[2]
        found = json.loads(last)
        assert found["type"] in {"message_stop", "error"}, what
    if found["type"] == "error":
        assert set(found["error"]) == {"type", "message"} or body.get("thread") is not None, what
        assert 0 < len(found["error"]["message"]) <= 1100, what
        assert not [leak for leak in LEAK.findall(found["error"]["message"]) if leak not in json.dumps(body)], what


def assault(server: Server, bodies: list[dict[str, Any]]) -> None:
    client = Client(server)
    before = client.send(PATH, NORMAL).json["content"]
    for number, body in enumerate(bodies):
        check(client.send(PATH, {**body, "stream": True} if number % 3 == 0 and "stream" not in body else body), body)
        if number % 100 == 0:
            assert client.send(PATH, NORMAL).json["content"] == before
    assert client.send(PATH, NORMAL).json["content"] == before
    client.close()
    assert server.process.poll() is None
    assert "Traceback" not in server.log


@pytest.mark.slow
def test_some_hostile_values_are_refused_or_answered() -> None:
    assault(shared(), random.Random(3).sample(list(attacks()), SAMPLE))


@pytest.mark.exhaustive
def test_all_hostile_values_are_refused_or_answered() -> None:
    assault(shared(), list(attacks()))


@pytest.mark.slow
def test_the_rich_conversation_is_answered() -> None:
    reply = shared().post(PATH, {**RICH, "tools": [{**WEATHER, "strict": True}]})
    assert reply.status_code == 200, reply.text
