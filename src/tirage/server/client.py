"""The client of the current request, for code that never sees the HTTP request itself."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


class Client:
    """The client that waits for an answer, and what is called when its request is over."""

    def __init__(self, is_disconnected: Callable[[], bool]) -> None:
        self._is_disconnected = is_disconnected
        self._callbacks: list[Callable[[], None]] = []

    @property
    def disconnected(self) -> bool:
        """Whether the connection is closed; safe in any thread."""
        return self._is_disconnected()

    def on_finished(self, callback: Callable[[], None]) -> None:
        """Registers a function to call when the request is over, however it ended."""
        self._callbacks.append(callback)

    def finish(self) -> None:
        """Calls the registered functions, once."""
        # They hold the request, whose timer holds this client: without them it is freed at once.
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


CLIENT: ContextVar[Client] = ContextVar("client")
"""The client of the request that the current task serves; unset outside of requests."""


def current_client() -> Client:
    """The client of the current request; outside of requests one that never disconnects."""
    return CLIENT.get(None) or Client(lambda: False)
