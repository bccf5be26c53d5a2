"""A server that answers as it is told, for what no well-behaved server would send."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

Script = bytes | Callable[[socket.socket], None]
MODELS = {"object": "list", "data": [{"id": "small", "object": "model", "owned_by": "someone"}]}


def answer(body: Any, *, status: int = 200, headers: Iterable[str] = (), kind: str = "application/json") -> bytes:
    """A response that closes the connection; a body of bytes is sent as it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Any", f"Content-Type: {kind}", "Connection: close", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def events(*bodies: Any, done: bool = True, length: int | None = None) -> bytes:
    """A stream of events; with `length`, one that says it is so long."""
    data = b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)
    data += b"data: [DONE]\n\n" if done else b""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Connection: close"]
    return "\r\n".join([*lines, f"Content-Length: {length or len(data)}", "", ""]).encode() + data


def hang(connection: socket.socket) -> None:
    """Says nothing until the client leaves."""
    with suppress(OSError):
        while connection.recv(4096):
            pass


def repeat(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Sends a beginning, and then the same for as long as the client takes it."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return send


class ScriptedServer:
    """Answers its list of models, and the n-th other request with the n-th of the scripts, the last one for good.

    `requests` are (path, headers, body) of the requests other than that for the models.
    """

    def __init__(self, *scripts: Script, models: Script | None = None) -> None:
        self._scripts, self._models = list(scripts), answer(MODELS) if models is None else models
        self.requests: list[tuple[str, str, Any]] = []
        self.models_asked = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = self._start(self._accept)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._accepting.join()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._open.add(connection)
                self._threads.append(self._start(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            script = self._script(*self._read(connection))
            if isinstance(script, bytes):
                connection.sendall(script)
            else:
                script(connection)
        self._open.discard(connection)

    def _script(self, path: str, headers: str, body: Any) -> Script:
        if path == "/v1/models":
            self.models_asked += 1
            return self._models
        self.requests.append((path, headers, body))
        return self._scripts[min(len(self.requests), len(self._scripts)) - 1]

    def _read(self, connection: socket.socket) -> tuple[str, str, Any]:
        data = b""
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                raise ConnectionError("the client left")
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        headers = head.decode().lower()
        length = int(headers.partition("content-length:")[2].partition("\r\n")[0] or 0)
        while len(body) < length:
            body += connection.recv(65536)
        return head.decode().split(" ")[1], headers, json.loads(body) if body else None
