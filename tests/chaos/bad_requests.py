"""Requests that no client means: made by the thousand from sound ones, from HTTP down to single values."""

from __future__ import annotations

import contextlib
import json
import math
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from chaos.neighbour import Watch
from hostile import NORMAL, ROUTES, VALUES, fields_of, with_value
from raw_http import connect, read_all, request, status_of
from servers import Server

HANG_S = 5.0
MEANT_5XX = {503}
_PATHS = (*ROUTES, "/tokenize", "/detokenize", "/abort_request", "/flush_cache", "/health", "/v1/models", "/metrics")
_HEADS = (
    "Content-Length: -1", "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip",
    "Content-Type: text/plain", "Host: evil.example", "Origin: https://evil.example", "Expect: 100-continue",
    "X-Request-Id: " + "a" * 9000, "Authorization: Bearer x", "Content-Encoding: gzip", "Upgrade: websocket",
    "x-tirage-unknown-fields: ignore", "X: \x00", "A" * 70000 + ": b",
)  # fmt: skip

Random = random.Random


def wrong_value(choose: Random) -> bytes:
    """A sound body with one field, or two, set to some value."""
    route = choose.choice(ROUTES)
    fields = fields_of(route)
    body = with_value(route, choose.choice(fields), choose.choice(VALUES))
    if choose.random() < 0.3:
        body |= {choose.choice(fields).rpartition(".")[2]: choose.choice(VALUES)}
    return request(route, body)


def odd_json(choose: Random) -> bytes:
    """A sound body with some bytes changed, left out, repeated or put in, of any length that is told."""
    route = choose.choice(ROUTES)
    data = bytearray(json.dumps(NORMAL[route]).encode())
    for _ in range(choose.randint(1, 6)):
        at = choose.randrange(len(data) + 1)
        piece = choose.choice((
            b"",
            b'"',
            b"{",
            b"[",
            b"]",
            b",",
            b"\\u",
            b"\xff",
            b"1e999",
            b"[" * 100,
            b"null",
            b"\0",
        ))
        data[at : at + choose.randint(0, 4)] = piece
    head = request(route, None, headers=["Content-Type: application/json"])
    return head.replace(b"Content-Length: 0", f"Content-Length: {len(data)}".encode()) + bytes(data)


def odd_http(choose: Random) -> bytes:
    """A request with a method, path or header that is not what it should be, or bytes that are no HTTP at all."""
    method = choose.choice(("POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "G\0T", "", "post"))
    path = choose.choice((
        *_PATHS,
        "/",
        "//",
        "/../etc",
        "/%00",
        "*",
        "http://x/",
        "/v1/models/" + "a" * 3000,
        "/?" + "a=b&" * 99,
    ))
    made = request(path, choose.choice((None, *NORMAL.values())), method=method, headers=[choose.choice(_HEADS)])
    kind = choose.random()
    if kind < 0.2:
        return made[: choose.randrange(1, len(made))]
    if kind < 0.3:
        return bytes(choose.randrange(256) for _ in range(choose.randint(1, 300)))
    return made.replace(b"HTTP/1.1", choose.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/9.9", b"HTTP/1.0")), 1)


KINDS: tuple[Callable[[Random], bytes], ...] = (wrong_value, wrong_value, odd_json, odd_http)


def ask(port: int, data: bytes, *, whole: bool) -> int:
    """The status of the answer to some bytes, 0 when there is none; after what is not `whole` nothing will follow."""
    with connect(port) as connection:
        with contextlib.suppress(OSError):  # it may close before all is sent
            connection.sendall(data)
            if not whole:
                connection.shutdown(socket.SHUT_WR)
        return status_of(read_all(connection))


def bad_requests(
    *, count: int = 100_000, seed: int = 0, clients: int = 4, clock: str = "wall", minutes: float = math.inf
) -> dict[str, Any]:
    """So many bad requests: none ends the server, hangs it for over 5 s, or gets a 5xx but the 503 that is meant.

    There are fewer when so many `minutes` are over.
    """
    statuses: Counter[int] = Counter()
    failures: list[str] = []
    longest = [0.0]
    with Server("tiny") as server:
        over = time.monotonic() + 60 * minutes

        def work(first: int) -> None:
            watch = Watch(server.pid)
            for number in range(first, count, clients):
                if time.monotonic() > over:
                    return
                choose = random.Random(seed * count + number)
                kind = choose.choice(KINDS)
                data = kind(choose)
                began = watch.read()
                try:
                    status = ask(server.port, data, whole=kind is not odd_http)
                except OSError as error:
                    failures.append(f"request {number}: {type(error).__name__}")
                    continue
                waits = [after - before for after, before in zip(watch.read(), began, strict=True)]
                took = min(waits) if clock == "spent" else waits[0]
                statuses[status] += 1
                longest[0] = max(longest[0], took)
                if took > HANG_S or (status >= 500 and status not in MEANT_5XX):
                    failures.append(f"request {number}: {status} after {took:.1f} s: {data[:300]!r}")

        threads = [threading.Thread(target=work, args=(first,)) for first in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failures += [] if server.process.poll() is None else ["the server has ended"]
        failures += ["a traceback in the log"] if "Traceback" in server.log else []
        time.sleep(0.5)
        alive = server.post("/generate", NORMAL["/generate"]).status_code
    failures += [] if alive == 200 else [f"status {alive} afterwards"]
    told = {str(status): number for status, number in sorted(statuses.items())}
    row = {"case": "bad requests", "requests": statuses.total(), "seed": seed, "statuses": told}
    return {**row, "longest_s": round(longest[0], 2), "failures": failures[:20]}
