"""The loop: requests join and leave between steps, and every step draws one token for each that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.batch import Batch
from tirage.draw import Draw, Status
from tirage.engine.logprobs import output_entry, prompt_entries
from tirage.engine.request import Request
from tirage.engine.sample import GrowingSample
from tirage.models import Model
from tirage.text import Stop, Tokenizer


@dataclass(slots=True, kw_only=True)
class Running:
    """A sample in the batch: its cache, and the logits its next token is drawn from."""

    request: Request
    sample: GrowingSample
    cache: Any
    logits: NDArray[np.float32]


def run(
    model: Model, tokenizer: Tokenizer, requests: Sequence[Request], *, max_running: int
) -> Iterator[tuple[Request, GrowingSample]]:
    """Runs requests to their ends, yielding each sample that took a step or ended.

    At most `max_running` samples run at once; the others join, in order, as places become free. What a
    request gives does not depend on that number or on the other requests.
    """
    waiting = deque(ready(model, tokenizer, requests))
    yield from ((request, sample) for request in requests for sample in request.samples if sample.stop)
    batch = Batch(model.vocab_size, max_running)
    running: dict[int, Running] = {}
    prefilled: dict[int, tuple[NDArray[np.float32], Any]] = {}
    while waiting or running:
        while waiting and len(running) < max_running:
            request, sample = waiting.popleft()
            slot = batch.add(request.params, request.prompt_ids, sample_index=sample.index)
            running[slot] = join(model, request, sample, prefilled)
        yield from step(model, tokenizer, batch, running)


def ready(model: Model, tokenizer: Tokenizer, requests: Sequence[Request]) -> Iterator[tuple[Request, GrowingSample]]:
    """The samples that are to run, in order; prompts are scored here where that was asked for."""
    for request in requests:
        count = request.params.prompt_logprobs
        if count is not None:
            scores = model.score(request.prompt_ids)
            request.prompt_logprobs = prompt_entries(scores, request.prompt_ids, count, tokenizer)
        yield from ((request, sample) for sample in request.samples if sample.stop is None)


def join(
    model: Model, request: Request, sample: GrowingSample, prefilled: dict[int, tuple[NDArray[np.float32], Any]]
) -> Running:
    """A sample ready to draw; a prompt is read once, for all its samples."""
    key = id(request)
    if key not in prefilled:
        prefilled[key] = model.prefill(request.prompt_ids)
    logits, cache = prefilled[key]
    if sample is request.samples[-1]:
        del prefilled[key]
    else:
        cache = model.fork(cache)
    return Running(request=request, sample=sample, cache=cache, logits=logits)


def step(
    model: Model, tokenizer: Tokenizer, batch: Batch, running: dict[int, Running]
) -> Iterator[tuple[Request, GrowingSample]]:
    """One token for every running sample, then the logits for the next of those that go on."""
    order = list(batch.slots)
    drawn = batch.sample(np.stack([running[slot].logits for slot in order]))
    batch.advance(drawn)
    moved = [running[slot] for slot in order]
    for row, slot in enumerate(order):
        take(running[slot], drawn, row, tokenizer)
        if running[slot].sample.stop is not None:
            batch.remove(slot)
            del running[slot]
    yield from ((one.request, one.sample) for one in moved)
    going = list(running.values())
    if going:
        tokens = [one.sample.token_ids[-1] for one in going]
        logits = model.decode(tokens, [one.cache for one in going])
        for one, row in zip(going, logits, strict=True):
            one.logits = row


def take(one: Running, drawn: Draw, row: int, tokenizer: Tokenizer) -> None:
    """Gives a sample its row of a draw; a row without a token ends it with an error, and only it."""
    one.request.mark_token()
    status = Status(int(drawn.status[row]))
    if status is Status.non_finite_logits or status is Status.no_allowed_token:
        one.sample.fail(Stop(kind=status.name))
        return
    entry = output_entry(drawn, row, one.request.params, tokenizer, offset=one.sample.offset)
    if entry is not None:
        one.sample.entries.append(entry)
    one.sample.accept(int(drawn.token_ids[row]), float(drawn.sampled_logprobs[row]))
