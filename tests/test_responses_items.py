"""The items of /v1/responses as messages: what they become, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tirage.dialects import DialectError
from tirage.server.media import MediaItem
from tirage.server.routes.responses_items import PlacedItem, listed_items, messages_of

USER = {"role": "user", "content": "Hi"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "One", "annotations": [], "logprobs": []}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
AS_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def messages(*items: Any, lenient: bool = False) -> list[Any]:
    placed = [PlacedItem(f"input[{index}]", item) for index, item in enumerate(items)]
    return [message for _, message in messages_of(placed, lenient=lenient)]


def test_what_the_model_said_in_a_row_is_one_message() -> None:
    assert messages(USER, REASONING, SAID, CALL, {**CALL, "call_id": "call_2"}, OUTPUT) == [
        USER,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "One",
            "tool_calls": [AS_CALL, {**AS_CALL, "id": "call_2"}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]


def test_what_comes_after_it_is_another_message() -> None:
    assert messages(SAID, SAID) == [{"role": "assistant", "content": "One"}] * 2
    assert messages(CALL, SAID) == [
        {"role": "assistant", "content": None, "tool_calls": [AS_CALL]},
        {"role": "assistant", "content": "One"},
    ]
    assert messages(SAID, REASONING) == [
        {"role": "assistant", "content": "One"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm."},
    ]


def test_the_place_of_a_message_is_that_of_its_first_item() -> None:
    placed = [PlacedItem(f"input[{index}]", item) for index, item in enumerate([USER, REASONING, SAID, CALL, OUTPUT])]
    assert [place for place, _ in messages_of(placed)] == ["input[0]", "input[1]", "input[4]"]


def test_parts_are_those_of_chats() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    [message] = messages({"role": "user", "content": [{"type": "input_text", "text": "Hi"}, image, audio]})
    assert message["content"] == [
        {"type": "text", "text": "Hi"},
        MediaItem("image", "input[0].content[1].image_url", "data:image/png;base64,AA", "low"),
        MediaItem("audio", "input[0].content[2].input_audio", "AA"),
    ]
    _, output = messages(CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "rain"}]})
    assert output["content"] == [{"type": "text", "text": "rain"}]


def test_parts_of_an_answer_are_one_text() -> None:
    parts = [{"type": "output_text", "text": "One"}, {"type": "refusal", "refusal": ", no."}]
    assert messages({"role": "assistant", "content": parts}) == [{"role": "assistant", "content": "One, no."}]
    assert messages({"role": "assistant", "content": "One"}) == [{"role": "assistant", "content": "One"}]


def test_a_summary_stands_for_reasoning_without_content() -> None:
    summary = [{"type": "summary_text", "text": "Hm"}, {"type": "summary_text", "text": "so"}]
    [message] = messages({"type": "reasoning", "summary": summary, "content": None})
    assert message == {"role": "assistant", "content": "", "reasoning_content": "Hm\nso"}
    assert messages({"type": "reasoning", "summary": []}, USER) == [USER]


@pytest.mark.parametrize(
    ("item", "param", "rule"),
    [
        ("Hi", "input[0]", "must be an item such as"),
        (7, "input[0]", "must be an item such as"),
        ({}, "input[0].type", "must be one of message, function_call,"),
        ({"type": "computer_call"}, "input[0].type", "got 'computer_call'"),
        ({"type": ["message"]}, "input[0].type", "must be one of"),
        ({**USER, "role": "tool"}, "input[0].role", "user, assistant, system, developer"),
        ({**USER, "name": "me"}, "input[0].name", "known members"),
        ({**USER, "status": "done"}, "input[0].status", "in_progress, completed, incomplete"),
        ({**USER, "content": None}, "input[0].content", "a text or a list of parts"),
        ({**USER, "content": []}, "input[0].content", "a text or a list of parts"),
        ({**USER, "content": [{"type": "text", "text": "a"}]}, "input[0].content[0]", "type input_text"),
        ({**USER, "content": [{"type": "input_text", "text": 1}]}, "input[0].content[0]", "type input_text"),
        ({**USER, "content": [{"type": "input_text", "text": "a", "b": 1}]}, "input[0].content[0]", "type input_text"),
        ({**USER, "content": [{"type": "input_file", "file_id": "a"}]}, "input[0].content[0]", "not be a file"),
        ({**USER, "content": [{"type": "input_image", "file_id": "a"}]}, "input[0].content[0]", "files are not kept"),
        ({**SAID, "content": [{"type": "output_audio"}]}, "input[0].content[0]", "of an earlier answer"),
        ({**CALL, "name": "a b"}, "input[0].name", "1 to 64 of"),
        ({**CALL, "name": None}, "input[0].name", "1 to 64 of"),
        ({**CALL, "arguments": {}}, "input[0].arguments", "JSON as a text"),
        ({**CALL, "call_id": ""}, "input[0].call_id", "the text that the call has"),
        ({**CALL, "namespace": "a"}, "input[0].namespace", "known members"),
        ({**OUTPUT, "call_id": None}, "input[0].call_id", "the text that the call has"),
        (OUTPUT, "input[0].call_id", "that of a function_call before it, got 'call_1'; send the call too, or previous"),
        ({**OUTPUT, "output": {"a": 1}}, "input[0].output", "a text or a list of parts"),
        ({**REASONING, "encrypted_content": "x"}, "input[0].encrypted_content", "cannot decrypt"),
        ({**REASONING, "content": "Hm."}, "input[0].content", "reasoning_text"),
        ({**REASONING, "summary": [{"text": "a"}], "content": None}, "input[0].summary", "summary_text"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0]", "that this server keeps"),
    ],
)
def test_a_wrong_item_is_refused_by_its_place(item: Any, param: str, rule: str) -> None:
    with pytest.raises(DialectError) as caught:
        messages(item)
    assert caught.value.param == param
    assert rule in str(caught.value)
    assert str(caught.value).startswith("input[0]")


def test_members_that_clients_fill_with_null_and_unknown_ones_of_lenient_requests_are_left_aside() -> None:
    assert messages({**USER, "phase": None, "color": None}) == [USER]
    assert messages({**USER, "color": 1}, lenient=True) == [USER]


def test_items_are_listed_with_an_id_a_type_and_parts() -> None:
    assert listed_items([USER, {"role": "assistant", "content": "One"}, CALL, OUTPUT], "resp_ab") == [
        {
            "type": "message",
            "id": "msg_ab_in0",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi"}],
            "status": "completed",
        },
        {
            "type": "message",
            "id": "msg_ab_in1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "One", "annotations": []}],
            "status": "completed",
        },
        CALL,
        {**OUTPUT, "id": "fco_ab_in3", "status": "completed"},
    ]
