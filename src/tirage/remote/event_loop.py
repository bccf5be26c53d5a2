"""A thread with an event loop in which all connections of a RemoteLLM live, for callers in threads and other loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from tirage.errors import UnavailableError

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines in a thread of its own, which starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. An exception meanwhile, such as Ctrl-C, cancels it.

        Raises UnavailableError where the thread was closed.
        """
        future = self._submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise UnavailableError("the connection to the server was closed", closing=True) from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, generator: AsyncGenerator[T, None]) -> Iterator[T]:
        """The values of an asynchronous generator; closing the iterator closes it."""
        try:
            while (value := self.run(_next(generator))) is not None:
                yield value
        finally:
            with contextlib.suppress(UnavailableError):
                self._end(generator)

    async def aiterate(self, generator: AsyncGenerator[T, None]) -> AsyncIterator[T]:
        """The values of an asynchronous generator, for another event loop; cancelling the task closes it."""
        try:
            while (value := await asyncio.wrap_future(self._submit(_next(generator)))) is not None:
                yield value
        finally:
            with contextlib.suppress(UnavailableError):
                await asyncio.wrap_future(self._submit(_closed(generator)))

    def _end(self, generator: AsyncGenerator[Any, None]) -> None:
        """Closes a generator; waits for it, unless that is what this thread would have to do."""
        ended = self._submit(_closed(generator))
        # An iterator that nobody holds any more may be collected in the loop's own thread.
        if threading.current_thread() is not self._thread:
            ended.result()

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Cancels what runs, runs a last coroutine and ends the thread; closing twice does no harm."""
        with self._lock:
            loop, self._closed = self._loop, True
        if loop is None or self._thread is None or not self._thread.is_alive():
            last.close()
            return
        asyncio.run_coroutine_threadsafe(_end_all(last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._closed:
                coroutine.close()
                raise UnavailableError("the connection to the server is closed", closing=True)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="tirage-remote", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def all_or_first_failure(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order, of coroutines that run at once. The first failure cancels the others and is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(generator: AsyncGenerator[T, None]) -> T | None:
    return await anext(generator, None)


async def _closed(generator: Any) -> None:
    """Closes a generator, once a step of it that was cancelled has ended."""
    while generator.ag_running:
        await asyncio.sleep(0.001)
    await generator.aclose()


async def _end_all(last: Coroutine[Any, Any, Any]) -> None:
    """Cancels the other tasks of this loop, then runs the last one."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last
    await asyncio.get_running_loop().shutdown_asyncgens()
