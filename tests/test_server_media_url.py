"""Downloads for an operator who allowed a domain: what is read is what connects, and it is never a private address."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from small_files import image_file

from tirage.server.media import MediaError, MediaItem, MediaLoader
from tirage.server.media_url import Fetcher, FetchError, Target, is_public, read_url
from tirage.server.options import Options

DOMAINS = ("example.org", "*.example.net")
PUBLIC = "93.184.215.14"
PICTURE = image_file()


class Peer:
    """A server on this machine that says one thing to everyone and counts who comes."""

    def __init__(self, answer: bytes, *, pause_s: float = 0.0) -> None:
        self._answer, self._pause_s = answer, pause_s
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.requests: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with closing(connection):
                try:
                    self._talk(connection)
                except OSError:
                    continue

    def _talk(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            part = connection.recv(4096)
            if not part:
                break
            request += part
        self.requests.append(request)
        step = 1 if self._pause_s else len(self._answer) or 1
        for start in range(0, len(self._answer), step):
            connection.sendall(self._answer[start : start + step])
            time.sleep(self._pause_s)


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def make(answer: bytes = ok(PICTURE), **options: Any) -> Peer:
        peers.append(Peer(answer, **options))
        return peers[-1]

    yield make
    for each in peers:
        each.close()


def said(status: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode() + body


def ok(body: bytes) -> bytes:
    return said("200 OK", f"Content-Length: {len(body)}", body=body)


def fetcher(peer: Peer | None, answers: Sequence[str] = (PUBLIC,), **options: Any) -> tuple[Fetcher, list[Any]]:
    """A fetcher whose resolver gives `answers` and whose connections all lead to the peer; and what it reached for."""
    reached: list[Any] = []

    def resolve(host: str, port: int) -> Sequence[str]:
        reached.append((host, port))
        return answers

    def connect(address: str, port: int, seconds: float) -> socket.socket:
        reached.append((address, port))
        assert peer is not None
        return socket.create_connection(("127.0.0.1", peer.port), timeout=seconds)

    return Fetcher(DOMAINS, resolve=resolve, connect=connect, **options), reached


# --- reading a URL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://example.org", Target("http", "example.org", 80, "/")),
        ("https://example.org/a.png", Target("https", "example.org", 443, "/a.png")),
        ("HTTPS://Example.ORG/A.png?b=C/d?e", Target("https", "example.org", 443, "/A.png?b=C/d?e")),
        ("http://example.org:443/%20", Target("http", "example.org", 443, "/%20")),
        ("https://a.b-c.example.net:80?x", Target("https", "a.b-c.example.net", 80, "/?x")),
    ],
)
def test_a_plain_url_of_an_allowed_domain_is_read(url: str, target: Target) -> None:
    assert read_url(url, DOMAINS) == target


HOSTILE = (
    # this machine and private networks, in every spelling
    "http://127.0.0.1/", "http://127.1/", "http://127.0.0.1.:80/", "http://2130706433/", "http://0x7f000001/",
    "http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://017700000001/", "http://0/", "http://0.0.0.0/", "http://localhost/",
    "http://LOCALHOST/", "http://localhost./", "http://localhost.localdomain/", "http://10.0.0.1/", "http://172.16.0.1/",
    "http://192.168.0.1/", "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/",
    "http://100.64.0.1/", "http://[::1]/", "http://[::]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://[fe80::1]/", "http://[fe80::1%25eth0]/", "http://[fc00::1]/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/",
    "http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/",
    # names that are not the allowed one
    "http://example.com/", "http://example.org.evil.com/", "http://evilexample.org/", "http://sub.example.org/",
    "http://example.net/", "http://xexample.net/", "http://example.org./", "http://.example.org/", "http://example..org/",
    "http://-example.org/", "http://example_.org/", "http://ex\u00e4mple.org/",
    "http://example.org\u3002/", "http:///", "http://",
    # parsers that disagree
    "http://example.org@127.0.0.1/", "http://user:pass@example.org/", "http://example.org:80@127.0.0.1/",
    "http://127.0.0.1\\@example.org/", "http://example.org\\@127.0.0.1/", "http://example.org\\.evil.com/",
    "http:\\\\example.org/", "http:/example.org/", "http:example.org/", "//example.org/", "http://127.0.0.1#@example.org/",
    "http://example.org#@127.0.0.1/", "http://example.org#", "http://127.0.0.1?@example.org/", "http://example.org\t/",
    "http://exam\nple.org/", "http://example.org/a\r\nHost: x", "http://example.org/ a", " http://example.org/",
    "http://example.org/\x00", "http://example.org\x00.evil.com/", "http://example.org%00/", "http://example.org%2f@x/",
    "http://example.org:/", "http://example.org:8080/", "http://example.org:22/", "http://example.org:0/",
    "http://example.org:65616/", "http://example.org:080080/", "http://example.org:+80/", "http://example.org: 80/",
    # other schemes
    "ftp://example.org/", "gopher://example.org/", "file://example.org/", "https//example.org/", "ws://example.org/",
    "http://example.org/" + "a" * 3000,
)  # fmt: skip


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_url_reaches_no_resolver_and_no_socket(url: str) -> None:
    found, reached = fetcher(None)
    with pytest.raises(FetchError) as caught:
        found.fetch(url, most=1000)
    assert reached == []
    assert len(str(caught.value)) < 250


def test_without_the_flag_no_url_reaches_anything(peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    there = peer()
    reached: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: reached.append(args))
    loader = MediaLoader(Options(), sampling_rate=None)
    for url in (*HOSTILE, f"http://127.0.0.1:{there.port}/", "http://example.org/a.png", "https://example.net/"):
        with pytest.raises(MediaError):
            loader.load_now([MediaItem("image", "image_data", url)])
    assert (reached, there.requests) == ([], [])


PIECES = (
    "http://", "https://", "HTTP://", "http:/", "//", "example.org", "a.example.net", "evil.com",
    "127.0.0.1", "localhost", "[::1]", "0x7f.1", "@", "\\", "/", ":", "80", "443", "8080", "?", "#", "%2f",
    "%00", "\t", "\n", " ", ".", "..", "-", "user:pw", "a.png", "é", "。", ";", "&", "=",
)  # fmt: skip


@pytest.mark.slow
def test_what_is_read_is_what_every_parser_reads_and_what_connects() -> None:
    draw, taken = random.Random(20260), 0
    for _ in range(10_000):
        rest = draw.choices(PIECES, k=draw.randrange(0, 4))
        host = draw.choice(("example.org", "a.example.net", draw.choice(PIECES)))
        url = draw.choice(("http://", "https://", draw.choice(PIECES))) + host + "".join(rest)
        found, reached = fetcher(None, answers=["127.0.0.1"])
        with pytest.raises(FetchError):
            found.fetch(url, most=1000)
        if not reached:
            continue
        taken += 1
        ((host, port),) = reached
        assert host == "example.org" or host.endswith(".example.net")
        assert port in (80, 443)
        assert urlsplit(url).hostname == httpx.URL(url).host == host
        assert (urlsplit(url).port or port, httpx.URL(url).port or port) == (port, port)
    assert taken > 300


# --- addresses ---------------------------------------------------------------------------------------------------

PRIVATE = (
    "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.2.1",
    "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1",
    "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::7f00:1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1",
    "2001:0:1:2::3",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_a_host_with_any_private_address_is_refused(address: str) -> None:
    assert not is_public(address)
    for answers in ([address], [PUBLIC, address], [address, PUBLIC]):
        found, reached = fetcher(None, answers=answers)
        with pytest.raises(FetchError, match="a host on the public internet, got one that is not"):
            found.fetch("http://example.org/", most=1000)
        assert reached == [("example.org", 80)]


def test_public_addresses_are_public() -> None:
    assert all(is_public(each) for each in (PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"))


def test_a_name_is_resolved_once_and_the_checked_address_connects(peer: Callable[..., Peer]) -> None:
    there = peer()
    found, reached = fetcher(there, answers=[PUBLIC, "8.8.8.8"])
    assert found.fetch("http://example.org:443/a.png?b", most=100_000) == PICTURE
    assert reached == [("example.org", 443), (PUBLIC, 443)]
    assert there.requests[0].startswith(b"GET /a.png?b HTTP/1.1\r\nHost: example.org:443\r\n")


def test_a_resolver_that_changes_its_mind_is_asked_once() -> None:
    answers = iter([["127.0.0.1"], [PUBLIC]])
    found = Fetcher(DOMAINS, resolve=lambda host, port: next(answers), connect=lambda *_: pytest.fail("connected"))
    with pytest.raises(FetchError, match="public internet"):
        found.fetch("http://example.org/", most=1000)
    assert next(answers) == [PUBLIC]


def test_a_host_without_an_address_is_refused() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror("no such host")

    with pytest.raises(FetchError, match="answers within 5 s, got one that does not"):
        Fetcher(DOMAINS, resolve=unknown).fetch("http://example.org/", most=1000)


# --- answers -----------------------------------------------------------------------------------------------------

ANSWERS = {
    "redirect": (said("302 Found", "Location: http://127.0.0.1/", "Content-Length: 0"), "without redirection, got 302"),
    "redirect for good": (said("308 Moved", "Location: /b", "Content-Length: 0"), "got 308"),
    "absent": (said("404 Not Found", "Content-Length: 0"), "got 404"),
    "partial": (said("206 Partial", "Content-Length: 1", body=b"a"), "got 206"),
    "compressed": (said("200 OK", "Content-Encoding: gzip", "Content-Length: 1", body=b"a"), "not compressed"),
    "too long by its own account": (said("200 OK", "Content-Length: 99999999"), "at most 10000 bytes, got 99999999"),
    "too long in pieces": (
        said("200 OK", "Transfer-Encoding: chunked", body=(b"fff\r\n" + b"a" * 4095 + b"\r\n") * 3),
        "at most 10000 bytes",
    ),
    "too long without end": (said("200 OK", body=b"a" * 20_000), "at most 10000 bytes, got more"),
    "a thousand headers": (said("200 OK", *["A: b"] * 1000), "got one that does not"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "got one that does not"),
    "nothing": (b"", "got one that does not"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_only_a_plain_answer_of_bounded_size_is_taken(peer: Callable[..., Peer], name: str) -> None:
    answer, message = ANSWERS[name]
    there = peer(answer)
    found, reached = fetcher(there)
    with pytest.raises(FetchError, match=message):
        found.fetch("http://example.org/", most=10_000)
    assert len(there.requests) == 1
    assert reached == [("example.org", 80), (PUBLIC, 80)]


def test_bytes_that_drip_are_cut_off(peer: Callable[..., Peer]) -> None:
    found, _ = fetcher(peer(ok(bytes(10_000)), pause_s=0.05), seconds=0.5)
    started = time.monotonic()
    with pytest.raises(FetchError, match=r"within 0\.5 s, got one that takes longer"):
        found.fetch("http://example.org/", most=100_000)
    assert time.monotonic() - started < 20


def test_https_sends_nothing_before_the_peer_has_shown_who_it_is(peer: Callable[..., Peer]) -> None:
    there = peer(b"this is no TLS")
    found, _ = fetcher(there, seconds=0.5)
    with pytest.raises(FetchError, match="got one that"):
        found.fetch("https://example.org/secret", most=1000)
    there.close()
    assert not any(b"secret" in request for request in there.requests)


def test_a_fetched_image_is_an_image(peer: Callable[..., Peer]) -> None:
    found, _ = fetcher(peer())
    loader = MediaLoader(Options(allowed_media_domain=DOMAINS), sampling_rate=None, fetcher=found)
    (image,) = loader.load_now([MediaItem("image", "image_data", "http://example.org/a.png")])
    assert image.size == (60, 40)
    with pytest.raises(MediaError, match=r"image_data must be a URL of an allowed domain, got 'example\.com'"):
        loader.load_now([MediaItem("image", "image_data", "http://example.com/a.png")])
    loader.close()
