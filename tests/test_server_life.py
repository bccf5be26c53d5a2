"""From start to end: loading, health from progress, disconnects in every phase, full queues, draining."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_http import connect, read_all, request
from servers import SOURCES, Server, slow_server

from tirage.cli import main
from tirage.server.launch import is_loopback

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 480, "ignore_eos": True}}
SHORT = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}


HEAVY = f"({'|'.join(f'[a-z]{{{n}}}x' for n in range(1, 90))}){{1,40}}"
"""A pattern that is tried in a process of its own before it is compiled."""


def soon(true: Callable[[], bool], *, within: float = 60.0) -> None:
    """Waits for something that has to become true; the bound is for a machine that is busy."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def busy(server: Server) -> float:
    return sum(server.metric(f"tirage_engine_{name}") for name in ("waiting", "reading", "running"))


def events(answer: httpx.Response) -> list[Any]:
    """The events of a stream, which ends with exactly one [DONE]."""
    texts = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert texts[-1] == "[DONE]"
    return [json.loads(text) for text in texts[:-1]]


class Background(threading.Thread):
    """A POST in a thread; `answer` once it is there."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._server, self._body = server, body
        self.answer: httpx.Response
        self.start()

    def run(self) -> None:
        with contextlib.suppress(httpx.TransportError):  # the server may end first
            self.answer = self._server.post("/generate", self._body)

    def done(self) -> httpx.Response:
        self.join(60)
        return self.answer


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file whose existence hangs the model."""
    return tmp_path_factory.mktemp("hang") / "hang"


@pytest.fixture(scope="module")
def slow(hang: Path) -> Iterator[Server]:
    """20 ms a step, two places, two more in the queue."""
    flags = ("--max-running", "2", "--max-queue", "2", "--health-timeout", "3", "--request-timeout", "120")
    with slow_server(*flags, hang=hang) as server:
        yield server


@pytest.fixture
def idle(slow: Server) -> Iterator[Server]:
    """The slow server, with nothing to do before and after."""
    soon(lambda: busy(slow) == 0)
    yield slow
    soon(lambda: busy(slow) == 0 and slow.metric("tirage_requests_in_flight") == 0)


# --- beginnings --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_loads_says_so_and_takes_no_requests(tmp_path: Path) -> None:
    load = tmp_path / "load"
    load.touch()
    with slow_server(load=load, step_s=0, wait=False) as server:
        assert (server.get("/health").status_code, server.get("/health").json()) == (503, {"status": "loading"})
        assert server.get("/ready").status_code == 503
        early = server.post("/tokenize", {"prompt": "a"})
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert server.get("/metrics").status_code == 200
        load.unlink()
        server.wait_until_ready()
        assert server.get("/ready").json()["status"] == "ready"
        assert server.post("/tokenize", {"prompt": "a"}).status_code == 200
        words = [line.split(" ")[1] for line in server.log.splitlines() if "kernels" not in line]
        assert [word for word in words if word in {"listening", "loading", "probing", "ready:"}] == [
            "listening",
            "loading",
            "probing",
            "ready:",
        ]


@pytest.mark.slow
def test_a_server_that_loads_can_be_ended(tmp_path: Path) -> None:
    load = tmp_path / "load"
    load.touch()
    with slow_server(load=load, wait=False) as server:
        soon(lambda: "loading" in server.log)
        assert server.stop() == 0


Ended = tuple[int, str]


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`tirage serve` with flags that it cannot begin with, in this process: its exit status and stderr."""

    def call(*flags: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["serve", *flags])
        return int(ended.value.code or 0), capsys.readouterr().err

    return call


def test_a_port_that_is_taken_is_an_error_that_names_the_flag(serve: Callable[..., Ended]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        status, said = serve("--port", str(taken.getsockname()[1]))
    assert status == 1
    assert said.startswith("error: 127.0.0.1:")
    assert "choose another --port" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "no-such-model"), "no-such-model"),
        (("--grammar-backend", "outlines"), "outlines"),
        (("--port", "70000"), "--port must be an integer in [0, 65535], got 70000"),
        (("--lora", "name"), "--lora must be NAME=PATH"),
        (("--media-root", "no/such/folder"), "--media-root must be a folder"),
        (("--chat-template", "no/such/file"), "--chat-template must be a file"),
        (("--max-n", "0"), "--max-n must be an integer in"),
    ],
)
def test_a_start_that_cannot_be_says_why(serve: Callable[..., Ended], flags: tuple[str, ...], words: str) -> None:
    status, said = serve(*flags)
    assert status in {1, 2}
    assert said.startswith("error: ")
    assert words in said


def test_an_unknown_sampling_class_of_fastdeploys_ends_the_start(
    serve: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FD_SAMPLING_CLASS", "unheard_of")
    status, said = serve()
    assert status == 2
    assert "FD_SAMPLING_CLASS must be one of base" in said


@pytest.mark.slow
def test_a_processor_that_cannot_be_loaded_ends_the_server_with_its_name() -> None:
    environ = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-m", "tirage", "serve", "--port", "0", "--logits-processor", "mine=no_such_module:x"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert ended.returncode == 1
    assert "logits processor 'mine' cannot be loaded from no_such_module:x" in ended.stderr


def test_without_the_extra_the_error_says_what_to_install(
    serve: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    status, said = serve()
    assert status == 1
    assert "pip install 'tirage[serve]'" in said


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_only_hosts_of_this_machine_are_safe_without_a_key(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


# --- health ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_health_is_503_while_the_loop_hangs_and_200_when_it_goes_on(idle: Server, hang: Path) -> None:
    hang.touch()
    try:
        waiting = Background(idle, SHORT)
        began = time.monotonic()
        soon(lambda: idle.get("/health").status_code == 503)
        assert time.monotonic() - began > 1.5
        assert idle.get("/health").json()["status"] == "stalled"
        assert idle.get("/ready").status_code == 503
    finally:
        hang.unlink()
    assert waiting.done().status_code == 200
    soon(lambda: idle.get("/health").status_code == 200)


@pytest.mark.slow
def test_health_stays_200_while_the_loop_is_busy(idle: Server) -> None:
    running = [
        Background(idle, {**LONG, "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}) for _ in range(3)
    ]
    while any(one.is_alive() for one in running):
        assert idle.get("/health").status_code == 200
        time.sleep(0.02)
    assert [one.done().status_code for one in running] == [200] * 3


def test_health_generate_draws_a_token(idle: Server) -> None:
    before = idle.metric("tirage_engine_output_tokens_total")
    assert idle.get("/health_generate").status_code == 200
    assert idle.metric("tirage_engine_output_tokens_total") == before + 1


# --- clients that leave ------------------------------------------------------------------------------------------


def leave_after(server: Server, body: dict[str, Any], true: Callable[[], bool]) -> None:
    """Sends a request and closes the connection once something holds."""
    with connect(server.port) as connection:
        connection.sendall(request("/generate", body))
        soon(true)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_tokens_come_ends_its_request(idle: Server, stream: bool) -> None:
    aborts = idle.metric('tirage_aborts_total{reason="disconnect"}')
    leave_after(idle, {**LONG, "stream": stream}, lambda: idle.metric("tirage_engine_running") == 1)
    soon(lambda: busy(idle) == 0)
    soon(lambda: idle.metric('tirage_aborts_total{reason="disconnect"}') == aborts + 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_ends_its_request(idle: Server, stream: bool) -> None:
    running = [Background(idle, {**LONG, "rid": "holder"}) for _ in range(2)]
    soon(lambda: idle.metric("tirage_engine_running") == 2)
    leave_after(idle, {**LONG, "stream": stream}, lambda: idle.metric("tirage_engine_waiting") == 1)
    soon(lambda: idle.metric("tirage_engine_waiting") == 0)
    assert idle.metric("tirage_engine_running") == 2
    assert idle.post("/abort_request", {"rid": "holder"}).json() == {"aborted": ["holder"], "not_found": []}
    assert [one.done().json()["meta_info"]["finish_reason"]["type"] for one in running] == ["abort", "abort"]


def test_a_client_that_leaves_while_a_grammar_is_compiled_leaves_nothing_running(idle: Server) -> None:
    before = idle.metric("tirage_engine_started_total")
    heavy = {"max_new_tokens": 480, "regex": HEAVY}
    leave_after(idle, {**LONG, "sampling_params": heavy}, lambda: idle.metric("tirage_requests_in_flight") >= 1)
    soon(lambda: idle.metric("tirage_requests_in_flight") == 0)
    assert idle.metric("tirage_engine_started_total") - before <= 1
    assert busy(idle) == 0


@pytest.mark.slow
def test_two_hundred_clients_that_leave_at_odd_moments_leave_nothing_behind(idle: Server) -> None:
    alone = idle.post(
        "/generate", {**SHORT, "sampling_params": {**SHORT["sampling_params"], "sampling_seed": 5}}
    ).json()
    for number in range(200):
        with connect(idle.port) as connection:
            whole = request("/generate", {**LONG, "stream": bool(number % 2)})
            connection.sendall(whole[: len(whole) - (number % 5 == 0)])
            if number % 3:
                time.sleep(0.001 * (number % 17))
    soon(lambda: busy(idle) == 0 and idle.metric("tirage_requests_in_flight") == 0)
    again = idle.post(
        "/generate", {**SHORT, "sampling_params": {**SHORT["sampling_params"], "sampling_seed": 5}}
    ).json()
    assert again["text"] == alone["text"]


# --- limits ------------------------------------------------------------------------------------------------------


def test_a_full_queue_is_a_503_with_a_time_to_come_back(idle: Server) -> None:
    held = [Background(idle, {**LONG, "rid": "held"}) for _ in range(4)]
    soon(lambda: (idle.metric("tirage_engine_running"), idle.metric("tirage_engine_waiting")) == (2, 2))
    refused = idle.post("/generate", SHORT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert idle.get("/ready").json()["status"] == "full"
    assert idle.get("/health").status_code == 200
    idle.post("/abort_request", {"rid": "held"})
    assert [one.done().status_code for one in held] == [200] * 4
    assert idle.post("/generate", SHORT).status_code == 200


def test_abort_needs_the_exact_name(idle: Server) -> None:
    jobs = {name: Background(idle, {**LONG, "rid": name}) for name in ("job1", "job10")}
    soon(lambda: idle.metric("tirage_engine_running") == 2)
    answer = idle.post("/abort_request", {"rid": ["job1", "job", "", "none"][:2]}).json()
    assert answer == {"aborted": ["job1"], "not_found": ["job"]}
    assert jobs["job1"].done().json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert jobs["job10"].is_alive()
    assert idle.post("/abort_request", {"rid": "job10"}).json()["aborted"] == ["job10"]
    assert jobs["job10"].done().status_code == 200
    for wrong in (
        {},
        {"rid": ""},
        {"rid": []},
        {"rid": 5},
        {"rid": "a" * 129},
        {"rid": "a", "abort_all": "yes"},
        {"rib": "a"},
    ):
        assert idle.post("/abort_request", wrong).status_code == 400


def test_keys_do_not_abort_each_others_requests(idle: Server) -> None:
    headers = {"authorization": "Bearer mine"}
    mine = threading.Thread(
        target=lambda: idle.post("/generate", {**LONG, "rid": "same"}, headers=headers), daemon=True
    )
    mine.start()
    soon(lambda: idle.metric("tirage_engine_running") == 1)
    for other in ({}, {"authorization": "Bearer other"}):
        assert idle.post("/abort_request", {"rid": "same"}, headers=other).json()["not_found"] == ["same"]
    assert idle.metric("tirage_engine_running") == 1
    assert idle.post("/abort_request", {"rid": "same"}, headers=headers).json()["aborted"] == ["same"]
    mine.join(60)


@pytest.mark.slow
def test_a_request_that_takes_too_long_is_ended() -> None:
    with slow_server("--request-timeout", "1") as server:
        late = server.post("/generate", LONG)
        assert late.status_code == 504
        assert "--request-timeout" in late.json()["error"]["message"]
        with httpx.stream("POST", f"{server.url}/generate", json={**LONG, "stream": True}, timeout=60) as answer:
            last = events(answer)[-1]["meta_info"]
        assert last["finish_reason"]["type"] == "abort"
        assert 0 < last["completion_tokens"] < 480
        soon(lambda: server.metric('tirage_aborts_total{reason="timeout"}') == 2)


STALLING = {
    "text": ["Once upon a time"] * 4,
    "sampling_params": LONG["sampling_params"],
    "return_logprob": True,
    "top_logprobs_num": 20,
    "stream": True,
}
"""Megabytes of events: more than the system's own buffers hold."""


@pytest.mark.slow
def test_a_reader_that_stops_reading_is_cut_off_and_holds_nobody_up() -> None:
    with (
        slow_server("--stall-timeout", "1", "--max-chars-per-token", "10000", step_s=0) as server,
        connect(server.port, receive_buffer=4096) as stream,
        connect(server.port, receive_buffer=4096) as plain,
    ):
        stream.sendall(request("/generate", STALLING))
        plain.sendall(request("/tokenize", {"prompt": "a b " * 750_000}))
        soon(lambda: busy(server) > 0)
        assert server.post("/generate", SHORT).status_code == 200
        soon(lambda: server.metric("tirage_engine_aborted_total") == 4, within=60)
        soon(lambda: server.metric("tirage_requests_in_flight") == 0)
        soon(lambda: server.log.count("stopped reading") == 2, within=60)
        assert not read_all(stream).endswith(b"0\r\n\r\n")
        head, _, body = read_all(plain).partition(b"\r\n\r\n")
        assert len(body) < int(re.findall(rb"content-length: (\d+)", head)[0])


# --- ends --------------------------------------------------------------------------------------------------------


def reachable(port: int) -> bool:
    """Whether anybody listens there."""
    try:
        connect(port).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("stream", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_signal_lets_requests_finish_and_takes_no_more(stream: bool) -> None:
    body = {**LONG, "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}, "stream": stream}
    with slow_server() as server:
        running = Background(server, body)
        soon(lambda: server.metric("tirage_engine_running") == 1)
        server.send(signal.SIGTERM)
        soon(lambda: "draining" in server.log and not reachable(server.port))
        with pytest.raises(httpx.TransportError):
            server.post("/generate", SHORT)
        answer = running.done()
        last = events(answer)[-1] if stream else answer.json()
        assert last["meta_info"]["completion_tokens"] == 150
        assert last["meta_info"]["finish_reason"]["type"] == "length"
        assert server.ended() == 0
        with pytest.raises(OSError):
            connect(server.port)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_outlast_the_draining_end_with_abort(stream: bool) -> None:
    with slow_server("--drain-timeout", "0.5") as server:
        running = Background(server, {**LONG, "stream": stream})
        soon(lambda: server.metric("tirage_engine_running") == 1)
        server.send(signal.SIGTERM)
        answer = running.done()
        last = events(answer)[-1] if stream else answer.json()
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert server.ended() == 0


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_server_at_once(second: signal.Signals) -> None:
    with slow_server() as server:
        Background(server, LONG)
        soon(lambda: server.metric("tirage_engine_running") == 1)
        server.send(signal.SIGTERM)
        soon(lambda: "draining" in server.log)
        server.send(second)
        assert server.ended() == 128 + second


@pytest.mark.slow
def test_a_loop_that_hangs_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    with slow_server("--drain-timeout", "0.2", hang=hang) as server:
        hang.touch()
        waiting = Background(server, LONG)
        soon(lambda: busy(server) == 1)
        server.send(signal.SIGTERM)
        answer = waiting.done()
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the server is closing")
        assert server.ended() == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are listed in /proc")
def test_a_server_that_has_ended_leaves_no_process_behind() -> None:
    with Server("tiny") as server:
        regex = {"max_new_tokens": 4, "regex": HEAVY}
        assert server.post("/generate", {**LONG, "sampling_params": regex}).status_code in {200, 400}
        children = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        threads = Path(f"/proc/{server.pid}/task").iterdir()
        children += [int(pid) for one in threads for pid in (one / "children").read_text().split()]
        assert children
        assert server.stop() == 0
        soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
