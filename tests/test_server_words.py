"""What the server says to people: JSON's words, the nearest path, nothing that is not so."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from servers import Server, shared
from test_fastdeploy import write_model
from test_openai import USER, error

from tirage.server import app
from tirage.server.errors import in_json
from tirage.server.health import Health


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            "stream must be True or False, got None; leave it out",
            "stream must be true or false, got null; leave it out",
        ),
        ("x must be a text or None, got 'None'", "x must be a text or null, got 'None'"),
        ("the model's rule, got True, not the client's", "the model's rule, got true, not the client's"),
        ("got ['a None', None, {'True': False}]", "got ['a None', null, {'True': false}]"),
        ('got "it\'s None" and None', 'got "it\'s None" and null'),
        ("NoneType and Nonesuch", "NoneType and Nonesuch"),
        (r"got 'a\'None' or None", r"got 'a\'None' or null"),
    ],
)
def test_pythons_words_become_jsons_outside_of_quotes(said: str, wanted: str) -> None:
    assert in_json(said) == wanted


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "stream": 3}),
        ("/generate", {"text": "a", "sampling_params": {"ignore_eos": "yes", "top_k": "a"}}),
        ("/generate", {"text": "a", "sampling_params": {"temperature": [True, None]}}),
        ("/v1/completions", {"prompt": "a", "stream": "yes"}),
        ("/v1/chat/completions", {"messages": USER, "logprobs": "all"}),
        ("/v1/chat/completions", {"messages": USER, "top_k": [None]}),
    ],
)
def test_refusals_speak_of_json(path: str, body: dict[str, Any]) -> None:
    message = error(path, body)["message"]
    assert not {"None", "True", "False"} & set(message.replace(",", " ").replace("[", " ").replace("]", " ").split())


def test_a_schema_of_the_wrong_form_says_what_is_wanted() -> None:
    schema = {"type": "object"}
    found = error("/generate", {"text": "a", "sampling_params": {"json_schema": schema}})
    assert found["message"].startswith(
        "json_schema must be a JSON schema as a string of JSON, got {'type': 'object'}; "
    )
    assert found["message"].endswith("send it as text, json.dumps(schema)")
    for key in ("schema", "json_schema"):
        chat = {"messages": USER, "response_format": {"type": "json_object", key: schema}}
        found = error("/v1/chat/completions", chat)
        assert found["message"] == (
            f"response_format.{key} must be left out where the type is 'json_object', which has no such field, "
            "got {'type': 'object'}; a schema goes with {\"type\": \"json_schema\"}"
        )
        assert found["param"] == f"response_format.{key}"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/chat/completion", "; did you mean '/v1/chat/completions'?"),
        ("/chat/completions", "; did you mean '/v1/chat/completions'?"),
        ("/genrate", "; did you mean '/generate'?"),
        ("/healthz", "; did you mean '/health'?"),
        ("/" + "x" * 300, "lists the routes"),
        ("/qqqq", "lists the routes"),
    ],
)
def test_a_mistyped_path_gets_the_nearest_route(path: str, hint: str) -> None:
    answer = shared().post(path, {})
    assert (answer.status_code, answer.json()["error"]["message"].endswith(hint)) == (404, True), answer.text


@pytest.mark.parametrize("cold", [False, True])
def test_only_kernels_that_are_compiled_are_said_to_be(
    cold: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    health, phases = Health(patience_s=5), list[str]()

    async def slow(_: Any) -> None:
        await asyncio.sleep(0.2)
        phases.append(health.phase)

    monkeypatch.setattr(app, "in_thread", slow)
    monkeypatch.setattr(app, "_LOADED_S", 0.02)
    monkeypatch.setattr(app, "compiling", lambda: cold)
    with caplog.at_level(logging.INFO, "tirage.server"):
        asyncio.run(app.prepare_kernels(health))
    assert phases == ["compiling" if cold else "loading"]
    assert ("at the first start" in caplog.text) == cold
    assert ("loading kernels" in caplog.text) != cold


@pytest.mark.slow
def test_a_torch_server_that_used_constraints_ends_without_a_word_of_its_libraries(tmp_path: Path) -> None:
    with Server(write_model(tmp_path / "model"), "--backend", "torch") as server:
        body = {"text": "a", "sampling_params": {"max_new_tokens": 4, "regex": "[a-z ]+", "close_grammar": True}}
        assert server.post("/generate", body).status_code == 200
    log = server.log
    assert server.process.returncode == 0
    assert "ended" in log
    assert "leaked" not in log
    assert log.rstrip().splitlines()[-1].endswith("ended")


# Unknown fields.

LENIENT = {"x-tirage-unknown-fields": "ignore"}
NOVEL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [5, 6]}),
    ("/generative_scoring", {"query": "a", "items": ["b"], "label_token_ids": [5, 6]}),
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [5]}),
    ("/explain", {"text": "a"}),
    ("/check_constraint", {"guided_regex": "a+"}),
    ("/abort_request", {"rid": "nobody's"}),
)


@pytest.mark.parametrize(("path", "body"), NOVEL)
def test_every_route_refuses_unknown_fields_or_ignores_and_lists_them(path: str, body: dict[str, Any]) -> None:
    asked = {**body, "urgency": 3}
    refused = shared().post(path, asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "urgency")
    assert "x-tirage-ignored-fields" not in shared().post(path, body).headers
    for answer in (
        shared().post(path, asked, headers=LENIENT),
        shared("tiny", "--ignore-unknown-fields").post(path, asked),
    ):
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-tirage-ignored-fields"] == "urgency"


def test_unknown_parameters_of_an_explanation_are_listed_with_their_place() -> None:
    body = {"text": "a", "urgency": 1, "sampling_params": [{"top_k": 2}, {"sparkle": True}]}
    answer = shared().post("/explain", body, headers=LENIENT)
    assert answer.headers["x-tirage-ignored-fields"] == "urgency, sampling_params[1].sparkle"
    assert shared().post("/explain", body).status_code == 400
