"""Clients of /v1/responses as people use them: the official ones in two languages, the ai-sdk, the Agents SDK."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from node_session import missing, node_session
from servers import shared
from test_openai_clients import session

LACKS = missing("openai", "ai", "@ai-sdk/openai", "zod")
ROOT = Path(__file__).parents[1]
AGENTS = os.environ.get("TIRAGE_TEST_AGENTS_PYTHON", "")
OPENAI_3 = os.environ.get("TIRAGE_TEST_OPENAI3_PYTHON", "")


def check_session(found: Any) -> None:
    assert found["text"] == {"as in a chat": True, "logprobs": True, "top": True, "usage": True}
    first = ["response.created", "response.in_progress", "response.output_item.added"]
    assert found["streamed"] == {"same": True, "usage": True, "first": first, "last": True}
    assert found["parsed"] == {"is a person": True, "same": True}
    assert found["tools"] == {"city": True, "same": True, "goes on": True, "prompt": True}
    assert found["kept"] == {"same": True, "metadata": {"a": "b"}, "items": ["How old are you"], "gone": True}
    assert found["errors"] == {
        "value": "BadRequestError 400 temperature",
        "name": "BadRequestError 400 temprature",
        "tool": "BadRequestError 400 tools[0].type",
        "previous": "NotFoundError 404 previous_response_id",
        "background": "BadRequestError 400 background",
    }


@pytest.mark.slow
def test_the_page_shows_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs" / "responses.md").read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code.replace("http://127.0.0.1:30000", shared().url), "responses.md", "exec"), {})
    text, went_on = capsys.readouterr().out.splitlines()
    assert text
    assert went_on in ("completed True", "incomplete True")


@pytest.mark.slow
def test_the_official_client_works() -> None:
    check_session(session(sys.executable, "responses_session.py", shared().url))


@pytest.mark.slow
@pytest.mark.skipif(not OPENAI_3, reason="TIRAGE_TEST_OPENAI3_PYTHON names no interpreter with openai 3")
def test_the_official_client_of_the_next_version_works() -> None:
    found = session(OPENAI_3, "responses_session.py", shared().url)
    assert found["version"] == "3"
    check_session(found)


@pytest.mark.slow
@pytest.mark.skipif(not AGENTS, reason="TIRAGE_TEST_AGENTS_PYTHON names no interpreter with openai-agents")
def test_the_agents_sdk_works() -> None:
    found = session(AGENTS, "agents_session.py", shared().url)
    assert found == {"called": True, "typed": True, "streamed": True, "went on": True}


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKS), reason=LACKS)
def test_the_official_client_in_javascript_and_the_ai_sdk_work() -> None:
    found = node_session("responses_session.mjs", shared().url)
    refused = "BadRequestError 400 temperature"
    assert found["official"] == {"same": True, "usage": True, "city": True, "goes on": True, "refused": refused}
    steps = {"city": True, "steps": ["tool-calls", "stop"], "text": True}
    assert found["ai-sdk"] == {
        "same": True,
        "usage": True,
        "object": True,
        "warnings": [],
        "tools": {"by reference": steps, "by items": steps},
    }
