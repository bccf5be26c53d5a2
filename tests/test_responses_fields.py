"""Fields of /v1/responses: what is refused in which words, what is ignored, and what a chat would have read."""

from __future__ import annotations

from typing import Any

import pytest
from field_answers import body_of
from field_effects import CHAT, RESPONSES
from responses_wire import PLAIN, ROUTE, ask, events, refused
from servers import shared
from test_openai import tiny

from tirage.server.options import Options
from tirage.server.routes import openai_request
from tirage.server.routes.openai_request import read_request
from tirage.server.routes.responses_request import RESPONSES as RESPONSES_ROUTE


def test_a_chat_that_says_the_same_is_read_as_the_same_parameters() -> None:
    fields = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "stop": ["e"], "semantics": "vllm"}
    own = read_request(RESPONSES_ROUTE, body_of(RESPONSES, fields, stream=False), Options(), tiny(), lenient=False)
    chat = read_request(openai_request.CHAT, body_of(CHAT, fields, stream=False), Options(), tiny(), lenient=False)
    assert own.params == chat.params
    extra = body_of(RESPONSES, {"extra_body": fields}, stream=False)
    assert read_request(RESPONSES_ROUTE, extra, Options(), tiny(), lenient=False).params == own.params


def test_the_operator_may_allow_more_of_the_likeliest_than_openai_does() -> None:
    server = shared("tiny", "--max-top-logprobs", "25")
    asked = {"input": "hi", "max_output_tokens": 1, "include": ["message.output_text.logprobs"]}
    [message] = server.post(ROUTE, {**asked, "top_logprobs": 25}).json()["output"]
    assert len(message["content"][0]["logprobs"][0]["top_logprobs"]) == 25
    over = server.post(ROUTE, {**asked, "top_logprobs": 26}).json()["error"]
    assert (over["param"], "--max-top-logprobs" in over["message"]) == ("top_logprobs", True)


@pytest.mark.parametrize(
    ("fields", "param", "rule"),
    [
        ({"input": None}, "input", "a text or a list of items, got null"),
        ({"input": 7}, "input", "a text or a list of items, got 7"),
        ({"input": {}}, "input", "a text or a list of items"),
        ({"input": []}, "input", "hold an item that the model can read, got none"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "hold an item that the model can read"),
        ({"input": [{"role": "user", "content": "a", "color": 1}]}, "input[0].color", "known members"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]", ""),
        ({"instructions": ["a"]}, "instructions", "a text"),
        ({"messages": []}, "messages", "send input"),
        ({"max_tokens": 5}, "max_tokens", "send max_output_tokens"),
        ({"response_format": {"type": "text"}}, "response_format", "send text.format"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "send reasoning.effort"),
        ({"logprobs": True}, "logprobs", "send include="),
        ({"top_logprobs": 2}, "top_logprobs", "must go with include="),
        ({"include": "all"}, "include", "a list of"),
        ({"include": ["all"]}, "include", "got 'all'"),
        ({"metadata": {"a": 1}}, "metadata", "an object of at most 16 texts"),
        ({"metadata": {str(number): "a" for number in range(17)}}, "metadata", "an object of at most 16 texts"),
        ({"metadata": {"a" * 65: "a"}}, "metadata", "names of at most 64"),
        ({"truncation": "auto"}, "truncation", "no item is left out silently"),
        ({"background": True}, "background", "stream it"),
        ({"conversation": "conv_1"}, "conversation", "send previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "send instructions and input"),
        ({"max_tool_calls": 3}, "max_tool_calls", "parallel_tool_calls=false"),
        ({"n": 2}, "n", "a response has one answer"),
        ({"use_beam_search": True}, "use_beam_search", "/v1/chat/completions searches with beams"),
        ({"previous_response_id": 7}, "previous_response_id", "a text of at most 512 characters"),
        ({"store": "yes"}, "store", "true or false"),
        ({"max_output_token": 5}, "max_output_token", "did you mean 'max_output_tokens'"),
        ({"max_output_tokens": -1}, "max_output_tokens", "max_output_tokens must be"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids", "must go with logprobs"),
    ],
)
def test_a_wrong_field_is_refused_with_its_rule(fields: dict[str, Any], param: str, rule: str) -> None:
    found = refused(**fields)
    assert found["param"].startswith(param)
    assert rule in found["message"]


def test_options_of_a_stream() -> None:
    assert events(stream_options={"include_obfuscation": False}, max_output_tokens=2)
    for options, param in (
        ({"include_obfuscation": True}, "stream_options.include_obfuscation"),
        ({"include_usage": True}, "stream_options"),
        ("all", "stream_options"),
    ):
        found = shared().post(ROUTE, {**PLAIN, "stream": True, "stream_options": options}).json()["error"]
        assert found["param"] == param
    found = shared().post(ROUTE, {**PLAIN, "stream_options": {"include_obfuscation": False}}).json()["error"]
    assert "must go with stream=true" in found["message"]


def test_unknown_fields_and_members_are_ignored_by_wish() -> None:
    body = {**PLAIN, "max_output_tokens": 2, "colour": 1, "input": [{"role": "user", "content": "a", "colour": 1}]}
    answer = shared().post(ROUTE, body, headers={"x-tirage-unknown-fields": "ignore"})
    assert (answer.status_code, answer.headers["x-tirage-ignored-fields"]) == (200, "colour")


def test_what_is_ignored_in_a_schema_is_listed() -> None:
    given = {"type": "json_schema", "name": "a", "schema": {"const": 1, "nullable": True}}
    answer = shared().post(ROUTE, {**PLAIN, "max_output_tokens": 3, "text": {"format": given}})
    assert answer.headers["x-tirage-ignored-in-schema"] == "#/nullable"


def test_a_request_id_is_kept_and_an_adapter_that_is_none_refused() -> None:
    answer = shared().post(ROUTE, {**PLAIN, "max_output_tokens": 2}, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    assert refused(lora_path="other")["param"] == "lora_path"


def test_other_things_to_include_change_nothing() -> None:
    others = ["reasoning.encrypted_content", "file_search_call.results", "web_search_call.action.sources"]
    response = ask(include=others, max_output_tokens=2)
    assert response["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.slow
def test_effective_parameters_and_ids_stand_in_the_response() -> None:
    wanted = {"return_effective_params": True, "return_token_ids": True, "max_output_tokens": 4}
    for response in (ask(**wanted), events(**wanted)[-1]["response"]):
        [params] = response["effective_params"]
        assert params["samples"][0]["token_ids"] == response["token_ids"]
        assert len(response["token_ids"]) == response["usage"]["output_tokens"] == 4
        assert len(response["prompt_token_ids"]) == response["usage"]["input_tokens"]
