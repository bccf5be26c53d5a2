"""Clients that leave in every phase of a request: it ends soon, once, and nothing of it stays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_http import connect, request
from servers import Server, slow_server

TOKENS = 480
LONG: dict[str, Any] = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True}}
COMPILING = f"({'|'.join(f'[a-z]{{{n}}}x' for n in range(1, 90))}){{1,40}}"
TIMES = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """20 ms a step, one place: a whole request takes ten seconds."""
    with slow_server("--max-running", "1") as running:
        running.post("/generate", {**LONG, "sampling_params": {"max_new_tokens": 2, "regex": COMPILING}})
        yield running


def soon(true: Callable[[], bool]) -> None:
    """Waits for something that has to become true; the bound is for a machine that is busy."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held(server: Server) -> int:
    """Open files of the server, connections among them."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def at_rest(server: Server) -> dict[str, float]:
    """The numbers when nothing is in flight."""
    names = ("tirage_requests_in_flight", *(f"tirage_engine_{name}" for name in ("waiting", "reading", "running")))
    soon(lambda: not any(server.metric(name) for name in names))
    return server.metrics()


def leave(server: Server, data: bytes, true: Callable[[], bool]) -> None:
    with connect(server.port) as connection:
        connection.sendall(data)
        soon(true)


def running(server: Server) -> bool:
    return server.metric("tirage_engine_running") == 1


PHASES: dict[str, tuple[Callable[[], bytes], Callable[[Server], Callable[[], bool]]]] = {
    "half a head": (lambda: request("/generate", LONG)[:40], lambda server: lambda: True),
    "half a body": (lambda: request("/generate", LONG)[:-9], lambda server: lambda: True),
    "tokens of a stream": (
        lambda: request("/generate", {**LONG, "stream": True}), lambda server: lambda: running(server)
    ),
    "tokens of a batch": (
        lambda: request("/generate", {**LONG, "text": ["a", "b"]}), lambda server: lambda: running(server)
    ),
    "tokens of a chat": (
        lambda: request("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell"}], "max_tokens": 400, "ignore_eos": True,
        }),
        lambda server: lambda: running(server),
    ),
}  # fmt: skip
PROMPTS = {"half a head": 0, "half a body": 0, "tokens of a batch": 2}
"""How many prompts were taken in each phase, when not one."""


@pytest.mark.parametrize("phase", PHASES)
def test_what_a_client_leaves_behind_ends_once_and_soon(server: Server, phase: str) -> None:
    data, true = PHASES[phase]
    leave(server, data(), true(server))
    before = after = at_rest(server)
    files = held(server)
    for _ in range(TIMES):
        leave(server, data(), true(server))
        after = at_rest(server)
    prompts = PROMPTS.get(phase, 1) * TIMES
    for name in ('tirage_aborts_total{reason="disconnect"}', "tirage_engine_aborted_total"):
        assert after.get(name, 0) - before.get(name, 0) == prompts
    assert after["tirage_engine_completed_total"] == before["tirage_engine_completed_total"]
    drawn = after["tirage_engine_output_tokens_total"] - before["tirage_engine_output_tokens_total"]
    assert drawn <= prompts * TOKENS / 3
    soon(lambda: held(server) <= files)


def test_a_client_that_leaves_the_queue_never_gets_a_place(server: Server) -> None:
    before = at_rest(server)
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(connect(server.port))
        holder.sendall(request("/generate", LONG))
        soon(lambda: running(server))
        for _ in range(TIMES):
            leave(server, request("/generate", LONG), lambda: server.metric("tirage_engine_waiting") == 1)
            soon(lambda: server.metric("tirage_engine_waiting") == 0)
        assert server.metric("tirage_engine_started_total") - before["tirage_engine_started_total"] == 1
    after = at_rest(server)
    name = 'tirage_aborts_total{reason="disconnect"}'
    assert after[name] - before.get(name, 0) == TIMES + 1


def test_a_client_that_leaves_while_a_constraint_is_compiled_starts_nothing(server: Server) -> None:
    before = at_rest(server)
    for number in range(TIMES):
        body = {**LONG, "sampling_params": {"max_new_tokens": TOKENS, "regex": f"{COMPILING}{number}"}}
        leave(server, request("/generate", body), lambda: server.metric("tirage_requests_in_flight") >= 1)
    after = at_rest(server)
    drawn = after["tirage_engine_output_tokens_total"] - before["tirage_engine_output_tokens_total"]
    assert drawn < TIMES * TOKENS / 3
    assert after["tirage_engine_completed_total"] == before["tirage_engine_completed_total"]
