"""Connections as odd clients use them: several requests ahead, other protocols, trailers, long silence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from raw_http import connect, exchange, read_all, request, status_of
from servers import Server, slow_server

LONG: dict[str, Any] = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 480, "ignore_eos": True}}
SHORT = {"text": "Once", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True, "sampling_seed": 1}}
CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
)
BODY = b'e\r\n{"prompt":"a"}\r\n'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """20 ms a step; a head may take 1 s, and a connection be idle for 2 s."""
    with slow_server("--header-timeout", "1", "--keep-alive", "2", "--body-timeout", "2") as running:
        yield running


def kept(path: str, body: Any = None, **options: Any) -> bytes:
    """A request after which the connection stays open."""
    return request(path, body, **options).replace(b"Connection: close\r\n", b"")


CHUNKS = {
    "no size": (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY, 400),
    "a negative size": (b"Transfer-Encoding: chunked\r\n\r\n-5\r\n" + BODY, 400),
    "a size beyond 64 bits": (b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n" + BODY, 400),
    "a wrong size after a chunk": (b"Transfer-Encoding: chunked\r\n\r\n" + BODY + b"xx\r\n", 400),
    "an unknown coding": (b"Transfer-Encoding: foo\r\n\r\n" + BODY, 501),
    "a coding before the chunks": (b"Transfer-Encoding: gzip, chunked\r\n\r\n" + BODY + b"0\r\n\r\n", 501),
    "two codings": (b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY + b"0\r\n\r\n", 501),
    "chunks and a length": (b"Transfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_body_that_cannot_be_read_is_answered_with_the_envelope(server: Server, name: str) -> None:
    head, _, _ = CHUNKED.partition(b"Transfer-Encoding")
    data, status = CHUNKS[name]
    answer = exchange(server.port, head + data)
    assert status_of(answer) == status
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    if status == 501:
        assert b"Transfer-Encoding must be chunked, got" in answer


@pytest.mark.parametrize("more", ["", "Connection: keep-alive\r\n"])
def test_an_answer_to_http_1_0_has_no_chunks(server: Server, more: str) -> None:
    def ask(path: str, body: Any) -> tuple[bytes, bytes]:
        data = request(path, body).replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Connection: close\r\n", more.encode())
        head, _, rest = exchange(server.port, data).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding" not in head
        # Of older releases of uvicorn the end of the answer is the only sign.
        assert b"connection: close" in head or "TIRAGE_OLDEST" in os.environ
        return head, rest

    head, events = ask("/generate", {**SHORT, "stream": True})
    assert b"content-length" not in head
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")
    head, answer = ask("/generate", SHORT)
    assert b"content-length: %d" % len(answer) in head
    assert json.loads(answer)["text"] == json.loads(events.split(b"\n\n")[-3].removeprefix(b"data: "))["text"]


def test_an_answer_to_http_1_1_has_chunks_where_its_length_is_not_known(server: Server) -> None:
    head, _, rest = exchange(server.port, request("/generate", {**SHORT, "stream": True})).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert rest.endswith(b"0\r\n\r\n")


def wait_for_metric(server: Server, name: str, value: float) -> None:
    deadline = time.monotonic() + 60
    while server.metric(name) != value:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_running(server: Server, count: int) -> None:
    wait_for_metric(server, "tirage_engine_running", count)


def test_requests_sent_ahead_are_answered_in_order(server: Server) -> None:
    parts = [kept("/generate", SHORT), kept("/tokenize", {"prompt": "a"}), request("/version", method="GET")]
    answer = exchange(server.port, b"".join(parts))
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b'"meta_info"') < answer.index(b'"tokens"') < answer.rindex(b'"version":"')


INVALID = {
    "no request": (b"\x00\xffgarbage\r\n\r\n", 400),
    "a body that cannot be read": (CHUNKED + b"\r\n" + b"zz\r\n" + BODY, 400),
    "an unknown coding": (CHUNKED.replace(b"chunked", b"foo") + b"\r\n" + BODY, 501),
    "too large a head": (b"GET / HTTP/1.1\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n", 431),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", INVALID)
def test_requests_before_an_invalid_one_are_answered_before_it_is_refused(
    server: Server, name: str, stream: bool
) -> None:
    data, status = INVALID[name]
    before = kept("/generate", {**SHORT, "stream": stream}), kept("/tokenize", {"prompt": "a"})
    answers = exchange(server.port, b"".join(before) + data, b"and what comes later", pause_s=0.02)
    generated, tokenized, refused = answers.split(b"HTTP/1.1 ")[1:]
    assert generated.startswith(b"200 OK")
    assert b'"length"' in generated
    assert generated.endswith(b"0\r\n\r\n" if stream else b"}")
    assert tokenized.startswith(b"200 OK")
    assert refused.startswith(b"%d " % status)
    assert b"connection: close" in refused


def test_a_client_that_goes_on_sending_after_an_invalid_request_is_answered_and_takes_no_memory(server: Server) -> None:
    with connect(server.port) as connection:
        connection.sendall(kept("/generate", {**LONG, "stream": True}) + INVALID["no request"][0])
        connection.settimeout(1)
        sent = 0
        try:
            while sent < 64 << 20:
                connection.sendall(b"a" * 65536)
                sent += 65536
        except (ConnectionError, TimeoutError):
            pass
        # What the system's own buffers hold was taken by nobody.
        assert sent < 32 << 20


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_sent_an_invalid_request_and_leaves_ends_the_one_before(server: Server, stream: bool) -> None:
    wait_for_running(server, 0)
    aborted = server.metrics()["tirage_engine_aborted_total"]
    with connect(server.port) as connection:
        connection.sendall(kept("/generate", {**LONG, "stream": stream}) + INVALID["no request"][0])
        wait_for_running(server, 1)
    wait_for_running(server, 0)
    assert server.metrics()["tirage_engine_aborted_total"] - aborted == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_sent_ahead_and_leaves_ends_its_request(server: Server, stream: bool) -> None:
    before = server.metrics()
    with connect(server.port) as connection:
        connection.sendall(kept("/generate", {**LONG, "stream": stream}) + kept("/generate", SHORT))
        wait_for_running(server, 1)
    wait_for_running(server, 0)
    after = server.metrics()
    drawn = after["tirage_engine_output_tokens_total"] - before["tirage_engine_output_tokens_total"]
    assert drawn < 240
    assert after["tirage_engine_aborted_total"] - before["tirage_engine_aborted_total"] == 1
    assert "Traceback" not in server.log


def counted(server: Server, status: int) -> float:
    """The requests that ended with a status."""
    return sum(value for name, value in server.metrics().items() if f'status="{status}"' in name and "_total" in name)


@pytest.mark.slow
def test_a_client_that_leaves_after_a_large_body_ends_its_preparation(server: Server) -> None:
    members = {f"p{i}": {"type": "string", "pattern": f"^(a|b)*a(a|b){{9}}{i}$", "minLength": 3} for i in range(1600)}
    members["last"] = {"type": "integer", "multipleOf": 10**7 + 3}
    schema = json.dumps({"type": "object", "properties": members})
    before = counted(server, 499), counted(server, 400)
    with connect(server.port) as connection:
        connection.sendall(request("/generate", {**LONG, "sampling_params": {"json_schema": schema}}))
        wait_for_metric(server, "tirage_requests_in_flight", 1)
    wait_for_metric(server, "tirage_requests_in_flight", 0)
    # Read to its end, this schema is refused.
    assert (counted(server, 499) - before[0], counted(server, 400) - before[1]) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB"],
        ["upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Key: a", "Sec-WebSocket-Version: 13"],
    ],
)  # fmt: skip
def test_a_wish_for_another_protocol_is_ignored_and_the_body_read(server: Server, headers: list[str]) -> None:
    plain = kept("/tokenize", {"prompt": "\r\nUpgrade: a"}, headers=headers)
    with connect(server.port) as connection:
        connection.sendall(plain)
        answer = read_all(connection)
    assert status_of(answer) == 200
    same = server.post("/tokenize", {"prompt": "\r\nUpgrade: a"}).json()
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == same


def test_what_follows_a_body_is_no_header(server: Server) -> None:
    end = b"0\r\nX-Request-Id: trailed\r\nContent-Encoding: gzip\r\nX-Tirage-Unknown-Fields: ignore\r\n\r\n"
    answer = exchange(server.port, CHUNKED + b"Connection: close\r\n\r\n" + BODY + end)
    assert status_of(answer) == 200
    assert b"trailed" not in answer


@pytest.mark.parametrize("part", [b"X-A: ", b"1;a="], ids=["trailer", "chunk extension"])
def test_bytes_of_no_use_after_a_head_are_not_taken_for_ever(server: Server, part: bytes) -> None:
    start = CHUNKED + b"\r\n" + BODY + (b"0\r\n" if part.startswith(b"X") else b"") + part
    with connect(server.port) as connection:
        connection.sendall(start)
        sent = 0
        try:
            while sent < 64 << 20:
                connection.sendall(b"a" * 65536)
                sent += 65536
        except ConnectionError:
            pass
        # What the system's own buffers hold was taken by nobody.
        assert sent < 32 << 20
    assert server.get("/health").status_code == 200


@pytest.mark.slow
def test_an_idle_connection_is_not_told_that_it_is_slow(server: Server) -> None:
    with connect(server.port) as connection:
        connection.sendall(kept("/generate", SHORT))
        first = connection.recv(1 << 20)
        assert status_of(first) == 200
        rest = read_all(connection)
    assert (first + rest).count(b"HTTP/1.1") == 1


def test_a_second_head_that_does_not_come_is_given_up(server: Server) -> None:
    with connect(server.port) as connection:
        connection.sendall(kept("/version", method="GET"))
        assert status_of(connection.recv(65536)) == 200
        connection.sendall(b"GET /heal")
        began = time.monotonic()
        assert b"HTTP/1.1 408" in read_all(connection)
        assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_body_that_nobody_reads_does_not_hold_a_connection(server: Server) -> None:
    began = time.monotonic()
    with connect(server.port) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert status_of(connection.recv(65536)) == 200
        connection.settimeout(0.2)
        while time.monotonic() - began < 30:
            try:
                connection.sendall(b"a")
                if not connection.recv(65536):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("the connection is still open")


@pytest.mark.slow
def test_a_body_that_comes_after_its_answer_does_not_end_the_connection(server: Server) -> None:
    with connect(server.port) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n")
        assert status_of(connection.recv(65536)) == 200
        connection.sendall(b"late" + request("/version", method="GET"))
        assert b"HTTP/1.1 200 OK" in read_all(connection)
