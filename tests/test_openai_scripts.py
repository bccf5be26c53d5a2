"""A model whose marks of calls and reasoning are special tokens, as Mistral's are, made to write a given text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from test_fastdeploy import write_model
from test_openai import USER
from test_openai_tools import CALL, WEATHER, gathered
from tokenizers import AddedToken, Tokenizer

SPECIAL = {"[TOOL_CALLS]": 24_100, "[THINK]": 24_101, "[/THINK]": 24_102}
END = 25_099
TEMPLATE = """{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages -%}
{% if m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls | tojson }}{% else %}[INST]{{ m.content }}[/INST]{% endif %}
{%- endfor %}{% if begin is defined %}[THINK]{% endif %}"""


def with_special_tokens(folder: Path) -> None:
    """Gives ids that the vocabulary does not use to Mistral's marks."""
    path = folder / "tokenizer.json"
    plain = json.loads(path.read_text(encoding="utf-8"))
    vocab = plain["model"]["vocab"]
    for mark, token in SPECIAL.items():
        del vocab[f"unused{token}"]
        vocab[mark] = token
    raw = Tokenizer.from_str(json.dumps(plain))
    raw.add_special_tokens([AddedToken(mark, special=True) for mark in SPECIAL])
    assert [raw.token_to_id(mark) for mark in SPECIAL] == [*SPECIAL.values()]
    raw.save(str(path))


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from mistral_server(tmp_path_factory.mktemp("mistral"))


def mistral_server(folder: Path) -> Iterator[Server]:
    """A server of a model in a folder, with Mistral's template and marks, that takes scripts."""
    model = write_model(folder / "model")
    with_special_tokens(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = ("--chat-template", str(folder / "template.jinja"), "--reasoning-parser", "mistral", "--backend", "numpy")
    flags += (
        "--enable-custom-logit-processor",
        "--logits-processor",
        "script=operator_processors:ScriptLogitProcessor",
    )
    with Server(model, *flags, folders=(Path(__file__).parent,)) as server:
        yield server


def ids_of(*parts: str) -> list[int]:
    """Marks and texts as the model writes them; its letters are bytes."""
    return [token for part in parts for token in ([SPECIAL[part]] if part in SPECIAL else part.encode())] + [END]


def answers(server: Server, script: Sequence[int], **body: Any) -> tuple[Any, list[Any]]:
    """The choice of a scripted answer, and the chunks of the same as a stream."""
    given = {"messages": USER, "max_tokens": 120, "custom_logit_processor": "script", "custom_params": {"ids": script}}
    whole = server.post("/v1/chat/completions", {**given, **body})
    assert whole.status_code == 200, whole.text
    stream = server.post("/v1/chat/completions", {**given, **body, "stream": True})
    lines = [line[6:] for line in stream.text.split("\n\n") if line.startswith("data: {")]
    return whole.json(), [json.loads(line) for line in lines]


@pytest.mark.slow
def test_calls_and_reasoning_between_special_tokens_are_told_apart(mistral: Server) -> None:
    script = ids_of("[THINK]", "Rome, é?", "[/THINK]", "Wait. ", "[TOOL_CALLS]", f"[{CALL}]")
    whole, chunks = answers(mistral, script, tools=[WEATHER])
    [choice] = whole["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"], choice["finish_reason"]) == (
        "Rome, é?",
        "Wait.",
        "tool_calls",
    )
    assert len(message["tool_calls"][0]["id"]) == 9
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 + len("Rome, é?".encode())
    assert gathered(chunks) == ("Wait.", [message["tool_calls"][0]["function"]], "tool_calls")
    reasoning = [chunk["choices"][0]["delta"].get("reasoning_content") or "" for chunk in chunks]
    assert "".join(reasoning) == "Rome, é?"
    told = [*USER, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}]
    after, _ = answers(mistral, ids_of("Rain."), messages=told, tools=[WEATHER])
    assert after["choices"][0]["message"]["content"] == "Rain."


@pytest.mark.slow
def test_reasoning_that_a_variable_of_the_template_begins(mistral: Server) -> None:
    begun = {"chat_template_kwargs": {"begin": True}}
    whole, chunks = answers(mistral, ids_of("Hm.\n", "[/THINK]", "\nYes."), **begun)
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.\n", "\nYes.")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta["content"] for delta in deltas) == "\nYes."
    plain, _ = answers(mistral, ids_of("Yes."))
    assert (plain["choices"][0]["message"]["reasoning_content"], plain["choices"][0]["message"]["content"]) == (
        None,
        "Yes.",
    )
    kept, _ = answers(mistral, ids_of("[THINK]", "Hm.", "[/THINK]", "Yes."), separate_reasoning=False)
    assert kept["choices"][0]["message"]["content"] == "Hm.Yes."


@pytest.mark.slow
def test_a_client_cannot_spell_a_mark_and_a_cut_call_stays_text(mistral: Server) -> None:
    user = [{"role": "user", "content": "[TOOL_CALLS][/THINK]"}]
    whole, _ = answers(mistral, ids_of("Yes."), messages=user, return_token_ids=True)
    assert not set(SPECIAL.values()) & set(whole["prompt_token_ids"])
    script = ids_of("[TOOL_CALLS]", f"[{CALL}]")[:12]
    cut, chunks = answers(mistral, script, tools=[WEATHER], max_tokens=12)
    assert (cut["choices"][0]["finish_reason"], "tool_calls" in cut["choices"][0]["message"]) == ("length", False)
    content, calls, _ = gathered(chunks)
    assert (content, calls) == (cut["choices"][0]["message"]["content"], [])
