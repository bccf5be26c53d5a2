"""Whose answer it is, and what ended it: names of models and adapters, `stop_reason` and `matched_stop`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from test_openai import USER, chat, complete, stream_chat, stream_texts
from test_sglang_examples import adapted

from tirage import LLM
from tirage.server.errors import Refusal
from tirage.server.metrics import Metrics
from tirage.server.options import Options
from tirage.server.replay import model_info_of
from tirage.server.request_manager import RequestManager
from tirage.server.routes.openai_request import CHAT, read_request
from tirage.server.routes.openai_submit import adapter_of

__all__ = ["adapted"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny") as opened:
        yield opened


def adapter(llm: LLM, model: str | None, *lora: str) -> str | None:
    """The adapter that a request for a model gets from a server with these adapters."""
    manager = RequestManager(
        llm,
        Options.of(lora=[f"{name}=folder" for name in lora]),
        metrics=Metrics(),
        model_info=model_info_of(llm, "tiny"),
    )
    try:
        request = read_request(CHAT, {"messages": USER, "model": model}, manager.options, llm, lenient=False)
        return adapter_of(request, manager)
    finally:
        manager.close()


@pytest.mark.parametrize(
    ("model", "wanted"),
    [("one", "one"), ("tiny:two", "two"), ("tiny", None), (None, None), ("", None), ("null", None), ("default", None)],
)
def test_a_model_names_an_adapter_or_the_base(llm: LLM, model: str | None, wanted: str | None) -> None:
    assert adapter(llm, model, "one", "two") == wanted
    assert adapter(llm, model) is None


@pytest.mark.parametrize("model", ["onee", "tiny:onee", "tinny:one", "tiny:", "gpt-4o", "One", "one:tiny", "one "])
def test_where_there_are_adapters_a_name_that_is_none_is_refused(llm: LLM, model: str) -> None:
    with pytest.raises(Refusal, match=r"^model must be one of this server's \(tiny, one, two\), got") as refused:
        adapter(llm, model, "one", "two")
    error = refused.value
    assert (error.status, error.type, error.param, error.code) == (
        404,
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert ("did you mean 'one'?" in error.message) == (model in {"onee", "one ", "One"})
    assert adapter(llm, model) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_answer_names_the_adapter_that_wrote_it(adapted: Path) -> None:
    flags = [f"--lora={name}={adapted / name}" for name in ("first", "second")]
    with Server(adapted / "base", *flags) as server:
        texts = {}
        for path, prompt in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": USER})):
            body = {**prompt, "temperature": 0, "max_tokens": 6, "ignore_eos": True}
            for model, name in (("first", "first"), ("base:second", "second"), ("base", "base"), (None, "base")):
                answer = server.post(path, {**body, "model": model}).json()
                assert answer["model"] == name
                texts[path, name] = str(answer["choices"])
                events = server.post(path, {**body, "model": model, "stream": True}).text.split("\n\n")[:-2]
                assert {json.loads(event.removeprefix("data: "))["model"] for event in events} == {name}
            assert server.post(path, {**body, "lora_path": "first"}).json()["model"] == "first"
            for stream in (False, True):
                wrong = server.post(path, {**body, "model": "frist", "stream": stream})
                assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        assert len(set(texts.values())) == 6


# What ended a choice.


def ends(choice: dict[str, Any]) -> tuple[Any, Any, Any]:
    return choice["finish_reason"], choice["stop_reason"], choice["matched_stop"]


def first_ids(count: int) -> list[int]:
    found = complete(return_token_ids=True, max_tokens=count)
    return found["choices"][0]["token_ids"]


def request_ends() -> list[tuple[dict[str, Any], tuple[Any, Any, Any]]]:
    text, ids = complete(max_tokens=12)["choices"][0]["text"], first_ids(3)
    return [
        ({"max_tokens": 4}, ("length", None, None)),
        ({"max_tokens": 12, "stop": ["none of it", text[6:9]]}, ("stop", text[6:9], text[6:9])),
        ({"max_tokens": 12, "stop_token_ids": [ids[2]]}, ("stop", ids[2], ids[2])),
        ({"max_tokens": 12, "stop_regex": "[a-z]{3}"}, ("stop", "[a-z]{3}", "[a-z]{3}")),
    ]


def test_completions_say_what_ended_them_whole_and_streamed() -> None:
    for body, wanted in request_ends():
        assert ends(complete(**body)["choices"][0]) == wanted
        assert ends(stream_texts(**body)[-1]["choices"][0]) == wanted


@pytest.mark.parametrize("ignored", [False, True])
def test_an_end_of_sequence_is_told_as_vllm_and_sglang_tell_it(ignored: bool) -> None:
    body: dict[str, Any] = {"guided_choice": ["Rome"], "max_tokens": 9, "ignore_eos": ignored, "return_token_ids": True}
    whole = chat(**body)["choices"][0]
    # vLLM tells no end token; SGLang tells the token at which the text ended.
    assert ends(whole) == ("stop", None, whole["token_ids"][-1])
    assert ends(stream_chat(**body)[-1]["choices"][0]) == ends(whole)
    stopped = chat(messages=USER, stop=["e"], max_tokens=60)["choices"][0]
    assert ends(stopped) == ("stop", "e", "e")
