"""One request to one route, answered whole or as a stream, in one form for both: what of it does not vary by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from field_effects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, SAMPLING
from servers import Server, shared

_VARYING = {
    "id", "e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details", "created", "usage",
    "prompt_tokens_details", "object", "refusal", "output_kind", "created_at", "completed_at", "item_id", "call_id",
}  # fmt: skip
_PLAIN: Mapping[str, dict[str, Any]] = {
    GENERATE: {"text": "Once upon a time", "sampling_params": {"sampling_seed": 1, "max_new_tokens": 12}},
    CHAT: {"messages": [{"role": "user", "content": "How old are you"}], "seed": 1, "max_tokens": 12},
    COMPLETIONS: {"prompt": "Once upon a time", "seed": 1, "max_tokens": 12},
    RESPONSES: {"input": "How old are you", "seed": 1, "max_output_tokens": 12},
    MESSAGES: {"messages": [{"role": "user", "content": "How old are you"}], "seed": 1, "max_tokens": 12},
}


_SEVERAL: Mapping[str, set[str]] = {
    "seed": {"sampling_seed"}, "max_completion_tokens": {"max_tokens"}, "input_ids": {"text"}, "input_embeds": {"text"},
    "prompt_token_ids": {"messages", "prompt"},
}  # fmt: skip
"""Fields that do not go with others of the plain request."""


def body_of(place: str, fields: Mapping[str, Any], *, stream: bool) -> dict[str, Any]:
    """The plain request of a place with these fields beside or instead of its own."""
    replaced = {other for name in fields if fields[name] is not None for other in _SEVERAL.get(name, ())}
    plain = _PLAIN[route_of(place)]
    if place != SAMPLING:
        return {**{name: value for name, value in plain.items() if name not in replaced}, **fields, "stream": stream}
    kept = {name: value for name, value in plain["sampling_params"].items() if name not in replaced}
    # What a mode changes are log-probabilities, which are asked for beside the parameters.
    return {**plain, "sampling_params": {**kept, **fields}, "return_logprob": True, "stream": stream}


def route_of(place: str) -> str:
    return GENERATE if place == SAMPLING else place


def ask(place: str, fields: Mapping[str, Any], *, stream: bool) -> Any:
    """The answer with what varies by itself left out: the objects of a whole one, or all events of a stream."""
    return _ask(place, json.dumps(fields), stream)


@cache
def _ask(place: str, fields: str, stream: bool) -> Any:
    return answer_of(shared(), place, body_of(place, json.loads(fields), stream=stream))


def answer_of(server: Server, place: str, body: Mapping[str, Any]) -> Any:
    """The answer of a server to a body, or all events of its stream."""
    reply = server.post(route_of(place), body)
    assert reply.status_code == 200, (place, body, reply.text)
    if not body["stream"]:
        return settled(reply.json())
    lines = [event.rpartition("data: ")[2] for event in reply.text.split("\n\n") if event]
    return [settled(json.loads(line)) for line in lines if line != "[DONE]"]


def tokens_of(server: Server, place: str, body: Mapping[str, Any]) -> list[int]:
    """The token ids that a server draws for a body, whole or streamed."""
    if route_of(place) == GENERATE:
        found = answer_of(server, place, body)
        return (generated(found) if body["stream"] else found)["output_ids"]
    if place == MESSAGES:  # it tells no ids; its characters differ where they do
        found = answer_of(server, place, body)
        return [ord(c) for block in (said(found) if body["stream"] else found)["content"] for c in block["text"]]
    found = answer_of(server, place, {**body, "return_token_ids": True})
    return token_ids(place, together(place, found) if body["stream"] else found)


def token_ids(place: str, answer: Any) -> list[int]:
    """The token ids that an answer on one of OpenAI's routes holds."""
    return answer["token_ids"] if place == RESPONSES else answer["choices"][0]["token_ids"]


def settled(value: Any) -> Any:
    """The value without the members that differ from one answer to the next, and without nulls."""
    if isinstance(value, dict):
        return {name: settled(item) for name, item in value.items() if name not in _VARYING and item is not None}
    return [settled(item) for item in value] if isinstance(value, list) else value


@cache
def drawn(place: str) -> tuple[int, ...]:
    """The token ids of the plain request."""
    if route_of(place) == GENERATE:
        return tuple(ask(place, {}, stream=False)["output_ids"])
    if place == MESSAGES:  # it tells no ids, and draws what a chat does
        return drawn(CHAT)
    return tuple(token_ids(place, ask(place, {"return_token_ids": True}, stream=False)))


def together(place: str, events: list[Any]) -> Any:
    """The events of a stream put together as the whole answer."""
    if place == RESPONSES:
        return events[-1]["response"]
    if place == MESSAGES:
        return said(events)
    return generated(events) if route_of(place) == GENERATE else chosen(events)


def said(events: list[Any]) -> Any:
    """Anthropic's events as one message."""
    message: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = {**event["message"], "content": []}
            case "content_block_start":
                message["content"].append({**event["content_block"]})
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                for name, text in delta.items():
                    if name != "type":
                        block[name] = block.get(name, "") + text
            case "message_delta":
                message |= event["delta"]
    for block in message["content"]:
        if "partial_json" in block:
            block["input"] = json.loads(block.pop("partial_json"))
    return message


def generated(events: list[Any]) -> Any:
    """The last event of each entry, which holds all that came before."""
    last: dict[int, Any] = {}
    for event in events:
        last[event.get("index", 0)] = {name: item for name, item in event.items() if name != "index"}
    found = [last[index] for index in sorted(last)]
    return found if any("index" in event for event in events) else found[0]


def chosen(events: list[Any]) -> Any:
    """OpenAI's chunks as one object: texts and lists joined, the last of everything else."""
    whole: dict[str, Any] = {"choices": {}}
    for event in events:
        whole |= {name: item for name, item in event.items() if name != "choices"}
        for choice in event["choices"]:
            add(whole["choices"].setdefault(choice["index"], {}), choice)
    return {**whole, "choices": [whole["choices"][index] for index in sorted(whole["choices"])]}


def add(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Adds a chunk's choice, or a part of it, to what came before."""
    for name, item in part.items():
        name = "message" if name == "delta" else name
        before = into.get(name)
        if isinstance(item, dict):
            into[name] = before if isinstance(before, dict) else {}
            add(into[name], item)
        elif name == "tool_calls" and item:
            into[name] = calls(before or [], item)
        elif isinstance(before, (list, str)) and isinstance(item, type(before)) and name not in {"role", "type"}:
            into[name] = before + item
        elif item is not None or name not in into:
            into[name] = item


def calls(before: list[Any], more: list[Any]) -> list[Any]:
    """Tool calls with the parts of a chunk."""
    found = {call["index"]: call for call in before}
    for part in more:
        add(found.setdefault(part["index"], {"index": part["index"]}), {k: v for k, v in part.items() if k != "index"})
    return [found[index] for index in sorted(found)]
