"""Raw bytes to a server, for what no well-behaved client would send."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from typing import Any


def connect(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    """A connection to a server of this machine."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(60)
    try:
        made.connect(("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    return made


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes; a reset counts as closing."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def exchange(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Sends the parts and reads until the server closes."""
    with connect(port) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        except ConnectionError:  # it may close before all is sent
            pass
        return read_all(connection)


def status_of(answer: bytes) -> int:
    """The status of a response; 0 when the connection was closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def request(path: str, body: Any = None, *, method: str = "POST", headers: Iterable[str] = ()) -> bytes:
    """A request with a JSON body that asks for the connection to be closed."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(data)}"]
    if body is not None:
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + data
