"""Cancellation: the caller installs a check, and long loops call it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

POLL_S = 0.05
"""Seconds between two checks of a thread that waits for another one."""
_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextlib.contextmanager
def cancellable(check: Callable[[], None]) -> Iterator[None]:
    """A block in which `checkpoint()`, in this thread, calls `check`, whose exception ends the work."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def checkpoint() -> None:
    """Calls the check of the surrounding `cancellable` block, if any, which raises when the work was cancelled."""
    check = _CHECK.get()
    if check is not None:
        check()


@contextlib.contextmanager
def holding(lock: threading.Lock | threading.Semaphore) -> Iterator[None]:
    """A block that holds a lock or semaphore; waiting for it can be cancelled."""
    while not lock.acquire(timeout=POLL_S):
        checkpoint()
    try:
        yield
    finally:
        lock.release()
