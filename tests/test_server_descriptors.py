"""A server with few descriptors: idle connections make room, and health can always be asked."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from raw_http import connect
from servers import Server

from tirage.server.descriptors import RESERVE, most_connections, raised_limit

HARD = 640
SHORT = {"text": "Once", "sampling_params": {"max_new_tokens": 2}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("tiny", "--max-connections", "4096", descriptors=HARD) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_more_idle_connections_than_descriptors_keep_nobody_out(server: Server, sent: bytes) -> None:
    with ExitStack() as stack:
        for index in range(2 * HARD):
            connection = stack.enter_context(connect(server.port))
            with suppress(ConnectionError):
                connection.sendall(sent)
            if index % 100 == 0 or index > 2 * HARD - 5:
                assert server.get("/health", timeout=10).status_code == 200
        assert server.post("/generate", SHORT).status_code == 200
    said = [line for line in server.log.splitlines() if "connections" in line]
    assert len(said) == 2
    assert f"at most {HARD - RESERVE} connections can be open and not 4096 (--max-connections)" in said[0]
    assert f"{HARD - RESERVE} connections are open, and no more may be; those without a request are closed" in said[1]
    assert "Too many open files" not in server.log


@pytest.mark.slow
def test_a_stream_is_not_closed_for_connections_without_a_request(server: Server) -> None:
    body = {"text": "Once", "stream": True, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    with ExitStack() as stack, server._client.stream("POST", f"{server.url}/generate", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        for _ in range(2 * HARD):
            stack.enter_context(connect(server.port))
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_number_that_fits_is_kept_and_the_soft_limit_raised_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: given.append(pair))
    assert most_connections(2000) == 2000
    assert most_connections(5000) == 4096 - RESERVE
    assert raised_limit(100) == 1024
    assert given == [(2000 + RESERVE, 4096), (4096, 4096)]


def test_where_the_limit_may_not_be_raised_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert most_connections(4096) == 50


def test_no_limit_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert most_connections(1 << 20) == 1 << 20
