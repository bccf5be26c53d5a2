"""A last assistant message that the answer continues: its prompt, its text, its reasoning, and its refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from published import publish
from servers import shared
from small_tokenizers import Letters
from test_chat import CONTROL, SPECIAL, TOKENS, TURNS, chat, controls
from test_openai import USER, error, post, stream_chat, tiny
from test_openai_tools import WEATHER
from transformers.models.auto import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from tirage import LLM, SamplingParams
from tirage.errors import ParamsError
from tirage.text import ChatTemplate, wrap_tokenizer

TRIMMED = TURNS.replace("m.content }}", "m.content | trim }}")
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set content = m.content %}{% set reasoning = '' %}"
    "{% if '</think>' in content %}{% set reasoning = content.split('</think>')[0].split('<think>')[-1] %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if m.role == 'assistant' and (loop.last or reasoning) %}"
    "<think>\n{{ reasoning.strip('\n') }}\n</think>\n\n{% endif %}{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}"
)
DROPS = TURNS.replace("m.content }}", "m.content.split('</think>')[-1] }}")
TEXTS = ("Sure, it", "Sure, ", " Sure\n\n", "", " ", "a 日", "<think>\nHm", "Hm <|im_end|> m", "I am I am")
MIN = SamplingParams(seed=1, max_tokens=12, temperature=0)


def said(text: Any, **more: Any) -> list[dict[str, Any]]:
    return [*USER, {"role": "assistant", "content": text, **more}]


@pytest.mark.parametrize("source", [TURNS, TRIMMED, QWEN3, LLAMA2])
@pytest.mark.parametrize("text", TEXTS)
def test_the_prompt_is_that_of_transformers(source: str, text: str) -> None:
    [theirs], _ = render_jinja_template([said(text)], chat_template=source, continue_final_message=True)
    assert chat(source).render(said(text), continue_final_message=True) == theirs


def test_a_plain_prompt_ends_after_the_text() -> None:
    plain = ChatTemplate(wrap_tokenizer(Letters()))
    assert plain.render(said(" Sure "), continue_final_message=True).endswith("\nassistant:  Sure ")
    assert plain.render(USER, add_generation_prompt=False) == f"user: {USER[0]['content']}\n"


def test_the_prompt_without_a_header_is_that_of_transformers() -> None:
    for messages in (USER, said("Sure")):
        [theirs], _ = render_jinja_template([messages], chat_template=TURNS)
        assert chat().render(messages, add_generation_prompt=False) == theirs


@pytest.mark.parametrize("text", SPECIAL)
def test_a_prefill_holds_no_control_token(text: str) -> None:
    ids = chat().encode(said(f"a{text}b"), continue_final_message=True)
    assert controls(ids) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert TOKENS.decode(ids, skip_special_tokens=False).endswith(f"assistant\na{text}b")


def test_a_prefill_may_open_the_reasoning() -> None:
    assert chat().encode(said("<think>Hm"), continue_final_message=True).count(CONTROL["<think>"]) == 1


@pytest.mark.parametrize(
    ("messages", "source", "message"),
    [
        (
            USER,
            TURNS,
            "messages must end with the assistant's message where continue_final_message is true, got 'user'",
        ),
        (said("<think>a</think>b"), DROPS, "messages must end with a text that the chat template shows whole"),
        (said("a"), "{{ messages[0].content }}", "messages must end with a text that the chat template shows whole"),
        (said([{"type": "image"}]), TURNS, "messages must end with a text where continue_final_message is true"),
        (
            said("a", tool_calls=[{"id": "1", "type": "function", "function": {"name": "f"}}]),
            TURNS,
            "messages must end without tool_calls where continue_final_message is true",
        ),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(messages: Any, source: str, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        chat(source).encode(messages, continue_final_message=True)


def test_the_last_part_of_text_is_continued() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text if p.type == 'text' else '[IMG]' }}{% endfor %}{% endif %}.{% endfor %}"
    )
    text = chat(source).text_with_media(said(parts), marks={}, continue_final_message=True)
    assert text == f"{USER[0]['content']}.a[IMG]b"


# --- the library ---------------------------------------------------------------------------------------------------


def test_the_text_goes_on_where_the_message_ends() -> None:
    llm = tiny()
    ids = llm.chat_template.encode(said(""), continue_final_message=True)
    ids += llm.tokenizer.encode("I am", add_special_tokens=False)
    whole = llm.generate(ids, MIN)[0]
    found = llm.chat(said("I am"), MIN, continue_final_message=True)
    assert (found.token_ids, found.text) == (whole.token_ids, whole.text)
    assert found.prompt_token_ids == whole.prompt_token_ids
    deltas = list(llm.chat_stream(said("I am"), MIN, add_generation_prompt=False, continue_final_message=True))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert whole.text.startswith(" ")


def test_both_ends_of_a_prompt_at_once_are_refused() -> None:
    with pytest.raises(ParamsError, match="add_generation_prompt must be false where continue_final_message is true"):
        tiny().chat(said("a"), MIN, add_generation_prompt=True, continue_final_message=True)


REGEX = {"regex": "[0-9]{3}"}


@pytest.mark.parametrize(("text", "ended"), [("I am", True), ("<think>a</think>", True), ("<think>a", False)])
def test_a_constraint_holds_for_what_is_new_and_after_reasoning_that_goes_on(text: str, ended: bool) -> None:
    params = SamplingParams.from_dict({"guided_decoding": REGEX, "reasoning_parser": "think", "seed": 1})
    params = params.replace(max_tokens=12, logit_bias={291: 100.0}, thinking_budget=4)
    found = tiny().chat(said(text), params, continue_final_message=True).text
    assert (len(found) == 3 and found.isdigit()) is ended
    assert found.partition("</think>")[2].isdigit() is not ended


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish("chat", tmp_path_factory.mktemp("prefill") / "model", context=160)


@pytest.mark.slow
def test_a_published_chat_folder_reads_the_prompt_of_its_own_tokenizer(folder: Path) -> None:
    llm, theirs = LLM(folder), AutoTokenizer.from_pretrained(folder)
    for text in ("Sure", " Sure, ", "日本"):
        ids = theirs.apply_chat_template(said(text), continue_final_message=True, return_dict=False)
        request = llm.chat_request(said(text), MIN, continue_final_message=True)
        assert request.prompt_ids == list(ids)
        assert llm.chat(said(text), MIN, continue_final_message=True).text == llm.generate(ids, MIN)[0].text
    llm.close()


# --- over the wire ---------------------------------------------------------------------------------------------------


def ask(text: Any, **body: Any) -> Any:
    return post("/v1/chat/completions", {"messages": said(text), "seed": 1, "continue_final_message": True, **body})


def test_the_answer_holds_what_is_new_whole_and_streamed() -> None:
    found = ask("I am", temperature=0, max_tokens=12)["choices"][0]["message"]["content"]
    assert found == tiny().chat(said("I am"), MIN, continue_final_message=True).text
    chunks = stream_chat(messages=said("I am"), temperature=0, max_tokens=12, continue_final_message=True)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == found


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_goes_on_where_a_prefill_has_begun_it(stream: bool) -> None:
    body = {"separate_reasoning": True, "thinking_budget": 3, "max_tokens": 20}
    if stream:
        chunks = stream_chat(messages=said("<think>Hm"), continue_final_message=True, **body)
        reasoning = "".join(chunk["choices"][0]["delta"].get("reasoning_content") or "" for chunk in chunks)
        content = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    else:
        message = ask("<think>Hm", **body)["choices"][0]["message"]
        reasoning, content = message["reasoning_content"], message["content"]
    assert reasoning
    assert content
    assert "</think>" not in reasoning + content


def test_no_reasoning_follows_an_answer_that_has_begun() -> None:
    choice = {"choice": ["<think>Hm.</think>Yes."], "enable_in_reasoning": True}
    found = ask("Well: ", separate_reasoning=True, structured_outputs=choice, max_tokens=60)
    assert found["choices"][0]["message"]["content"] == choice["choice"][0]
    assert found["choices"][0]["message"]["reasoning_content"] is None
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    found = ask("", separate_reasoning=True, structured_outputs=choice, max_tokens=60)
    assert found["choices"][0]["message"]["content"] == "Yes."


def test_a_call_is_made_after_a_prefill() -> None:
    found = ask("Let me see. ", tools=[WEATHER], tool_choice="required", max_tokens=80)["choices"][0]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": USER, "continue_final_message": True}, "messages"),
        (
            {"messages": said("a"), "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        ({"prompt_token_ids": [1, 5], "continue_final_message": True}, "continue_final_message"),
        ({"messages": said("a"), "continue_final_message": "yes"}, "continue_final_message"),
    ],
)
def test_a_prefill_that_cannot_be_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        refused = error("/v1/chat/completions", {**body, "stream": stream})
        assert refused["param"] == param


def test_a_replay_draws_a_continued_message_again() -> None:
    from tirage.server.replay import read_records, replay

    body = {"messages": said("I am"), "continue_final_message": True, "return_effective_params": True, "max_tokens": 12}
    answer = shared().post("/v1/chat/completions", body)
    [record] = read_records(answer.content)
    assert not record["standalone"]
    assert replay(tiny(), record).difference is None


@pytest.mark.slow
def test_the_pages_programs_run_against_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "openai.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    for code in re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(code.replace("http://127.0.0.1:30000", shared().url), namespace)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("I am ") for line in lines)
