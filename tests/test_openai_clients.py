"""Clients as people use them: the official one in two versions, langchain-openai, litellm, curl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from later import openai
from servers import Server, shared

HERE = Path(__file__).parent
CLIENTS = os.environ.get("TIRAGE_TEST_CLIENTS_PYTHON", "")
OPENAI_3 = os.environ.get("TIRAGE_TEST_OPENAI3_PYTHON", "")


def session(python: str, script: str, url: str) -> Any:
    """What a session prints."""
    run = subprocess.run([python, str(HERE / script), url], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def check_session(found: Any) -> None:
    assert found["models"] == ["tiny"]
    assert found["chat"] == {"same": True, "usage": True, "logprobs": True}
    assert found["completions"] == {"same": True}
    assert found["parse"] == {"is a person": True, "of an age": True}
    assert found["tools"] == {"finish": "tool_calls", "city": True, "same": True, "goes on": True}
    assert found["async"]
    assert found["errors"] == {
        "value": "BadRequestError 400 temperature",
        "name": "BadRequestError 400 temprature",
        "schema": "BadRequestError 400 guided_regex",
        "model": "NotFoundError 404 model",
        "route": "NotFoundError 404 None",
    }


@pytest.mark.slow
def test_the_official_client_works() -> None:
    check_session(session(sys.executable, "openai_session.py", shared().url))


@pytest.mark.slow
@pytest.mark.skipif(not OPENAI_3, reason="TIRAGE_TEST_OPENAI3_PYTHON names no interpreter with openai 3")
def test_the_official_client_of_the_next_version_works() -> None:
    found = session(OPENAI_3, "openai_session.py", shared().url)
    assert found["version"] == "3"
    check_session(found)


@pytest.mark.slow
@pytest.mark.skipif(not CLIENTS, reason="TIRAGE_TEST_CLIENTS_PYTHON names no interpreter with these clients")
def test_langchain_and_litellm_work() -> None:
    found = session(CLIENTS, "langchain_session.py", shared().url)
    assert found["langchain"] == {"same": True, "schema": True, "tools": True}
    assert found["litellm"] == {"openai": True, "hosted_vllm": True}


@pytest.mark.slow
def test_a_key_is_asked_for_and_a_wrong_one_refused_by_the_clients_own_error() -> None:
    with Server("tiny", "--api-key", "secret") as server:
        refused = openai.OpenAI(base_url=f"{server.url}/v1", api_key="null", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            refused.models.list()
        admitted = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
        assert [model.id for model in admitted.models.list()] == ["tiny"]


def test_the_official_client_raises_its_own_errors() -> None:
    client = openai.OpenAI(base_url=f"{shared().url}/v1", api_key="null", max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", temperature=9)
    assert caught.value.param == "temperature"
