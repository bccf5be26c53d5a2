"""Effective parameters over the wire: what any route answers, `tirage replay` draws again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import Client
from servers import Server, shared

from tirage import LLM, ParamsError, cli
from tirage.processors import unregister_processor
from tirage.server.replay import read_records, replay

CHAT = {"messages": [{"role": "user", "content": "Tell me a story."}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": (
        "/generate",
        {"text": "Once upon", "sampling_params": {"max_new_tokens": 12, "top_p": 0.9, "top_k": 50}},
    ),
    "generate, n = 3, stops": (
        "/generate",
        {"text": "Once upon", "sampling_params": {"max_new_tokens": 30, "n": 3, "stop": [".", " was"], "min_p": 0.01}},
    ),
    "generate, batch": ("/generate", {"text": ["Once", "There was"], "sampling_params": {"max_new_tokens": 9}}),
    "generate, regex": ("/generate", {"text": "No. ", "sampling_params": {"max_new_tokens": 9, "regex": "[0-9]{4,}"}}),
    "generate, beams": ("/generate", {"text": "Once upon", "sampling_params": {"max_new_tokens": 8, "beam_width": 3}}),
    "generate, stream": (
        "/generate",
        {"text": "Once upon", "stream": True, "sampling_params": {"max_new_tokens": 9, "n": 2}},
    ),
    "completions": ("/v1/completions", {"prompt": ["Once", "Far away"], "max_tokens": 9, "n": 2, "seed": 7}),
    "completions, best of": ("/v1/completions", {"prompt": "Once", "max_tokens": 9, "best_of": 3, "n": 1}),
    "chat": ("/v1/chat/completions", {**CHAT, "max_tokens": 20, "temperature": 1.1, "n": 2}),
    "chat, FastDeploy": (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 9, "sampling_method": "air", "bad_words": ["the"]},
    ),
    "chat, JSON": (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 40, "response_format": {"type": "json_object"}, "temperature": 0.7},
    ),
    "chat, stream": ("/v1/chat/completions", {**CHAT, "max_tokens": 9, "stream": True}),
    "response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 9, "temperature": 1.1}),
    "response, stream": ("/v1/responses", {"input": "Hi", "max_output_tokens": 9, "stream": True}),
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", max_running=64) as made:
        yield made


STREAMED = {
    "/generate": {"text": "Once", "sampling_params": {"max_new_tokens": 5}},
    "/v1/completions": {"prompt": "Once", "max_tokens": 5, "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/responses": {"input": "hi", "max_output_tokens": 5},
}


@pytest.fixture
def server() -> Server:
    return shared("tiny")


def answered(server: Server, path: str, body: dict[str, Any]) -> Any:
    """The answer, or the events of a stream, to a request that asks for its effective parameters."""
    client = Client(server)
    reply = client.send(path, {**body, "return_effective_params": True})
    client.close()
    assert reply.status == 200, reply.body
    return reply.events if body.get("stream") else reply.json


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_of_any_route_is_drawn_again(server: Server, llm: LLM, name: str) -> None:
    path, body = REQUESTS[name]
    answer = answered(server, path, body)
    records = read_records(json.dumps(answer).encode())
    prompts = body.get("text") or body.get("prompt") or "one"
    assert len(records) == (len(prompts) if isinstance(prompts, list) else 1)
    for record in records:
        again = replay(llm, record)
        assert (again.difference, again.same_model) == (None, True)
        assert sum(len(sample["token_ids"]) for sample in record["samples"]) > 0


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_saved_event_stream_is_drawn_again(server: Server, llm: LLM, path: str, end: bytes) -> None:
    asked = {"return_effective_params": True, "stream": True, **STREAMED[path]}
    saved = server.post(path, asked).content.replace(b"\n", end)
    for text in (saved, saved.rstrip(), b": a comment" + end + saved):
        (record,) = read_records(text)
        assert replay(llm, record).difference is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'data: {"a": 1}\n\ndata: [DONE]\n\n', "an answer with effective_params, got a text without"),
        (b'data: {"a": \n\n', "body must be valid JSON"),
    ],
)
def test_a_stream_without_records_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        read_records(text)


def test_the_tokens_of_the_record_are_those_of_the_answer(server: Server) -> None:
    path, body = REQUESTS["generate, n = 3, stops"]
    entries = answered(server, path, body)
    (record,) = read_records(json.dumps(entries).encode())
    assert [sample["token_ids"] for sample in record["samples"]] == [entry["output_ids"] for entry in entries]
    assert {sample["seed"] for sample in record["samples"]} == {entries[0]["meta_info"]["seed"]}
    assert record["params"]["semantics"] == "sglang"
    assert record["params"]["top_k"] in (0, -1, None)


def test_nothing_is_said_unasked(server: Server) -> None:
    for path, body in REQUESTS.values():
        client = Client(server)
        assert b"effective_params" not in client.send(path, body).body
        client.close()


def test_the_command_draws_an_answer_again(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.json"
    answer = answered(server, *REQUESTS["completions"])
    file.write_text(json.dumps(answer))
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(file)])
    out, err = capsys.readouterr()
    assert ended.value.code == 0
    assert out == "".join(choice["text"] + "\n" for choice in answer["choices"])
    assert err.count("tokens on the same model") == 2


@pytest.mark.slow
def test_operators_processors_are_replayed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "forcing.py").write_text(
        "import numpy as np\n"
        "class Force:\n"
        "    arg_names = ('token',)\n"
        "    def __call__(self, logits, args):\n"
        "        forced = np.full_like(logits, -np.inf)\n"
        "        for row, arg in zip(forced, args):\n"
        "            row[arg['token']] = 0.0\n"
        "        return forced\n"
    )
    named = ("--logits-processor", "replay_force=forcing:Force")
    with Server("tiny", *named, "--enable-custom-logit-processor", folders=(tmp_path,)) as server:
        params = {"max_new_tokens": 3, "custom_params": {"token": 300}}
        body = {"text": "a", "custom_logit_processor": "replay_force", "sampling_params": params}
        answer = answered(server, "/generate", body)
    assert answer["output_ids"] == [300, 300, 300]
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(answer))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(file), *named])
    unregister_processor("replay_force")
    assert ended.value.code == 0
    assert "the same 3 tokens on the same model" in capsys.readouterr().err
