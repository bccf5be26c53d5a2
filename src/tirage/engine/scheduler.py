"""The loop: requests join and leave between steps, and every step draws one token for each row that runs.

A request is waiting, then its prompt is being read, then its samples run, then it is over. Long prompts are
read piece by piece, turn and turn about, so that neither the rows that run nor shorter prompts wait for them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.batch import Batch
from tirage.draw import Draw, Status
from tirage.engine.logprobs import PromptScores, output_entry
from tirage.engine.progress import Meter
from tirage.engine.request import Request
from tirage.engine.sample import GrowingSample, draw
from tirage.models import StepModel
from tirage.text import Stop, Tokenizer

Notify = Callable[[GrowingSample], None]
# Prompt tokens read between two steps of the rows that run; one piece of a prompt is read in any case.
READ_BUDGET = 256
_log = logging.getLogger("tirage")


class Job:
    """A request in the engine: what is still to start, its row while its prompt is read, and who wants to know."""

    def __init__(self, request: Request, notify: Notify) -> None:
        self.request, self.notify = request, notify
        self.pending = deque(sample for sample in request.samples if sample.stop is None)
        self.row: Any = None
        self.logits: NDArray[np.float32] | None = None
        self.scores: PromptScores | None = None
        self.states: list[NDArray[np.float32]] = []

    @property
    def to_read(self) -> bool:
        """Whether there is any use in reading the prompt."""
        return bool(self.pending) or self.request.inputs.score


class Running:
    """A sample in the batch: its row, and the logits its next token is drawn from."""

    __slots__ = ("job", "logits", "row", "sample", "states")

    def __init__(self, job: Job, sample: GrowingSample, row: Any, logits: NDArray[np.float32]) -> None:
        self.job, self.sample, self.row, self.logits = job, sample, row, logits
        self.states = list(job.states)


class Scheduler:
    """Jobs over one model, one `step` at a time; for one thread.

    `spoken` is called when every listener of a step has been told of its token, before the model goes on.
    """

    def __init__(
        self,
        model: StepModel,
        tokenizer: Tokenizer,
        *,
        max_running: int,
        meter: Meter | None = None,
        spoken: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._tokenizer, self._places = model, tokenizer, max_running
        self._meter, self._spoken = Meter() if meter is None else meter, spoken
        self._batch = Batch(model.vocab_size, max_running)
        self._waiting: deque[Job] = deque()
        self._reading: deque[Job] = deque()
        self._ready: deque[Job] = deque()
        self._running: dict[int, Running] = {}
        # The logits of the last decode step and whose they are: drawn from as they lie while nobody comes or goes.
        self._last: tuple[list[Running], NDArray[np.float32]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._reading or self._ready or self._running)

    @property
    def waiting(self) -> int:
        """Number of requests in the queue; this and the next two may be asked for in any thread."""
        return len(self._waiting)

    @property
    def reading(self) -> int:
        """Number of requests whose prompts are being read or were just read."""
        return len(self._reading) + len(self._ready)

    @property
    def running(self) -> int:
        """Number of samples that are being written."""
        return len(self._running)

    def add(self, job: Job) -> None:
        """Puts a job at the end of the queue."""
        self._waiting.append(job)

    def step(self) -> None:
        """Reads a piece of a prompt or a few, then moves every running sample by one token."""
        self._meter.tick()
        began = self._meter.last_tick
        self._admit()
        self._read()
        self._start()
        self._meter.lap("read")
        if self._running:
            self._draw()
            self._spoken()
            self._meter.lap("text")
            self._decode()
            self._meter.lap("decode")
        self._meter.steps += 1
        self._meter.last_step_s = self._meter.last_tick - began

    def abort(self, job: Job) -> None:
        """Ends a job's unfinished samples with finish reason "abort"."""
        self._end(job, Stop(kind="abort"))

    def fail_all(self, error: BaseException) -> None:
        """Ends every job with an error: for a failure that is nobody's own."""
        jobs = [*self._waiting, *self._reading, *self._ready, *(one.job for one in self._running.values())]
        for job in dict.fromkeys(jobs):
            self._fail(job, error)

    # --- prompts -------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        free = self._places - self.running - self.reading
        while self._waiting and free > 0:
            job = self._waiting.popleft()
            if not job.to_read:
                self._finish_empty(job)
                continue
            try:
                job.row = self._model.open(job.request.inputs)
            except Exception as error:
                self._fail(job, error)
                continue
            job.request.cached_tokens = job.row.cached
            self._meter.started += 1
            self._meter.cached_tokens += job.row.cached
            if job.request.inputs.score:
                job.scores = PromptScores(job.request, self._tokenizer)
            self._reading.append(job)
            free -= 1

    def _read(self) -> None:
        """Reads prompts in turn until the budget is spent; one that is through may start its samples."""
        budget = READ_BUDGET
        while self._reading and budget > 0:
            job = self._reading.popleft()
            before = job.row.left
            try:
                self._read_piece(job)
            except Exception as error:
                self._fail(job, error)
                continue
            budget -= before - job.row.left
            self._meter.prompt_tokens += before - job.row.left
            (self._reading if job.row.left else self._ready).append(job)

    def _read_piece(self, job: Job) -> None:
        logits = self._model.read(job.row)
        if job.scores is not None:
            job.scores.add(logits)
        if job.row.hidden is not None:
            job.states.append(job.row.hidden)
        if not job.row.left:
            job.logits = logits[-1]
            job.request.prompt_logprobs = job.scores.entries if job.scores is not None else None

    def _start(self) -> None:
        while self._ready and len(self._running) < self._places:
            job = self._ready[0]
            if not job.pending:
                self._ready.popleft()
                self._close(job)
                self._finish_empty(job)
                continue
            sample = job.pending.popleft()
            row = self._model.fork(job.row) if job.pending else job.row
            if not job.pending:
                job.row = None
                self._ready.popleft()
            assert job.logits is not None
            slot = self._batch.add(job.request.params, job.request.prompt_ids, sample_index=sample.index)
            self._running[slot] = Running(job, sample, row, job.logits)

    def _finish_empty(self, job: Job) -> None:
        for sample in job.request.samples:
            self._tell(job, sample)

    # --- tokens --------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """One token for every running sample."""
        slots = self._batch.slots
        moved = [self._running[slot] for slot in slots]
        drawn = draw(self._batch, self._matrix(moved), [one.sample for one in moved])
        self._batch.advance(drawn)
        self._meter.lap("sample")
        self._meter.output_tokens += len(moved)
        for index, (slot, one) in enumerate(zip(slots, moved, strict=True)):
            take(one, drawn, index, self._tokenizer)
            if one.sample.stop is not None:
                self._leave(slot, reuse=True)
        for one in moved:
            self._tell(one.job, one.sample)

    def _matrix(self, moved: list[Running]) -> NDArray[np.float32]:
        if self._last is not None and self._last[0] == moved:
            return self._last[1]
        return np.stack([one.logits for one in moved])

    def _decode(self) -> None:
        """The logits after the tokens just drawn, for those that go on."""
        self._last = None
        going = [self._running[slot] for slot in self._batch.slots]
        if not going:
            return
        tokens, rows = [one.sample.token_ids[-1] for one in going], [one.row for one in going]
        try:
            logits = self._model.decode(tokens, rows)
        except Exception as error:
            # The rows' caches may have moved on in part, so none of them can be trusted with another step.
            for job in dict.fromkeys(one.job for one in going):
                self._fail(job, error)
            return
        self._last = going, logits
        for one, row in zip(going, logits, strict=True):
            one.logits = row
            if one.row.hidden is not None:
                one.states.append(one.row.hidden)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _leave(self, slot: int, *, reuse: bool) -> None:
        one = self._running.pop(slot)
        self._batch.remove(slot)
        if one.states:
            one.sample.hidden_states = np.concatenate(one.states)
        self._release(one.row, reuse=reuse)

    def _close(self, job: Job) -> None:
        row, job.row = job.row, None
        if row is not None:
            self._release(row, reuse=not row.left)

    def _release(self, row: Any, *, reuse: bool) -> None:
        try:
            self._model.close(row, reuse=reuse)
        except Exception as error:
            _log.error("a row could not be closed: %s: %s", type(error).__name__, error, exc_info=error)

    def _fail(self, job: Job, error: BaseException) -> None:
        _log.error("a request ended with an error: %s: %s", type(error).__name__, error, exc_info=error)
        self._end(job, Stop(kind="model_failed", matched_text=f"{type(error).__name__}: {error}"))

    def _end(self, job: Job, stop: Stop) -> None:
        for queue in (self._waiting, self._reading, self._ready):
            if job in queue:
                queue.remove(job)
        for slot in [slot for slot, one in self._running.items() if one.job is job]:
            self._leave(slot, reuse=False)
        job.pending.clear()
        self._close(job)
        for sample in job.request.samples:
            if sample.stop is None:
                sample.fail(stop)
                self._tell(job, sample)

    def _tell(self, job: Job, sample: GrowingSample) -> None:
        try:
            job.notify(sample)
        except Exception as error:
            _log.error("a listener failed, its request is aborted: %s", error, exc_info=error)
            job.notify = lambda _: None
            self._end(job, Stop(kind="abort"))


def take(one: Running, drawn: Draw, row: int, tokenizer: Tokenizer) -> None:
    """Gives a sample its row of a draw; a row without a token ends it with an error, and only it."""
    one.job.request.mark_token()
    status = Status(int(drawn.status[row]))
    if status is not Status.ok:
        one.sample.fail(Stop(kind=status.name))  # type: ignore[arg-type]  # statuses are kinds of stops
        return
    entry = output_entry(drawn, row, one.job.request.params, tokenizer, offset=one.sample.offset)
    if entry is not None:
        one.sample.entries.append(entry)
    one.sample.accept(int(drawn.token_ids[row]), float(drawn.sampled_logprobs[row]))
