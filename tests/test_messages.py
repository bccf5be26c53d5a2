"""Anthropic's Messages API: messages and streams, as Anthropic's own types read them; stops, usage, prefill, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from field_answers import said
from later import anthropic, anthropic_types
from pydantic import BaseModel, TypeAdapter
from servers import Server, shared, until

PATH = "/v1/messages"
USER: Any = [{"role": "user", "content": "How old are you"}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@cache
def event_type() -> TypeAdapter[Any]:
    return TypeAdapter(anthropic_types.RawMessageStreamEvent)


def ask(server: Server | None = None, **body: Any) -> Any:
    """The whole message."""
    reply = (server or shared()).post(PATH, {"model": "tiny", "max_tokens": 12, "messages": USER, "seed": 5, **body})
    assert reply.status_code == 200, reply.text
    checked(anthropic_types.Message.model_validate(reply.json(), strict=True))
    return reply.json()


def events_of(server: Server | None = None, **body: Any) -> list[Any]:
    """The events of the same as a stream; each has its name, and all but pings have Anthropic's members alone."""
    given = {"model": "tiny", "max_tokens": 12, "messages": USER, "seed": 5, **body, "stream": True}
    reply = (server or shared()).post(PATH, given)
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    found = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in {"ping", "error"}:
            checked(event_type().validate_python(event, strict=True))
        found.append(event)
    return found


def checked(value: Any) -> None:
    """Fails for members that Anthropic's types do not have."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, value
        for name in type(value).model_fields:
            checked(getattr(value, name))
    for each in value if isinstance(value, list) else ():
        checked(each)


def settled(message: Mapping[str, Any]) -> Any:
    """A message without what differs from one request to the next: ids, and what came from the cache."""
    content = [{name: item for name, item in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "usage": message["usage"]["output_tokens"], "content": content}


def both(**body: Any) -> Any:
    """The whole message, which the stream comes to as well."""
    whole, events = ask(**body), events_of(**body)
    streamed = said(events)
    streamed["usage"] = events[-2]["usage"]
    assert settled(streamed) == settled(whole)
    return whole


def error(body: Mapping[str, Any], *, path: str = PATH, server: Server | None = None, **options: Any) -> Any:
    """The message of a refusal, which has Anthropic's form, its status and its type."""
    reply = (server or shared()).post(path, body, **options)
    found = reply.json()
    assert set(found) == {"type", "error", "request_id"}
    assert (found["type"], set(found["error"])) == ("error", {"type", "message"})
    assert found["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    return reply.status_code, found["error"]["type"], found["error"]["message"]


def test_a_message_has_anthropics_members() -> None:
    message = ask()
    assert list(message) == [
        "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage",
    ]  # fmt: skip
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert [block["type"] for block in message["content"]] == ["text"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 8
    assert (usage["output_tokens"], usage["cache_creation_input_tokens"]) == (12, 0)


def test_a_stream_has_anthropics_events() -> None:
    events = events_of()
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["output_tokens"] == 0
    start = events[0]["message"]["usage"]
    assert start == {**events[-2]["usage"], "output_tokens": 0}
    both()


def test_a_chat_draws_the_same() -> None:
    chat = shared().post("/v1/chat/completions", {"messages": USER, "seed": 5, "max_tokens": 12}).json()
    assert ask()["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]


def test_the_reason_of_the_end() -> None:
    message = both(stop_sequences=["old", "little"], max_tokens=60)
    assert (message["stop_reason"], message["stop_sequence"]) in {("stop_sequence", "old"), ("stop_sequence", "little")}
    assert message["stop_sequence"] not in message["content"][0]["text"]
    assert both(max_tokens=300, temperature=0)["stop_reason"] == "end_turn"
    assert both(logit_bias={"2": 100.0})["content"] == []
    assert both(max_tokens=0)["stop_reason"] == "max_tokens"
    assert both(stop_regex="l[a-z]t", max_tokens=60)["stop_sequence"] == "lit"


@pytest.mark.slow
def test_a_text_that_fills_the_context_says_so() -> None:
    message = both(max_tokens=100_000, ignore_eos=True)
    usage = message["usage"]
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 512


@pytest.mark.slow
def test_an_assistants_last_message_is_continued() -> None:
    begun = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "I am"}]}]
    given = {"messages": begun, "seed": 5, "max_tokens": 12}
    chat = shared().post("/v1/chat/completions", {**given, "continue_final_message": True}).json()
    assert both(messages=begun)["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert both(messages=[*USER, {"role": "assistant", "content": ""}])["content"] == both()["content"]


@pytest.mark.slow
def test_a_forced_call_is_a_block_of_tool_use() -> None:
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        message = both(tools=[WEATHER], tool_choice=choice, max_tokens=60, close_grammar=True)
        [block] = message["content"]
        assert (block["type"], block["name"], message["stop_reason"]) == ("tool_use", "weather", "tool_use")
        assert block["input"]["city"] in {"Paris", "Rome"}
    several = both(tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=60, close_grammar=True)["content"]
    assert len({block["id"] for block in several}) == len(several) > 1
    cut = ask(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}, max_tokens=2)
    assert (cut["content"][0]["input"], cut["stop_reason"]) == ({}, "max_tokens")


@pytest.mark.slow
def test_a_schema_holds_for_the_answer() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    schema["additionalProperties"] = False
    for field in ("output_config", "output_format"):
        wanted = {"type": "json_schema", "schema": schema}
        given = {field: {"format": wanted} if field == "output_config" else wanted}
        message = both(**given, max_tokens=60, close_grammar=True)
        assert isinstance(json.loads(message["content"][0]["text"])["age"], int)


@pytest.mark.slow
def test_thoughts_are_blocks_of_their_own() -> None:
    given = {"regex": "[0-9]{3}", "logit_bias": {"291": 100.0}, "max_tokens": 40}
    thinking = {"type": "enabled", "budget_tokens": 3}
    message = both(**given, thinking=thinking)
    thought, text = message["content"]
    assert (thought["type"], text["type"]) == ("thinking", "text")
    assert thought["thinking"]
    assert len(thought["signature"]) == 44
    assert text["text"].isdigit()
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] < message["usage"]["output_tokens"]
    omitted = both(**given, thinking={**thinking, "display": "omitted"})
    assert omitted["content"] == [{**thought, "thinking": ""}, text]
    silent = both(**given, thinking={"type": "disabled"}, reasoning_parser="think", thinking_budget=3)
    assert silent["content"] == [text]
    # What the model was shown before, it is shown again.
    told = [*USER, {"role": "assistant", "content": message["content"]}, *USER]
    assert ask(messages=told)["usage"]["input_tokens"] > ask(messages=[*USER, *USER])["usage"]["input_tokens"]


def test_tokens_are_counted_without_a_limit() -> None:
    def count(**body: Any) -> int:
        reply = shared().post(f"{PATH}/count_tokens", {"model": "tiny", "messages": USER, **body})
        assert reply.status_code == 200, reply.text
        return anthropic_types.MessageTokensCount.model_validate(reply.json(), strict=True).input_tokens

    assert count() == 8
    assert count(system="Be brief.") > count()
    assert count(tools=[WEATHER]) > count(tools=[WEATHER], tool_choice={"type": "none"}) == count()
    assert count(messages=[{"role": "user", "content": "very old " * 600}]) > 512
    told = count(messages=[*USER, {"role": "assistant", "content": "I am"}])
    asked = ask(messages=[*USER, {"role": "assistant", "content": "I am"}])["usage"]
    assert told == asked["input_tokens"] + asked["cache_read_input_tokens"]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    keys = ("--api-key", "secret", "--api-key", "limited", "--requests-per-minute", "40")
    with Server("tiny", *keys, "--max-queue", "0", "--max-running", "1", "--max-body", "20000") as server:
        yield server


@pytest.mark.slow
def test_statuses_and_types_are_anthropics(keyed: Server) -> None:
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 3, "messages": USER}
    key: Any = {"headers": {"x-api-key": "secret"}}
    assert keyed.post(PATH, body, **key).status_code == 200
    assert keyed.post(PATH, body, headers={"authorization": "Bearer secret"}).status_code == 200
    assert error({**body, "max_tokens": None}, server=keyed, **key)[2].startswith("max_tokens must be an integer >= 0")
    assert error(body, server=keyed)[:2] == (401, "authentication_error")
    assert error(body, server=keyed, headers={"x-api-key": "other"})[:2] == (401, "authentication_error")
    # Whoever sends both is who the Authorization header says.
    both_keys = {"x-api-key": "secret", "authorization": "Bearer other"}
    assert error(body, server=keyed, headers=both_keys)[0] == 401
    assert error(body, server=keyed, path=f"{PATH}/batches", **key)[:2] == (404, "not_found_error")
    assert error({**body, "system": "a" * 30_000}, server=keyed, **key)[:2] == (413, "request_too_large")
    with pytest.raises(anthropic.AuthenticationError):
        client_of(keyed, "wrong").messages.create(**body)


@pytest.mark.slow
def test_too_many_requests_are_a_rate_limit_error(keyed: Server) -> None:
    client = client_of(keyed, "limited")
    options: Any = {"model": "tiny", "max_tokens": 0, "messages": USER}
    with pytest.raises(anthropic.RateLimitError) as caught:  # noqa: PT012 - whichever is the first beyond the budget
        for _ in range(60):
            client.messages.create(**options)
    assert caught.value.type == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert client.messages.count_tokens(model="tiny", messages=USER).input_tokens == 8


def test_the_name_of_a_field_is_told_without_control_characters() -> None:
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": "a"}], "extra_body": {"a\x08b": 1}}
    message = shared().post("/v1/messages", body).json()["error"]["message"]
    assert message.startswith("a\\x08b: messages field must be a known name")
    assert message.isprintable()


@pytest.mark.parametrize(("count", "length", "taken"), [(64, 512, True), (65, 1, False), (1, 513, False)])
def test_betas_are_few_and_short(count: int, length: int, taken: bool) -> None:
    betas = ["b" * length] * count
    if taken:
        assert ask(betas=betas)["content"] == ask()["content"]
    else:
        status, _, message = error({"max_tokens": 2, "messages": USER, "betas": betas})
        assert (status, "betas must be a list of at most 64 texts of at most 512 characters" in message) == (400, True)


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_know() -> None:
    message = error({"max_tokens": 3, "messages": [{"role": "user", "content": "very old " * 300}]})[2]
    assert re.match(r"prompt is too long: \d+ tokens > 512 maximum; prompt must hold at most 512 tokens", message)


@pytest.mark.slow
def test_a_client_that_leaves_ends_its_request() -> None:
    ended = ('tirage_aborts_total{reason="disconnect"}', 'tirage_samples_total{reason="length"}')
    before = [shared().metric(name) for name in ended]
    with client_of(shared(), "null").messages.stream(
        model="tiny", max_tokens=480, messages=USER, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    until(lambda: [shared().metric(name) for name in ended] != before, shared(), "done with the request")
    assert [shared().metric(name) for name in ended] == [before[0] + 1, before[1]]


@pytest.mark.slow
def test_a_full_queue_is_overloaded(keyed: Server) -> None:
    client = client_of(keyed, "secret")
    options: Any = {"model": "tiny", "messages": USER, "extra_body": {"ignore_eos": True}}
    with client.messages.stream(**options, max_tokens=480) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.OverloadedError) as caught:
            client.messages.create(**options, max_tokens=2)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    assert caught.value.response.headers["retry-after"] == "1"


@pytest.mark.slow
def test_an_error_ends_a_stream() -> None:
    dead = {"regex": "[0-9]{40}", "allowed_token_ids": [300]}
    kind, message = error({"max_tokens": 12, "messages": USER, **dead})[1:]
    assert kind == "invalid_request_error"
    *before, last = events_of(**dead)
    assert [event["type"] for event in before] in ([], ["message_start", "ping"])
    assert last["type"] == "error"
    assert last["error"] == {"type": kind, "message": message}
    client = client_of(shared(), "null")
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(
            model="tiny",
            max_tokens=12,
            messages=USER,
            extra_body=dead,
        ) as stream,
    ):
        list(stream)
    assert message in str(caught.value)


@cache
def client_of(server: Server, key: str) -> Any:
    """A client, kept until the end, so that its connections are not collected while they are open."""
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)
