"""Requests that schemathesis makes up from our own OpenAPI document, valid and not: never a 5xx, always an envelope."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import unquote

import pytest
import schemathesis
from hostile import LEAK, NORMAL, check_envelope
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode
from servers import Server, shared

LIMIT_S = 60


@pytest.fixture
def server() -> Server:
    return shared("tiny")


def operations(server: Server) -> list[Any]:
    """Every operation of the server's document."""
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    schema.config.update(base_url=server.url)
    found = [result.ok() for result in schema.get_all_operations()]
    assert len(found) >= 15
    return found


def explore(server: Server, *, examples: int) -> int:
    """Sends `examples` made-up requests of each kind to every operation; how many were sent."""
    sent = 0
    for operation in operations(server):
        takes = operation.method.upper() in {"POST", "PUT"} or bool(operation.path_parameters)
        sent += send_some(operation, GenerationMode.POSITIVE, examples if takes else 1)
        sent += send_some(operation, GenerationMode.NEGATIVE, examples) if takes else 0
    return sent


def send_some(operation: Any, mode: GenerationMode, count: int) -> int:
    """Sends made-up requests to one operation and judges the answers; how many were sent."""
    sent: list[int] = []

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(timeout=LIMIT_S)
        sent.append(response.status_code)
        judge(response, operation.label)

    # Of an operation that takes anything there are no invalid requests.
    with contextlib.suppress(Unsatisfiable):
        send()
    return len(sent)


def judge(response: Any, what: str) -> None:
    """Fails for an answer that no sound server gives."""
    # On a machine that is too busy the loop may stand still for a while, and /health says so.
    stalled = response.status_code == 503 and response.text == '{"status":"stalled"}'
    assert response.status_code < 500 or stalled, f"{what}: {response.status_code} {response.text[:300]}"
    kind = response.headers.get("content-type", [""])
    if stalled:
        return
    if response.status_code >= 400 and "json" in str(kind):
        check_envelope(own_form(response.json()), what, sent=sent_by(response.request))
    elif response.status_code >= 400:
        assert LEAK.search(response.text) is None, what


def own_form(body: Any) -> Any:
    """The error of a body, that of Anthropic's routes with the members that it leaves out."""
    if body.get("type") == "error":
        assert set(body) == {"type", "error", "request_id"}
        assert {"type", "message"} <= set(body["error"]) <= {"type", "message", "details"}
        return {"type": body["error"]["type"], "message": body["error"]["message"], "param": None, "code": None}
    return body["error"]


def sent_by(request: Any) -> str:
    """The address and the body of a request: names of files among them are Hypothesis's own words."""
    body = request.body or b""
    return unquote(request.url) + (body.decode(errors="replace") if isinstance(body, bytes) else body)


@pytest.mark.slow
def test_a_few_made_up_requests_for_every_operation(server: Server) -> None:
    assert explore(server, examples=3) > 30
    assert server.post("/generate", NORMAL["/generate"]).status_code == 200
    assert "Traceback" not in server.log


@pytest.mark.exhaustive
def test_many_made_up_requests_for_every_operation(server: Server) -> None:
    assert explore(server, examples=300) > 2000
    assert server.post("/generate", NORMAL["/generate"]).status_code == 200
    assert "Traceback" not in server.log
