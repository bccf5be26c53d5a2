"""The other side of the request at hand, for parts that never see the request itself."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


class Client:
    """Who waits for an answer: whether they still do, and what is to be done when the request is over."""

    def __init__(self, gone: Callable[[], bool]) -> None:
        self._gone = gone
        self._farewells: list[Callable[[], None]] = []

    @property
    def gone(self) -> bool:
        """Whether the connection is closed; safe in any thread."""
        return self._gone()

    def at_end(self, farewell: Callable[[], None]) -> None:
        """Has something called when the request is over, however it ends."""
        self._farewells.append(farewell)

    def leave(self) -> None:
        """Calls what was asked for."""
        for farewell in self._farewells:
            farewell()


CLIENT: ContextVar[Client] = ContextVar("client")
"""The client of the request that the task at hand serves; unset outside of requests."""


def current() -> Client:
    """The client of the request at hand, or one that never leaves."""
    return CLIENT.get(None) or Client(lambda: False)
