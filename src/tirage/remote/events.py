"""The events of a `text/event-stream`, from its bytes."""

from __future__ import annotations

from collections.abc import Iterator

from tirage.errors import RemoteError

MOST_BYTES = 1 << 28
"""The largest answer or event that is read."""


class EventParser:
    """Finds the data of events in bytes that come in any pieces; one event may have `most` bytes."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._size = most, 0
        self._line, self._data = bytearray(), list[bytes]()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that these bytes complete. Raises RemoteError for one that is too long."""
        for part in piece.splitlines(keepends=True):
            self._line += part
            self._size += len(part)
            if self._size > self._most:
                raise RemoteError(f"the server's events must have at most {self._most} bytes, got more")
            if part.endswith(b"\n"):
                line, self._line = bytes(self._line).rstrip(b"\r\n"), bytearray()
                yield from self._end_line(line)

    def _end_line(self, line: bytes) -> Iterator[bytes]:
        if line:
            name, _, value = line.partition(b":")
            # llama.cpp has sent errors as a field of their own.
            if name in {b"data", b"error"}:
                self._data.append(value.removeprefix(b" "))
            return
        self._size = 0
        if self._data:
            yield b"\n".join(self._data)
            self._data = []
