"""One thread that owns the model and every cache; everyone else posts requests to it and hears of their tokens."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tirage.engine.plain import as_step_model
from tirage.engine.request import Request
from tirage.engine.scheduler import Job, Notify, Scheduler
from tirage.models import Model
from tirage.text import Tokenizer

T = TypeVar("T")
# The thread waits this long for more to do before it ends; the next request starts another.
_LINGER_S = 2.0


class Engine:
    """Runs requests over a model, any number at once, from any thread.

    At most `max_running` samples run at once; the others join, in order, as places become free. What a request
    gives does not depend on that number, on the other requests or on when they come and go.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, *, max_running: int) -> None:
        self.model = as_step_model(model)
        self._scheduler = Scheduler(self.model, tokenizer, max_running=max_running)
        self._posted: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, request: Request, notify: Notify) -> Job:
        """Starts a request; `notify` is called in the engine's thread with each sample that moved or ended."""
        job = Job(request, notify)
        self._post(lambda: self._scheduler.add(job))
        return job

    def abort(self, job: Job) -> None:
        """Ends a request's unfinished samples with finish reason "abort"; nothing happens to one that is over."""
        if not job.request.finished:
            self._post(lambda: self._scheduler.abort(job))

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, run between two steps in the thread that owns the model."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._post(lambda: run_into(future, function))
        return future.result()

    def _post(self, action: Callable[[], None]) -> None:
        with self._changed:
            self._posted.append(action)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tirage-engine", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while self._perform_posted():
            if self._scheduler.busy:
                self._guarded(self._scheduler.step)

    def _perform_posted(self) -> bool:
        """Performs what was posted, waiting for something if there is nothing to do; False when nothing came."""
        with self._changed:
            if not self._posted and not self._scheduler.busy:
                self._changed.wait(_LINGER_S)
            if not self._posted and not self._scheduler.busy:
                self._thread = None
                return False
            actions, self._posted = self._posted, deque()
        for action in actions:
            self._guarded(action)
        return True

    def _guarded(self, action: Callable[[], None]) -> None:
        """Performs an action; one that fails ends every request with an error, never the thread in silence."""
        try:
            action()
        except Exception as error:
            self._scheduler.fail_all(error)


def run_into(future: Future[Any], function: Callable[[], Any]) -> None:
    """Sets the future to what the function returns or raises."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
