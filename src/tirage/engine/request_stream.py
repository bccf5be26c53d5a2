"""A request in the hands of whoever asked for it: deltas to read, an end to wait for, and a way to stop it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from tirage.engine.completion import Completion, Delta
from tirage.engine.request import EngineRequest


class Notifier:
    """Readers in event loops who wait for something that has come; each loop is called once for all of its own."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, waiter: asyncio.Future[None]) -> None:
        """Notes a reader; for the engine's thread."""
        self._waiters.setdefault(waiter.get_loop(), []).append(waiter)

    def flush(self) -> None:
        """Wakes those noted."""
        waiters, self._waiters = self._waiters, {}
        for loop, each in waiters.items():
            # A loop that was closed has no readers left, and may be closed at any time.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake, each)


def wake(waiters: list[asyncio.Future[None]]) -> None:
    """Lets readers go on; for their event loop."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class RequestStream:
    """A running request: iterate for its deltas, in a thread or an event loop, or wait for its `result`.

    For one reader. At most `buffer` deltas wait for it: what comes beyond is added to the last one of the same
    sample, so a slow reader gets larger deltas and holds nobody up. With `buffer` 0 there is one delta, at the end.
    A reader who leaves deltas unread for `patience_s` seconds has the request aborted. An iteration that is given
    up, a cancelled `result` and leaving a `with` block abort it too.
    """

    def __init__(
        self, request: EngineRequest, *, buffer: int, patience_s: float | None, stop: Callable[[], None]
    ) -> None:
        self.request, self.finished = request, False
        self._buffer, self._patience_s, self._stop = buffer, patience_s, stop
        self._changed = threading.Condition()
        self._unread: deque[Delta] = deque()
        self._read_at = 0.0
        self._waiter: asyncio.Future[None] | None = None

    def __iter__(self) -> Iterator[Delta]:
        """The deltas, for a thread, which waits for them."""
        try:
            while (delta := self._take()) is not None:
                yield delta
        finally:
            self.abort()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas, for an event loop."""
        try:
            while True:
                await self._until(lambda: bool(self._unread))
                if not self._unread:
                    return
                yield self._pop()
        finally:
            self.abort()

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    async def result(self) -> Completion:
        """The completion, once the request is over; the deltas stay unread."""
        try:
            await self._until(lambda: False)
        finally:
            self.abort()
        return self.request.completion()

    def wait(self, timeout: float | None = None) -> Completion:
        """`result` for a thread; TimeoutError, and the request goes on, when it takes longer than `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.finished, timeout):
                raise TimeoutError(f"request must end within {timeout} seconds, it is still running")
        return self.request.completion()

    def abort(self) -> None:
        """Ends the request's unfinished samples with finish reason "abort", soon; nothing for one that is over."""
        if not self.finished:
            self._stop()

    def put(self, delta: Delta | None, wakeups: Notifier) -> None:
        """Takes the next delta, or None after the last; for the engine's thread."""
        with self._changed:
            late = self._add(delta) if delta is not None else False
            self.finished = self.finished or delta is None
            self._changed.notify_all()
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            wakeups.add(waiter)
        if late:
            self.abort()

    def _add(self, delta: Delta) -> bool:
        """Makes a delta the last unread, or part of it; True when the reader has taken too long."""
        now = time.monotonic()
        if not self._unread:
            self._read_at = now
        place = self._place_of(delta.index) if len(self._unread) >= max(self._buffer, 1) else None
        if place is not None:
            delta = merged(self._unread[place], delta)
            del self._unread[place]
        # At the end in any case: the request's last delta, which brings the completion, stays the last.
        self._unread.append(delta)
        return self._patience_s is not None and now - self._read_at > self._patience_s

    def _place_of(self, index: int) -> int | None:
        """Where the last unread delta of a sample lies."""
        places = range(len(self._unread) - 1, -1, -1)
        return next((place for place in places if self._unread[place].index == index), None)

    def _take(self) -> Delta | None:
        with self._changed:
            self._changed.wait_for(lambda: self._unread or self.finished)
        return self._pop() if self._unread else None

    def _pop(self) -> Delta:
        with self._changed:
            self._read_at = time.monotonic()
            return self._unread.popleft()

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Waits until something is ready or the request is over."""
        while True:
            with self._changed:
                if ready() or self.finished:
                    return
                self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter


def merged(first: Delta, second: Delta) -> Delta:
    """Two deltas of one sample that follow each other, as one."""
    entries = None if second.logprobs is None else (first.logprobs or ()) + second.logprobs
    return Delta(
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        index=first.index,
        logprobs=first.logprobs if entries is None else entries,
        finish_reason=second.finish_reason,
        stop=second.stop,
        completion=second.completion,
    )
