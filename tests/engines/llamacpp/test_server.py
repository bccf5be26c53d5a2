"""The HTTP routes over a GGUF model, and the replay of an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from gguf_models import random_folder

from tirage import LLM, Prompt, SamplingParams
from tirage.server import create_app
from tirage.server.engine_input import EngineInput
from tirage.server.replay import effective, model_info_of, replay
from tirage.server.request_group import RunningRequest

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        LLM(random_folder().with_name("q8.gguf")) as llm,
        TestClient(create_app(llm), base_url="http://localhost") as c,
    ):
        for _ in range(3000):
            if c.get("/ready").status_code == 200:
                break
            time.sleep(0.1)
        yield c


def test_routes_answer_from_a_gguf_file(client: Any) -> None:
    fields = {"prompt": "Once", "max_tokens": 12, "seed": 4, "temperature": 0.7, "ignore_eos": True}
    answer = client.post("/v1/completions", json=fields).json()
    assert answer["usage"]["completion_tokens"] == 12
    sampling = {"max_new_tokens": 12, "sampling_seed": 4, "temperature": 0.7, "ignore_eos": True}
    native = client.post("/generate", json={"text": "Once", "sampling_params": sampling}).json()
    assert native["text"] == answer["choices"][0]["text"]
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}
    assert client.post("/v1/chat/completions", json=chat).json()["usage"]["completion_tokens"] <= 4


def test_streams_are_whole_answers(client: Any) -> None:
    for seed in range(3):
        fields = {"prompt": "Once upon", "max_tokens": 20, "seed": seed, "ignore_eos": True}
        whole = client.post("/v1/completions", json=fields).json()["choices"][0]["text"]
        with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as streamed:
            lines = [line[6:] for line in streamed.iter_lines() if line.startswith("data: {")]
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines if "choices" in line) == whole


def test_an_answer_is_replayed() -> None:
    path = random_folder().with_name("q8.gguf")
    with LLM(path) as llm:
        info = model_info_of(llm, path.name)
        asked = EngineInput(prompt=Prompt(text="Once"), params=SamplingParams(n=2, max_tokens=12))
        assert asked.prompt is not None
        stream = llm.engine.submit(llm.request(asked.prompt, asked.params))
        stream.wait()
        record = json.loads(json.dumps(effective(RunningRequest.of(asked, stream, info)), allow_nan=False))
        again = replay(llm, record)
    assert record["model"]["fingerprint"].startswith("sha256:")
    assert record["model"]["numerics"]["dtype"] == "float16"
    assert (again.difference, again.same_model, again.changed) == (None, True, ())
