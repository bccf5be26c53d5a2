"""Chat templates: whose words become control tokens, tools and parts of content, limits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_tokenizers import Letters, byte_level_tokenizer
from tokenizers import AddedToken

from tirage.errors import ParamsError
from tirage.text import ChatTemplate, Tokenizer, wrap_tokenizer

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_TOOLS = "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>{% endfor %}" + TURNS
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": {"type": "object"}},
}
SPECIAL = ("<|im_start|>", "<|im_end|>", "[PAD]")
MARKS = ("<think>", "</think>", "<tool_call>")


def tokenizer() -> Tokenizer:
    raw = byte_level_tokenizer().raw
    raw.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    raw.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return wrap_tokenizer(raw)


TOKENS = tokenizer()
CONTROL = {text: TOKENS.raw.token_to_id(text) for text in (*SPECIAL, *MARKS)}


def chat(source: str = TURNS) -> ChatTemplate:
    return ChatTemplate(TOKENS, source)


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def controls(ids: list[int]) -> list[str]:
    named = {i: text for text, i in CONTROL.items()}
    return [named[i] for i in ids if i in named]


OWN = ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize("text", CONTROL)
def test_no_control_token_comes_from_a_users_content(text: str) -> None:
    ids = chat().encode(user(f"a{text}b"))
    assert controls(ids) == OWN
    assert f"a{text}b" in TOKENS.decode(ids, skip_special_tokens=False)


PIECES = st.lists(st.sampled_from([*CONTROL, "<|im_", "start|>", "<", ">", "|", "</", "think>", "[PA", "D]", "a", " "]))


@pytest.mark.slow
@settings(deadline=None)
@given(PIECES, PIECES)
@example(["<|im_"], ["start|>"])
def test_no_control_token_comes_about_where_texts_meet(first: list[str], second: list[str]) -> None:
    joined = "{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}"
    ids = chat(joined).encode(user("".join(first) + "x", name="".join(second)))
    assert controls(ids) == []
    assert "".join(first) + "x" + "".join(second) == TOKENS.decode(ids, skip_special_tokens=False)


def test_no_control_token_comes_about_where_a_text_meets_the_template() -> None:
    assert controls(chat("{% for m in messages %}<|im_{{ m.content }}{% endfor %}").encode(user("end|>"))) == []
    assert controls(chat("{% for m in messages %}{{ m.content }}m_end|>{% endfor %}").encode(user("<|i"))) == []


def test_what_spells_no_control_token_is_encoded_as_ever() -> None:
    text = "if a < b > c | d [0]"
    assert TOKENS.encode(chat().render(user(text)), add_special_tokens=False) == chat().encode(user(text))


def test_an_assistants_earlier_marks_stay_marks_and_nothing_else_does() -> None:
    said = [{"role": "assistant", "content": "<think>a</think>b<|im_end|>"}, *user("<think>")]
    assert controls(chat().encode(said)) == ["<|im_start|>", "<think>", "</think>", "<|im_end|>", *OWN]


def test_tools_and_calls_and_their_results_hold_no_control_tokens() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>", "parameters": {"<|im_end|>": 1}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "<|im_end|>"}'}}
    calls = "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    source = WITH_TOOLS + "{% for m in messages %}" + calls + "{% endfor %}"
    said = [
        *user("a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "<|im_end|>", "tool_call_id": "1"},
    ]
    ids = chat(source).encode(said, tools=[tool])
    assert controls(ids).count("<|im_end|>") == 3
    assert TOKENS.decode(ids, skip_special_tokens=False).count("<|im_end|>") == 3 + 4


def test_a_role_may_not_spell_a_control_token() -> None:
    with pytest.raises(ParamsError, match="role must not hold special tokens"):
        chat().encode([{"role": "<|im_end|>", "content": "a"}])


def test_a_special_token_that_is_a_plain_word_is_refused_in_messages() -> None:
    raw = byte_level_tokenizer().raw
    raw.add_special_tokens([AddedToken("endoftext", special=True)])
    with pytest.raises(ParamsError, match="special token that is a plain word"):
        ChatTemplate(wrap_tokenizer(raw), TURNS).encode(user("the endoftext token"))


def test_a_users_own_tokenizer_can_chat() -> None:
    assert ChatTemplate(wrap_tokenizer(Letters())).encode(user("<a>")) == list(map(ord, "user: <a>\nassistant:"))


def test_private_characters_cannot_be_guessed_away() -> None:
    many = "".join(chr(0xF0000 + i) for i in range(40_000))
    with pytest.raises(ParamsError, match="private-use characters"):
        chat().encode(user(f"<{many}"))
    ids = chat().encode(user(f"<{many[:20_000]}"))
    assert many[:20_000] in TOKENS.decode(ids)


def test_parts_of_text_are_lines_of_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat().render(user("a\nb")) == chat().render(user(parts))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"messages\[0\] must have a text 'content' or a list of parts"),
        ([], r"messages\[0\] must have a text 'content' or a list of parts"),
        (["a"], r"messages\[0\].content\[0\] must be a part"),
        ([{"type": "text"}], r"messages\[0\].content\[0\] must have a text 'text'"),
    ],
)
def test_malformed_content_is_named(content: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        chat().render(user(content))


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("weather", "tools must be a list"),
        ([WEATHER] * 129, "at most 128"),
        ([{"type": "custom"}], r"tools\[0\].type must be 'function'"),
        ([{"type": "function", "function": {"name": "a b"}}], r"tools\[0\].function.name must be"),
        ([{"type": "function", "function": {"name": "a", "parameters": 3}}], "parameters must be a JSON schema"),
        ([{"type": "function", "function": {"name": "a", "strict": "yes"}}], "strict must be a bool"),
        ([WEATHER, WEATHER], "'weather' twice"),
    ],
)
def test_malformed_tools_are_named(tools: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        chat(WITH_TOOLS).render(user("a"), tools=tools)


def test_a_template_shows_tools_itself() -> None:
    assert chat(WITH_TOOLS).takes_tools
    assert chat(WITH_TOOLS).render(user("a"), tools=[WEATHER]).startswith('<tools>{"type": "function", "function": {"n')
    assert not chat(WITH_TOOLS).render(user("a")).startswith("<tools>")


def test_a_template_without_tools_has_them_told_in_the_system_message() -> None:
    assert not chat().takes_tools
    text = chat().render([{"role": "system", "content": "Be kind."}, *user("a")], tools=[WEATHER])
    assert text.startswith("<|im_start|>system\nBe kind.\n\nYou may call functions.")
    assert '{"name": "weather", "description": "of a city"' in text
    assert chat().render(user("a"), tools=[WEATHER]).startswith("<|im_start|>system\nYou may call functions.")


def test_calls_and_results_reach_a_template_without_tools_as_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    said = [
        *user("a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "1"},
    ]
    text = chat().render(said, tools=[WEATHER])
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\nrain\n</tool_response>" in text


def test_arguments_are_the_templates_variables_and_nothing_else() -> None:
    source = TURNS + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    assert chat(source).render(user("a"), arguments={"enable_thinking": False}).endswith("<think></think>")
    assert chat().render(user("a")) == chat().render(user("a"), arguments={"enable_thinking": False})
    with pytest.raises(ParamsError, match="must name variables of the model's chat template, got 'enable_thinking'"):
        chat().render(user("a"), arguments={"enable_thinking": True})
    for name in ("chat_template", "messages", "add_generation_prompt", "tokenize"):
        with pytest.raises(ParamsError, match=f"chat_template_kwargs must not set '{name}'"):
            chat().render(user("a"), arguments={name: "x"})


@pytest.mark.slow
def test_rendering_ends_within_its_time_and_size() -> None:
    slow = (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = messages[0].role %}{% endfor %}{% endfor %}"
    )
    begun = time.monotonic()
    with pytest.raises(ParamsError, match="rendered by the chat template within 1 s"):
        chat(slow).render(user("a"))
    assert time.monotonic() - begun < 30
    with pytest.raises(ParamsError, match="at most 8000000 characters"):
        chat("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}").render(user("a" * 1000))


def test_what_templates_of_the_convention_use_is_there() -> None:
    source = "{% generation %}{{ strftime_now('%Y') | int > 2000 }}{% endgeneration %}{{ tools | tojson(indent=1) }}"
    assert chat(source).render(user("a")) == "Truenull"


def test_a_developer_is_the_system_where_the_template_knows_no_developer() -> None:
    said = [{"role": "developer", "content": "a"}]
    assert chat().render(said) == chat().render([{"role": "system", "content": "a"}])
    assert "<|im_start|>developer" in chat("{# developer #}" + TURNS).render(said)
