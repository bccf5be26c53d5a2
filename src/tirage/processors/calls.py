"""Calls of custom logits processors that may take long: in threads of their own, which can be left behind."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import SimpleQueue

Run = Callable[[str, Callable[[], Any]], Any]
"""How a processor is called: with its name and the call, whose result it gives."""

RUN: ContextVar[Run | None] = ContextVar("run", default=None)
"""How processors are called in this thread; None is a plain call."""
MOST_ABANDONED = 4
"""Calls of one processor that may be left behind unfinished; then it is not called until one of them returns."""


class AbandonedError(BaseException):
    """Ends a call that nobody waits for any more; not an Exception, so that processors do not swallow it."""


class ProcessorThread:
    """A daemon thread for the calls of one processor, which it makes one after another.

    `calling` is the processor that it is in, and since when by `time.monotonic()`; None between calls.
    """

    def __init__(self, name: str) -> None:
        # The first draw needs neither this nor `logging`.
        from queue import SimpleQueue

        self.calling: tuple[str, float] | None = None
        self.abandoned = False
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tirage-processor {name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def put(self, task: Callable[[], None]) -> None:
        """Has the thread run a task, which must not raise, after those put before."""
        self._tasks.put(task)

    def abandon(self) -> None:
        """Ends the thread without waiting for the call that it is in.

        A loop of Python ends by an AbandonedError raised in it; native code goes on until it returns by itself.
        """
        self.abandoned = True
        self._tasks.put(None)
        ident = self._thread.ident
        if ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(AbandonedError))

    def _work(self) -> None:
        RUN.set(self._call)
        try:
            while not self.abandoned and (task := self._tasks.get()) is not None:
                task()
                # Otherwise the last task, and all that it refers to, would live until the next one.
                del task
        except AbandonedError:
            return

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        self.calling = name, time.monotonic()
        try:
            return call()
        finally:
            self.calling = None
            if self.abandoned:
                raise AbandonedError


class ProcessorThreads:
    """A thread for each processor, made when it is first called, and anew after one was abandoned."""

    def __init__(self) -> None:
        self._threads: dict[str, ProcessorThread] = {}
        self._left: dict[str, list[ProcessorThread]] = {}

    @property
    def abandoned(self) -> int:
        """The number of calls that were left behind and have not returned."""
        return sum(thread.alive for threads in list(self._left.values()) for thread in list(threads))

    def find(self, name: str) -> ProcessorThread | None:
        """The thread of a processor; None when too many of its calls have not returned."""
        thread = self._threads.get(name)
        if thread is None and sum(each.alive for each in self._left.get(name, ())) < MOST_ABANDONED:
            thread = self._threads[name] = ProcessorThread(name)
        return thread

    def abandon(self, name: str, reason: str) -> None:
        """Leaves the thread of a processor behind in the call that it is in."""
        thread = self._threads.pop(name)
        thread.abandon()
        left = [each for each in self._left.get(name, ()) if each.alive]
        self._left[name] = [*left, thread]
        import logging

        message = "%s; its thread was left behind, the %d. of at most %d"
        logging.getLogger("tirage").error(message, reason, len(left) + 1, MOST_ABANDONED)


def too_late(name: str, seconds: float) -> str:
    """Why a request ended whose processor did not return."""
    return f"logits processor {name!r} did not return within {seconds:g} s"


def not_called(name: str) -> str:
    """Why a request ended whose processor was not even called."""
    return f"logits processor {name!r} is not called now, for {MOST_ABANDONED} of its calls have never returned"
