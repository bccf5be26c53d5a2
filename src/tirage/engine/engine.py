"""One thread that owns the model and every cache; everyone else posts requests to it and hears of their tokens."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from tirage.engine.deltas import deltas_of
from tirage.engine.plain_model import as_step_model
from tirage.engine.progress import Meter, Progress
from tirage.engine.request import EngineRequest
from tirage.engine.request_stream import Notifier, RequestStream
from tirage.engine.scheduler import Scheduler
from tirage.engine.sequence import SequenceGroup
from tirage.errors import ParamsError, UnavailableError
from tirage.models import Model
from tirage.text import Tokenizer

T = TypeVar("T")
# The thread waits this long for more to do before it ends; the next request starts another.
_LINGER_S = 2.0
# How long `close` waits for the turn that the thread is in, which nothing can interrupt.
_GRACE_S = 30.0
_log = logging.getLogger("tirage")


class Engine:
    """Runs requests over a model, any number at once, from any thread and any event loop.

    At most `max_running` samples and beams run at once; the others join, in order, as places become free. What a
    request gives does not depend on that number, on the other requests or on when they come and go. With
    `max_waiting`, no more requests than that may wait for a place.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, *, max_running: int, max_waiting: int | None = None) -> None:
        self.model = as_step_model(model)
        self.max_running, self.max_waiting = max_running, max_waiting
        self._meter, self._wakeups = Meter(), Notifier()
        self._scheduler = Scheduler(
            self.model, tokenizer, max_running=max_running, meter=self._meter, spoken=self._wakeups.flush
        )
        self._posted: deque[Callable[[], None]] = deque()
        self._arrived: deque[SequenceGroup] = deque()
        self._open: set[RequestStream] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = self._closed = False

    def submit(self, request: EngineRequest, *, buffer: int = 64, patience_s: float | None = None) -> RequestStream:
        """The stream of a request, which starts as soon as fewer than `max_running` samples run; never waits.

        `buffer` and `patience_s` are those of `RequestStream`. Raises UnavailableError when the queue is full or the
        engine is closing.
        """
        return self.submit_all([request], buffer=buffer, patience_s=patience_s)[0]

    def submit_all(
        self, requests: Sequence[EngineRequest], *, buffer: int = 64, patience_s: float | None = None
    ) -> list[RequestStream]:
        """The handles of requests that are all taken or, with an error, none of them."""
        check_reader(buffer, patience_s)
        jobs = [self._job(request, buffer, patience_s) for request in requests]
        with self._changed:
            self._check_room(len(jobs))
            self._open.update(handle for handle, _ in jobs)
            self._arrived.extend(job for _, job in jobs)
            self._wake()
        return [handle for handle, _ in jobs]

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, run between two steps in the thread that owns the model."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._post(lambda: run_into(future, function))
        return future.result()

    def flush(self) -> None:
        """Drops what earlier requests left for reuse, between two steps."""
        self.call(self.model.forget)

    def progress(self) -> Progress:
        """What the loop has done and is doing; never waits for it."""
        scheduler = self._scheduler
        return Progress(
            **self._meter.numbers(),
            busy=bool(self._open),
            closing=self._closing,
            waiting=len(self._arrived) + scheduler.waiting,
            reading=scheduler.reading,
            running=scheduler.running,
        )

    def close(self, *, drain_s: float = 0.0) -> None:
        """Takes no more requests, gives those there are `drain_s` seconds, aborts the rest and ends the thread.

        Returns when all that is done. Closing twice does no harm.
        """
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._open, drain_s)
            left = list(self._open)
        for handle in left:
            handle.abort()
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._open, _GRACE_S)
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and ended:
            thread.join(_GRACE_S)
        if not ended or (thread is not None and thread.is_alive()):
            _log.error("the engine's thread did not end within %g seconds; it is left behind", _GRACE_S)

    def _job(
        self, request: EngineRequest, buffer: int, patience_s: float | None
    ) -> tuple[RequestStream, SequenceGroup]:
        handle = RequestStream(request, buffer=buffer, patience_s=patience_s, stop=lambda: self._abort(job))

        def put(delta: Any) -> None:
            if delta is None:
                self._over(handle)
                # Cuts the circle of handle, job and listener, so that all is freed without a collector.
                job.release()
            handle.put(delta, self._wakeups)

        job = SequenceGroup(request, deltas_of(request, put, whole=buffer == 0))
        return handle, job

    def _check_room(self, count: int) -> None:
        if self._closing:
            raise UnavailableError("the engine is closing and takes no more requests", closing=True)
        if self.max_waiting is None:
            return
        scheduler = self._scheduler
        waiting = len(self._arrived) + scheduler.waiting + count
        spare = max(0, self.max_running - scheduler.running - scheduler.reading)
        if waiting > self.max_waiting + spare:
            raise UnavailableError(
                f"the engine's queue must hold at most {self.max_waiting} requests (max_waiting), got {count} more; "
                "try again later"
            )

    def _over(self, handle: RequestStream) -> None:
        self._meter.ended(handle.request)
        with self._changed:
            self._open.discard(handle)
            self._changed.notify_all()

    def _abort(self, job: SequenceGroup) -> None:
        if not self._closed:
            self._post(lambda: self._scheduler.abort(job))

    def _post(self, action: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                raise UnavailableError("the engine is closed", closing=True)
            self._posted.append(action)
            self._wake()

    def _wake(self) -> None:
        """Lets the thread see what came; starts one where none runs."""
        self._changed.notify_all()
        if self._thread is None:
            self._meter.tick()
            self._thread = threading.Thread(target=self._run, name="tirage-engine", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._perform_posted():
            if self._scheduler.busy:
                self._guarded(self._scheduler.step)
            self._wakeups.flush()

    def _perform_posted(self) -> bool:
        """Performs what was posted, waiting for something if there is nothing to do; False when nothing came."""
        with self._changed:
            if not self._has_work and not self._closed:
                self._changed.wait(_LINGER_S)
            if not self._has_work:
                self._thread = None
                return False
            while self._arrived:
                self._scheduler.add(self._arrived.popleft())
            actions, self._posted = self._posted, deque()
        for action in actions:
            self._guarded(action)
        return True

    @property
    def _has_work(self) -> bool:
        return bool(self._posted or self._arrived or self._scheduler.busy)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Performs an action; one that fails ends every request with an error, never the thread in silence."""
        try:
            action()
        except BaseException as error:  # a panic in an extension module is no Exception
            self._scheduler.fail_all(error)


def check_reader(buffer: Any, patience_s: Any) -> None:
    """ParamsError for a buffer or a patience that is none."""
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
        raise ParamsError(f"buffer must be an integer of at least 0, got {buffer!r}")
    number = isinstance(patience_s, (int, float)) and not isinstance(patience_s, bool) and patience_s > 0
    if patience_s is not None and not number:
        raise ParamsError(f"patience_s must be a positive number of seconds or None, got {patience_s!r}")


def run_into(future: Future[Any], function: Callable[[], Any]) -> None:
    """Sets the future to what the function returns or raises."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
