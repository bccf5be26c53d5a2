"""The parameters of a request are made and checked once, whatever the route."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tirage import LLM, SamplingParams
from tirage.server import create_app

_PATIENCE_S = 60
REQUESTS: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Once", "sampling_params": {"max_new_tokens": 3, "top_p": 0.9, "stop": "never"}},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "top_p": 0.9},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3, "top_p": 0.9},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3, "seed": 7, "n": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("route", REQUESTS)
def test_a_request_makes_its_parameters_once(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SamplingParams] = []
    make = SamplingParams.__post_init__
    with LLM("tiny") as llm, TestClient(create_app(llm), base_url="http://127.0.0.1") as client:
        end = time.monotonic() + _PATIENCE_S
        while client.get("/ready").status_code != 200 and time.monotonic() < end:
            time.sleep(0.05)
        monkeypatch.setattr(SamplingParams, "__post_init__", lambda params: (made.append(params), make(params)))
        response = client.post(route, json=REQUESTS[route])
    assert response.status_code == 200, response.text
    assert len(made) == 1
