"""Answers of /v1/responses over the wire, whole and streamed, held against the official client's own types."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from later import openai_responses
from pydantic import BaseModel
from servers import Server, shared

ROUTE = "/v1/responses"
PLAIN: dict[str, Any] = {"input": "How old are you", "seed": 5, "max_output_tokens": 24}
OURS = {"store", "prompt_token_ids", "token_ids", "effective_params", "forced_tokens", "name"}
"""Members that the types of the client do not have, those of version 3 at least."""


def ask(server: Server | None = None, **body: Any) -> Any:
    """The whole response to the plain request with these fields, checked."""
    reply = (server or shared()).post(ROUTE, {**PLAIN, **body})
    assert reply.status_code == 200, reply.text
    response = reply.json()
    check_type(openai_responses.Response, response)
    return response


def events(server: Server | None = None, **body: Any) -> list[Any]:
    """The events of the same as a stream, checked."""
    reply = (server or shared()).post(ROUTE, {**PLAIN, **body, "stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for frame in reply.text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        check_type(event_types()[event["type"]], event)
        found.append(event)
    check_order(found)
    return found


def refused(server: Server | None = None, status: int = 400, **body: Any) -> Any:
    """The error of a request that is refused, whole and streamed."""
    replies = [(server or shared()).post(ROUTE, {**PLAIN, **body, "stream": stream}) for stream in (False, True)]
    assert [reply.status_code for reply in replies] == [status, status], replies[0].text
    assert replies[0].json() == replies[1].json()
    return replies[0].json()["error"]


@cache
def event_types() -> dict[str, type[BaseModel]]:
    """The client's classes of events by their `type`."""
    [union, *_] = typing.get_args(openai_responses.ResponseStreamEvent)
    return {typing.get_args(kind.model_fields["type"].annotation)[0]: kind for kind in typing.get_args(union)}


def check_type(kind: type[BaseModel], value: Any) -> None:
    """Fails unless a value is one of the client's type, strictly, and has no member that the type does not have."""
    made = kind.model_validate(value, strict=True)
    assert set(unknown_members(made)) <= OURS, value


def unknown_members(value: Any) -> Iterator[str]:
    """The names of members, at any depth, that the types do not have."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from unknown_members(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from unknown_members(each)


def check_order(found: list[Any]) -> None:
    """Fails unless events are numbered, begin and end as they must, and tell of one item after another."""
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1]["type"] in {"response.completed", "response.incomplete", "response.failed"}
    assert len({event["response"]["id"] for event in found if "response" in event}) == 1
    inner = found[2:-1]
    indices = [event["output_index"] for event in inner]
    assert indices == sorted(indices)
    for index in set(indices):
        kinds = [event["type"] for event in inner if event["output_index"] == index]
        assert kinds[0] == "response.output_item.added"
        assert kinds.count("response.output_item.added") == 1


def together(found: list[Any]) -> dict[str, Any]:
    """The response that the items of a stream's events come to, from their deltas alone."""
    items: dict[int, Any] = {}
    for event in found[2:-1]:
        index, kind = event["output_index"], event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items[index] = json.loads(json.dumps(event["item"]))
        elif kind in ("content_part.added", "reasoning_summary_part.added"):
            name = "summary" if "summary" in kind else "content"
            items[index].setdefault(name, []).append(json.loads(json.dumps(event["part"])))
        elif kind.endswith(".delta"):
            grow(items[index], event, kind)
        elif kind == "output_item.done":
            items[index]["status"] = event["item"]["status"]
    return {**found[-1]["response"], "output": [items[index] for index in sorted(items)]}


def grow(item: dict[str, Any], event: Any, kind: str) -> None:
    """Adds a delta to its item."""
    if kind == "function_call_arguments.delta":
        item["arguments"] += event["delta"]
        return
    summary = "summary_index" in event
    part = item["summary" if summary else "content"][event["summary_index" if summary else "content_index"]]
    part["text"] += event["delta"]
    part.get("logprobs", []).extend(event.get("logprobs", []))


def settled(value: Any) -> Any:
    """A response without what differs from one answer to the next, and without the bytes that events leave out."""
    varying = {"id", "created_at", "completed_at", "call_id", "bytes", "cached_tokens"}
    if isinstance(value, dict):
        return {name: settled(item) for name, item in value.items() if name not in varying}
    return [settled(item) for item in value] if isinstance(value, list) else value


def same(**body: Any) -> dict[str, Any]:
    """The whole response, which its stream comes to, both by its deltas and by its last event."""
    whole, streamed = ask(**body), events(**body)
    assert settled(streamed[-1]["response"]) == settled(whole)
    assert settled(together(streamed)) == settled(whole)
    assert together(streamed)["output"] == without_bytes(streamed[-1]["response"]["output"])
    return whole


def without_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_bytes(item) for name, item in value.items() if name != "bytes"}
    return [without_bytes(item) for item in value] if isinstance(value, list) else value


def writes(text: str) -> dict[str, Any]:
    """Fields that have the model write this text and no other."""
    return {"structured_outputs": {"choice": [text], "enable_in_reasoning": True}, "max_output_tokens": 120}
