"""Draws of samples and searches with custom logits processors, made beside the engine's thread.

A processor is called in a thread of its own and delays its own request only: its sample or its search rests until the
call returns, and the others go on. A call that does not return within its time is left behind, and its request ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from tirage.engine.draw_steps import DrawSteps
from tirage.engine.drawn_row import DrawnRow
from tirage.engine.runner import draw_rows, masked_draws
from tirage.engine.sequence import RunningSequence, SequenceGroup
from tirage.engine.step_time import StepTime
from tirage.params import SamplingParams
from tirage.processors import ProcessorThread, ProcessorThreads, is_built_in, not_called, too_late
from tirage.sampling_batch import SamplingBatch
from tirage.workers.quick_switching import QUICK_SWITCHING

_WAIT_S = 0.005
"""How long a step waits: for draws that it has begun, so that quick processors keep pace, or with no other work."""


class ProcessorError(Exception):
    """Why a request ended whose processor did not return in time."""


Drawn = RunningSequence | SequenceGroup
"""What draws are made for: a sample, or the search of a request."""


class PendingDraw:
    """The steps of a sample or a search that processors take part in, while they run.

    `result` is None until it is known: what comes of the steps, or their error; `drawn` is what the thread has drawn
    last, or its error.
    """

    def __init__(self, owner: Drawn, name: str, steps: DrawSteps[Any]) -> None:
        self.owner, self.name, self.fresh = owner, name, True
        self.thread: ProcessorThread | None = None
        self.result: Any = None
        self.drawn: Any = None
        self._steps = steps
        self._call: Callable[[], Any] | None = None

    def advance(self) -> bool:
        """Takes in what the thread has drawn; False when nothing is left to draw, and the result is known.

        Only draws are made in the thread: the constraint belongs to the engine's.
        """
        drawn, self.drawn = self.drawn, None
        try:
            if isinstance(drawn, BaseException):
                raise drawn
            self._call = next(self._steps) if drawn is None else self._steps.send(drawn)
        except StopIteration as end:
            self.result = end.value
        except BaseException as error:
            self.result = error
        return self.result is None

    def draw(self) -> None:
        """Makes the next draw; for the thread of the processor."""
        assert self._call is not None
        try:
            self.drawn = self._call()
        except Exception as error:
            self.drawn = error


def next_row(sequence: RunningSequence) -> DrawSteps[DrawnRow]:
    """The row of a Draw with a sample's next token, drawn under the masks of each moment."""
    batch = SamplingBatch.of([sequence.sampling_row], sequence.logits.shape[-1])
    # A copy, as the model may write the next step's logits to the same place.
    logits, drawn = sequence.logits[None].copy(), None
    steps = masked_draws([sequence.sample], batch.vocab_size)
    while True:
        try:
            masks = next(steps) if drawn is None else steps.send(drawn)
        except StopIteration as end:
            return DrawnRow.of(end.value, 0, logits, sequence.sample.params)
        drawn = yield partial(draw_rows, batch, logits, masks)


class ProcessorDraws:
    """The samples and searches whose custom processors may take `seconds` per call; for the engine's thread.

    With None there are none of them: all processors are called in the engine's thread, and may take any time.
    `sequences` are the samples.
    """

    def __init__(self, seconds: float | None = None, threads: ProcessorThreads | None = None) -> None:
        self._seconds = seconds
        self._threads = ProcessorThreads() if threads is None else threads
        self._pending: dict[Drawn, PendingDraw] = {}
        # The draw that each thread is making, also where its sample has ended meanwhile.
        self._drawing: dict[ProcessorThread, PendingDraw] = {}
        self._changed = threading.Event()
        # Whether threads are switched quickly at present, because of a call that takes long.
        self._shares = False
        self.sequences: list[RunningSequence] = []

    @property
    def busy(self) -> bool:
        """Whether there are samples, draws, calls of which it is not known yet that they return, or threads that are
        switched quickly because of one."""
        return bool(self.sequences or self._pending or self._drawing or self._shares)

    @property
    def decodable(self) -> list[RunningSequence]:
        """The samples that do not wait for a processor: those that have just got a token."""
        return [sequence for sequence in self.sequences if sequence not in self._pending]

    def takes(self, params: SamplingParams) -> bool:
        """Whether samples and searches with these parameters are drawn here."""
        return self._seconds is not None and bool(params.logits_processors) and first_custom(params) is not None

    def remove(self, sequence: RunningSequence) -> None:
        """Forgets a sample; nothing comes of the call that it may be in."""
        self.sequences.remove(sequence)
        self._pending.pop(sequence, None)

    def forget(self, owner: Drawn) -> None:
        """Drops the draws of a sample or a search that has ended."""
        self._pending.pop(owner, None)

    def start(self, searching: Iterable[SequenceGroup]) -> None:
        """Begins the draws of every sample here, and of every search among these, that has logits to draw from."""
        for sequence in self.decodable:
            self.begin(sequence)
        for group in searching:
            if group not in self._pending and group.search is not None and self.takes(group.request.params):
                group.search.keep_logits()
                self._begin(group, group.request.params, group.search.draw_steps(StepTime()))

    def begin(self, sequence: RunningSequence) -> None:
        """Begins the draw of a sample that is not among `sequences`, or is one of them, from its logits."""
        self._begin(sequence, sequence.group.request.params, next_row(sequence))

    def _begin(self, owner: Drawn, params: SamplingParams, steps: DrawSteps[Any]) -> None:
        name = first_custom(params)
        assert name is not None
        self._pending[owner] = PendingDraw(owner, name, steps)
        self._go_on(self._pending[owner])

    def finished(self, *, alone: bool) -> Iterator[tuple[Drawn, Any]]:
        """The samples and searches whose draws are made, each with what came of it, or its error.

        For a sample that is its row of a Draw, for a search whether it is a token longer; the error is a ProcessorError
        if a processor was late. Waits a moment for draws that have just begun; for any of them with `alone`: nothing
        else is to do.
        """
        self._wait(alone=alone)
        self._check_times()
        for each, pending in [*self._pending.items()]:
            pending.fresh = False
            if pending.drawn is not None:
                self._go_on(pending)
            # What became of a sample before this one may have ended this one too.
            if pending.result is not None and self._pending.pop(each, None) is not None:
                yield each, pending.result

    def _wait(self, *, alone: bool) -> None:
        until = time.monotonic() + _WAIT_S
        while (left := until - time.monotonic()) > 0:
            self._changed.clear()
            open_ = [each for each in self._pending.values() if each.result is None and each.drawn is None]
            if len(open_) < len(self._pending) if alone else not any(each.fresh for each in open_):
                return
            self._changed.wait(left)

    def _share_interpreter(self, now: float) -> None:
        """Has Python switch threads more often while a call takes long, and as before otherwise."""
        calls = [thread.calling for thread in [*self._drawing]]
        slow = any(calling is not None and now - calling[1] > _WAIT_S for calling in calls)
        if slow and not self._shares:
            QUICK_SWITCHING.begin()
        elif not slow and self._shares:
            QUICK_SWITCHING.end()
        self._shares = slow

    def _go_on(self, pending: PendingDraw) -> None:
        """Has the next draw made in the thread of its processor, if there is one to make."""
        if pending.advance():
            self._hand_over(pending)

    def _hand_over(self, pending: PendingDraw) -> None:
        pending.thread = self._threads.find(pending.name)
        if pending.thread is None:
            pending.result = ProcessorError(not_called(pending.name))
        else:
            self._put(pending, pending.thread)

    def _put(self, pending: PendingDraw, thread: ProcessorThread) -> None:
        def draw() -> None:
            if self._pending.get(pending.owner) is not pending:
                return
            self._drawing[thread] = pending
            pending.draw()
            self._drawing.pop(thread, None)
            self._changed.set()

        thread.put(draw)

    def _check_times(self) -> None:
        """Leaves threads behind whose call takes too long; what waited for them goes to another one."""
        assert self._seconds is not None
        now = time.monotonic()
        for thread, late in [*self._drawing.items()]:
            calling = thread.calling
            if calling is None or now - calling[1] <= self._seconds:
                continue
            reason = too_late(calling[0], self._seconds)
            self._drawing.pop(thread, None)
            self._threads.abandon(late.name, reason)
            late.result = ProcessorError(reason)
            for pending in self._pending.values():
                if pending.thread is thread and pending is not late and pending.drawn is None:
                    self._hand_over(pending)
        self._share_interpreter(now)


def run_into(future: Future[Any], function: Callable[[], Any]) -> None:
    """Sets the future to what the function returns or raises."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def first_custom(params: SamplingParams) -> str | None:
    """The first processor of the parameters that is not a built-in one: its thread calls them all."""
    return next((name for name, _ in params.logits_processors if not is_built_in(name)), None)
