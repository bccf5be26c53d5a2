"""The scheduler over a model that batches by itself: it hands requests on, draws their tokens and grows their samples.

Each sample is a request of its own to the model. An error ends the request or the sample that it belongs to.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.drawn_row import DrawnRow
from tirage.engine.drawn_tokens import model_failed, take_token
from tirage.engine.fairness import Tenant
from tirage.engine.logprobs import given_prompt_entry
from tirage.engine.processor_draws import ProcessorDraws, ProcessorError
from tirage.engine.progress import Meter
from tirage.engine.request import EngineRequest
from tirage.engine.request_queue import RequestQueue
from tirage.engine.runner import advance, describe, draw
from tirage.engine.sample import GrowingSample
from tirage.engine.scheduler_config import SchedulerConfig
from tirage.engine.sequence import RunningSequence, SequenceGroup, ignore
from tirage.errors import ModelError, ParamsError
from tirage.models import BatchingModel, Inputs, RowOutput
from tirage.sampling import on_host
from tirage.sampling_batch import SamplingBatch
from tirage.text import Stop, Tokenizer

_NO_LOGITS = np.empty(0, np.float32)
_log = logging.getLogger("tirage")


class BatchingScheduler:
    """The requests over a `BatchingModel`, moved on by one `step` at a time; for one thread.

    At most `max_running` samples are with the model at once. `flush` is called in each step once all listeners have
    been called. Samples that `apart` takes are drawn beside the step; one whose processor has not returned by its end
    leaves the model, and comes back with its token.
    """

    def __init__(
        self,
        model: BatchingModel,
        tokenizer: Tokenizer,
        *,
        config: SchedulerConfig,
        meter: Meter | None = None,
        flush: Callable[[], None] = lambda: None,
        apart: ProcessorDraws | None = None,
    ) -> None:
        self._model, self._tokenizer, self._max_running = model, tokenizer, config.max_running
        self._meter, self._flush = Meter() if meter is None else meter, flush
        self._waiting = RequestQueue()
        self._running: dict[int, RunningSequence] = {}
        self._scored: dict[int, SequenceGroup] = {}
        self._probes: dict[int, NDArray[np.float32] | None] = {}
        self._keys = itertools.count()
        self._batch: tuple[list[RunningSequence], SamplingBatch] | None = None
        self._drawn: dict[int, DrawnRow | BaseException] = {}
        self._apart = ProcessorDraws() if apart is None else apart
        # Samples whose processors have not returned: in this step, and outside of the model since an earlier one.
        self._late: dict[int, RunningSequence] = {}
        self._resting: set[RunningSequence] = set()
        self._unfit: list[tuple[RunningSequence, ProcessorError]] = []

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        with_model = self._running or self._scored or self._probes
        return bool(self._waiting or with_model or self._resting) or self._apart.busy

    @property
    def waiting(self) -> int:
        """Number of requests that have a sample yet to start; any thread may ask for this and the next two."""
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """Number of samples that have no token yet."""
        return len(self._scored) + sum(1 for each in [*self._running.values()] if not each.sample.token_ids)

    @property
    def running(self) -> int:
        """Number of samples that have one."""
        return len(self._running) + len(self._scored) + len(self._resting) - self.prefilling

    def check(self, request: EngineRequest) -> None:
        """Raises ParamsError for a request that only a model whose caches tirage holds can run."""
        if request.beams is not None:
            raise ParamsError("beam search must not be asked of this model, which cannot fork its requests")
        if request.inputs.length > request.prompt_tokens:
            raise ParamsError("output_ids must be left out on this model, which counts the tokens of a request itself")
        if request.params.forcing is not None:
            raise ParamsError("forcing must be None on this model, which reads one token of a request in each step")
        if request.inputs.embeds is not None and self._apart.takes(request.params):
            raise ParamsError("prompt embeds must be left out on this model with a custom logits processor")
        if request.inputs.score and request.params.logprob_token_ids:
            raise ParamsError(
                "logprob_token_ids must be empty with prompt_logprobs on this model, which gives no logprobs of chosen "
                "tokens for a prompt"
            )

    @property
    def waiting_by_tenant(self) -> dict[Tenant, int]:
        """The number of waiting requests of each tenant that has any; any thread may ask."""
        return self._waiting.counts

    def add(self, group: SequenceGroup) -> None:
        """Puts a request at the end of the queue."""
        self._waiting.append(group)

    def step(self) -> None:
        """Hands requests on to the model, then has every sample that gets a token moved on by it."""
        self._meter.tick()
        began = self._meter.last_tick
        self._admit()
        self._meter.lap("read")
        outputs = self._step_model()
        self._meter.lap("decode")
        self._take(outputs)
        if self._apart.busy or self._unfit:
            self._take_late()
        self._flush()
        self._meter.lap("text")
        self._meter.steps += 1
        self._meter.last_step_s = self._meter.last_tick - began

    def keep_logits(self) -> None:
        """Does nothing: the logits of its rows are drawn from at once."""

    def next_logits(self, inputs: Inputs) -> NDArray[np.float32]:
        """Logits float32 [V] after the inputs of a request, from steps in which other requests go on too."""
        key = next(self._keys)
        self._probes[key] = None
        try:
            self._model.add(key, inputs, limit=1)
            while (found := self._probes[key]) is None:
                self.step()
            return found
        finally:
            del self._probes[key]
            self._model.remove(key)

    def abort(self, group: SequenceGroup) -> None:
        """Ends a request's unfinished samples with finish reason "abort"."""
        self._end(group, Stop(kind="abort"))

    def fail_all(self, error: BaseException) -> None:
        """Ends every request with an error that belongs to none of them."""
        sequences = (*self._running.values(), *self._resting)
        groups = [*self._waiting, *(each.group for each in sequences), *self._scored.values()]
        for group in dict.fromkeys(groups):
            self._fail(group, error)

    # --- requests to the model -----------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Starts samples of the waiting requests in turn, while fewer than `max_running` are with the model.

        The next is always of a tenant, and there of a request, that has the fewest samples with the model.
        """
        if not self._waiting:
            return
        sequences = (*self._running.values(), *self._resting)
        rows = Counter(each.key for each in (*self._scored.values(), *(one.group for one in sequences)))
        while rows.total() < self._max_running and (group := self._waiting.next_of(rows)) is not None:
            first = group.unstarted in (0, group.request.sample_count)
            if first and not group.needs_prefill:
                self._waiting.remove(group)
                self._notify_all(group)
                continue
            self._meter.started += first
            try:
                self._start(group, first=first)
            except BaseException as error:
                self._fail(group, error)
                continue
            rows[group.key] += 1
            if not group.unstarted:
                self._waiting.remove(group)

    def _start(self, group: SequenceGroup, *, first: bool) -> None:
        """Hands the next sample of a request to the model, or its prompt alone where only that is asked for."""
        request, key = group.request, next(self._keys)
        scored = first and request.inputs.score
        if scored:
            request.prompt_logprobs = ()
        inputs = request.inputs if scored else dataclasses.replace(request.inputs, score=False)
        count = request.params.prompt_logprobs if scored else None
        self._model.add(key, inputs, limit=max(request.limit, 1), prompt_logprobs=count)
        if group.unstarted:
            self._running[key] = RunningSequence(group, group.start_next(), key, _NO_LOGITS)
        else:
            self._scored[key] = group

    # --- tokens --------------------------------------------------------------------------------------------------

    def _step_model(self) -> Sequence[RowOutput]:
        """The outputs of a step of the model; if it fails, the state of no request is known, so that all end."""
        self._drawn, self._late = {}, {}
        try:
            return self._model.step(self._draw) if self._running or self._scored or self._probes else ()
        except BaseException as error:
            self.fail_all(error)
            raise

    def _draw(self, keys: Sequence[int], logits: Any) -> list[int]:
        """The tokens of rows of logits float32 [n, V]; never raises, as the model would not survive it."""
        self._meter.lap("decode")
        for at, key in enumerate(keys):
            if key in self._probes:
                self._probes[key] = on_host(logits[at : at + 1])[0].copy()
        own = [index for index, key in enumerate(keys) if key in self._running]
        apart = [index for index in own if self._apart.takes(self._running[keys[index]].group.request.params)]
        for index in apart:
            self._begin(keys[index], logits[index : index + 1])
        at = [index for index in own if keys[index] not in self._late]
        tokens = dict.fromkeys(keys, -1)
        if at:
            tokens |= self._draw_rows([keys[index] for index in at], logits if len(at) == len(keys) else logits[at])
        if apart:
            tokens |= self._drawn_apart()
        self._meter.lap("sample")
        return [tokens[key] for key in keys]

    def _draw_rows(self, keys: list[int], logits: Any) -> dict[int, int]:
        drawing = [self._running[key] for key in keys]
        for at, each in enumerate(drawing):
            if each.group.request.keep_logits and not each.sample.token_ids:
                each.group.request.prompt_logits = on_host(logits[at : at + 1])[0].copy()
        try:
            drawn = draw(self._packed(drawing), drawing, logits)
            rows = [advance(each, row) for each, row in zip(drawing, drawn, strict=True) if row is not None]
        except BaseException as error:
            rows = [error] * len(keys)
        self._drawn |= dict(zip(keys, rows, strict=True))
        self._count_draw(drawing)
        return {key: token_of(row) for key, row in zip(keys, rows, strict=True)}

    def _count_draw(self, drawing: Sequence[RunningSequence]) -> None:
        self._meter.count_draw([each.drawn_at for each in drawing])
        for each in drawing:
            each.drawn_at = self._meter.last_tick

    def _begin(self, key: int, logits: Any) -> None:
        """Has the token of a row of logits float32 [1, V] drawn in the thread of its processor."""
        sequence = self._late[key] = self._running[key]
        sequence.logits = on_host(logits)[0].copy()
        if sequence.group.request.keep_logits and not sequence.sample.token_ids:
            sequence.group.request.prompt_logits = sequence.logits
        self._apart.begin(sequence)

    def _drawn_apart(self) -> dict[int, int]:
        """The tokens of those rows of the step whose processors return at once."""
        found: dict[int, int] = {}
        for sequence, row in self._apart.finished(alone=False):
            assert isinstance(sequence, RunningSequence)
            if isinstance(row, ProcessorError):
                self._unfit.append((sequence, row))
            elif self._late.pop(sequence.row, None) is None:
                self._go_on(sequence, row)
            else:
                self._drawn[sequence.row] = advance(sequence, row)
                self._count_draw([sequence])
                found[sequence.row] = token_of(self._drawn[sequence.row])
        return found

    def _packed(self, drawing: list[RunningSequence]) -> SamplingBatch:
        """What the sampler knows of the rows, kept while the same ones are drawn in the same order."""
        if self._batch is None or self._batch[0] != drawing:
            rows = [each.sampling_row for each in drawing]
            self._batch = drawing, SamplingBatch.of(rows, self._model.vocab_size)
        return self._batch[1]

    def _take(self, outputs: Sequence[RowOutput]) -> None:
        """Adds the drawn tokens to their samples, then tells the listeners."""
        changed = [*filter(None, map(self._take_one, outputs))]
        for key in [key for key in self._drawn if key in self._running]:
            changed.append(self._lost(key, ModelError("the engine gave no token where one was drawn")))
        for key, sequence in self._late.items():
            if self._running.pop(key, None) is not None:
                self._resting.add(sequence)
                self._leave(key)
        for sequence in changed:
            self._notify(sequence.group, sequence.sample)

    def _take_one(self, output: RowOutput) -> RunningSequence | None:
        """The sequence that an output has changed, if any."""
        if output.key in self._scored:
            self._take_score(output)
            return None
        sequence = self._running.get(output.key)
        if sequence is None:
            return None
        self._take_prompt(sequence.group.request, output, first=sequence.sample.index == 0)
        if output.key in self._late:
            return None
        row = self._drawn.pop(output.key, None)
        if output.token_id is None and output.ended is None and row is None:
            return None
        problem = problem_of(row, output)
        if problem is not None:
            return self._lost(output.key, problem)
        assert row is not None
        self._accept(sequence, row)
        if sequence.sample.stop is not None:
            self._forget(output.key)
        elif output.ended is not None:
            return self._lost(output.key, ModelError(f"the engine ended the request: {output.ended}"))
        return sequence

    def _accept(self, sequence: RunningSequence, row: DrawnRow | BaseException) -> None:
        waited = sequence.group.request.mark_token()
        if waited is not None:
            self._meter.first_token.add(waited)
        take_token(sequence.sample, row, self._tokenizer)

    def _take_late(self) -> None:
        """Goes on with samples whose processors have returned; a request whose processor is late ends."""
        unfit, self._unfit = self._unfit, []
        alone = not (self._running or self._scored or self._probes)
        for sequence, row in itertools.chain(unfit, self._apart.finished(alone=alone)):
            assert isinstance(sequence, RunningSequence)
            if isinstance(row, ProcessorError):
                self._end(sequence.group, Stop(kind="processor_failed", matched_text=str(row)))
            else:
                self._go_on(sequence, row)

    def _go_on(self, sequence: RunningSequence, row: DrawnRow | BaseException) -> None:
        """Gives a sample that has left the model its token, and hands it to the model again."""
        self._resting.discard(sequence)
        self._count_draw([sequence])
        self._accept(sequence, advance(sequence, row))
        if sequence.sample.stop is None:
            self._add_again(sequence)
        self._notify(sequence.group, sequence.sample)

    def _add_again(self, sequence: RunningSequence) -> None:
        request, tokens = sequence.group.request, tuple(sequence.sample.token_ids)
        inputs = dataclasses.replace(request.inputs, token_ids=request.inputs.token_ids + tokens, score=False)
        key = sequence.row = next(self._keys)
        try:
            self._model.add(key, inputs, limit=max(request.limit - len(tokens), 1))
        except BaseException as error:
            sequence.sample.fail(model_failed(error))
        else:
            self._running[key] = sequence

    def _lost(self, key: int, error: ModelError) -> RunningSequence:
        """Ends a sample that the model does not go on with."""
        sequence = self._running[key]
        _log.error("sample %d of a request ended with an error: %s", sequence.sample.index, error)
        sequence.sample.fail(model_failed(error))
        self._forget(key)
        return sequence

    def _take_prompt(self, request: EngineRequest, output: RowOutput, *, first: bool) -> None:
        """Counts the prompt with the first token of a sample, and adds the entries of its tokens."""
        if first and output.token_id is not None and not request.samples[0].token_ids:
            request.cached_tokens = output.cached_tokens
            self._meter.cached_tokens += output.cached_tokens
            self._meter.prompt_tokens += request.inputs.length - output.cached_tokens
        if output.prompt_logprobs and request.prompt_logprobs is not None:
            new = [given_prompt_entry(each, self._tokenizer) for each in output.prompt_logprobs]
            request.prompt_logprobs = (*request.prompt_logprobs, *new)

    def _take_score(self, output: RowOutput) -> None:
        group = self._scored[output.key]
        self._take_prompt(group.request, output, first=True)
        if output.token_id is not None or output.ended is not None:
            del self._scored[output.key]
            self._model.remove(output.key)
            self._notify_all(group)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _forget(self, key: int) -> None:
        self._batch = None
        sequence = self._running.pop(key, None)
        if sequence is not None:
            self._apart.forget(sequence)
        if sequence is not None or self._scored.pop(key, None) is not None:
            self._leave(key)

    def _leave(self, key: int) -> None:
        """Takes a request out of the model."""
        try:
            self._model.remove(key)
        except BaseException as error:
            _log.error("a request could not be ended: %s", describe(error), exc_info=error)

    def _keys_of(self, group: SequenceGroup) -> Iterator[int]:
        yield from [key for key, each in self._running.items() if each.group is group]
        yield from [key for key, each in self._scored.items() if each is group]

    def _fail(self, group: SequenceGroup, error: BaseException) -> None:
        _log.error("a request ended with an error: %s", describe(error), exc_info=error)
        self._end(group, model_failed(error))

    def _end(self, group: SequenceGroup, stop: Stop) -> None:
        """Ends what is unfinished of a request, wherever it is."""
        if group in self._waiting:
            self._waiting.remove(group)
        for key in self._keys_of(group):
            self._forget(key)
        for sequence in [each for each in self._resting if each.group is group]:
            self._resting.discard(sequence)
            self._apart.forget(sequence)
        group.unstarted = 0
        for sample in group.request.end(stop):
            self._notify(group, sample)

    def _notify_all(self, group: SequenceGroup) -> None:
        for sample in group.request.end_empty():
            self._notify(group, sample)

    def _notify(self, group: SequenceGroup, sample: GrowingSample) -> None:
        try:
            group.listener(sample)
        except BaseException as error:
            _log.error("a listener failed, its request is aborted: %s", error, exc_info=error)
            group.listener = ignore
            self._end(group, Stop(kind="abort"))


def problem_of(row: DrawnRow | BaseException | None, output: RowOutput) -> ModelError | None:
    """What is wrong with the token of a step: none was drawn, or it is not the one that was. None if nothing is."""
    if row is None:
        return ModelError(f"the engine ended the request: {output.ended}" if output.ended else "a token was not drawn")
    drawn = token_of(row)
    if drawn >= 0 and output.token_id != drawn:
        return ModelError(f"the engine went on with token {output.token_id} where {drawn} was drawn")
    return None


def token_of(row: DrawnRow | BaseException) -> int:
    """The token of a row of a draw; -1 where it has none."""
    return -1 if isinstance(row, BaseException) else int(row.drawn.token_ids[row.row])
