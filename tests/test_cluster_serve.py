"""What replicas and proxies of Ray Serve do, as far as it needs no Ray; tests/engines/ray runs it on a real cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from tirage import ParamsError, TirageError
from tirage.cli.ray_options import given_for_ray
from tirage.cluster.deployment import check_delays, check_replicas, checked, share_of
from tirage.cluster.every_replica import Answered, EveryReplica, aborted, answered, page
from tirage.cluster.proxy import ProxyAnswers
from tirage.cluster.ray_cluster import located, require_ray
from tirage.server.options import Options


def scope(path: str = "/generate", method: str = "POST") -> Scope:
    return {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}


async def receive() -> Message:
    return {"type": "http.request", "body": b"{}", "more_body": False}


def ask(app: Any, path: str = "/generate") -> tuple[Answered, list[Message]]:
    """The answer of an application, and the messages that it came in."""
    messages: list[Message] = []

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        async def keep(message: Message) -> None:
            messages.append(message)
            await send(message)

        await app(scope, receive, keep)

    return asyncio.run(answered(told, scope(path), receive)), messages


def sending(*messages: Mapping[str, Any]) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(dict(message))

    return app


def begins(kind: bytes) -> Mapping[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


def part(body: bytes, *, more: bool = True) -> Mapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def test_a_proxy_ends_a_stream_that_its_replica_left() -> None:
    app = ProxyAnswers(sending(begins(b"text/event-stream"), part(b"data: {}\n\n")))
    found, messages = ask(app)
    first, last, done, rest = found.body.split(b"\n\n")
    assert (first, done, rest) == (b"data: {}", b"data: [DONE]", b"")
    assert json.loads(last[6:])["error"]["code"] == "replica_ended"
    assert messages[-1]["more_body"] is False


def test_a_proxy_ends_a_stream_of_anthropics_in_its_form() -> None:
    app = ProxyAnswers(sending(begins(b"text/event-stream"), part(b"event: ping\ndata: {}\n\n")))
    name, data = ask(app, "/v1/messages")[0].body.removesuffix(b"\n\n").split(b"\n\n")[1].split(b"\n")
    assert name == b"event: error"
    assert json.loads(data[6:])["error"]["type"] == "overloaded_error"


def test_a_proxy_answers_for_a_replica_that_ended_before_it_did() -> None:
    found, _ = ask(ProxyAnswers(sending()))
    assert (found.status, json.loads(found.body)["error"]["code"]) == (503, "replica_ended")
    assert dict(found.headers)[b"retry-after"] == b"1"


def test_a_proxy_puts_a_refusal_of_serve_into_our_form() -> None:
    found, _ = ask(ProxyAnswers(PlainTextResponse("Request dropped due to backpressure", 503)))
    assert json.loads(found.body)["error"]["message"] == "Request dropped due to backpressure"
    assert dict(found.headers)[b"retry-after"] == b"1"


@pytest.mark.parametrize("answer", [PlainTextResponse("metrics"), JSONResponse({"error": 1}, 503), JSONResponse([])])
def test_a_proxy_leaves_whole_answers_as_they_are(answer: Any) -> None:
    assert ask(ProxyAnswers(answer)) == ask(answer)


def test_a_proxy_does_not_add_to_a_json_answer_that_was_cut() -> None:
    app = ProxyAnswers(sending(begins(b"application/json"), part(b"[")))
    assert ask(app)[0].body == b"["


def test_a_proxy_leaves_serves_own_routes_alone() -> None:
    found, _ = ask(ProxyAnswers(PlainTextResponse("unhealthy", 503)), "/-/healthz")
    assert found.body == b"unhealthy"


PAGE = """# HELP tirage_samples_total samples that have finished
# TYPE tirage_samples_total counter
tirage_samples_total{{reason="stop"}} {}
# HELP tirage_engine_running samples
# TYPE tirage_engine_running gauge
tirage_engine_running 0.0
"""


def test_metrics_of_replicas_are_one_page() -> None:
    lines = page({"a": PAGE.format("1.0"), "b": PAGE.format("2.0")}).decode().splitlines()
    assert 'tirage_samples_total{reason="stop",replica="a"} 1.0' in lines
    assert 'tirage_samples_total{reason="stop",replica="b"} 2.0' in lines
    assert 'tirage_engine_running{replica="b"} 0.0' in lines
    assert sum(line.startswith("# TYPE") for line in lines) == 2


def test_what_any_replica_had_is_aborted() -> None:
    bodies = [b'{"aborted": [], "not_found": ["x", "y"]}', b'{"aborted": ["y"], "not_found": ["x"]}']
    assert json.loads(aborted(bodies)) == {"aborted": ["y"], "not_found": ["x"]}


class Handle:
    """A deployment's handle, with the answers of its replicas."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), []

    def broadcast(self, method: str, request: Any) -> Handle:
        self.asked.append((method, request.body))
        return self

    async def results_async(self, **_: object) -> list[object]:
        return self.answers


def test_a_request_that_concerns_every_replica_goes_to_all_unless_it_is_refused() -> None:
    ok, bad = Answered(200, (), b'{"success":true}'), Answered(503, (), b"{}")
    handle = Handle(("a", ok), RuntimeError("it has ended"))
    assert ask(EveryReplica(JSONResponse({"success": True}), handle), "/flush_cache")[0].body == b'{"success":true}'
    assert len(handle.asked) == 1
    assert ask(EveryReplica(JSONResponse({}), Handle(("a", ok), ("b", bad))), "/flush_cache")[0].status == 503
    refusing = Handle()
    assert ask(EveryReplica(JSONResponse({}, 401), refusing), "/flush_cache")[0].status == 401
    assert refusing.asked == []


def test_a_replica_leaves_the_id_of_the_request_to_the_proxy() -> None:
    app = JSONResponse({}, headers={"x-request-id": "1"})
    for path in ("/generate", "/flush_cache"):
        assert b"x-request-id" not in dict(ask(EveryReplica(app, Handle()), path)[0].headers)


def test_limits_per_minute_are_shared_by_the_replicas() -> None:
    options = share_of(Options(requests_per_minute=7, tokens_per_minute=1000), 3)
    assert (options.requests_per_minute, options.tokens_per_minute) == (2, 333)
    assert share_of(Options(), 3) == Options()
    with pytest.raises(ParamsError, match="--requests-per-minute must be at least the number of replicas, 3, got 2"):
        share_of(Options(requests_per_minute=2), 3)


def test_numbers_of_replicas_are_checked() -> None:
    assert (check_replicas(2, None), check_replicas(1, 4)) == (2, 4)
    for wrong in ((0, None), (2, 1), (True, None)):
        with pytest.raises(ParamsError, match="replicas must be an integer of at least"):
            check_replicas(*wrong)


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan"), 10**400, True, "5"])
def test_delays_of_replicas_are_checked(wrong: Any) -> None:
    assert check_delays(upscale_delay_s=0, downscale_delay_s=5.5) == {"upscale_delay_s": 0, "downscale_delay_s": 5.5}
    with pytest.raises(ParamsError, match="downscale_delay_s must be a number of seconds of at least 0, got "):
        check_delays(downscale_delay_s=wrong)


def test_settings_of_the_socket_are_refused_by_name() -> None:
    assert checked("tiny", {"max_running": 3}).limits.max_running == 3
    with pytest.raises(ParamsError, match="--stall-timeout must be left out with Ray"):
        checked("tiny", {"stall_timeout": 3.0})


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TirageError, match=r"Ray needs the package 'ray'; run: pip install 'tirage\[ray\]'"):
        require_ray()


def test_options_of_a_cluster_ask_for_one() -> None:
    assert given_for_ray(False, address=None, workers=None) is None
    assert given_for_ray(True, address=None, workers=3) == {"workers": 3}
    assert given_for_ray(False, address="auto", workers=None) == {"address": "auto"}
    with pytest.raises(ParamsError, match="--num-gpus must come with --ray"):
        given_for_ray(False, address=None, num_gpus=1.0)


def test_a_folder_is_found_from_other_working_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert (located("model"), located("tiny")) == (str(tmp_path / "model"), "tiny")


@pytest.mark.slow
def test_options_of_a_cluster_need_ray() -> None:
    command = [sys.executable, "-m", "tirage", "serve", "--replicas", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --replicas must come with --ray\n"
