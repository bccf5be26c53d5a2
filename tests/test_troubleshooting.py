"""docs/troubleshooting.md: each message on the page is the one that the program gives."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import tirage
from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.cli import main
from tirage.server.app import create_app
from tirage.server.options import Options

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
BLOCK = re.compile(r"^### ([^\n]+)\n\n```text\n(.*?)\n```", re.DOTALL | re.MULTILINE)
MESSAGES: dict[str, str] = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
"""The messages of the page by their headings."""

ROW = np.array([2.0, 1.5, 0.3, -1.0], dtype=np.float32)
FIRST = "Once upon a time "
LOADED = Options(api_key=("key",))


def guided(**options: Any) -> SamplingParams:
    return SamplingParams(guided_decoding=GuidedDecodingParams(**options))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", max_running=1, max_waiting=1) as opened:
        yield opened


PARAMS: dict[str, Callable[[], Any]] = {
    "A value out of its range": lambda: SamplingParams(top_p=0.0),
    "A parameter that does not exist": lambda: SamplingParams(max_new_tokens=20),
    "A preset that does not exist": lambda: SamplingParams(semantics="vlm"),
    "A parameter that the preset does not have": lambda: SamplingParams(top_a=0.2, semantics="vllm"),
    "A stop string without text": lambda: SamplingParams(stop=["."], detokenize=False),
    "Logits of integers": lambda: tirage.sample(np.array([3, 1, 2]), SamplingParams()),
    "A list instead of an array": lambda: tirage.sample([2.0, 1.5], SamplingParams()),
    "A penalty without a history": lambda: tirage.sample(ROW, SamplingParams(repetition_penalty=1.2)),
    "A history of another number of rows": lambda: tirage.sample(
        np.stack([ROW, ROW]), SamplingParams(), history=[([], [])]
    ),
    "Several samples of one row": lambda: tirage.sample(ROW, SamplingParams(n=3)),
    "Bad words without a tokenizer": lambda: tirage.sample(ROW, SamplingParams(bad_words=["no"])),
    "A model that is not there": lambda: LLM("gpt2"),
}
TEXTS: dict[str, Callable[[LLM], Any]] = {
    "A prompt that is too long": lambda llm: llm.generate(FIRST * 200),
    "A regular expression with look-ahead": lambda llm: llm.generate(FIRST, guided(regex=r"(?=a)\w+")),
    "A schema that cannot be enforced": lambda llm: llm.generate(FIRST, guided(json={"$ref": "https://example.org/a"})),
    "The queue is full": lambda llm: llm.generate([FIRST] * 8),
}
REQUESTS: dict[str, tuple[Options, str, dict[str, Any], dict[str, str]]] = {
    "The server is loading": (Options(), "/generate", {"text": "a"}, {}),
    "No key": (LOADED, "/generate", {"text": "a"}, {"authorization": ""}),
    "Another host name": (LOADED, "/generate", {"text": "a"}, {"host": "models.example.org"}),
    "A body that is not JSON": (LOADED, "/generate", {"text": "a"}, {"content-type": "text/plain"}),
    "A field that the route does not know": (LOADED, "/generate", {"text": "a", "sampling_params": {"top_pp": 1}}, {}),
    "More tokens than the context has": (LOADED, "/v1/completions", {"prompt": "a", "max_tokens": 5000}, {}),
    "A processor that a client brings along": (LOADED, "/generate", {"text": "a", "custom_logit_processor": "x"}, {}),
}
COMMANDS = ("A package is missing", "The port is taken")
REASONS = ("Logits that are not numbers",)


@pytest.mark.parametrize("heading", PARAMS)
def test_the_library_gives_the_message_of_the_page(heading: str) -> None:
    with pytest.raises(tirage.TirageError) as refused:
        PARAMS[heading]()
    assert str(refused.value) == MESSAGES[heading]


@pytest.mark.slow
@pytest.mark.parametrize("heading", TEXTS)
def test_a_model_gives_the_message_of_the_page(heading: str, llm: LLM) -> None:
    with pytest.raises(tirage.TirageError) as refused:
        TEXTS[heading](llm)
    assert str(refused.value) == MESSAGES[heading]


@pytest.mark.slow
@pytest.mark.parametrize("heading", REQUESTS)
def test_the_server_gives_the_message_of_the_page(heading: str, llm: LLM) -> None:
    options, route, body, headers = REQUESTS[heading]
    app = create_app(options, llm=llm if options is LOADED else None)
    headers = {"authorization": "Bearer key", **headers}
    if options is not LOADED:
        response = TestClient(app, base_url="http://127.0.0.1").post(route, json=body, headers=headers)
    else:
        with TestClient(app, base_url="http://127.0.0.1") as client:
            while client.get("/ready", headers={"authorization": "Bearer key"}).status_code != 200:
                time.sleep(0.02)
            response = client.post(route, json=body, headers=headers)
    # Routes of other APIs may name further ways at the end.
    assert response.json()["error"]["message"].startswith(MESSAGES[heading])


def test_the_reason_of_a_row_without_a_token_is_that_of_the_page() -> None:
    why = tirage.explain(np.array([1.0, np.nan]), SamplingParams())
    assert why.reason == MESSAGES["Logits that are not numbers"]


@pytest.mark.slow
def test_a_missing_package_and_a_taken_port_end_the_start_with_the_message_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert started("--port", port, capsys=capsys).replace(port, "30000") == MESSAGES["The port is taken"]
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert started(capsys=capsys) == MESSAGES["A package is missing"]


def started(*flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on stderr of a server that does not start."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *flags])
    assert ended.value.code == 1
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_every_message_of_the_page_is_made_by_a_test() -> None:
    assert sorted([*PARAMS, *TEXTS, *REQUESTS, *COMMANDS, *REASONS]) == sorted(MESSAGES)
    assert len(MESSAGES) >= 20
