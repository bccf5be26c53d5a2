"""The prompts that the model reads between decode steps: short ones together, long ones in chunks, in turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tirage.engine.fairness import ALONE_S, STEP_S, Turns, interleaved
from tirage.engine.logprobs import PromptLogprobs
from tirage.engine.progress import Meter
from tirage.engine.runner import prefill_batch, prefill_chunk
from tirage.engine.sequence import SequenceGroup
from tirage.models import BatchPrefillModel, StepModel
from tirage.text import Tokenizer

# Prompt tokens prefilled between two decode steps; one chunk of a prompt in any case.
PREFILL_BUDGET = 256


class PrefillQueue:
    """Requests whose prompts are being read, and those that are `done`, with their logits; for the engine's thread.

    `fail` ends a request whose prompt cannot be opened or read, and calls `remove` with it.
    """

    def __init__(
        self,
        model: StepModel,
        tokenizer: Tokenizer,
        *,
        meter: Meter,
        fail: Callable[[SequenceGroup, BaseException], None],
    ) -> None:
        self._model, self._tokenizer, self._meter, self._fail = model, tokenizer, meter, fail
        self._batch_model = model if isinstance(model, BatchPrefillModel) else None
        self._reading: deque[SequenceGroup] = deque()
        self.done: deque[SequenceGroup] = deque()
        self._turns = Turns()

    def __len__(self) -> int:
        return len(self._reading) + len(self.done)

    def __iter__(self) -> Iterator[SequenceGroup]:
        yield from self._reading
        yield from self.done

    @property
    def reading(self) -> bool:
        """Whether a prompt is yet to be read."""
        return bool(self._reading)

    def fits(self, budget: int) -> bool:
        """Whether a step that may read so many more tokens reads all that is left of the prompts."""
        return sum(group.row.left for group in self._reading) <= budget

    def open(self, group: SequenceGroup) -> bool:
        """Opens a row for the prompt of a request; False if that fails, which ends the request."""
        try:
            group.row = self._model.open(group.request.inputs)
        except BaseException as error:
            self._fail(group, error)
            return False
        group.request.cached_tokens = group.row.cached
        self._meter.started += 1
        self._meter.cached_tokens += group.row.cached
        if group.request.inputs.score:
            group.prompt_logprobs = PromptLogprobs(group.request, self._tokenizer)
        self._reading.append(group)
        return True

    def remove(self, group: SequenceGroup) -> None:
        """Takes out a request that ends, if it is here."""
        for queue in (self._reading, self.done):
            if group in queue:
                queue.remove(group)

    def step(self, budget: int = PREFILL_BUDGET, *, began: float, alone: bool) -> int:
        """Reads chunks of the prompts in turn, short prompts together, until the budget is spent; gives what is left.

        It ends some time after it `began` as well, later for requests that are `alone`: each prompt may take a pass,
        however short it is. Then nothing is left.
        """
        over = began + (ALONE_S if alone else STEP_S)
        turns = interleaved(self._reading, lambda group: group.key, self._turns)
        while turns and budget > 0:
            groups = self._next(turns)
            self._turns.take(group.key for group in groups)
            read = self._read_together(groups) if len(groups) > 1 else self._read_chunk(groups[0])
            self._meter.prompt_tokens += read
            budget -= read
            turns = [group for group in turns if group not in groups]
            turns += [group for group in groups if group.row is not None and group.row.left]
            if time.perf_counter() > over:
                return 0
        return budget

    def _next(self, turns: Sequence[SequenceGroup]) -> Sequence[SequenceGroup]:
        """The request whose turn it is, and those behind it whose prompts can be read in the same pass."""
        if self._batch_model is None or len(turns) == 1:
            return turns[:1]
        return [turns[index] for index in self._batch_model.choose_prefill([group.row for group in turns])]

    def _read_together(self, groups: Sequence[SequenceGroup]) -> int:
        """Reads the prompts of requests in one pass, or one by one if that fails; gives the number of tokens."""
        assert self._batch_model is not None
        rows = [group.row for group in groups]
        count = sum(row.left for row in rows)
        try:
            logits = prefill_batch(self._batch_model, rows, vocab_size=self._model.vocab_size)
        except BaseException as error:
            for group in groups:
                self._fail(group, error)
            return 0
        if logits is None:
            return sum(self._read_chunk(group) for group in groups)
        for group, each in zip(groups, logits, strict=True):
            # A copy, so that the logits of the others can be freed.
            group.logits = each.copy()
            self._reading.remove(group)
            self.done.append(group)
        return count

    def _read_chunk(self, group: SequenceGroup) -> int:
        """Reads a chunk of a request's prompt; gives the number of its tokens, 0 if the request failed."""
        before = group.row.left
        try:
            prefill_chunk(self._model, group)
        except BaseException as error:
            self._fail(group, error)
            return 0
        self._reading.remove(group)
        (self._reading if group.row.left else self.done).append(group)
        return before - group.row.left
