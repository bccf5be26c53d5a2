"""The engine: one thread that owns the model and all caches; other threads submit requests and read their streams."""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tirage.engine.batching_scheduler import BatchingScheduler
from tirage.engine.completion import Delta
from tirage.engine.deltas import listener_of
from tirage.engine.fairness import Tenant, share_of
from tirage.engine.notifier import Notifier
from tirage.engine.plain_model import as_step_model
from tirage.engine.processor_draws import ProcessorDraws, run_into
from tirage.engine.progress import Meter, Progress
from tirage.engine.request import EngineRequest
from tirage.engine.request_stream import RequestStream
from tirage.engine.runner import read_chunk, read_token
from tirage.engine.scheduler import Scheduler
from tirage.engine.scheduler_config import SchedulerConfig
from tirage.engine.sequence import SequenceGroup
from tirage.engine.speculation import Speculation
from tirage.engine.speculative_config import SpeculativeConfig
from tirage.errors import ModelError, ParamsError, UnavailableError
from tirage.models import BatchingModel, Inputs, Model, StepModel
from tirage.processors import ProcessorThreads
from tirage.text import Tokenizer

T = TypeVar("T")
# How long the thread waits for more to do before it ends; the next request starts a new one.
_LINGER_S = 2.0
# How long `close` waits for the step that the thread is in, which nothing can interrupt.
_GRACE_S = 30.0
_log = logging.getLogger("tirage")
_started: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Runs requests over a model, any number at once, from any thread and any event loop.

    Samples and beams beyond `max_running` of the config start, in order, as slots become free. Where several requests
    run, tenants have equal shares of the slots, and so have a tenant's requests. The answer to a request depends
    neither on that number nor on other requests and when they come and go. Where other tenants have filled a queue with
    `max_waiting`, one may still use its share of it. A call of a custom logits processor that takes longer than
    `processor_timeout` is left behind; the other requests go on meanwhile.
    """

    def __init__(
        self,
        model: Model | BatchingModel,
        tokenizer: Tokenizer,
        *,
        config: SchedulerConfig,
        speculative_config: SpeculativeConfig | None = None,
        draft: Model | None = None,
    ) -> None:
        self.config = config
        self._meter, self._notifier = Meter(), Notifier()
        self._threads, flush = ProcessorThreads(), self._notifier.flush
        apart = ProcessorDraws(config.processor_timeout, self._threads)
        if batches_itself(model):
            if speculative_config is not None:
                raise ModelError("speculation must go with a model whose steps tirage schedules, got another engine's")
            self.model = model
            self._scheduler = BatchingScheduler(
                model, tokenizer, config=config, meter=self._meter, flush=flush, apart=apart
            )
        else:
            self.model = as_step_model(cast("Model", model))
            drafts = open_speculation(self.model, speculative_config, draft, self._meter)
            self._scheduler = Scheduler(
                self.model,
                tokenizer,
                config=config,
                meter=self._meter,
                flush=flush,
                apart=apart,
                speculation=drafts,
                take_new=self._take_submitted,
            )
        self._numbers = itertools.count()
        self._actions: deque[Callable[[], None]] = deque()
        self._submitted: deque[SequenceGroup] = deque()
        self._unfinished: set[RequestStream] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = self._closed = False

    def submit(self, request: EngineRequest, *, buffer: int = 64, patience_s: float | None = None) -> RequestStream:
        """The stream of a request, which starts as soon as fewer than `max_running` samples run; never waits.

        `buffer` and `patience_s` are those of `RequestStream`. Raises ParamsError for bad ones and for an adapter that
        has been unloaded, and UnavailableError when the queue is full or the engine is closing.
        """
        return self.submit_all([request], buffer=buffer, patience_s=patience_s)[0]

    def submit_all(
        self, requests: Sequence[EngineRequest], *, buffer: int = 64, patience_s: float | None = None
    ) -> list[RequestStream]:
        """The streams of requests, all of which are accepted or, with an error of `submit`, none."""
        check_reader(buffer, patience_s)
        number = next(self._numbers)
        pairs = [self._connect(request, buffer, patience_s, number) for request in requests]
        streams = [stream for stream, _ in pairs]
        with self._changed:
            for request in requests:
                if request.inputs.adapter is not None:
                    # It may have been unloaded since the request was checked.
                    self.model.check(request.inputs)
            self._check_queue(Counter(request.tenant for request in requests))
            self._unfinished.update(streams)
            self._submitted.extend(group for _, group in pairs)
            self._wake()
        return streams

    def check(self, request: EngineRequest) -> None:
        """Raises ParamsError for a request that the model cannot run; may be called from any thread."""
        self.model.check(request.inputs)
        self._scheduler.check(request)

    def next_logits(self, prompt: Inputs | Sequence[int]) -> NDArray[np.float32]:
        """The model's logits float32 [V] after the inputs of a request, or after 1 to max_length ids."""
        inputs = as_inputs(prompt)
        return self.call(lambda: self._scheduler.next_logits(inputs))

    def logits_along(
        self, prompt: Inputs | Sequence[int], output_ids: Sequence[int] = ()
    ) -> Generator[NDArray[np.float32]]:
        """The model's logits float32 [V] after a prompt and after each of `output_ids`, in order; other requests go on.

        The prompt is that of `next_logits`. Each id is read as one that was drawn is. Raises ParamsError for ids after
        embeddings where the model schedules its requests itself.
        """
        inputs = as_inputs(prompt)
        if batches_itself(self.model):
            yield from (self.next_logits(followed(inputs, output_ids[:end])) for end in range(len(output_ids) + 1))
            return
        model = cast("StepModel", self.model)
        row = self.call(lambda: model.open(inputs))
        try:
            while not (found := self.call(lambda: read_chunk(model, row))).size:
                pass
            yield found
            for token_id in output_ids:
                yield self.call(partial(read_token, model, row, token_id))
        finally:
            self.call(lambda: model.close(row, reuse=False))

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, called between two steps in the thread that owns the model.

        Raises UnavailableError when the engine is closed.
        """
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._post(lambda: run_into(future, function))
        return future.result()

    def flush(self) -> None:
        """Drops the cached prefixes of earlier requests, between two steps."""
        self.call(self.model.forget)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Loads a LoRA adapter while requests run, which later ones may name; it takes effect between two steps.

        Raises ParamsError for a name that is taken, and for a model that was not opened with `enable_lora`, ModelError
        for a folder that holds no LoRA adapter of the model, and UnavailableError when the engine is closed.
        """
        adapters = self._adapters()
        tree = adapters.prepare(name, folder)
        self.call(lambda: adapters.add(name, tree))

    def unload_adapter(self, name: str) -> None:
        """Drops an adapter that `load_adapter` has loaded, once the requests that use it have ended.

        New ones are refused at once, and cached prefixes are dropped. Raises ParamsError for another name.
        """
        adapters = self._adapters()
        with self._changed:
            adapters.retire(name)
            self._changed.wait_for(lambda: not any(each.request.inputs.adapter == name for each in self._unfinished))

        def drop() -> None:
            adapters.remove(name)
            self.model.forget()

        self.call(drop)

    def _adapters(self) -> Any:
        """The adapters of a model that has some; raises ParamsError for another one."""
        adapters = getattr(self.model, "adapters", None)
        if adapters is None:
            raise ParamsError("adapters must be loaded into a model that PyTorch runs, got one of another backend")
        return adapters

    def progress(self) -> Progress:
        """What the engine has done and is doing; does not wait for its thread."""
        scheduler = self._scheduler
        return Progress(
            **self._meter.snapshot(),
            busy=bool(self._unfinished),
            closing=self._closing,
            waiting=len(self._submitted) + scheduler.waiting,
            reading=scheduler.prefilling,
            running=scheduler.running,
            abandoned_calls=self._threads.abandoned,
        )

    def running_share(self) -> float:
        """How many answers the unfinished requests have so far, each counted by its `done_share`; for any thread."""
        with self._changed:
            requests = [stream.request for stream in self._unfinished]
        return sum(request.done_share for request in requests)

    def close(self, *, drain_s: float = 0.0) -> None:
        """Accepts no more requests, gives the unfinished ones `drain_s` seconds, aborts the rest and ends the thread.

        Returns when all that is done. Closing twice does no harm.
        """
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._unfinished, drain_s)
            unfinished = list(self._unfinished)
        for stream in unfinished:
            stream.abort()
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._unfinished, _GRACE_S)
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and ended:
            thread.join(_GRACE_S)
        if not ended or (thread is not None and thread.is_alive()):
            _log.error("the engine's thread did not end within %g seconds; it is left behind", _GRACE_S)
        elif batches_itself(self.model):
            self.model.close()

    def _connect(
        self, request: EngineRequest, buffer: int, patience_s: float | None, number: int
    ) -> tuple[RequestStream, SequenceGroup]:
        """A stream for the request, and a group for the scheduler whose listener fills the stream."""
        stream = RequestStream(request, buffer=buffer, patience_s=patience_s, abort=lambda: self._abort(group))

        def put(delta: Delta | None) -> None:
            if delta is None:
                self._finish(stream)
                # Breaks the cycle of stream, group and listener, so that all is freed without the garbage collector.
                group.release()
            stream.put(delta, self._notifier)

        group = SequenceGroup(request, listener_of(request, put, whole=buffer == 0), number=number)
        return stream, group

    def _check_queue(self, added: Counter[Tenant]) -> None:
        """Raises UnavailableError when so many more requests of these tenants cannot be accepted."""
        if self._closing:
            raise UnavailableError("the engine is closing and takes no more requests", closing=True)
        scheduler, count, most = self._scheduler, added.total(), self.config.max_waiting
        if most is None:
            return
        waiting = len(self._submitted) + scheduler.waiting + count
        free = max(0, self.config.max_running - scheduler.running - scheduler.prefilling)
        if waiting <= most + free:
            return
        own = Counter(scheduler.waiting_by_tenant)
        own.update(group.key.tenant for group in self._submitted)
        own += added
        over = any(own[tenant] > share_of(tenant, own, most) for tenant in added)
        if waiting > 2 * most or over:
            raise UnavailableError(
                f"the engine's queue must hold at most {most} requests (max_waiting), got {count} more; try again later"
            )

    def _finish(self, stream: RequestStream) -> None:
        self._meter.count_end(stream.request)
        with self._changed:
            self._unfinished.discard(stream)
            self._changed.notify_all()

    def _abort(self, group: SequenceGroup) -> None:
        if not self._closed:
            self._post(lambda: self._scheduler.abort(group))

    def _post(self, action: Callable[[], None]) -> None:
        """Has the engine's thread run an action between two steps."""
        with self._changed:
            if self._closed:
                raise UnavailableError("the engine is closed", closing=True)
            self._actions.append(action)
            self._wake()

    def _wake(self) -> None:
        """Lets the thread see new work; starts the thread if there is none."""
        self._changed.notify_all()
        if self._thread is None:
            self._meter.tick()
            self._thread = threading.Thread(target=self._run, name="tirage-engine", daemon=True)
            self._thread.start()
            _started.add(self)

    def _run(self) -> None:
        while self._take_work():
            if self._scheduler.busy:
                self._guarded(self._scheduler.step)
            self._notifier.flush()

    def _take_work(self) -> bool:
        """Queues new requests and runs new actions, waiting for some when idle; False when none came."""
        if self._scheduler.busy and not self._submitted and not self._actions:
            return True
        with self._changed:
            if not self._has_work and not self._closed:
                self._changed.wait(_LINGER_S)
            if not self._has_work:
                self._thread = None
                return False
            self._take_submitted()
            actions, self._actions = self._actions, deque()
        if actions:
            self._scheduler.keep_logits()
        for action in actions:
            self._guarded(action)
        return True

    def _take_submitted(self) -> bool:
        """Queues new requests; whether there were any."""
        if not self._submitted:
            return False
        with self._changed:
            while self._submitted:
                self._scheduler.add(self._submitted.popleft())
        return True

    @property
    def _has_work(self) -> bool:
        return bool(self._actions or self._submitted or self._scheduler.busy)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Runs an action; when it fails, every request ends with an error, and the thread goes on."""
        try:
            action()
        except BaseException as error:  # a panic in an extension module is not an Exception
            self._scheduler.fail_all(error)


@atexit.register
def _close_started() -> None:
    """Closes engines that nobody has closed: a thread inside the model would abort the process as it ends."""
    for engine in list(_started):
        engine.close()


def as_inputs(prompt: Inputs | Sequence[int]) -> Inputs:
    """The inputs of a prompt whose next logits alone are wanted."""
    if not isinstance(prompt, Inputs):
        return Inputs(token_ids=tuple(prompt))
    return replace(prompt, score=False, hidden_states=False)


def followed(inputs: Inputs, output_ids: Sequence[int]) -> Inputs:
    """The inputs with ids behind the prompt; raises ParamsError for embeddings, which have no ids."""
    if output_ids and inputs.embeds is not None:
        raise ParamsError("prompt embeds must be left out of a text that is explained on this model; give token ids")
    return replace(inputs, token_ids=(*inputs.token_ids, *output_ids))


def open_speculation(
    model: StepModel, config: SpeculativeConfig | None, draft: Model | None, meter: Meter
) -> Speculation | None:
    """The speculation of an engine; None without a config. Raises what `Speculation` does."""
    if config is None:
        return None
    return Speculation(model, config, meter=meter, draft=None if draft is None else as_step_model(draft))


def batches_itself(model: Any) -> TypeGuard[BatchingModel]:
    """Whether a model is a `BatchingModel`."""
    return hasattr(model, "step")


def check_reader(buffer: Any, patience_s: Any) -> None:
    """Raises ParamsError unless `buffer` is an integer >= 0 and `patience_s` a positive number or None."""
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
        raise ParamsError(f"buffer must be an integer of at least 0, got {buffer!r}")
    number = isinstance(patience_s, (int, float)) and not isinstance(patience_s, bool) and patience_s > 0
    if patience_s is not None and not number:
        raise ParamsError(f"patience_s must be a positive number of seconds or None, got {patience_s!r}")
