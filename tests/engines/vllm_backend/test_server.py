"""`tirage serve --backend vllm`: the routes, streams and aborts of every other backend."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from recorded import ENGINE_ARGS

from tirage import LLM, SamplingParams

COMMAND = [sys.executable, "-m", "tirage"]
ARGS = [f"--engine-arg={name}={json.dumps(value)}" for name, value in ENGINE_ARGS.items()]
SEEDED = {"sampling_seed": 5, "max_new_tokens": 12, "top_p": 0.9, "ignore_eos": True}
PARAMS = SamplingParams(seed=5, max_tokens=12, top_p=0.9, ignore_eos=True)
ENDLESS = {"sampling_seed": 1, "max_new_tokens": 900, "ignore_eos": True}
# Long enough for an engine that starts on a busy machine.
START_S = 300.0


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[httpx.Client]:
    """A client of a server that is ready; at the end the server drains and ends with status 0."""
    command = [*COMMAND, "serve", "--backend", "vllm", "--model", str(folder), "--port", "0", *ARGS]
    command += ["--admin-key", "k", "--max-running-requests", "16"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
    lines: list[str] = []
    found = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "listening on" in line:
                found.set()

    threading.Thread(target=read, daemon=True).start()
    assert found.wait(START_S), lines
    url = re.search(r"http://\S+", "".join(lines))
    assert url is not None
    with httpx.Client(base_url=url[0], timeout=START_S, trust_env=False) as client:
        until(lambda: process.poll() is not None or is_healthy(client))
        assert process.poll() is None, "".join(lines)
        yield client
    process.terminate()
    assert process.wait(60) == 0, "".join(lines)


def until(done: Any) -> None:
    """Waits for something that will be true within the patience of a start."""
    end = time.monotonic() + START_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.ConnectError:  # it has ended
        return False


def events(response: httpx.Response) -> list[Any]:
    return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]


def metric(server: httpx.Client, name: str) -> float:
    found = re.search(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", server.get("/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_generate_whole_and_streamed(server: httpx.Client, own: LLM) -> None:
    expected = own.generate(["hello", "a b c"], PARAMS)
    body = {"text": ["hello", "a b c"], "sampling_params": SEEDED, "return_logprob": True, "top_logprobs_num": 2}
    answers = server.post("/generate", json=body).json()
    assert [each["text"] for each in answers] == [each.text for each in expected]
    assert [i for _, i, *_ in answers[0]["meta_info"]["output_token_logprobs"]] == list(expected[0].token_ids)
    with server.stream(
        "POST", "/generate", json={"text": "hello", "sampling_params": SEEDED, "stream": True}
    ) as response:
        found = events(response)
    assert found[-1]["text"] == expected[0].text
    assert found[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert len(found) > 3


def test_completions_and_chats(server: httpx.Client, own: LLM) -> None:
    body = {"model": "llama", "prompt": "hello", "seed": 5, "max_tokens": 12, "top_p": 0.9, "ignore_eos": True}
    answer = server.post("/v1/completions", json={**body, "logprobs": 2, "n": 2}).json()
    expected = own.generate("hello", PARAMS.replace(n=2))[0]
    assert [each["text"] for each in answer["choices"]] == [each.text for each in expected.samples]
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 12
    messages = [{"role": "user", "content": "hello"}]
    chat = {"model": "llama", "messages": messages, "seed": 4, "max_tokens": 20}
    schema = {"name": "s", "schema": {"type": "integer", "minimum": 10, "maximum": 99}}
    form = {"type": "json_schema", "json_schema": schema}
    number = server.post("/v1/chat/completions", json={**chat, "response_format": form}).json()
    assert 10 <= json.loads(number["choices"][0]["message"]["content"]) <= 99
    with server.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as response:
        deltas = [each["choices"][0]["delta"].get("content") or "" for each in events(response) if each["choices"]]
    assert "".join(deltas) == own.chat(messages, SamplingParams(seed=4, max_tokens=20)).text


def test_a_client_that_leaves_ends_its_request(server: httpx.Client) -> None:
    body = {"text": "hello", "sampling_params": ENDLESS, "stream": True}
    with server.stream("POST", "/generate", json=body) as response:
        next(response.iter_lines())
    until(lambda: metric(server, "tirage_requests_in_flight") == 0)
    assert server.get("/health").status_code == 200


def test_an_abort_by_id_ends_the_stream(server: httpx.Client) -> None:
    body = {"text": "hello", "sampling_params": ENDLESS, "stream": True, "rid": "mine"}
    with server.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.post("/abort_request", json={"rid": "mine"}).status_code == 200
        last = [line for line in lines if line.startswith("data: {")][-1]
    assert json.loads(last[6:])["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/generate", {"text": "a", "sampling_params": {"top_p": 7}}, "top_p"),
        ("/generate", {"text": "a", "return_hidden_states": True}, "vLLM backend"),
        ("/v1/completions", {"model": "llama", "prompt": "a", "use_beam_search": True, "n": 2}, "beam"),
        ("/v1/completions", {"model": "llama", "prompt": "a", "temperatur": 1}, "temperatur"),
    ],
)
def test_what_is_wrong_is_a_400(server: httpx.Client, path: str, body: dict[str, Any], says: str) -> None:
    response = server.post(path, json=body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_metrics_info_and_flush(server: httpx.Client) -> None:
    prompt = {"input_ids": [*range(5, 105)], "sampling_params": SEEDED}
    server.post("/generate", json=prompt)
    again = server.post("/generate", json=prompt).json()
    assert again["meta_info"]["cached_tokens"] == 96
    assert metric(server, "tirage_cached_tokens_total") >= 96
    assert metric(server, "tirage_completion_tokens_total") >= 24
    assert server.get("/get_model_info").status_code == 200
    assert server.post("/flush_cache", headers={"authorization": "Bearer k"}).status_code == 200
    assert server.post("/generate", json=prompt).json()["meta_info"]["cached_tokens"] == 0


def test_an_answer_can_be_replayed(server: httpx.Client, folder: Path, tmp_path: Path) -> None:
    body = {"text": "hello", "sampling_params": {**SEEDED, "n": 2}, "return_effective_params": True}
    answer = server.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert "effective_params" in answer.text
    (tmp_path / "answer.json").write_text(answer.text)
    command = [*COMMAND, "replay", str(tmp_path / "answer.json"), "--model", str(folder), "--backend", "vllm"]
    # A replay has room for the server's default number of requests, and vLLM wants a token for each in a step.
    command += [each for each in ARGS if "max_num_batched_tokens" not in each]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # What is generated stands alone on stdout, as vLLM's own log goes to stderr.
    assert done.stdout == "".join(f"{each['text']}\n" for each in answer.json())
