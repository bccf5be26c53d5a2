"""Work that can be cancelled: whoever starts it says how to ask, and long loops ask."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

POLL_S = 0.05
"""How often a thread that waits for another one asks whether it still should."""
_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextlib.contextmanager
def cancellable(check: Callable[[], None]) -> Iterator[None]:
    """Inside the block, in this thread, `checkpoint()` calls `check`, whose exception ends the work."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def checkpoint() -> None:
    """Raises what the work at hand is to end with, if it was cancelled; does nothing where it cannot be."""
    check = _CHECK.get()
    if check is not None:
        check()


@contextlib.contextmanager
def holding(lock: threading.Lock | threading.Semaphore) -> Iterator[None]:
    """Holds a lock or a place of a semaphore inside the block; the wait for it can be cancelled."""
    while not lock.acquire(timeout=POLL_S):
        checkpoint()
    try:
        yield
    finally:
        lock.release()
