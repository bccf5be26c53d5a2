"""Tool calls over the wire: forced ones, those a model makes by itself in each form, and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers import Server, shared
from test_openai import USER, error, post, stream_chat

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {
    "type": "function",
    "function": {"name": "time", "parameters": {"type": "object", "additionalProperties": False}},
}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
LINES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PLAIN = LINES + "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"


def ask(**body: Any) -> Any:
    body = {"messages": USER, "tools": [WEATHER, TIME], "seed": 1, "max_tokens": 120, **body}
    return post("/v1/chat/completions", body)["choices"][0]


def gathered(chunks: list[Any]) -> tuple[str, list[Any], str]:
    """The content, the calls put together and the finish reason of a stream."""
    content, calls, reason = "", list[Any](), ""
    for chunk in chunks:
        [choice] = chunk["choices"]
        assert isinstance(choice["delta"]["content"], str)
        content += choice["delta"]["content"]
        reason = choice["finish_reason"] or reason
        for piece in choice["delta"].get("tool_calls", []):
            if piece["index"] == len(calls):
                assert set(piece) == {"index", "id", "type", "function"}
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return content, calls, reason


def test_a_named_function_is_called() -> None:
    choice = ask(tool_choice=NAMED)
    [call] = choice["message"]["tool_calls"]
    assert set(call) == {"id", "type", "function"}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert set(choice["message"]) == {"role", "content", "refusal", "tool_calls"}
    assert json.loads(call["function"]["arguments"])["city"] in {"Paris", "Rome"}
    chunks = stream_chat(tools=[WEATHER, TIME], tool_choice=NAMED, max_tokens=120)
    assert gathered(chunks) == ("", [call["function"]], "tool_calls")


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_made(parallel: bool) -> None:
    choice = ask(tool_choice="required", parallel_tool_calls=parallel, close_grammar=True)
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert len(calls) == 1 or parallel
    assert {call["name"] for call in calls} <= {"weather", "time"}
    assert all(isinstance(json.loads(call["arguments"]), dict) for call in calls)
    streamed = stream_chat(
        tools=[WEATHER, TIME],
        tool_choice="required",
        parallel_tool_calls=parallel,
        close_grammar=True,
        max_tokens=120,
    )
    assert gathered(streamed) == ("", calls, "tool_calls")


def test_a_model_may_call_by_itself() -> None:
    for text in (f"<tool_call>\n{CALL}\n</tool_call>", f"Wait. <tool_call>{CALL}</tool_call>"):
        choice = ask(guided_choice=[text])
        [call] = choice["message"]["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city": "Rome"}')
        assert choice["message"]["content"] == (None if text[0] == "<" else "Wait.")
        content, calls, reason = gathered(stream_chat(tools=[WEATHER], guided_choice=[text], max_tokens=120))
        assert (content, calls, reason) == (choice["message"]["content"] or "", [call["function"]], "tool_calls")


def test_a_model_may_also_just_talk() -> None:
    choice = ask(guided_choice=["I do not know."])
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "I do not know.")
    assert "tool_calls" not in choice["message"]
    assert ask(tool_choice="none", guided_choice=[f"<tool_call>{CALL}</tool_call>"])["message"]["content"][0] == "<"


def test_a_call_that_the_limit_cuts_ends_with_length() -> None:
    assert ask(tool_choice=NAMED, max_tokens=3)["finish_reason"] == "length"


def test_a_strict_function_goes_with_no_other_constraint() -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    assert ask(tools=[strict], max_tokens=4)["finish_reason"] == "length"
    both = {"messages": USER, "tools": [strict], "guided_regex": "a"}
    assert error("/v1/chat/completions", both)["param"] == "tools"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_wrong_tools_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert error("/v1/chat/completions", {"messages": USER, "tools": [WEATHER], **body})["param"] == param


def test_results_of_calls_go_back_into_the_conversation() -> None:
    choice = ask(tool_choice=NAMED)
    told = [*USER, choice["message"], {"role": "tool", "tool_call_id": "x", "content": "rain"}]
    assert ask(messages=told, tool_choice="none", max_tokens=4)["message"]["content"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "text", "length"),
    [
        ("[TOOL_CALLS]", f"[TOOL_CALLS][{CALL}]", 9),
        ("<|start_header_id|>", CALL.replace("arguments", "parameters"), 29),
    ],
    ids=["mistral", "llama3"],
)
def test_the_template_tells_in_which_form_a_model_calls(mark: str, text: str, length: int, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(f"{{# {mark} #}}{PLAIN}")
    with Server("tiny", "--chat-template", str(path)) as server:
        body = {"messages": USER, "tools": [WEATHER], "guided_choice": [text], "max_tokens": 120}
        [choice] = server.post("/v1/chat/completions", body).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        assert (call["function"], len(call["id"])) == ({"name": "weather", "arguments": '{"city": "Rome"}'}, length)


def test_the_document_of_the_api_names_every_field() -> None:
    paths = shared().get("/openapi.json").json()["paths"]
    for path, names in (
        ("/v1/completions", {"prompt", "echo", "best_of", "top_k", "bad_words", "guided_json"}),
        ("/v1/chat/completions", {"messages", "tools", "response_format", "sampling_method", "chat_template_kwargs"}),
    ):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert names <= set(body["properties"])


QWEN_XML = "{% for t in tools or [] %}{% endfor %}<tool_call><function=f><parameter=a>\n"
OPENED = "{{ '<think>' if enable_thinking | default(true) }}"


@pytest.mark.slow
def test_a_call_in_another_format_follows_the_reasoning(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(LINES + "{% if tools %}" + QWEN_XML + "{% endif %}" + OPENED)
    text = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    body = {"messages": USER, "tools": [WEATHER], "seed": 2, "max_tokens": 120, "thinking_budget": 3}
    with Server("tiny", "--chat-template", str(path), "--reasoning-parser", "qwen3") as server:
        asked = {**body, "guided_choice": [text]}
        [choice] = server.post("/v1/chat/completions", asked).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
        assert choice["message"]["reasoning_content"]
        lines = server.post("/v1/chat/completions", {**asked, "stream": True}).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
        assert gathered(chunks) == ("", [call["function"]], "tool_calls")
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        free = server.post("/v1/chat/completions", {**body, "tools": [strict], "max_tokens": 30})
        assert free.status_code == 200, free.text
        pattern = {"properties": {"city": {"type": "string", "pattern": "R"}}}
        strict["function"]["parameters"] = pattern
        refused = server.post("/v1/chat/completions", {**body, "tools": [strict]}).json()["error"]["message"]
        assert "parameters of the function 'weather' at #/properties/city/pattern cannot be held" in refused


@pytest.mark.slow
def test_a_call_that_must_come_keeps_the_chosen_format(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(LINES + OPENED)
    flags = ("--chat-template", str(path), "--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3")
    body = {"messages": USER, "tools": [WEATHER, TIME], "seed": 2, "max_tokens": 130, "thinking_budget": 3}
    with Server("tiny", *flags) as server:
        for choice in ("required", NAMED):
            asked = {**body, "tool_choice": choice, "close_grammar": True, "parallel_tool_calls": False}
            got = server.post("/v1/chat/completions", asked).json()
            assert "choices" in got, got
            [found] = got["choices"]
            [call] = found["message"]["tool_calls"]
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert found["message"]["reasoning_content"]
            plain = server.post("/v1/chat/completions", {**asked, "separate_reasoning": False, "logprobs": True}).json()
            written = "".join(each["token"] for each in plain["choices"][0]["logprobs"]["content"])
            assert "<tool_call>\n<function=" in written
