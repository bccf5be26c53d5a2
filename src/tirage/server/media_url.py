"""Downloads of images and audio from domains that the operator has allowed, and never from a private network.

A URL is parsed once, by a grammar stricter than any parser's, and the connection uses exactly what was parsed: the name
is resolved once, every address found must be public, and the connection goes to one of them. Redirects are refused.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

SECONDS = 5.0
"""The longest time that one download may take, from connecting to the last byte."""
_PORTS = {"http": 80, "https": 443}
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label begins with a letter, so that no spelling of an IP address passes as a name.
_URL = re.compile(
    rf"(?P<scheme>https?)://(?P<host>(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?)(?::(?P<port>[0-9]{{1,5}}))?"
    r"(?P<path>/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(?P<query>\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?",
    re.IGNORECASE | re.ASCII,
)
# Networks whose addresses contain another address, which may be private: NAT64, 6to4, Teredo, IPv4-compatible.
_CARRIERS = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))
_LONGEST = 2048

Resolve = Callable[[str, int], Sequence[str]]
Connect = Callable[[str, int, float], socket.socket]


class FetchError(Exception):
    """Why a URL is refused or cannot be downloaded, as `rule, got value`."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL: `host` is in lower case, `path` begins with a slash and ends with the query."""

    scheme: str
    host: str
    port: int
    path: str


def read_url(url: str, domains: Sequence[str]) -> Target:
    """The target of a URL whose host is one of `domains`; `*.example.org` allows all names below example.org.

    Raises FetchError for any other host, an address instead of a name, ports other than 80 and 443, and whatever a
    plain URL does not need: user names, backslashes, fragments, characters outside ASCII.
    """
    found = _URL.fullmatch(url) if len(url) <= _LONGEST else None
    if found is None:
        raise FetchError(f"a plain http or https URL of a host name, in ASCII and without user name, got {url[:60]!r}")
    scheme, host = found["scheme"].lower(), found["host"].lower()
    port = int(found["port"] or _PORTS[scheme])
    if port not in _PORTS.values():
        raise FetchError(f"a URL with port 80 or 443, got {port}")
    if not any(matches(host, domain.lower()) for domain in domains):
        raise FetchError(
            f"a URL of an allowed domain, got {host[:60]!r}; the operator can add it with --allowed-media-domain"
        )
    return Target(scheme, host, port, (found["path"] or "/") + (found["query"] or ""))


def matches(host: str, domain: str) -> bool:
    """Whether a host is the domain or, if that begins with `*.`, below it."""
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def is_public(address: str) -> bool:
    """Whether an address is on the public internet and contains no other address."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and (ip.scope_id or any(ip in network for network in _CARRIERS)):
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    ip = mapped or ip
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, resolved by the system."""
    return list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """A connection to an address."""
    return socket.create_connection((address, port), timeout=seconds)


class Fetcher:
    """Downloads from allowed domains; only `resolve` and `connect` use the network."""

    def __init__(
        self,
        domains: Sequence[str],
        *,
        seconds: float = SECONDS,
        resolve: Resolve = resolve,
        connect: Connect = connect,
    ) -> None:
        self.domains, self._seconds = tuple(domains), seconds
        self._resolve, self._connect = resolve, connect

    def fetch(self, url: str, *, most: int) -> bytes:
        """The body of a URL, of at most `most` bytes; raises FetchError for anything but a plain 200 answer."""
        target = read_url(url, self.domains)
        try:
            return self._get(target, self._address(target), most)
        except (OSError, http.client.HTTPException) as error:
            late = isinstance(error, TimeoutError)
            raise FetchError(
                f"a URL that answers within {self._seconds:g} s, got one that {'takes longer' if late else 'does not'}"
            ) from None

    def _address(self, target: Target) -> str:
        """An address of the target's host; raises FetchError unless all of its addresses are public."""
        addresses = self._resolve(target.host, target.port)
        if not addresses or not all(is_public(address) for address in addresses):
            raise FetchError("a URL of a host on the public internet, got one that is not")
        return addresses[0]

    def _get(self, target: Target, address: str, most: int) -> bytes:
        sock = self._connect(address, target.port, self._seconds)
        with self._deadline(sock) as late, contextlib.closing(sock):
            try:
                return self._exchange(secure(sock, target), target, most)
            except (OSError, http.client.HTTPException):
                if late.is_set():
                    raise TimeoutError from None
                raise

    def _exchange(self, sock: socket.socket, target: Target, most: int) -> bytes:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=self._seconds)
        connection.sock = sock
        default = target.port == _PORTS[target.scheme]
        with contextlib.closing(connection):
            connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", target.host if default else f"{target.host}:{target.port}")
            connection.putheader("Accept-Encoding", "identity")
            connection.putheader("User-Agent", "tirage")
            connection.endheaders()
            response = connection.getresponse()
            check_answer(response, most)
            data = response.read(most + 1)
        if len(data) > most:
            raise FetchError(f"a URL of at most {most} bytes, got more")
        return data

    @contextlib.contextmanager
    def _deadline(self, sock: socket.socket) -> Iterator[threading.Event]:
        """Closes the connection when the time is up, even if it still receives bytes."""
        # A second handle of the same connection, because TLS takes over the first one.
        late, double = threading.Event(), sock.dup()

        def cut() -> None:
            late.set()
            with contextlib.suppress(OSError):
                double.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()
            timer.join()
            double.close()


def secure(sock: socket.socket, target: Target) -> socket.socket:
    """The socket, with TLS for https, where the certificate must be the host's."""
    if target.scheme == "http":
        return sock
    return ssl.create_default_context().wrap_socket(sock, server_hostname=target.host)


def check_answer(response: http.client.HTTPResponse, most: int) -> None:
    """Raises FetchError for an answer other than a file, such as a redirect, and for a Content-Length over `most`."""
    if response.status != 200:
        raise FetchError(f"a URL that answers 200 without redirection, got {response.status}")
    if response.getheader("Content-Encoding", "identity").lower() != "identity":
        raise FetchError("a URL whose answer is not compressed")
    if response.length is not None and response.length > most:
        raise FetchError(f"a URL of at most {most} bytes, got {response.length}")
