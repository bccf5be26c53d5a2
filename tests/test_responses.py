"""/v1/responses over the wire: what it answers, whole and streamed, and how a stream tells it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from later import openai_responses
from pydantic import ValidationError
from responses_wire import PLAIN, ROUTE, ask, check_order, check_type, events, refused, same, settled, writes
from servers import shared
from test_openai import DEAD_END
from test_openai_tools import CALL, CITY

WEATHER = {"type": "function", "name": "weather", "parameters": CITY}
TIME = {"type": "function", "name": "time", "parameters": {"type": "object", "additionalProperties": False}}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def chat(**body: Any) -> Any:
    """The same question to chat completions."""
    asked = {"messages": [{"role": "user", "content": PLAIN["input"]}], "seed": 5, **body}
    return shared().post("/v1/chat/completions", asked).json()


@pytest.mark.slow
def test_a_stream_comes_to_the_whole_response() -> None:
    response = same()
    [item] = response["output"]
    assert (response["status"], item["type"], item["status"]) == ("completed", "message", "completed")
    assert item["content"][0]["text"] == chat()["choices"][0]["message"]["content"]
    assert response["incomplete_details"] is response["error"] is None


@pytest.mark.slow
def test_members_that_the_client_does_not_know_are_found() -> None:
    response = ask()
    for wrong in ({**response, "color": 1}, {**response, "output": [{**response["output"][0], "color": 1}]}):
        with pytest.raises(AssertionError):
            check_type(openai_responses.Response, wrong)
    with pytest.raises(ValidationError):
        check_type(openai_responses.Response, {**response, "parallel_tool_calls": "yes"})
    with pytest.raises(AssertionError):
        check_order(events()[:-2])


@pytest.mark.slow
def test_the_usage_is_that_of_a_chat() -> None:
    usage, other = ask()["usage"], chat()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (
        other["prompt_tokens"],
        other["completion_tokens"],
        other["total_tokens"],
    )
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.slow
def test_a_response_that_is_cut_is_incomplete() -> None:
    response = same(max_output_tokens=3)
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events(max_output_tokens=3)[-1]["type"] == "response.incomplete"


def test_the_events_of_a_text_come_in_their_order() -> None:
    kinds = [event["type"].removeprefix("response.") for event in events(max_output_tokens=3)]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta",) * 3,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]


def test_a_response_without_text_has_an_empty_message() -> None:
    response = same(logit_bias={"2": 100.0})
    assert [part["text"] for part in response["output"][0]["content"]] == [""]


@pytest.mark.slow
def test_log_probabilities_are_those_of_a_chat() -> None:
    [part] = same(**LOGPROBS)["output"][0]["content"]
    assert part["logprobs"] == chat(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
    assert ask()["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.slow
def test_a_long_answer_is_encoded_beside_the_loop_and_is_the_same() -> None:
    # More than 2000 values, from which on the last events are encoded in a thread.
    response = same(include=LOGPROBS["include"], top_logprobs=20, ignore_eos=True, max_output_tokens=120)
    [part] = response["output"][0]["content"]
    assert sum(1 + len(each["top_logprobs"]) for each in part["logprobs"]) > 2000


@pytest.mark.slow
def test_instructions_are_a_system_message() -> None:
    told = ask(instructions="Answer as a dog.", return_token_ids=True)
    messages = [{"role": "system", "content": "Answer as a dog."}, {"role": "user", "content": PLAIN["input"]}]
    assert told["prompt_token_ids"] == chat(messages=messages, return_token_ids=True)["prompt_token_ids"]
    assert told["instructions"] == "Answer as a dog."


# --- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_schema_holds() -> None:
    given = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    response = same(text={"format": given}, max_output_tokens=60)
    assert json.loads(response["output"][0]["content"][0]["text"])["city"] in {"Paris", "Rome"}
    assert response["text"] == {"format": given}


@pytest.mark.slow
def test_any_object_of_json_holds() -> None:
    response = same(text={"format": {"type": "json_object"}}, max_output_tokens=60, close_grammar=True)
    assert isinstance(json.loads(response["output"][0]["content"][0]["text"]), dict)


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("json", "text", "an object of format and verbosity"),
        ({"verbosity": "low"}, "text.verbosity", "medium or left out: the model has no such option"),
        ({"form": 1}, "text.", "an object of format and verbosity"),
        ({"format": {"type": "xml"}}, "text.format", "an object such as"),
        ({"format": {"type": "json_schema", "name": "a"}}, "text.format.schema", "a JSON schema"),
        ({"format": {"type": "json_schema", "schema": [1]}}, "text.format.schema", "a JSON schema"),
        ({"format": {"type": "json_object", "schema": {}}}, "text.format.schema", "left out where the type is"),
        ({"format": {"type": "json_schema", "schema": {"type": "text"}}}, "text", ""),
    ],
)
def test_a_format_that_cannot_hold_is_refused(text: Any, place: str, rule: str) -> None:
    found = refused(text=text)
    assert found["param"].startswith(place)
    assert rule in found["message"]


def test_a_format_and_another_constraint_contradict_each_other() -> None:
    found = refused(text={"format": {"type": "json_object"}}, regex="[0-9]")
    assert found["message"].startswith(("text must not be given together with", "regex must not be given together"))


# --- tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_named_function_is_called() -> None:
    response = same(tools=[WEATHER, TIME], tool_choice={"type": "function", "name": "weather"})
    [call] = response["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert json.loads(call["arguments"])["city"] in {"Paris", "Rome"}
    assert response["tools"][0] == {**WEATHER, "description": None, "strict": False}
    kinds = [event["type"] for event in events(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})]
    assert kinds[2] == "response.output_item.added"
    assert kinds[-4:-1] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


@pytest.mark.slow
def test_two_calls_are_two_items_and_text_before_them_is_one() -> None:
    text = f"Wait. <tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    response = same(tools=[WEATHER], **writes(text), **LOGPROBS)
    message, *calls = response["output"]
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Rome"}] * 2
    assert len({call["call_id"] for call in calls}) == len({item["id"] for item in response["output"]}) - 1 == 2
    [part] = message["content"]
    assert (part["text"], "".join(each["token"] for each in part["logprobs"])) == ("Wait.", "Wait.")
    alone = same(tools=[WEATHER], **writes(text), parallel_tool_calls=False)
    assert [item["type"] for item in alone["output"]] == ["message", "function_call"]


@pytest.mark.slow
def test_text_after_a_call_is_a_message_of_its_own() -> None:
    text = f"Wait.<tool_call>{CALL}</tool_call> Done."
    response = same(tools=[WEATHER], **writes(text), **LOGPROBS)
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "message"]
    texts = [item["content"][0] for item in response["output"] if item["type"] == "message"]
    assert [part["text"].strip() for part in texts] == ["Wait.", "Done."]
    assert ["".join(each["token"] for each in part["logprobs"]).strip() for part in texts] == ["Wait.", "Done."]


@pytest.mark.slow
def test_a_strict_function_keeps_its_schema_where_the_model_decides() -> None:
    tools = [{**WEATHER, "strict": True}]
    for given, strict in ((tools, True), ([WEATHER], False)):
        response = ask(tools=given, return_effective_params=True, max_output_tokens=2)
        assert response["tools"][0]["strict"] is strict
        guided = response["effective_params"][0]["params"]["guided_decoding"]
        assert (guided is not None and "Paris" in guided["structural_tag"]) is strict
    found = refused(tools=tools, text={"format": {"type": "json_object"}})
    assert (found["param"], "under another constraint" in found["message"]) == ("tools", True)
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    wrong = refused(tools=[{**WEATHER, "parameters": schema, "strict": True}])
    assert wrong["param"] == "tools"
    assert "parameters of the function 'weather'" in wrong["message"]


@pytest.mark.slow
def test_allowed_tools_limit_the_choice() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    response = same(tools=[TIME, WEATHER], tool_choice=allowed, parallel_tool_calls=False, max_output_tokens=120)
    assert [call["name"] for call in response["output"]] == ["weather"]
    assert response["tool_choice"] == allowed


@pytest.mark.parametrize(
    ("fields", "param", "rule"),
    [
        ({"tools": "weather"}, "tools", "a list of functions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "this server runs no tool itself"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "tools[0].type", "this server runs no tool itself"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading", "must be false or left out"),
        ({"tools": [{**WEATHER, "color": 1}]}, "tools[0].color", "known members"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "1 to 64 of"),
        ({"tools": [{**WEATHER, "parameters": {"type": "array"}}]}, "tools[0].parameters", 'the type "object"'),
        ({"tools": [WEATHER], "tool_choice": "all"}, "tool_choice", '"none", "auto", "required"'),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "a"}}, "tool_choice", "one of the tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice", '"none", "auto", "required"'),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice",
            "tool_choice.tools must be functions",
        ),
        ({"tool_choice": "required"}, "tool_choice", "must go with tools"),
        ({"tools": [WEATHER], "parallel_tool_calls": "no"}, "parallel_tool_calls", "a bool"),
    ],
)
def test_wrong_tools_are_refused_in_the_words_of_this_route(fields: Any, param: str, rule: str) -> None:
    found = refused(**fields)
    assert (found["param"], "function." in found["message"]) == (param, False)
    assert rule in found["message"]


# --- ends that are errors ------------------------------------------------------------------------------------------


def test_a_stream_that_fails_ends_with_a_failed_response() -> None:
    last = events(**DEAD_END)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "invalid_prompt"
    found = shared().post(ROUTE, {**PLAIN, **DEAD_END})
    assert (found.status_code, found.json()["error"]["code"]) == (400, "no_allowed_token")
    assert last["response"]["error"]["message"] == found.json()["error"]["message"]
    gone = shared().get(f"{ROUTE}/{last['response']['id']}")
    assert gone.status_code == 404


@pytest.mark.slow
def test_a_request_that_takes_too_long_ends_with_a_failed_response() -> None:
    # A fast machine draws the 480 tokens in 0.3 s.
    server = shared("tiny", "--request-timeout", "0.1")
    found = events(server, ignore_eos=True, max_output_tokens=480)
    assert (found[-1]["type"], found[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert "took too long" in found[-1]["response"]["error"]["message"]


def test_a_prompt_that_does_not_fit_names_the_input() -> None:
    found = refused(input="a b " * 400, max_output_tokens=None)
    assert (found["param"], found["code"]) == ("input", "context_length_exceeded")
    found = refused(max_output_tokens=10_000)
    assert (found["param"], found["code"]) == ("max_output_tokens", "context_length_exceeded")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_response() -> None:
    assert settled(ask(temperature=1.5)) == settled(ask(temperature=1.5))
    assert settled(ask(temperature=1.5, seed=6)) != settled(ask(temperature=1.5))
