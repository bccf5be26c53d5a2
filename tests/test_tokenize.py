"""`/tokenize`: texts, chats and the spelling of tokens; `/check_constraint`."""

from __future__ import annotations

from typing import Any

import pytest
from servers import shared
from test_openai import USER, error, post, tiny
from test_openai_tools import WEATHER
from test_prefill import said


def tokenize(**body: Any) -> Any:
    return post("/tokenize", body)


def test_the_tokens_of_a_chat_are_those_of_its_prompt() -> None:
    cases: list[dict[str, Any]] = [
        {"messages": USER},
        {"messages": USER, "add_generation_prompt": False},
        {"messages": said("I am"), "continue_final_message": True},
        {"messages": USER, "tools": [WEATHER]},
    ]
    found = []
    for body in cases:
        asked = {**body, "max_tokens": 1, "return_token_ids": True}
        prompt = post("/v1/chat/completions", asked)["prompt_token_ids"]
        tokens = tokenize(**body)
        assert (tokens["tokens"], tokens["count"]) == (prompt, len(prompt))
        assert post("/v1/tokenize", body) == tokens
        found.append(tuple(prompt))
    assert len(set(found)) == len(cases)


def test_tokens_are_spelled_as_the_vocabulary_spells_them() -> None:
    tokenizer = tiny().tokenizer
    found = tokenize(prompt="Once upon", return_token_strs=True)
    assert found["token_strs"] == [tokenizer.raw.id_to_token(token) for token in found["tokens"]]
    assert tokenize(prompt="Once upon")["token_strs"] is None
    many = tokenize(prompt=["Once", "upon a"], return_token_strs=True)
    assert [len(each) for each in many["token_strs"]] == many["count"]
    chat = tokenize(messages=USER, return_token_strs=True)
    assert chat["token_strs"][0] == "<s>"


def test_special_tokens_of_a_text_may_be_left_out() -> None:
    with_them = tokenize(prompt="Once")["tokens"]
    assert tokenize(prompt="Once", add_special_tokens=False)["tokens"] == with_them[1:]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "messages": USER}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "tools": [WEATHER]}, "tools"),
        ({"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": USER, "continue_final_message": True}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        ({"messages": USER, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": USER, "chat_template_kwargs": {"nobody": 1}}, "chat_template_kwargs"),
        ({"messages": USER, "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
    ],
)
def test_what_cannot_be_tokenised_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert error("/tokenize", body)["param"] == param


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "minimumm": 1}


def check(**body: Any) -> Any:
    return post("/check_constraint", body)


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, "json"),
        ({"regex": "[0-9]+"}, "regex"),
        ({"ebnf": 'root ::= "a"'}, "grammar"),
        ({"guided_choice": ["a", "b"]}, "choice"),
        ({"structured_outputs": {"json": SCHEMA}}, "json"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "json"),
    ],
)
def test_a_constraint_that_can_be_enforced_is_valid(body: dict[str, Any], mode: str) -> None:
    found = check(**body)
    assert (found["valid"], found["mode"]) == (True, mode)
    assert any("minimumm" in place for place in found["ignored"]) is (SCHEMA in (
        body.get("structured_outputs", {}).get("json"),
        body.get("response_format", {}).get("json_schema", {}).get("schema"),
    ))  # fmt: skip


BAD = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": BAD}}},
        {"regex": "["},
        {"ebnf": "root ::= missing"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": BAD}}], "tool_choice": "required"},
        {"response_format": {"type": "xml"}},
        {"regex": "a", "ebnf": 'root ::= "a"'},
    ],
)
def test_the_error_of_a_constraint_is_the_one_that_a_chat_gets(body: dict[str, Any]) -> None:
    assert error("/check_constraint", body) == error("/v1/chat/completions", {"messages": USER, **body})


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/tokenize", {"prompt": ["a"] * 129}, "prompt"),
        ("/detokenize", {"tokens": [[300]] * 129}, "tokens"),
        ("/abort_request", {"rid": ["a"] * 129}, "rid"),
    ],
)
def test_too_long_a_list_is_refused_by_what_is_counted(path: str, body: dict[str, Any], what: str) -> None:
    found = error(path, body, 400)
    assert found["message"].startswith(f"number of {what} entries must be at most 128, got 129; ")
    assert found["param"] == what


def test_a_check_without_a_constraint_is_refused() -> None:
    for body in ({}, {"tools": [WEATHER]}, {"response_format": {"type": "text"}}):
        assert error("/check_constraint", body)["param"] == "response_format"
    assert error("/check_constraint", {"temperature": 1})["param"] == "temperature"
    assert shared().get("/check_constraint").status_code == 405
