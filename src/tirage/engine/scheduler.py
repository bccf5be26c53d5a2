"""Continuous batching: requests join and leave between steps, and each step draws a token for every running sample.

A request waits, then its prompt is prefilled, then its samples run or its beams are searched, then it is finished.
Long prompts are prefilled in chunks, in turn, so that neither running samples nor shorter prompts wait for them. Where
several requests run, each has its share of the slots and of the time of a step, and samples beyond it rest: they draw
the same tokens in later steps. An error ends the request or the sample that it belongs to, and no other.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tirage.engine.beams import BeamSearch
from tirage.engine.drawn_row import DrawnRow
from tirage.engine.drawn_tokens import model_failed, take_token
from tirage.engine.fairness import FairnessKey, Tenant, Turns, has_room
from tirage.engine.forced_turns import ForcedTurns
from tirage.engine.prefill_queue import PREFILL_BUDGET, PrefillQueue
from tirage.engine.processor_draws import ProcessorDraws, ProcessorError
from tirage.engine.progress import Meter
from tirage.engine.request import EngineRequest
from tirage.engine.request_queue import RequestQueue
from tirage.engine.runner import advance, close_row, describe, draw, extend, read_chunk
from tirage.engine.sample import GrowingSample
from tirage.engine.scheduler_config import SchedulerConfig
from tirage.engine.scorer import Beam
from tirage.engine.sequence import RunningSequence, SequenceGroup, ignore
from tirage.engine.single_row import SingleRow
from tirage.engine.speculation import NoSpeculation, Speculation
from tirage.engine.step_rows import StepRows
from tirage.engine.step_time import SLICE_S, StepTime
from tirage.models import Inputs, StepModel
from tirage.sampling_batch import SamplingBatch
from tirage.text import Stop, Tokenizer

# How many waiting requests may go ahead of a search that finds no room, for each slot.
_PASSES = 4
_log = logging.getLogger("tirage")


class Scheduler:
    """The requests over one model, moved on by one `step` at a time; for one thread.

    A running sample or beam takes one of the `max_running` slots of a step. Up to twice as many are open when requests
    come while others hold more than their share (`fairness.has_room`). `flush` is called in each step once all
    listeners have been called, before the forward pass. Samples that `apart` takes are drawn beside the step.
    `take_new` adds the requests that have come since the step began, and says whether there were any.
    """

    def __init__(
        self,
        model: StepModel,
        tokenizer: Tokenizer,
        *,
        config: SchedulerConfig,
        meter: Meter | None = None,
        flush: Callable[[], None] = lambda: None,
        apart: ProcessorDraws | None = None,
        speculation: Speculation | None = None,
        take_new: Callable[[], bool] = lambda: False,
    ) -> None:
        self._speculation = NoSpeculation(model) if speculation is None else speculation
        self._model, self._tokenizer, self._max_running = model, tokenizer, config.max_running
        self._meter, self._flush, self._take_new = Meter() if meter is None else meter, flush, take_new
        self._waiting = RequestQueue()
        self._prompts = PrefillQueue(model, tokenizer, meter=self._meter, fail=self._fail)
        self._running: list[RunningSequence] = []
        # Running samples whose processors may hold them up, apart from those that get a token in every step.
        self._apart = ProcessorDraws() if apart is None else apart
        self._searching: list[SequenceGroup] = []
        self._search_turns = Turns()
        # Those that take part in the step, and how often others went ahead of a search.
        self._rows, self._passes = StepRows(config.max_running), 0
        self._forced_turns = ForcedTurns()
        # What the sampler knows of the sequences drawn last.
        self._batch: tuple[list[RunningSequence], SamplingBatch] | None = None
        # The last decoded logits and their sequences: drawn from without a copy while none joins or leaves.
        self._decoded: tuple[list[RunningSequence], NDArray[np.float32]] | None = None
        # The only sample, while nothing else is to be done and it can be moved on by itself.
        self._single: SingleRow | None = None

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        queues = self._running or self._waiting or self._prompts or self._searching
        return bool(queues) or self._apart.busy

    @property
    def waiting(self) -> int:
        """Number of requests in the queue; any thread may ask for this and the next two."""
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """Number of requests whose prompts are being prefilled, or are prefilled and have samples yet to start."""
        return len(self._prompts)

    @property
    def running(self) -> int:
        """Number of running samples and beams, those that rest included."""
        searches = [group.search for group in [*self._searching]]
        beams = sum(len(search.running) for search in searches if search is not None)
        return len(self._running) + len(self._apart.sequences) + beams

    @property
    def waiting_by_tenant(self) -> dict[Tenant, int]:
        """The number of waiting requests of each tenant that has any; any thread may ask."""
        return self._waiting.counts

    def check(self, request: EngineRequest) -> None:
        """Accepts every request that the model accepts."""

    def next_logits(self, inputs: Inputs) -> NDArray[np.float32]:
        """Logits float32 [V] after the inputs of a request, between two steps."""
        self.keep_logits()
        row = self._model.open(inputs)
        try:
            while not (found := read_chunk(self._model, row)).size:
                pass
            return found
        finally:
            self._model.close(row, reuse=False)

    def add(self, group: SequenceGroup) -> None:
        """Puts a request at the end of the queue."""
        self.keep_logits()
        self._waiting.append(group)

    def step(self) -> None:
        """Prefills a chunk of a prompt or a few, then moves the samples and beams whose turn it is on by one token."""
        self._meter.tick()
        if self._single is not None and self._single.step():
            return
        self.keep_logits()
        self._step_all()
        if len(self._running) == 1:
            self._single = self._find_single(self._running[0])

    def _step_all(self) -> None:
        began = self._meter.last_tick
        self._admit()
        if self._prompts.reading:
            self._read()
        self._start()
        self._read_forced()
        self._meter.lap("read")
        prefilled = self._meter.last_tick
        keys = [group.key for group in self._prompts]
        drawable = [each for each in self._running if each.is_drawable]
        self._rows.choose(drawable, [group for group in self._searching if not self._is_apart(group)], prompts=keys)
        self._apart.start(self._searching)
        self._draw_and_tell()
        self._draw_on()
        if self._apart.busy:
            self._take_apart()
        left = StepTime()
        extended = self._search(left)
        self._flush()
        self._meter.lap("text")
        self._decode(extended)
        self._meter.lap("decode")
        self._rows.end(self._meter.last_tick - prefilled, searched=left.was_used)
        self._meter.steps += 1
        self._meter.last_step_s = self._meter.last_tick - began

    def _find_single(self, sequence: RunningSequence) -> SingleRow | None:
        """The running sample by itself, if nothing else is to be done and its steps are simple."""
        others = self._waiting or self._prompts or self._searching or self._apart.busy
        if others or self._batch is None or self._batch[0] != self._running:
            return None
        return SingleRow.of(
            self._model, sequence, self._batch[1], meter=self._meter, tell=self._tell, fail=self._fail_decode,
            speculation=self._speculation if isinstance(self._speculation, Speculation) else None,
        )  # fmt: skip

    def keep_logits(self) -> None:
        """Keeps all logits that are yet to be drawn from, which the next call of the model would overwrite."""
        if self._single is not None:
            self._single.sequence.logits, self._decoded = self._single.logits[0].copy(), None
            self._rows.record_single(self._meter.last_step_s)
            self._single = None

    def _tell(self, sequence: RunningSequence) -> None:
        """Passes on what is new of the single sample, which is removed first if that ends it."""
        if sequence.sample.stop is not None:
            self._remove(sequence, reuse=True)
        self._notify(sequence.group, sequence.sample)
        self._flush()

    def abort(self, group: SequenceGroup) -> None:
        """Ends a request's unfinished samples with finish reason "abort"."""
        self._end(group, Stop(kind="abort"))

    def fail_all(self, error: BaseException) -> None:
        """Ends every request with an error that belongs to none of them."""
        running = [sequence.group for sequence in [*self._running, *self._apart.sequences]]
        groups = [*self._waiting, *self._prompts, *running, *self._searching]
        for group in dict.fromkeys(groups):
            self._fail(group, error)

    # --- prompts -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads prompts for a step; while nothing is drawn, also those that come meanwhile.

        These keep nobody waiting but each other if they are as few tokens as a step reads at most: then all draw
        together from their first token on.
        """
        began, budget = time.perf_counter(), PREFILL_BUDGET
        drawing = self._running or self._searching or self._prompts.done or self._apart.busy
        together = not drawing and self._prompts.fits(budget)
        alone = together or len(self._open_rows(reserved=True)) <= 1
        budget = self._prompts.step(budget, began=began, alone=alone)
        while together and budget > 0 and self._take_new():
            self._admit()
            together = self._prompts.reading and self._prompts.fits(budget)
            if together:
                budget = self._prompts.step(budget, began=began, alone=True)

    def _open_rows(self, *, reserved: bool) -> Counter[FairnessKey]:
        """The slots that each request takes, those of searches that are yet to start included.

        With `reserved` one is counted too for the first sample of each prompt that is being prefilled.
        """
        rows = Counter(sequence.group.key for sequence in [*self._running, *self._apart.sequences])
        for group in (*self._prompts, *self._searching):
            if reserved or group.request.beams is not None:
                rows[group.key] += group.slots(self._max_running)
        return rows

    def _admit(self) -> None:
        """Moves waiting requests on to the prefill, those of whom has the fewest slots first, while there is room.

        Others may go ahead of a search that finds none, but not forever.
        """
        if not self._waiting:
            return
        rows, passed = self._open_rows(reserved=True), set[FairnessKey]()
        while (group := self._waiting.next_of(rows, passed)) is not None:
            need = group.slots(self._max_running)
            if not has_room(rows, group.key, need, capacity=self._max_running):
                if need == 1 or self._passes >= _PASSES * self._max_running:
                    return
                passed.add(group.key)
                continue
            self._passes = self._passes + 1 if passed else 0
            self._waiting.remove(group)
            if not group.needs_prefill:
                self._finish_empty(group)
            elif self._prompts.open(group):
                rows[group.key] += need

    def _start(self) -> None:
        """Starts what is prefilled: searches as a whole, of other requests as many samples as there are slots."""
        groups = [*self._prompts.done]
        if len({group.key for group in groups}) > 1:
            rows = self._open_rows(reserved=False)
            groups.sort(key=lambda group: rows[group.key])
        for group in groups:
            try:
                while self._may_start(group):
                    self._start_next(group)
            except BaseException as error:
                self._fail(group, error)

    def _may_start(self, group: SequenceGroup) -> bool:
        if group not in self._prompts.done:
            return False
        if not group.unstarted or group.request.beams is not None:
            return True
        # A search has its slots reserved from its admission on; samples take what is left.
        searches = [each for each in (*self._prompts, *self._searching) if each.request.beams]
        if len(self._running) + sum(each.slots(self._max_running) for each in searches) < self._max_running:
            return True
        rows = self._open_rows(reserved=True)
        # One of them is that of the prompt, which its last sample takes over.
        rows[group.key] -= 1
        return has_room(rows, group.key, 1, capacity=self._max_running)

    def _start_next(self, group: SequenceGroup) -> None:
        if not group.unstarted:
            self._prompts.remove(group)
            self._close_prompt(group)
            self._finish_empty(group)
            return
        assert group.logits is not None
        if group.request.beams is not None:
            self._prompts.remove(group)
            group.search = BeamSearch(self._model, self._tokenizer, group.request, row=group.row, logits=group.logits)
            group.row = None
            self._searching.append(group)
            return
        self._start_sample(group, group.logits)

    def _start_sample(self, group: SequenceGroup, logits: NDArray[np.float32]) -> None:
        """Starts the next sample of a prompt; the last takes the prompt's row, the others forks of it."""
        sample, row = group.start_next(), group.row
        if group.request.keep_logits:
            group.request.prompt_logits = logits
        if not group.unstarted:
            group.row = group.logits = None
            self._prompts.remove(group)
        else:
            try:
                row = self._model.fork(row)
            except BaseException as error:
                self._fail_sample(group, sample, error)
                return
        sequence = RunningSequence(group, sample, row, logits)
        taken_apart = self._apart.takes(group.request.params)
        (self._apart.sequences if taken_apart else self._running).append(sequence)

    def _finish_empty(self, group: SequenceGroup) -> None:
        for sample in group.request.end_empty():
            self._notify(group, sample)

    # --- tokens --------------------------------------------------------------------------------------------------

    def _draw_and_tell(self) -> None:
        """One token for every sample whose turn it is, what is forced after it, and the news to its listener."""
        if self._rows.drawing:
            self._draw()
        forced = self._take_forced()
        for sequence in dict.fromkeys([*self._rows.drawing, *forced]) if forced else self._rows.drawing:
            self._notify(sequence.group, sequence.sample)

    def _draw_on(self) -> None:
        """Further tokens for samples whose drafts hold: the logits after the token before are there."""
        while self._speculation.reads_ahead and (ready := [each for each in self._rows.drawing if each.may_go_on]):
            self._rows.choose_again(ready)
            # These are the logits before the drafts.
            self._decoded = None
            if not self._rows.drawing:
                return
            self._draw_and_tell()

    def _draw(self) -> None:
        """One token for every sample whose turn it is."""
        drawing = self._rows.drawing
        if self._batch is None or self._batch[0] != drawing:
            rows = [each.sampling_row for each in drawing]
            self._batch = drawing, SamplingBatch.of(rows, self._model.vocab_size)
        drawn = draw(self._batch[1], drawing, self._logits(drawing), may_put_off=True)
        self._meter.lap("sample")
        resting = self._take_in_time([*zip(drawing, drawn, strict=True)])
        if resting:
            self._rows.drawing = [sequence for sequence in drawing if sequence not in resting]

    def _take_in_time(
        self, rows: list[tuple[RunningSequence, DrawnRow | BaseException | None]]
    ) -> set[RunningSequence]:
        """Gives samples the tokens that were drawn for them; those that got none.

        Where constraints take long for the tokens of some, the others rest and draw the same tokens in a later step.
        """
        since, resting, spent = list[float](), set[RunningSequence](), 0.0
        if any(sequence.sample.grammar is not None for sequence, _ in rows):
            # Those that are behind go first.
            rows.sort(key=lambda each: len(each[0].sample.token_ids))
        for sequence, row in rows:
            grammar = sequence.sample.grammar
            if row is None or (grammar is not None and spent > SLICE_S):
                sequence.keep_logits()
                resting.add(sequence)
                continue
            since.append(sequence.drawn_at)
            before = 0.0 if grammar is None else grammar.budget.total_s
            self._take(sequence, advance(sequence, row))
            spent += 0.0 if grammar is None else grammar.budget.total_s - before
        self._meter.count_draw(since)
        return resting

    def _take_forced(self) -> list[RunningSequence]:
        """Gives samples the tokens that their constraints force, which may end them; these samples."""
        forced: list[RunningSequence] = []
        for sequence in self._forced_turns.to_find(self._running):
            count = sequence.take_forced()
            self._speculation.settle(sequence)
            self._meter.output_tokens += count
            if count:
                forced.append(sequence)
            if sequence.sample.stop is not None:
                self._remove(sequence, reuse=True)
        return forced

    def _read_forced(self) -> None:
        """Has the model read tokens that were forced, with the one drawn before them, a sample's in a pass."""
        for sequence in self._forced_turns.to_read(self._running):
            token_ids, sequence.unread = sequence.unread, []
            try:
                sequence.logits = extend(self._model, sequence.row, token_ids)
            except BaseException as error:
                self._fail_decode(sequence.group, sequence, error)

    def _take_apart(self) -> None:
        """The tokens of samples and searches whose processors have returned; a request whose processor is late ends."""
        others = self._running or self._prompts.reading or any(not self._is_apart(each) for each in self._searching)
        for each, result in self._apart.finished(alone=not others):
            if isinstance(result, ProcessorError):
                group = each if isinstance(each, SequenceGroup) else each.group
                self._end(group, Stop(kind="processor_failed", matched_text=str(result)))
            elif isinstance(each, SequenceGroup):
                self._take_search(each, result)
            else:
                self._meter.count_draw((each.drawn_at,))
                self._take(each, advance(each, result))
                self._notify(each.group, each.sample)

    def _is_apart(self, group: SequenceGroup) -> bool:
        """Whether the draws of a search are made beside the step."""
        return self._apart.takes(group.request.params)

    def _take(self, sequence: RunningSequence, row: DrawnRow | BaseException) -> None:
        """Gives a sample the token that was drawn for it, which may end it."""
        sequence.drawn_at = self._meter.last_tick
        waited = sequence.group.request.mark_token()
        if waited is not None:
            self._meter.first_token.add(waited)
        take_token(sequence.sample, row, self._tokenizer)
        sequence.take_drawn()
        self._speculation.settle(sequence)
        if sequence.sample.stop is not None:
            self._remove(sequence, reuse=True)

    def _logits(self, drawing: list[RunningSequence]) -> NDArray[np.float32]:
        if self._decoded is not None and self._decoded[0] == drawing:
            return self._decoded[1]
        return np.stack([sequence.logits for sequence in drawing])

    def _search(self, left: StepTime) -> set[SequenceGroup]:
        """One token for every beam; the searches that have become longer.

        They share the time that is left, which another has first in the next step. The hypotheses of one that ends
        become the samples of its request.
        """
        extended = set[SequenceGroup]()
        ready = [each for each in self._searching if self._rows.beams_of(each) != 0 and not self._is_apart(each)]
        ready = self._search_turns.order(ready)
        self._search_turns.take(ready[:1])
        for group in ready:
            assert group.search is not None
            try:
                longer = group.search.step(left, most=self._rows.beams_of(group))
            except BaseException as error:
                self._fail(group, error)
                continue
            if longer:
                extended.add(group)
            self._take_search(group, longer)
        return extended

    def _take_search(self, group: SequenceGroup, longer: bool | BaseException) -> None:
        """Goes on with a search that has drawn and may be a token longer, or ends it."""
        try:
            if isinstance(longer, BaseException):
                raise longer
            if not longer or group.search is None:
                return
            self._meter.output_tokens += len(group.search.running)
            if group.search.finished:
                self._end_search(group, None)
            else:
                self._notify(group, group.search.running[0].sample)
        except BaseException as error:
            self._fail(group, error)

    def _decode(self, extended: set[SequenceGroup]) -> None:
        """The logits after the tokens just drawn, for the samples and beams that go on, in one forward pass.

        Beams of searches that were just `extended`, which takes a while, go on in the next step where others wait. A
        sample that the model cannot continue ends alone; a search ranks its beams together, so it ends as a whole.
        """
        self._decoded = None
        drawn = [each for each in self._running if len(each.unread) == 1 and not each.may_force]
        samples = [(sequence.group, sequence) for sequence in [*drawn, *self._apart.decodable]]
        beams = [
            (group, beam)
            for group in self._searching
            if group.search is not None and not (group in extended and self._rows.beams_of(group) is not None)
            for beam in group.search.undecoded[: None if self._is_apart(group) else self._rows.beams_of(group)]
        ]
        pairs: list[tuple[SequenceGroup, RunningSequence | Beam]] = [*samples, *beams]
        if not pairs:
            return
        tokens, rows = [each.sample.token_ids[-1] for _, each in pairs], [each.row for _, each in pairs]
        logits, errors = self._speculation.decode(tokens, rows, drawn)
        for (_, each), row in zip(pairs, logits, strict=True):
            each.logits = row
        for _, sequence in samples:
            sequence.unread = []
            if sequence.row.hidden is not None:
                sequence.hidden_states.append(sequence.row.hidden)
        self._decoded = drawn, logits[: len(drawn)]
        for index, error in errors.items():
            self._fail_decode(*pairs[index], error)

    def _fail_decode(self, group: SequenceGroup, failed: RunningSequence | Beam, error: BaseException) -> None:
        """Ends what a forward pass could not continue, unless the end of another has ended it already."""
        if isinstance(failed, Beam):
            if group in self._searching:
                self._fail(group, error)
        elif failed in self._running or failed in self._apart.sequences:
            self._remove(failed, reuse=False)
            self._fail_sample(group, failed.sample, error)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _remove(self, sequence: RunningSequence, *, reuse: bool) -> None:
        """Frees the slot and the row of a sequence; with `reuse` the model may keep its prefix."""
        if sequence in self._apart.sequences:
            self._apart.remove(sequence)
        else:
            self._running.remove(sequence)
            self._rows.forget(sequence)
            self._batch = self._decoded = self._single = None
        self._speculation.forget(sequence)
        if sequence.hidden_states:
            sequence.sample.hidden_states = np.concatenate(sequence.hidden_states)
        close_row(self._model, sequence.row, reuse=reuse and sequence.sample.finish_reason != "error")

    def _end_search(self, group: SequenceGroup, stop: Stop | None) -> None:
        assert group.search is not None
        self._searching.remove(group)
        self._search_turns.forget(group)
        self._rows.forget(group)
        self._apart.forget(group)
        group.search.finish(stop)
        for beam in group.search.running:
            close_row(self._model, beam.row, reuse=False)
        self._notify(group, group.request.samples[0])

    def _close_prompt(self, group: SequenceGroup) -> None:
        row, group.row = group.row, None
        if row is not None:
            close_row(self._model, row, reuse=not row.left)

    def _fail_sample(self, group: SequenceGroup, sample: GrowingSample, error: BaseException) -> None:
        """Ends a sample that has no slot with an error; the other samples of its request go on."""
        _log.error("sample %d of a request ended with an error: %s", sample.index, describe(error), exc_info=error)
        sample.fail(model_failed(error))
        self._notify(group, sample)

    def _fail(self, group: SequenceGroup, error: BaseException) -> None:
        _log.error("a request ended with an error: %s", describe(error), exc_info=error)
        self._end(group, model_failed(error))

    def _end(self, group: SequenceGroup, stop: Stop) -> None:
        """Ends what is unfinished of a request, wherever it is."""
        if group in self._waiting:
            self._waiting.remove(group)
        self._prompts.remove(group)
        for sequence in [each for each in [*self._running, *self._apart.sequences] if each.group is group]:
            self._remove(sequence, reuse=stop.kind == "abort")
        group.unstarted = 0
        self._close_prompt(group)
        if group in self._searching:
            self._end_search(group, stop)
            return
        for sample in group.request.end(stop):
            self._notify(group, sample)

    def _notify(self, group: SequenceGroup, sample: GrowingSample) -> None:
        try:
            group.listener(sample)
        except BaseException as error:
            _log.error("a listener failed, its request is aborted: %s", error, exc_info=error)
            group.listener = ignore
            self._end(group, Stop(kind="abort"))
