"""Who may ask, from where, and in what form: keys, Host, Origin, types, and bytes that are no HTTP."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import httpx
import pytest
from raw_http import connect, exchange, read_all, request, status_of
from servers import Server, shared

KEYED = ("tiny", "--api-key", "sesame", "--api-key", "opens", "--admin-key", "chief")
TEXT = {"prompt": "hello"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def routes(server: Server, key: str = "chief") -> list[tuple[str, str]]:
    """Every method and path of a server, from its own description and a few that are not in it."""
    paths = server.get("/openapi.json", headers=bearer(key)).json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [
        *found,
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/"),
        ("GET", "/playground/"),
        ("GET", "/playground/options.py"),
    ]


def ask(server: Server, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    json = {"rid": "x"} if method != "GET" else None
    return server.ask(method, path, json=json, headers=headers)


# --- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_route_but_health_and_the_page_needs_a_key() -> None:
    server = shared(*KEYED)
    every = routes(server)
    assert len(every) > 12
    for method, path in every:
        for headers in ({}, bearer("wrong"), bearer("sesam"), bearer("sesamee"), {"authorization": "sesame"}):
            status = ask(server, method, path, headers).status_code
            # The page at / asks for the key and sends it with what it asks of other routes.
            assert status == (200 if path in {"/health", "/ready", "/metrics", "/"} else 401), (method, path, headers)


@pytest.mark.parametrize("key", ["sesame", "opens", "chief"])
def test_any_of_the_keys_opens_the_ordinary_routes(key: str) -> None:
    assert shared(*KEYED).post("/tokenize", TEXT, headers=bearer(key)).status_code == 200


@pytest.mark.parametrize(
    "value", ["Bearer é", "Bearer \xff\xfe", "Bearer ", "bearer", "Basic c2VzYW1l", "Bearer sesame, x"]
)
def test_an_odd_key_is_a_401_and_no_failure(value: str) -> None:
    answer = exchange(shared(*KEYED).port, request("/tokenize", TEXT, headers=[f"Authorization: {value}"]))
    assert status_of(answer) == 401


def test_two_keys_in_one_request_are_none() -> None:
    headers = ["Authorization: Bearer sesame", "Authorization: Bearer wrong"]
    assert status_of(exchange(shared(*KEYED).port, request("/tokenize", TEXT, headers=headers))) == 401


@pytest.mark.parametrize(
    "host", ["localhost/health", "localhost?/health", "localhost#/health", "a@localhost", "lo calhost"]
)
def test_the_host_header_does_not_decide_which_route_is_meant(host: str) -> None:
    lines = f"POST /tokenize HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\nConnection: close\r\n"
    text = f"{lines}Content-Type: application/json\r\n\r\n{{}}"
    assert status_of(exchange(shared(*KEYED).port, text.encode())) in {400, 401}


def test_a_key_sent_to_a_server_without_keys_is_accepted() -> None:
    assert shared().post("/tokenize", TEXT, headers=bearer("anything")).status_code == 200


def test_keys_are_shown_by_no_route_and_no_log_line() -> None:
    server = shared(*KEYED)
    shown = [ask(server, method, path, bearer("chief")).text for method, path in routes(server) if method == "GET"]
    for key in ("sesame", "opens", "chief"):
        assert not any(key in text for text in (*shown, server.log))


def test_operators_routes_need_the_admin_key() -> None:
    server = shared(*KEYED)
    assert server.post("/flush_cache", headers=bearer("sesame")).status_code == 403
    assert server.post("/abort_request", {"abort_all": True}, headers=bearer("sesame")).status_code == 403
    for body in (None, {}):
        assert server.post("/flush_cache", body, headers=bearer("chief")).json() == {"success": True}
    for wrong in ({"all": True}, [], "all"):
        assert server.post("/flush_cache", wrong, headers=bearer("chief")).status_code == 400
    assert server.post("/abort_request", {"abort_all": True}, headers=bearer("chief")).status_code == 200


def test_operators_routes_are_absent_without_an_admin_key() -> None:
    server = shared()
    assert server.post("/flush_cache").status_code == 404
    assert server.post("/abort_request", {"abort_all": True}, headers=bearer("x")).status_code == 403


# --- browsers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:30000", "LOCALHOST", "127.0.0.1", "[::1]:80", "10.1.2.3", "localhost."]
)
def test_this_machine_and_addresses_are_served(host: str) -> None:
    assert shared().get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "rebind.network:30000"])
def test_a_foreign_host_name_is_refused_with_the_flag_that_allows_it(host: str) -> None:
    answer = shared().get("/health", headers={"host": host})
    assert answer.status_code == 403
    assert "--allowed-host" in answer.json()["error"]["message"]


def test_an_allowed_host_name_is_served() -> None:
    server = shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example")
    assert server.get("/health", headers={"host": "models.example:8000"}).status_code == 200
    assert server.get("/health", headers={"host": "other.example"}).status_code == 403


@pytest.mark.parametrize("hosts", [[], ["Host: localhost", "Host: localhost"], ["Host: "]])
def test_a_request_has_one_host(hosts: list[str]) -> None:
    text = "\r\n".join(["GET /health HTTP/1.1", "Connection: close", *hosts, "", ""])
    assert status_of(exchange(shared().port, text.encode())) == 400


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1:1"]
)
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    answer = shared().post("/tokenize", TEXT, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_servers_own_pages_may_call_it() -> None:
    server = shared()
    assert server.post("/tokenize", TEXT, headers={"origin": server.url}).status_code == 200


def test_an_allowed_origin_gets_the_headers_that_browsers_ask_for() -> None:
    server, page = (
        shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example"),
        "https://page.example",
    )
    asked = {"origin": page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    before = server.ask("OPTIONS", "/tokenize", headers=asked)
    assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, page)
    answer = server.post("/tokenize", TEXT, headers={"origin": page})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page)
    other = server.ask("OPTIONS", "/tokenize", headers={**asked, "origin": "https://evil.example"})
    assert other.status_code == 403


PAGE = {"origin": "https://page.example"}


@pytest.mark.parametrize("headers", ["authorization,content-type,x-stainless-os", "x-tirage-unknown-fields", None])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("DELETE", "/v1/responses/x")])
def test_a_page_of_an_allowed_origin_may_send_any_header_to_every_route(
    headers: str | None, method: str, path: str
) -> None:
    server = shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example")
    asked = {**PAGE, "access-control-request-method": method}
    asked |= {} if headers is None else {"access-control-request-headers": headers}
    answer = server.ask("OPTIONS", path, headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE["origin"])
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    assert answer.headers.get("access-control-allow-headers") == headers
    # A key that the browser would add by itself is not allowed, and without it the wildcard means every header.
    assert "access-control-allow-credentials" not in answer.headers
    assert {*answer.headers.get_list("vary")} >= {"origin"}


def test_preflights_are_answered_for_the_methods_of_all_routes() -> None:
    server = shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example")
    answer = server.ask("OPTIONS", "/generate", headers={**PAGE, "access-control-request-method": "POST"})
    assert {method for method, _ in routes(server)} <= {*answer.headers["access-control-allow-methods"].split(", ")}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"path": "/tokenize", "json": TEXT}, 200),
        ({"path": "/tokenize", "content": "x", "headers": {"content-type": "text/plain"}}, 415),
        ({"path": "/tokenize", "json": TEXT, "headers": {"host": "evil.example"}}, 403),
        ({"path": "/nowhere", "json": TEXT}, 404),
        ({"path": "/v1/messages", "json": {}}, 400),
    ],
)
def test_a_page_can_read_every_header_of_answers_and_refusals(sent: dict[str, Any], status: int) -> None:
    server = shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example")
    answer = server.ask("POST", **{**sent, "headers": {**PAGE, **sent.get("headers", {})}})
    assert answer.status_code == status
    assert answer.headers.get_list("access-control-allow-origin") == [PAGE["origin"]]
    assert answer.headers["access-control-expose-headers"] == "*"
    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("origin", ["https://page.example", "https://evil.example"])
def test_a_page_can_read_what_is_said_of_a_request_that_is_not_understood(origin: str) -> None:
    server = shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example")
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n".encode()
    answer = exchange(server.port, head + b"Transfer-Encoding: gzip\r\n\r\n")
    assert status_of(answer) == 501
    allowed = b"\r\naccess-control-allow-origin: https://page.example\r\n"
    assert answer.count(b"access-control-allow-origin") == answer.count(allowed) == (origin == PAGE["origin"])


def test_every_origin_may_be_allowed() -> None:
    server = shared("tiny", "--cors-origin", "*")
    answer = server.post("/tokenize", TEXT, headers=PAGE)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert "vary" not in answer.headers


def test_other_pages_and_servers_without_origins_get_no_such_headers() -> None:
    server = shared("tiny", "--allowed-host", "models.example", "--cors-origin", "https://page.example")
    for one, origin in ((server, "https://evil.example"), (server, server.url), (shared(), PAGE["origin"])):
        for method in ("POST", "OPTIONS"):
            asked = {"origin": origin, "access-control-request-method": "POST"}
            answer = one.ask(method, "/tokenize", json=TEXT, headers=asked)
            assert not any(name.startswith("access-control") for name in answer.headers)
            assert answer.status_code in ({200, 405} if origin == one.url else {403})


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx"),
        *("text/plain; a=application/json", "application/json, text/plain", "application/json; charset=latin-1"),
        "application/json; charset=utf-8; charset=utf-16",
    ],
)
def test_a_body_of_another_type_is_a_415(kind: str) -> None:
    answer = shared().ask("POST", "/tokenize", content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind",
    [
        *("application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'),
        *("application/json;charset=UTF-8;", 'application/json; charset="utf-8"; x=1', "application/json ;"),
        "application/json; profile=a; CharSet=utf8",
    ],
)
def test_json_in_utf_8_is_taken_however_it_is_spelt(kind: str) -> None:
    answer = shared().ask("POST", "/tokenize", content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity", "br, gzip"])
def test_a_compressed_body_is_a_415(encoding: str) -> None:
    assert shared().post("/tokenize", TEXT, headers={"content-encoding": encoding}).status_code == 415


# --- bytes -------------------------------------------------------------------------------------------------------

JSON_HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
MALFORMED = {
    "both lengths": JSON_HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": JSON_HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "signed length": JSON_HEAD + b"Content-Length: +2\r\n\r\n{}",
    "word as length": JSON_HEAD + b"Content-Length: two\r\n\r\n{}",
    "endless length": JSON_HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
    "bad chunk size": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "bad chunk end": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "endless chunk size": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "folded header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "control character": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60 + b"\r\n\r\n",
    "another version": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "connect": b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_proper_request_is_refused_and_the_connection_closed(name: str) -> None:
    server = shared()
    answer = exchange(server.port, MALFORMED[name])
    assert 400 <= status_of(answer) < 500 or answer == b"", answer
    assert b"Traceback" not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert server.get("/health").status_code == 200


def test_a_head_too_large_is_a_431() -> None:
    server = shared()
    for extra in (b"X: " + b"a" * 1_000_000, b"\r\n".join(b"X%d: 1" % i for i in range(101))):
        answer = exchange(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + extra + b"\r\n\r\n")
        assert status_of(answer) in {0, 431}
        assert b"200 OK" not in answer
    long = exchange(server.port, b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(long) in {0, 431}
    many = exchange(
        server.port, b"GET /health HTTP/1.1\r\n" + b"\r\n".join(b"X%d: 1" % i for i in range(101)) + b"\r\n\r\n"
    )
    assert status_of(many) == 431
    assert set(json.loads(many.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


SMALL = ("tiny", "--max-body", "4096", "--header-timeout", "1", "--body-timeout", "1", "--keep-alive", "1")


def test_a_body_beyond_the_limit_is_a_413_that_names_the_flag() -> None:
    server = shared(*SMALL)
    answer = server.post("/tokenize", {"prompt": "a" * 5000})
    assert answer.status_code == 413
    assert "--max-body" in answer.json()["error"]["message"]


def test_a_body_that_hides_its_length_is_cut_off_at_the_limit() -> None:
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    answer = exchange(shared(*SMALL).port, JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 40)
    assert status_of(answer) == 413


def test_a_client_that_goes_on_sending_sees_the_refusal() -> None:
    whole = b" " * (1 << 20)
    answer = exchange(shared(*SMALL).port, JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(whole), whole)
    assert status_of(answer) == 413
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    answer = exchange(
        shared(*SMALL).port, JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 16, b"0\r\n\r\n"
    )
    assert status_of(answer) == 413


def test_a_large_body_is_refused_before_it_is_sent() -> None:
    with connect(shared().port) as connection:
        connection.sendall(JSON_HEAD + b"Content-Length: 34603008\r\nExpect: 100-continue\r\n\r\n")
        assert status_of(connection.recv(65536)) == 413


def test_deep_json_is_a_400() -> None:
    for depth in (1_000, 100_000):
        body = b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
        answer = shared().ask("POST", "/tokenize", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: loc", b"\r\n"])
def test_a_head_that_does_not_come_is_given_up(sent: bytes) -> None:
    server = shared(*SMALL)
    began = time.monotonic()
    answer = exchange(server.port, sent)
    assert status_of(answer) in {0, 408}
    assert time.monotonic() - began > 0.5


@pytest.mark.slow
def test_a_body_that_does_not_come_is_given_up() -> None:
    server = shared(*SMALL)
    began = time.monotonic()
    answer = exchange(server.port, JSON_HEAD + b"Content-Length: 100\r\n\r\n{")
    assert status_of(answer) == 408
    assert time.monotonic() - began > 0.5


def test_an_idle_connection_is_closed() -> None:
    with connect(shared(*SMALL).port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # Reading ends when the server closes, and is an error after a minute.
        assert status_of(read_all(connection)) == 200


def test_many_slow_heads_do_not_keep_others_waiting() -> None:
    server = shared(*SMALL)
    slow = [connect(server.port) for _ in range(200)]
    try:
        for one in slow:
            one.sendall(b"GET /health HT")
        assert server.get("/health").status_code == 200
        assert all(status_of(read_all(one)) in {0, 408} for one in slow)
    finally:
        for one in slow:
            one.close()


def test_connections_beyond_the_limit_get_503_with_a_time_to_come_back() -> None:
    server = shared("tiny", "--max-connections", "8")
    held = [connect(server.port) for _ in range(8)]
    for one in held:
        # Connections without a request would make room.
        one.sendall(request("/generate", {"text": "a"})[:-1])
    try:
        answer = exchange(server.port, b"")
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer
    finally:
        for one in held:
            one.close()
    deadline = time.monotonic() + 60
    while status_of(exchange(server.port, request("/health", method="GET"))) != 200:
        assert time.monotonic() < deadline, "the server does not take connections again"
        time.sleep(0.05)


# --- ids ---------------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_requests_id() -> None:
    server = shared()
    assert server.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for path in ("/health", "/nowhere"):
        assert len(server.get(path).headers["x-request-id"]) == 32
    odd = [server.get("/health", headers={"x-request-id": "a" * n}).headers["x-request-id"] for n in (128, 129)]
    assert [len(each) for each in odd] == [128, 32]


def test_answers_to_what_is_no_request_carry_an_id_too() -> None:
    server, head = shared(*SMALL), b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-2\r\n"
    first = request("/health", method="GET", headers=["X-Request-Id: earlier"]).replace(b"Connection: close\r\n", b"")
    sent: list[tuple[bytes, int, bytes | None]] = [
        (b"no request\r\n\r\n", 400, None),
        (head + b"A: " + b"a" * 70_000, 431, b"mine-2"),
        (head + b"Transfer-Encoding: gzip\r\n\r\n", 501, b"mine-2"),
        (head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, b"mine-2"),
        (head + b"A: b\r\n", 408, b"mine-2"),
        (b"GET /hea", 408, None),
    ]
    later = exchange(server.port, first, b"no request\r\n\r\n", pause_s=0.3)
    found = [(exchange(server.port, data), status, own) for data, status, own in sent]
    for answer, status, own in [*found, (later[later.rindex(b"HTTP/1.1 ") :], 400, None)]:
        assert status_of(answer) == status
        [told] = re.findall(rb"\r\nx-request-id: (.*)\r\n", answer)
        assert told == own if own is not None else (len(told) == 32 and told != b"earlier")


def test_an_operator_may_want_a_key_for_metrics_too() -> None:
    server = shared("tiny", "--api-key", "sesame", "--protect-metrics")
    statuses = {path: server.get(path).status_code for path in ("/health", "/ready", "/metrics", "/v1/models")}
    assert statuses == {"/health": 200, "/ready": 200, "/metrics": 401, "/v1/models": 401}
    assert server.get("/metrics", headers=bearer("sesame")).status_code == 200
    assert shared(*KEYED).get("/metrics").status_code == 200
    assert "sesame" not in shared(*KEYED).get("/metrics").text
