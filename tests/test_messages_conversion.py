"""What Anthropic's messages, blocks and tools become for the chat template."""

from __future__ import annotations

from typing import Any

import pytest
from servers import shared
from test_messages import PATH, USER, WEATHER, error
from test_openai import tiny

from tirage.dialects import DialectError
from tirage.server.media import MediaItem
from tirage.server.options import Options
from tirage.server.routes import responses_tools
from tirage.server.routes.messages_conversion import chat_messages
from tirage.server.routes.messages_events import read_input
from tirage.server.routes.messages_request import read_messages_request
from tirage.server.routes.messages_tools import chat_tool_choice, chat_tools
from tirage.text import ChatTemplate

TAGS = ("<think>", "</think>")
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
REASONING = "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}"
TOOL_USE = {"type": "tool_use", "id": "a1", "name": "weather", "input": {"city": "Rome"}}
RESULT = {"type": "tool_result", "tool_use_id": "a1", "content": "rain"}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def converted(*messages: Any, system: Any = None, source: str | None = None) -> list[dict[str, Any]]:
    template = ChatTemplate(tiny().tokenizer, source)
    return chat_messages(list(messages), system, template=template, tags=TAGS)[0]


def test_a_conversation_with_tools() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    found = converted(
        {"role": "user", "content": "Weather?"},
        {"role": "user", "content": [said("In Rome.", **cached)]},
        {"role": "assistant", "content": [said("Wait."), TOOL_USE]},
        {"role": "user", "content": [{**RESULT, **cached}, said("And now?")]},
        system=[said("Be brief.", **cached), said("Be kind."), said("x-anthropic-billing-header: cch=1;")],
    )
    call = {"id": "a1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    assert found == [
        {"role": "system", "content": [said("Be brief."), said("Be kind.")]},
        {"role": "user", "content": [said("Weather?"), said("In Rome.")]},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "a1", "name": "weather"},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"content": "no such city", "is_error": True}, "Error: no such city"),
        ({"is_error": True}, "Error"),
        ({"is_error": False}, ""),
        ({"content": []}, ""),
        ({"content": [said("a"), said("b")]}, [said("a"), said("b")]),
    ],
)
def test_the_result_of_a_tool(result: Any, content: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "a1", **result}
    asked = {"role": "assistant", "content": [TOOL_USE]}
    assert converted(*USER, asked, {"role": "user", "content": [block]})[2:] == [
        {"role": "tool", "content": content, "tool_call_id": "a1", "name": "weather"}
    ]


def test_images_are_loaded_by_the_place_that_the_client_knows() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "abcd"}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}
    found = converted(
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": [TOOL_USE]},
        {"role": "user", "content": [{**RESULT, "content": [said("See"), linked]}]},
        system="Look.",
    )
    assert found[1]["content"] == [MediaItem("image", "messages[0].content[0].source", "data:image/png;base64,abcd")]
    place = "messages[2].content[0].content[1].source"
    assert found[3]["content"] == [said("See"), MediaItem("image", place, "https://a.b/c.png")]
    sent = {"max_tokens": 3, "messages": [{"role": "user", "content": [image]}]}
    assert error(sent)[1:] == (
        "invalid_request_error",
        "messages[0].content[0].source must be left out, this model takes no images",
    )


def test_thoughts_stand_where_the_template_looks_for_them() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "abc"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    earlier = {"role": "assistant", "content": [thought, redacted, said("Four.")]}
    asked = [{"role": "user", "content": "2 + 2"}, earlier, {"role": "user", "content": "And?"}]
    assert converted(*asked, source=REASONING)[1] == {
        "role": "assistant",
        "content": "Four.",
        "reasoning_content": "Hm.",
    }
    assert converted(*asked, source=FIRST_ONLY)[1]["content"] == [said("<think>Hm.</think>"), said("Four.")]
    alone = {"role": "assistant", "content": [redacted, said("Four.")]}
    assert converted(asked[0], alone, asked[2])[1] == {"role": "assistant", "content": "Four."}


def test_a_later_system_message_goes_where_the_template_shows_it() -> None:
    later = [*USER, {"role": "system", "content": "Be brief."}, *USER]
    assert [each["role"] for each in converted(*later, system="Be kind.")] == ["system", "user", "system", "user"]
    first = converted(*later, system="Be kind.", source=FIRST_ONLY)
    assert first[0] == {"role": "system", "content": [said("Be kind."), said("Be brief.")]}
    assert [each["role"] for each in first] == ["system", "user"]
    assert converted(*later, source=FIRST_ONLY)[0] == {"role": "system", "content": "Be brief."}


def test_tools_are_functions() -> None:
    examples = [{"city": "Rome"}]
    tool = {**WEATHER, "strict": True, "input_examples": examples, "type": "custom", "defer_loading": True}
    tool |= {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "allowed_callers": ["direct"]}
    assert chat_tools([tool]) == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather of a city",
                "strict": True,
                "parameters": {**WEATHER["input_schema"], "examples": examples},
            },
        }
    ]
    assert chat_tools([]) is chat_tools(None) is None


@pytest.mark.parametrize("source", [None, "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}"])
def test_a_prompt_shows_a_tool_the_same_on_every_route(source: str | None) -> None:
    name, description, schema = (WEATHER[member] for member in ("name", "description", "input_schema"))
    function = {"name": name, "description": description, "parameters": schema, "strict": True}
    anthropic = chat_tools([{"strict": True, **dict(reversed(WEATHER.items()))}])
    responses = responses_tools.chat_tools([{"strict": True, "type": "function", **dict(reversed(function.items()))}])
    template = ChatTemplate(tiny().tokenizer, source)
    given = ([{"type": "function", "function": function}], anthropic, responses)
    chat, *others = [template.encode(USER, tools=each) for each in given]
    assert others == [chat, chat]
    assert len(chat) > len(template.encode(USER))


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (None, (None, None)),
        ({"type": "auto"}, ("auto", None)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", False)),
        ({"type": "none"}, ("none", None)),
        ({"type": "tool", "name": "f", "disable_parallel_tool_use": False},
         ({"type": "function", "function": {"name": "f"}}, True)),
    ],
)  # fmt: skip
def test_choices_of_tools(choice: Any, found: Any) -> None:
    assert chat_tool_choice(choice) == found


@pytest.mark.parametrize("choice", ["auto", {"type": "tool"}, {"type": "any", "name": "f"}, {"type": "required"}, {}])
def test_other_choices_are_refused(choice: Any) -> None:
    with pytest.raises(DialectError, match="tool_choice must be an object of type"):
        chat_tool_choice(choice)


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": "a", "name": "b"}], "messages[0].name"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([*USER, {"role": "user", "content": 3}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "document", "source": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [TOOL_USE]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [said("a", title="b")]}], "messages[0].content[0].title"),
        ([{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "a"}}]}],
         "messages[0].content[0].source"),
        ([{"role": "user", "content": [{**RESULT, "is_error": 1}]}], "messages[0].content[0].is_error"),
        ([{"role": "user", "content": [{**RESULT, "tool_use_id": None}]}], "messages[0].content[0].tool_use_id"),
        ([{"role": "user", "content": [RESULT]}, {"role": "assistant", "content": [TOOL_USE]}, *USER],
         "messages[0].content[0].tool_use_id"),
        ([*USER, {"role": "assistant", "content": [TOOL_USE]},
          {"role": "user", "content": [RESULT, {**RESULT, "tool_use_id": "a2"}]}],
         "messages[2].content[1].tool_use_id"),
        ([*USER, {"role": "assistant", "content": [{**TOOL_USE, "input": "{}"}]}, *USER],
         "messages[1].content[0].input"),
        ([*USER, {"role": "assistant", "content": [TOOL_USE]}], "messages[1]"),
        ([], "messages"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place(messages: Any, place: str) -> None:
    status, kind, message = error({"max_tokens": 3, "messages": messages})
    assert (status, kind) == (400, "invalid_request_error")
    assert message.startswith(f"{place} must be ")


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": "web_search_20260318", "name": "web_search"}, "tools[1].type"),
        ({"type": "bash_20250124", "name": "bash"}, "tools[1].type"),
        ({**WEATHER, "name": "a b"}, "tools[1].name"),
        ({"name": "a"}, "tools[1].input_schema"),
        ({**WEATHER, "strict": "yes"}, "tools[1].strict"),
        ({**WEATHER, "parameters": {}}, "tools[1].parameters"),
        ({**WEATHER, "allowed_callers": ["code_execution_20260521"]}, "tools[1].allowed_callers"),
        (3, "tools[1]"),
    ],
)
def test_a_refused_tool_is_named(tool: Any, place: str) -> None:
    body = {"max_tokens": 3, "messages": USER, "tools": [{**WEATHER, "name": "other"}, tool]}
    assert error(body)[2].startswith(f"{place} must be ")


def test_a_schema_that_cannot_be_held_is_named_by_its_tool() -> None:
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"$dynamicRef": "#b"}}}, "strict": True}
    body = {"max_tokens": 3, "messages": USER, "tools": [tool], "tool_choice": {"type": "any"}}
    assert "parameters of the function 'f' at #/properties/a" in error(body)[2]


def read(**body: Any) -> Any:
    return read_messages_request({"max_tokens": 9, "messages": USER, **body}, Options(), tiny(), lenient=False)


@pytest.mark.parametrize(
    ("thinking", "place"),
    [
        ({"type": "on"}, "thinking"),
        ({"type": "enabled"}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 9}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 0}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": True}, "thinking.budget_tokens"),
        ({"type": "disabled", "budget_tokens": 3}, "thinking"),
        ({"type": "adaptive", "display": "all"}, "thinking.display"),
    ],
)
def test_other_ways_of_thinking_are_refused(thinking: Any, place: str) -> None:
    with pytest.raises(DialectError) as caught:
        read(thinking=thinking)
    assert caught.value.param == place


def test_what_thinking_means_for_a_chat() -> None:
    enabled = read(thinking={"type": "enabled", "budget_tokens": 5})
    assert (enabled.params.thinking_budget, enabled.fields["separate_reasoning"]) == (5, True)
    assert read(thinking={"type": "adaptive"}).params.thinking_budget is None
    assert read(thinking={"type": "adaptive"}).fields["separate_reasoning"] is True
    silent = read(thinking={"type": "disabled"}).fields
    assert silent["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert (silent["separate_reasoning"], silent["include_reasoning"]) == (None, True)
    silent = read(thinking={"type": "disabled"}, reasoning_parser="think").fields
    assert silent["include_reasoning"] is False
    with pytest.raises(DialectError, match=r"thinking\.budget_tokens must stand alone"):
        read(thinking={"type": "enabled", "budget_tokens": 5}, thinking_budget=3)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"verbosity": "low"}}, "output_config"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        ({"output_format": {"type": "json_schema", "schema": {}},
          "output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_format"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "regex": "a"}, "output_config.format"),
    ],
)  # fmt: skip
def test_other_outputs_are_refused(body: Any, place: str) -> None:
    with pytest.raises(DialectError) as caught:
        read(**body)
    assert caught.value.param == place


def test_an_effort_that_the_template_does_not_know_is_reported_as_ignored() -> None:
    body = {"max_tokens": 3, "messages": USER, "output_config": {"effort": "high"}}
    assert shared().post(PATH, body).headers["x-tirage-ignored-fields"] == "output_config.effort"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", [1]),
        ('{"a": [1, 2', {"a": [1]}),
        ('{"a": {"b": "x,}", "c": "y', {"a": {"b": "x,}"}}),
        (r'{"a": "\"", "b', {"a": '"'}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a"', {}),
        ("nothing", {}),
        ("]" * 40, {}),
        ('{"a": 1, "b": 1e999}', {"a": 1}),
        ('{"a": 1, "b": NaN}', {"a": 1}),
        (r'{"a": 1, "b": "\ud83d"}', {"a": 1}),
    ],
)
def test_an_input_that_was_cut_off_is_read_as_far_as_it_goes(text: str, value: Any) -> None:
    assert read_input(text) == value
