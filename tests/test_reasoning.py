"""Reasoning separated from the answer: the parser, the count of tokens, and both over the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Server, shared
from test_fastdeploy import THINK, write_model
from test_openai import USER, error, post, stream_chat
from test_openai_tools import CALL, WEATHER

from tirage import LLM
from tirage.server.options import REASONING_PARSERS
from tirage.server.routes.reasoning import MessageReader, ReasoningParser, prompt_opens_reasoning
from tirage.server.routes.reasoning_count import ReasoningCounter
from tirage.server.routes.toolcalls import Content, ContentParser, Reasoning, ToolCall, ToolCallParser
from tirage.server.routes.tools import read_tools

MARKS = REASONING_PARSERS["think"]


def read(parser: ToolCallParser, *texts: str) -> tuple[str, str, int]:
    """The reasoning, the content and the number of calls of a text that comes in pieces."""
    pieces = [piece for text in texts for piece in parser.feed(text)] + parser.finish()
    assert all(piece.text for piece in pieces if isinstance(piece, (Reasoning, Content)))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    return reasoning, content, sum(isinstance(piece, ToolCall) for piece in pieces)


CASES = [
    (False, "<think>a < b</think>So.", "a < b", "So."),
    (False, "\n <think>\na\n</think>\n\nSo.", "\na\n", "\n\nSo."),
    (False, "<think>never ends </thin", "never ends </thin", ""),
    (False, "<think></think>", "", ""),
    (False, "<think><think>a</think></think>", "<think>a", "</think>"),
    (False, "So <think>a</think>", "", "So <think>a</think>"),
    (False, "<thin", "", "<thin"),
    (False, " \n", "", " \n"),
    (False, "a</think>So.", "", "a</think>So."),
    (False, "", "", ""),
    (True, "a</think>So.", "a", "So."),
    (True, "never ends", "never ends", ""),
    (True, "</think>So</think>.", "", "So</think>."),
    (True, "", "", ""),
]


@pytest.mark.parametrize(("begun", "text", "reasoning", "content"), CASES)
def test_reasoning_comes_first_and_nothing_but_its_marks_is_lost(
    begun: bool, text: str, reasoning: str, content: str
) -> None:
    assert read(ReasoningParser(ContentParser(), MARKS, opened=begun), text) == (reasoning, content, 0)
    assert read(ReasoningParser(ContentParser(), MARKS, opened=begun), *text) == (reasoning, content, 0)
    for pieces in ([text], text):
        assert read(ReasoningParser(ContentParser(), MARKS, opened=begun, separated=False), *pieces) == ("", text, 0)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.booleans(),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "th", "ink>", " ", "\n", "a", "日"]), max_size=9),
)
def test_reasoning_does_not_depend_on_how_the_text_is_cut(begun: bool, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = read(ReasoningParser(ContentParser(), MARKS, opened=begun), text)
    assert whole == read(ReasoningParser(ContentParser(), MARKS, opened=begun), *text)
    assert whole == read(ReasoningParser(ContentParser(), MARKS, opened=begun), *pieces)


def test_reasoning_is_streamed_as_it_comes_but_for_what_may_be_a_mark() -> None:
    parser = ReasoningParser(ContentParser(), MARKS, opened=True)
    assert [parser.feed(text) for text in ("ab", "c</", "th", "at</think>", "d")] == [
        [Reasoning("ab")], [Reasoning("c")], [], [Reasoning("</that")], [Content("d")]
    ]  # fmt: skip


def test_calls_after_reasoning_are_calls_and_calls_inside_it_are_not() -> None:
    tools = read_tools([WEATHER], "auto", None, tool_format="hermes")
    text = f"<think><tool_call>{CALL}</tool_call></think>\n<tool_call>{CALL}</tool_call>"
    reader = MessageReader(tools=tools, tokenizer=LLM("tiny").tokenizer, tags=MARKS)
    for pieces in ((text,), text):
        assert read(reader.parser(), *pieces) == (f"<tool_call>{CALL}</tool_call>", "", 1)
    assert not reader.is_plain


@pytest.mark.parametrize(("begun", "text", "reasoning", "content"), CASES)
def test_tokens_of_reasoning_are_counted_with_its_marks(begun: bool, text: str, reasoning: str, content: str) -> None:
    tokenizer = LLM("tiny").tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False)
    tools = read_tools(None, None, None, tool_format="hermes")
    count = MessageReader(tools=tools, tokenizer=tokenizer, tags=MARKS, opened=begun).count(ids)
    spelled = tokenizer.decode(ids[:count])
    if not begun and not text.lstrip().startswith("<think>"):
        assert count == 0
    elif "</think>" in text:
        assert spelled.count("</think>") == 1
        assert "</think>" not in tokenizer.decode(ids[: count - 1])
    else:
        assert count == len(ids)
    assert MessageReader(tools=tools, tokenizer=tokenizer).count(ids) == 0
    counter = ReasoningCounter(MARKS, tokenizer.inner_bytes, opened=begun)
    assert [counter.add([token_id]) for token_id in ids][-1:] == ([count] if ids else [])


def test_a_prompt_that_ends_with_the_mark_has_begun_the_reasoning() -> None:
    tokenizer = LLM("tiny").tokenizer
    for text, begun in (("a<think>", True), ("a<think>\n", True), ("a<think>\n\n</think>\n\n", False), ("a", False)):
        assert prompt_opens_reasoning(MARKS, tokenizer.encode(text), tokenizer) is begun
    assert not prompt_opens_reasoning(None, tokenizer.encode("<think>"), tokenizer)


# Over the wire.

TEXT = "<think>Hm, 1 < 2.</think>Yes."
ASK: dict[str, Any] = {"structured_outputs": {"choice": [TEXT], "enable_in_reasoning": True}, "max_tokens": 60}


def ask(**body: Any) -> Any:
    return post("/v1/chat/completions", {"messages": USER, "seed": 1, **ASK, **body})


def gathered(chunks: list[Any]) -> tuple[str, str]:
    """The reasoning and the content of a stream, in which reasoning comes first."""
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert all(isinstance(delta["content"], str) for delta in deltas)
    thinking = [bool(delta.get("reasoning_content")) for delta in deltas]
    assert thinking.index(True) + sum(thinking) == len(thinking) - thinking[::-1].index(True)
    return "".join(d.get("reasoning_content") or "" for d in deltas), "".join(d["content"] for d in deltas)


def test_without_the_option_reasoning_is_content() -> None:
    assert ask()["choices"][0]["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert ask(separate_reasoning=False)["choices"] == ask()["choices"]
    assert "completion_tokens_details" not in ask()["usage"]


def test_a_request_may_have_its_reasoning_separated() -> None:
    found = ask(separate_reasoning=True)
    message = {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Hm, 1 < 2."}
    assert found["choices"][0]["message"] == message
    assert 0 < found["usage"]["completion_tokens_details"]["reasoning_tokens"] < found["usage"]["completion_tokens"]
    hidden = ask(separate_reasoning=True, include_reasoning=False)
    assert hidden["choices"][0]["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert hidden["usage"] == found["usage"]


def test_the_reasoning_of_samples_that_are_not_returned_counts_too() -> None:
    drawn = ask(separate_reasoning=True, n=3)["usage"]
    assert drawn["completion_tokens_details"]["reasoning_tokens"] > 20
    assert ask(separate_reasoning=True, best_of=3)["usage"] == drawn


def test_streamed_reasoning_is_the_reasoning() -> None:
    body = {**ASK, "separate_reasoning": True, "stream_options": {"include_usage": True}}
    chunks = stream_chat(**body)
    assert gathered(chunks) == ("Hm, 1 < 2.", "Yes.")
    assert chunks[-1]["usage"] == ask(separate_reasoning=True)["usage"]
    assert stream_chat(**{**body, "include_reasoning": False, "logprobs": True, "return_token_ids": True})
    hidden = stream_chat(**{**body, "include_reasoning": False})
    assert not any("reasoning_content" in chunk["choices"][0]["delta"] for chunk in hidden[:-1])
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in hidden[:-1]) == "Yes."


def test_logprobs_of_reasoning_are_all_there() -> None:
    body = {**ASK, "separate_reasoning": True, "logprobs": True}
    whole = post("/v1/chat/completions", {"messages": USER, "seed": 1, **body})["choices"][0]["logprobs"]["content"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in stream_chat(**body)]
    assert [entry for part in chunks if part for entry in part["content"]] == whole
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == TEXT


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_come_follows_reasoning_that_stays_in_the_content(choice: Any) -> None:
    asked = {"reasoning_parser": "think", "separate_reasoning": False, "thinking_budget": 4, "temperature": 2.0}
    asked |= {"tools": [WEATHER], "tool_choice": choice, "close_grammar": True, "max_tokens": 120, "messages": USER}
    for seed, thinks in ((1, False), (12, True)):
        [found] = post("/v1/chat/completions", {**asked, "seed": seed})["choices"]
        message, content = found["message"], found["message"]["content"] or ""
        assert (found["finish_reason"], "reasoning_content" in message) == ("tool_calls", False)
        [call, *_] = message["tool_calls"]
        assert set(json.loads(call["function"]["arguments"])) == {"city"}
        assert (content.lstrip().startswith("<think>"), content.endswith("</think>")) == (thinks, thinks)
        deltas = [chunk["choices"][0]["delta"] for chunk in stream_chat(**{**asked, "seed": seed})]
        assert "".join(delta.get("content") or "" for delta in deltas) == content


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ("a", {"regex": re.escape(TEXT), "thinking_budget": 3, "max_new_tokens": 80}),
        ("a<think>", {"reasoning_parser": "deepseek-r1", "thinking_budget": 4, "ignore_eos": True}),
        ("a<think>", {"reasoning_parser": "qwen3", "regex": "yes", "thinking_budget": 3}),
    ],
)
def test_generate_counts_the_tokens_of_reasoning_as_chats_do(prompt: str, sampling: dict[str, Any]) -> None:
    body = {"text": prompt, "sampling_params": {"max_new_tokens": 50, "sampling_seed": 2, **sampling}}
    whole = post("/generate", body)
    tools = read_tools(None, None, None, tool_format="hermes")
    reader = MessageReader(tools=tools, tokenizer=LLM("tiny").tokenizer, tags=MARKS, opened=prompt != "a")
    count = reader.count(whole["output_ids"])
    assert 0 < count < len(whole["output_ids"])
    assert whole["meta_info"]["reasoning_tokens"] == count
    for mode in ("cumulative", "delta"):
        answer = shared().post("/generate", {**body, "stream": True, "stream_options": {"mode": mode}})
        lines = answer.text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
        meta = [json.loads(line.removeprefix("data: "))["meta_info"] for line in lines]
        counts = [one["reasoning_tokens"] for one in meta]
        # Each event counts all that has come, once it is certain that the text begins with a tag.
        begun = next(place for place, each in enumerate(counts) if each)
        assert counts[begun:] == [min(one["completion_tokens"], count) for one in meta[begun:]]
        assert begun < count


@pytest.mark.parametrize("after", [b"\x80", b"\xe2", b"\xff"])
def test_reasoning_ends_with_its_tag_where_the_answer_begins_with_no_character(after: bytes) -> None:
    tokenizer = LLM("tiny").tokenizer
    reader = MessageReader(tools=read_tools(None, None, None, tool_format="hermes"), tokenizer=tokenizer, tags=MARKS)
    ids = tokenizer.encode("<think>a</think>", add_special_tokens=False)
    byte = next(token for token in range(1000) if tokenizer.token_bytes(token) == after)
    assert reader.count([*ids, byte, byte, *ids]) == len(ids)


def test_generate_counts_no_reasoning_where_none_is_told_apart() -> None:
    held = {"regex": re.escape(TEXT), "max_new_tokens": 50}
    assert post("/generate", {"text": "a", "sampling_params": held})["meta_info"]["reasoning_tokens"] == 0


def test_a_call_may_follow_reasoning() -> None:
    text = f"<think>Rome.</think>\n<tool_call>{CALL}</tool_call>"
    whole = {"choice": [text], "enable_in_reasoning": True}
    body = {"tools": [WEATHER], "structured_outputs": whole, "max_tokens": 120, "separate_reasoning": True}
    [choice] = post("/v1/chat/completions", {"messages": USER, "seed": 1, **body})["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "Rome.")
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert gathered(stream_chat(**body)) == ("Rome.", "")


def test_reasoning_can_only_be_left_out_where_it_is_separated() -> None:
    assert error("/v1/chat/completions", {"messages": USER, "include_reasoning": False})["param"] == "include_reasoning"


TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant:{% if enable_thinking is not defined or enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}"""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose template begins the reasoning, with an operator who has it separated."""
    folder = tmp_path_factory.mktemp("thinker")
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = ("--chat-template", str(folder / "template.jinja"), "--reasoning-parser", "deepseek-r1")
    with Server(write_model(folder / "model"), "--backend", "numpy", *flags) as server:
        yield server


def think(thinker: Server, **body: Any) -> Any:
    given = {"messages": USER, "seed": 1, "max_tokens": 8, "return_token_ids": True, **body}
    answer = thinker.post("/v1/chat/completions", given)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
def test_reasoning_that_the_prompt_has_begun_ends_with_its_mark(thinker: Server) -> None:
    found = think(thinker, reasoning_max_tokens=3)
    [choice] = found["choices"]
    assert THINK in found["prompt_token_ids"][-3:]
    # The first token of the reasoning is the template's line break.
    assert choice["token_ids"].index(THINK + 1) == 2
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"]
    unended = think(thinker)
    assert unended["choices"][0]["message"]["content"] == ""
    assert unended["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}


@pytest.mark.slow
def test_a_constraint_holds_after_the_reasoning_or_from_the_beginning(thinker: Server) -> None:
    found = think(thinker, guided_choice=["yes"], reasoning_max_tokens=3)
    message = found["choices"][0]["message"]
    assert message["content"] == "yes"
    assert message["reasoning_content"]
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert think(thinker, guided_choice=["yes"])["choices"][0]["message"]["content"] == ""
    held = {"choice": ["yes"], "enable_in_reasoning": True}
    message = think(thinker, structured_outputs=held)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("yes", None)


@pytest.mark.slow
def test_a_template_that_ends_the_reasoning_has_none(thinker: Server) -> None:
    for body in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}):
        message = think(thinker, **body)["choices"][0]["message"]
        assert message["reasoning_content"] is None
        assert message["content"]
    whole = think(thinker, separate_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in whole


@pytest.mark.slow
def test_fastdeploys_messages_hold_the_reasoning(thinker: Server) -> None:
    message = think(thinker, sampling_method="base", reasoning_max_tokens=3)["choices"][0]["message"]
    assert set(message) == {
        *("role", "content", "refusal"),
        *("reasoning_content", "tool_calls", "prompt_token_ids", "completion_token_ids"),
    }
    assert message["reasoning_content"]


@pytest.mark.slow
def test_every_parser_has_two_marks() -> None:
    assert all(begin != end and begin and end for begin, end in REASONING_PARSERS.values())
    assert shared().post("/v1/chat/completions", {"messages": USER, "separate_reasoning": "x"}).status_code == 400
