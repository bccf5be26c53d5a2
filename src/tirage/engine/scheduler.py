"""The loop: requests join and leave between steps, and every step draws one token for each row that runs.

A request is waiting, then its prompt is being read, then its samples run or its beams are searched, then it is
over. Long prompts are read piece by piece, turn and turn about, so that neither the rows that run nor shorter
prompts wait for them. Whatever fails ends the request or the sample that it belongs to, and no other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.batch import Batch
from tirage.draw import Status
from tirage.engine.beams import BeamSearch
from tirage.engine.logprobs import PromptScores, output_entry, token_logprob
from tirage.engine.progress import Meter
from tirage.engine.runner import DrawnRow, decode, draw, named, read
from tirage.engine.sample import GrowingSample
from tirage.engine.scorer import Beam
from tirage.engine.sequence import RunningSequence, SequenceGroup, unheard
from tirage.models import StepModel
from tirage.text import Stop, Tokenizer

# Prompt tokens read between two steps of the rows that run; one piece of a prompt is read in any case.
READ_BUDGET = 256
_log = logging.getLogger("tirage")


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
        self._waiting: deque[SequenceGroup] = deque()
        self._reading: deque[SequenceGroup] = deque()
        self._ready: deque[SequenceGroup] = deque()
        self._running: dict[int, RunningSequence] = {}
        self._searching: list[SequenceGroup] = []
        # The logits of the last decode step and whose they are: drawn from as they lie while nobody comes or goes.
        self._last: tuple[list[RunningSequence], NDArray[np.float32]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._reading or self._ready or self._running or self._searching)

    @property
    def waiting(self) -> int:
        """Number of requests in the queue; this and the next three may be asked for in any thread."""
        return len(self._waiting)

    @property
    def reading(self) -> int:
        """Number of requests whose prompts are being read or were just read."""
        return len(self._reading) + len(self._ready)

    @property
    def running(self) -> int:
        """Number of samples and beams that are being written."""
        searches = [job.search for job in [*self._searching]]
        return len(self._running) + sum(len(search.running) for search in searches if search is not None)

    @property
    def free(self) -> int:
        """Number of places that nobody has taken or is about to take."""
        return self._places - len(self._running) - self._reserved([*self._reading, *self._ready, *self._searching])

    def add(self, job: SequenceGroup) -> None:
        """Puts a job at the end of the queue."""
        self._waiting.append(job)

    def step(self) -> None:
        """Reads a piece of a prompt or a few, then moves every sample and beam by one token."""
        self._meter.tick()
        began = self._meter.last_tick
        self._admit()
        self._read()
        self._start()
        self._meter.lap("read")
        if self._running:
            self._draw()
        self._search()
        self._spoken()
        self._meter.lap("text")
        self._decode()
        self._meter.lap("decode")
        self._meter.steps += 1
        self._meter.last_step_s = self._meter.last_tick - began

    def abort(self, job: SequenceGroup) -> None:
        """Ends a job's unfinished samples with finish reason "abort"."""
        self._end(job, Stop(kind="abort"))

    def fail_all(self, error: BaseException) -> None:
        """Ends every job with an error: for a failure that is nobody's own."""
        running = [one.job for one in self._running.values()]
        jobs = [*self._waiting, *self._reading, *self._ready, *running, *self._searching]
        for job in dict.fromkeys(jobs):
            self._fail(job, error)

    # --- prompts -------------------------------------------------------------------------------------------------

    def _reserved(self, jobs: Sequence[SequenceGroup]) -> int:
        return sum(job.places(self._places) for job in jobs)

    def _admit(self) -> None:
        """Lets waiting jobs in, in order, while there are places for the next."""
        free = self.free
        while self._waiting and free >= self._waiting[0].places(self._places):
            job = self._waiting.popleft()
            if not job.to_read:
                self._finish_empty(job)
                continue
            try:
                job.row = self._model.open(job.request.inputs)
            except BaseException as error:
                self._fail(job, error)
                continue
            job.request.cached_tokens = job.row.cached
            self._meter.started += 1
            self._meter.cached_tokens += job.row.cached
            if job.request.inputs.score:
                job.scores = PromptScores(job.request, self._tokenizer)
            self._reading.append(job)
            free -= job.places(self._places)

    def _read(self) -> None:
        """Reads prompts in turn until the budget is spent; one that is through may start its samples."""
        budget = READ_BUDGET
        while self._reading and budget > 0:
            job = self._reading[0]
            before = job.row.left
            try:
                self._read_piece(job)
            except BaseException as error:
                self._fail(job, error)
                continue
            self._reading.popleft()
            budget -= before - job.row.left
            self._meter.prompt_tokens += before - job.row.left
            (self._reading if job.row.left else self._ready).append(job)

    def _read_piece(self, job: SequenceGroup) -> None:
        logits = read(self._model, job.row, score=job.scores is not None)
        if job.scores is not None:
            job.scores.add(logits)
        if job.row.hidden is not None:
            job.states.append(job.row.hidden)
        if not job.row.left:
            # A copy: the others, of every token of a prompt that is scored, need not live as long.
            job.logits = logits[-1].copy()
            job.request.prompt_logprobs = job.scores.entries if job.scores is not None else None

    def _start(self) -> None:
        """Starts what was read: all of a search, of other requests as many samples as there are places."""
        for job in [*self._ready]:
            try:
                while self._may_start(job):
                    self._start_next(job)
            except BaseException as error:
                self._fail(job, error)

    def _may_start(self, job: SequenceGroup) -> bool:
        if job not in self._ready:
            return False
        beams = [each for each in (*self._reading, *self._ready, *self._searching) if each.request.beams is not None]
        free = self._places - len(self._running) - self._reserved(beams)
        return not job.pending or job.request.beams is not None or free > 0

    def _start_next(self, job: SequenceGroup) -> None:
        if not job.pending:
            self._ready.remove(job)
            self._close(job)
            self._finish_empty(job)
            return
        assert job.logits is not None
        if job.request.beams is not None:
            self._ready.remove(job)
            job.search = BeamSearch(self._model, self._tokenizer, job.request, row=job.row, logits=job.logits)
            job.row = None
            self._searching.append(job)
            return
        self._start_sample(job, job.logits)

    def _start_sample(self, job: SequenceGroup, logits: NDArray[np.float32]) -> None:
        """Starts the next sample of a prompt; the last takes the prompt's row, the others copies of it."""
        sample, row = job.pending.popleft(), job.row
        if not job.pending:
            job.row = job.logits = None
            self._ready.remove(job)
        else:
            try:
                row = self._model.fork(row)
            except BaseException as error:
                self._fail_sample(job, sample, error)
                return
        slot = self._batch.add(sample.row_params, job.request.prompt_ids, sample_index=sample.index)
        self._running[slot] = RunningSequence(job, sample, row, logits)

    def _finish_empty(self, job: SequenceGroup) -> None:
        for sample in job.request.samples:
            self._tell(job, sample)

    # --- tokens --------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """One token for every running sample."""
        slots = self._batch.slots
        moved = [self._running[slot] for slot in slots]
        drawn = draw(self._batch, self._matrix(moved), [one.sample for one in moved])
        self._meter.lap("sample")
        self._meter.drew(len(moved), going=sum(1 for one in moved if one.sample.token_ids))
        for slot, one, row in zip(slots, moved, drawn, strict=True):
            waited = one.job.request.mark_token()
            if waited is not None:
                self._meter.first_token.add(waited)
            take(one.sample, row, self._tokenizer)
            if one.sample.stop is not None:
                self._leave(slot, reuse=True)
        for one in moved:
            self._tell(one.job, one.sample)

    def _matrix(self, moved: list[RunningSequence]) -> NDArray[np.float32]:
        if self._last is not None and self._last[0] == moved:
            return self._last[1]
        return np.stack([one.logits for one in moved])

    def _search(self) -> None:
        """One token for every beam; a search that is over makes its hypotheses known."""
        for job in [*self._searching]:
            assert job.search is not None
            try:
                job.search.step()
                self._meter.output_tokens += len(job.search.running)
                if job.search.over:
                    self._end_search(job, None)
                else:
                    self._tell(job, job.search.running[0].sample)
            except BaseException as error:
                self._fail(job, error)

    def _decode(self) -> None:
        """The logits after the tokens just drawn, for those that go on, samples and beams in one pass.

        A sample that the model cannot continue ends alone; of a search, which ranks its beams together, all ends.
        """
        self._last = None
        slots = self._batch.slots
        samples = [(self._running[slot].job, self._running[slot]) for slot in slots]
        beams = [(job, beam) for job in self._searching if job.search is not None for beam in job.search.running]
        going: list[tuple[SequenceGroup, RunningSequence | Beam]] = [*samples, *beams]
        if not going:
            return
        tokens, rows = [one.sample.token_ids[-1] for _, one in going], [one.row for _, one in going]
        logits, errors = decode(self._model, tokens, rows)
        for (_, one), row in zip(going, logits, strict=True):
            one.logits = row
        for _, one in samples:
            if one.row.hidden is not None:
                one.states.append(one.row.hidden)
        self._last = [one for _, one in samples], logits[: len(samples)]
        for index, error in errors.items():
            job, one = going[index]
            if isinstance(one, Beam):
                if job in self._searching:
                    self._fail(job, error)
            # A listener that fails takes the request's other samples along.
            elif self._running.get(slots[index]) is one:
                self._leave(slots[index], reuse=False)
                self._fail_sample(job, one.sample, error)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _leave(self, slot: int, *, reuse: bool) -> None:
        one = self._running.pop(slot)
        self._batch.remove(slot)
        self._last = None
        if one.states:
            one.sample.hidden_states = np.concatenate(one.states)
        self._release(one.row, reuse=reuse and one.sample.finish_reason != "error")

    def _end_search(self, job: SequenceGroup, stop: Stop | None) -> None:
        assert job.search is not None
        self._searching.remove(job)
        job.search.settle(stop)
        for beam in job.search.running:
            self._release(beam.row, reuse=False)
        self._tell(job, job.request.samples[0])

    def _close(self, job: SequenceGroup) -> None:
        row, job.row = job.row, None
        if row is not None:
            self._release(row, reuse=not row.left)

    def _release(self, row: Any, *, reuse: bool) -> None:
        try:
            self._model.close(row, reuse=reuse)
        except BaseException as error:
            _log.error("a row could not be closed: %s", named(error), exc_info=error)

    def _fail_sample(self, job: SequenceGroup, sample: GrowingSample, error: BaseException) -> None:
        """Ends a sample that has left its place, or has none yet, with an error; those beside it go on."""
        _log.error("sample %d of a request ended with an error: %s", sample.index, named(error), exc_info=error)
        sample.fail(failure_of(error))
        self._tell(job, sample)

    def _fail(self, job: SequenceGroup, error: BaseException) -> None:
        _log.error("a request ended with an error: %s", named(error), exc_info=error)
        self._end(job, failure_of(error))

    def _end(self, job: SequenceGroup, stop: Stop) -> None:
        for queue in (self._waiting, self._reading, self._ready):
            if job in queue:
                queue.remove(job)
        for slot in [slot for slot, one in self._running.items() if one.job is job]:
            self._leave(slot, reuse=stop.kind == "abort")
        job.pending.clear()
        self._close(job)
        if job in self._searching:
            self._end_search(job, stop)
            return
        for sample in job.request.samples:
            if sample.stop is None:
                sample.fail(stop)
                self._tell(job, sample)

    def _tell(self, job: SequenceGroup, sample: GrowingSample) -> None:
        try:
            job.notify(sample)
        except BaseException as error:
            _log.error("a listener failed, its request is aborted: %s", error, exc_info=error)
            job.notify = unheard
            self._end(job, Stop(kind="abort"))


def failure_of(error: BaseException) -> Stop:
    """The end of what the model could not continue."""
    return Stop(kind="model_failed", matched_text=named(error))


def take(sample: GrowingSample, row: DrawnRow | BaseException, tokenizer: Tokenizer) -> None:
    """Gives a sample its row of a draw; one that has no token, or whose text fails, ends with an error."""
    if isinstance(row, BaseException):
        _log.error("a draw failed: %s", named(row), exc_info=row)
        sample.fail(failure_of(row))
        return
    drawn, index = row
    status = Status(int(drawn.status[index]))
    if status is not Status.ok:
        sample.fail(Stop(kind=status.name))  # type: ignore[arg-type]  # statuses are kinds of stops
        return
    try:
        entry = output_entry(drawn, index, sample.params, tokenizer, offset=sample.offset)
        if entry is not None:
            sample.entries.append(entry)
        sample.accept(int(drawn.token_ids[index]), token_logprob(drawn, index, sample.row_params))
    except BaseException as error:
        _log.error("a text failed: %s", named(error), exc_info=error)
        sample.fail(Stop(kind="text_failed", matched_text=named(error)))
