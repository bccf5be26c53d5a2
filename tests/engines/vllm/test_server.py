"""tirage inside vLLM's OpenAI server: opting in over HTTP, the 400 of what is wrong, and a server that lives on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from llama_folder import PROMPTS, write_folder

FIELDS = {"seed": 11, "top_p": 0.9, "temperature": 1.2, "presence_penalty": 0.5}
DEADLINE_S = 300


class Server:
    """vLLM's server as a process of its own, in which the entry point is found and the processor named as well."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
        command += [
            str(write_folder(folder)),
            "--port",
            str(self.port),
            "--dtype",
            "float32",
            "--enforce-eager",
            "--max-model-len",
            "256",
        ]
        command += ["--max-num-seqs", "16", "--served-model-name", "small", "--logits-processors"]
        command += ["tirage.integrations.vllm:TirageLogitsProcessor"]
        self.log = folder / "log"
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        self.process = subprocess.Popen(command, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT)

    def wait(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urlopen(f"http://127.0.0.1:{self.port}/health").close()
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-2000:])

    def post(self, route: str, **body: Any) -> Any:
        given = {"model": "small", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **body}
        url = f"http://127.0.0.1:{self.port}/v1/{route}"
        request = Request(url, json.dumps(given).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return answer.read().decode() if body.get("stream") else json.load(answer)

    def text(self, fields: Any, prompt: str = PROMPTS[0], **body: Any) -> str:
        answer = self.post("completions", prompt=prompt, vllm_xargs={"tirage": json.dumps(fields)}, **body)
        return answer["choices"][0]["text"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("served"))
    try:
        made.wait()
        yield made
    finally:
        made.process.terminate()
        made.process.wait(60)


def test_a_seed_says_the_same_text_at_any_temperature_of_vllm(server: Server) -> None:
    text = server.text(FIELDS)
    assert text == server.text(FIELDS) == server.text(FIELDS, temperature=1)
    assert text != server.text({**FIELDS, "seed": 12})
    assert server.text({}, temperature=1) != server.text({}, temperature=1)


def test_a_batch_says_what_each_says_alone(server: Server) -> None:
    given = [({**FIELDS, "seed": seed}, PROMPTS[seed % 8]) for seed in range(16)]
    alone = [server.text(fields, prompt) for fields, prompt in given]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda each: server.text(*each), given)) == alone


def test_chat_and_streams_draw_the_same(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"tirage": json.dumps(FIELDS)}}
    whole = server.post("chat/completions", **body)["choices"][0]["message"]["content"]
    events = server.post("chat/completions", stream=True, **body).split("\n\n")
    pieces = [json.loads(event[6:])["choices"] for event in events if event.startswith("data: {")]
    assert "".join(each[0]["delta"].get("content") or "" for each in pieces if each) == whole


def test_samples_of_one_request_need_the_seed_of_vllm(server: Server) -> None:
    body = {"prompt": "a", "n": 3, "temperature": 1, "vllm_xargs": {"tirage": json.dumps(FIELDS)}}
    answers = [[c["text"] for c in server.post("completions", seed=11, **body)["choices"]] for _ in range(2)]
    assert answers[0] == answers[1]
    assert len({*answers[0]}) == 3
    assert answers[0][0] == server.text(FIELDS, "a")


def test_structured_outputs_hold(server: Server) -> None:
    body = {"structured_outputs": {"choice": ["yes", "no", "maybe"]}, "ignore_eos": False}
    said = {server.text({"seed": seed, "temperature": 20.0}, **body) for seed in range(12)}
    assert said <= {"yes", "no", "maybe"}
    assert len(said) > 1


@pytest.mark.parametrize(
    ("fields", "body", "says"),
    [
        ('{"top_pp": 1}', {}, "did you mean 'top_p'"),
        ("{", {}, "JSON"),
        ("[]", {}, "SamplingParams"),
        ('{"max_tokens": 1}', {}, "give it to vLLM itself"),
        ('{"logit_bias": {"512": 1}}', {}, "512 columns"),
        ("{}", {"temperature": 0.5}, "temperature of vLLM"),
        ("{}", {"temperature": 1, "top_k": 5}, "top_k of vLLM"),
        ('{"seed": 1}', {"n": 2, "temperature": 1}, "give vLLM the same seed"),
        (3, {}, "fields of SamplingParams"),
    ],
)
def test_what_is_wrong_is_a_400(server: Server, fields: Any, body: dict[str, Any], says: str) -> None:
    with pytest.raises(HTTPError) as refused:
        server.post("completions", prompt="a", vllm_xargs={"tirage": fields}, **body)
    assert refused.value.code == 400
    assert says in refused.value.read().decode()


def test_a_request_that_cannot_be_drawn_ends_alone(server: Server) -> None:
    impossible = {"allowed_token_ids": [5], "ignore_eos": False, "max_tokens": 30}
    with ThreadPoolExecutor(3) as threads:
        good = [threads.submit(server.text, FIELDS, max_tokens=30) for _ in range(2)]
        bad = threads.submit(server.text, {"allowed_token_ids": [6]}, **impossible)
        assert bad.result() == ""
        assert good[0].result() == good[1].result() == server.text(FIELDS, max_tokens=30)
    assert "no_allowed_token" in server.log.read_text()
