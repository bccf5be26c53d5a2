"""HTTPS with certificates of servers and clients, and a root path behind a proxy."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import SOURCES, Server
from starlette._utils import get_route_path

from tirage.errors import ParamsError
from tirage.server.app import create_app
from tirage.server.middleware import strip_root
from tirage.server.options import Options
from tirage.server.tls import check_tls, tls_of

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the program openssl is not installed")
BODY = {"prompt": "Once upon", "max_tokens": 12, "seed": 1}
PASSWORD = "sesame"


def made(folder: Path, name: str, *more: str, password: str | None = None) -> tuple[Path, Path]:
    """A certificate of its own and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    secret = ["-noenc"] if password is None else ["-passout", f"pass:{password}"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *secret),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}", *more),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("pems")
    names = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    server = made(folder, "server", *names, password=PASSWORD)
    return {"server": server, **{name: made(folder, name) for name in ("client", "stranger", "other")}}


@pytest.fixture(scope="module")
def server(pems: dict[str, tuple[Path, Path]]) -> Iterator[Server]:
    """One that clients may show a certificate, behind a proxy."""
    certificate, key = pems["server"]
    flags = [f"--ssl-certfile={certificate}", f"--ssl-keyfile={key}", f"--ssl-keyfile-password={PASSWORD}"]
    flags += [f"--ssl-ca-certs={pems['client'][0]}", "--ssl-cert-reqs=1", "--header-timeout=2"]
    with Server("tiny", *flags, "--root-path=/llm") as running:
        yield running


@needs_openssl
@pytest.mark.slow
def test_a_client_that_trusts_the_certificate_is_served_whole_and_streamed(
    server: Server, pems: dict[str, tuple[Path, Path]]
) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(pems["server"][0]))
    with httpx.Client(verify=context, base_url=server.url) as client:
        whole = client.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
        events = client.post("/v1/completions", json={**BODY, "stream": True}).text.split("\n\n")[:-2]
        texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events]
        assert "".join(texts) == whole
    with pytest.raises(httpx.ConnectError, match="self-signed certificate"):
        httpx.get(f"{server.url}/health")
    settings = server.get("/server_info").json()
    assert (settings["ssl_certfile"], settings["ssl_keyfile"]) == (True, True)
    assert "ssl_keyfile_password" not in settings


@needs_openssl
@pytest.mark.slow
def test_plain_http_and_silent_clients_are_not_served(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 30) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP/")
    context = ssl._create_unverified_context()
    with socket.create_connection(("127.0.0.1", server.port), 30) as raw, context.wrap_socket(raw) as silent:
        assert silent.recv(1000).startswith(b"HTTP/1.1 408")
    assert server.get("/health").status_code == 200


@needs_openssl
@pytest.mark.slow
def test_a_certificate_of_the_client_is_checked_where_there_is_one_to_check_it_by(
    server: Server, pems: dict[str, tuple[Path, Path]]
) -> None:
    known, stranger = ssl._create_unverified_context(), ssl._create_unverified_context()
    known.load_cert_chain(*pems["client"])
    stranger.load_cert_chain(*pems["stranger"])
    assert httpx.get(f"{server.url}/health", verify=known).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/health", verify=stranger)


@needs_openssl
def test_clients_must_show_a_certificate_unless_the_operator_says_otherwise(pems: dict[str, tuple[Path, Path]]) -> None:
    (certificate, key), (client, _) = pems["server"], pems["client"]
    strict = Options.of(ssl_certfile=certificate, ssl_keyfile=key, ssl_keyfile_password=PASSWORD, ssl_ca_certs=client)
    check_tls(strict)
    assert tls_of(strict)["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert tls_of(replace(strict, ssl_cert_reqs=0))["ssl_cert_reqs"] == ssl.CERT_NONE
    assert tls_of(replace(strict, ssl_ca_certs=None))["ssl_cert_reqs"] == ssl.CERT_NONE


def wrong(pems: dict[str, tuple[Path, Path]], folder: Path) -> list[tuple[dict[str, Any], str]]:
    (certificate, key), (other, _), (locked, locked_key) = pems["other"], pems["client"], pems["server"]
    both = {"ssl_certfile": certificate, "ssl_keyfile": key}
    return [
        ({"ssl_keyfile": key}, "--ssl-keyfile must go with --ssl-certfile"),
        ({"ssl_ca_certs": other}, "--ssl-ca-certs must go with --ssl-certfile"),
        ({"ssl_certfile": certificate}, "--ssl-certfile must hold a certificate"),
        ({"ssl_certfile": other, "ssl_keyfile": key}, "--ssl-certfile must hold a certificate"),
        ({"ssl_certfile": folder / "none.pem", "ssl_keyfile": key}, "--ssl-certfile must hold a certificate"),
        ({"ssl_certfile": locked, "ssl_keyfile": locked_key}, "--ssl-certfile must hold a certificate"),
        ({**both, "ssl_cert_reqs": 2}, "--ssl-cert-reqs must go with --ssl-ca-certs"),
        ({**both, "ssl_ca_certs": key}, "--ssl-ca-certs must hold certificates"),
    ]


@needs_openssl
def test_what_cannot_be_used_is_refused_before_the_server_listens(
    pems: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    for settings, message in wrong(pems, tmp_path):
        with pytest.raises(ParamsError, match=message):
            check_tls(Options.of(**settings))
    check_tls(Options())
    assert tls_of(Options()) == {}


@needs_openssl
@pytest.mark.slow
def test_a_server_with_a_wrong_key_ends_with_one_line(pems: dict[str, tuple[Path, Path]]) -> None:
    command = [sys.executable, "-m", "tirage", "serve", "--port", "0", f"--ssl-certfile={pems['server'][0]}"]
    command += [f"--ssl-keyfile={pems['server'][1]}"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCES)}, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2
    assert "--ssl-certfile must hold a certificate" in done.stderr


# --- a proxy's path --------------------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.slow
def test_routes_answer_whether_a_proxy_takes_its_path_off_or_leaves_it_on(server: Server) -> None:
    for prefix in ("", "/llm"):
        assert server.post(f"{prefix}/v1/completions", BODY).status_code == 200
        assert server.get(f"{prefix}/v1/models/tiny").json()["id"] == "tiny"
        assert server.get(f"{prefix}/").status_code == 200
    assert server.get("/other/health").status_code == server.get("/llm/other").status_code == 404
    assert server.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]


@pytest.mark.parametrize("path", ["/v1/completions", "/llm/v1/completions", "/llm/llm/v1/completions"])
def test_all_that_follows_sees_a_path_without_the_proxys(path: str) -> None:
    scope = {"type": "http", "path": path, "raw_path": path.encode()}
    strip_root(scope, "/llm")
    assert (scope["path"], scope["raw_path"], scope["root_path"]) == ("/v1/completions", b"/v1/completions", "/llm")
    assert get_route_path(scope) == scope["path"]
    strip_root(scope, None)
    assert scope["path"] == "/v1/completions"


@pytest.mark.parametrize("root", ["llm", "/llm/", "/", "", "//a", "/a b", "/a/../b?"])
def test_a_root_path_has_the_form_of_one(root: str) -> None:
    with pytest.raises(ParamsError, match="--root-path must begin with / and not end with it"):
        Options.of(root_path=root)


def test_a_root_path_begins_no_route() -> None:
    with pytest.raises(ParamsError, match="--root-path must not begin a route of this server, got '/v1'"):
        create_app(Options.of(root_path="/v1"))
