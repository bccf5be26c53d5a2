"""The stream of a submitted request: its deltas, its result, and a way to abort it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

from tirage.engine.completion import Completion, Delta
from tirage.engine.notifier import Notifier
from tirage.engine.request import EngineRequest

T = TypeVar("T")


class RequestStream:
    """A submitted request: iterate over its deltas, in a thread or an event loop, or wait for its `result`.

    It has one reader. At most `buffer` deltas are kept unread: later ones are merged into the last delta of their
    sample, so a slow reader gets larger deltas and delays nobody. With `buffer` 0 there is one delta, at the end.
    A request whose reader leaves deltas unread for `patience_s` seconds is aborted. Ending an iteration early,
    cancelling `result` and leaving a `with` block abort it too.
    """

    def __init__(
        self, request: EngineRequest, *, buffer: int, patience_s: float | None, abort: Callable[[], None]
    ) -> None:
        self.request, self.finished = request, False
        self._buffer, self._patience_s, self._abort = buffer, patience_s, abort
        # Of the lock itself a `with` costs half of what it does of the condition; `_sleeping` threads wait for it.
        self._lock = threading.RLock()
        self._changed, self._sleeping = threading.Condition(self._lock), 0
        self._unread: deque[Delta] = deque()
        self._read_at = 0.0
        self._waiter: asyncio.Future[None] | None = None

    def __iter__(self) -> Iterator[Delta]:
        """The deltas, for a thread, which waits for them."""
        try:
            while (delta := self._next()) is not None:
                yield delta
        finally:
            self.abort()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas, for an event loop."""
        try:
            while True:
                # Most often there are several: no lock is taken to see that.
                if not self._unread:
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
        """The completion, once the request has finished; the deltas stay unread."""
        try:
            await self._until(lambda: False)
        finally:
            self.abort()
        return self.request.completion()

    def wait(self, timeout: float | None = None) -> Completion:
        """`result` for a thread. Raises TimeoutError after `timeout` seconds, and the request goes on."""
        with self._lock:
            if not self._sleep(lambda: self.finished, timeout):
                raise TimeoutError(f"request must end within {timeout} seconds, it is still running")
        return self.request.completion()

    def abort(self) -> None:
        """Ends the unfinished samples with finish reason "abort"; returns at once, and is harmless after the end."""
        if not self.finished:
            self._abort()

    def put(self, delta: Delta | None, notifier: Notifier) -> None:
        """Takes the next delta, or None after the last one; for the engine's thread."""
        with self._lock:
            stalled = self._add(delta) if delta is not None else False
            self.finished = self.finished or delta is None
            if self._sleeping:
                self._changed.notify_all()
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            notifier.add(waiter)
        if stalled:
            self.abort()

    def _add(self, delta: Delta) -> bool:
        """Appends a delta, merged with an unread one where the buffer is full; True when the reader has stalled."""
        now = time.monotonic()
        if not self._unread:
            self._read_at = now
        found = self._last_unread(delta.index) if len(self._unread) >= max(self._buffer, 1) else None
        if found is not None:
            delta = merged(self._unread[found], delta)
            del self._unread[found]
        # Always at the end: the last delta of a request, which has the completion, stays the last.
        self._unread.append(delta)
        return self._patience_s is not None and now - self._read_at > self._patience_s

    def _last_unread(self, sample_index: int) -> int | None:
        """The position of the last unread delta of a sample."""
        positions = range(len(self._unread) - 1, -1, -1)
        return next((at for at in positions if self._unread[at].index == sample_index), None)

    def _next(self) -> Delta | None:
        with self._lock:
            self._sleep(lambda: bool(self._unread) or self.finished)
        return self._pop() if self._unread else None

    def _sleep(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits in a thread that holds the lock until something is ready; False if it is not after `timeout` s."""
        self._sleeping += 1
        try:
            return self._changed.wait_for(ready, timeout)
        finally:
            self._sleeping -= 1

    def _pop(self) -> Delta:
        with self._lock:
            self._read_at = time.monotonic()
            return self._unread.popleft()

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Waits until something is ready or the request has finished."""
        while True:
            with self._lock:
                if ready() or self.finished:
                    return
                self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter


def merged(first: Delta, second: Delta) -> Delta:
    """Two successive deltas of one sample as one."""
    return Delta(
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        index=first.index,
        logprobs=joined(first.logprobs, second.logprobs),
        records=joined(first.records, second.records),
        finish_reason=second.finish_reason,
        stop=second.stop,
        completion=second.completion,
    )


def joined(first: tuple[T, ...] | None, second: tuple[T, ...] | None) -> tuple[T, ...] | None:
    """Two lists of tokens as one; None where there is neither."""
    return first if second is None else (first or ()) + second
