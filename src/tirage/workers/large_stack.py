"""Calls on a thread with a large stack, for libraries that recurse as deeply as what they are given is nested."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
# The size holds for every thread that any part of the process starts, hence the lock.
_SIZE = threading.Lock()


def on_large_stack(call: Callable[[], T], *, megabytes: int) -> T:
    """What a call gives, or raises, on a thread of its own whose stack may grow to so many megabytes."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="tirage-large-stack")
    with _SIZE:
        before = threading.stack_size(megabytes << 20)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return future.result()
