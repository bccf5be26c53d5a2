"""How callers wait for the engine: for all of some requests, or for the deltas of one, in threads and in asyncio."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from tirage.engine.completion import Delta
from tirage.engine.deltas import Deltas
from tirage.engine.engine import Engine
from tirage.engine.request import Request
from tirage.engine.sample import GrowingSample


def finish(engine: Engine, requests: Sequence[Request], *, progress: bool) -> None:
    """Runs the requests to their ends. An exception meanwhile, such as Ctrl-C, aborts them."""
    ended: queue.SimpleQueue[GrowingSample] = queue.SimpleQueue()

    def listen(sample: GrowingSample) -> None:
        if sample.stop is not None:
            ended.put(sample)

    jobs = [engine.submit(request, listen) for request in requests]
    try:
        if progress:
            show_progress(requests, ended)
        for _ in range(sum(len(request.samples) for request in requests) if not progress else 0):
            ended.get()
    except BaseException:
        for job in jobs:
            engine.abort(job)
        raise


def stream(engine: Engine, request: Request) -> Iterator[Delta]:
    """The deltas of a request; closing the iterator aborts it."""
    deltas: queue.SimpleQueue[Delta | None] = queue.SimpleQueue()
    job = engine.submit(request, Deltas(request, deltas.put))
    try:
        while (delta := deltas.get()) is not None:
            yield delta
    finally:
        engine.abort(job)


async def astream(engine: Engine, request: Request) -> AsyncIterator[Delta]:
    """The deltas of a request without a thread that waits; cancelling the task aborts it."""
    loop, deltas = asyncio.get_running_loop(), asyncio.Queue[Delta | None]()
    job = engine.submit(request, Deltas(request, lambda delta: loop.call_soon_threadsafe(deltas.put_nowait, delta)))
    try:
        while (delta := await deltas.get()) is not None:
            yield delta
    finally:
        engine.abort(job)


def show_progress(requests: Sequence[Request], ended: queue.SimpleQueue[GrowingSample]) -> None:
    """Waits for the requests with a bar of finished samples, tokens per second and time left on a terminal's stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("samples"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    samples = [sample for request in requests for sample in request.samples]
    started, left = time.perf_counter(), len(samples)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("samples", total=left, speed=0.0)
        while left:
            try:
                ended.get(timeout=0.2)
                left -= 1
            except queue.Empty:
                pass
            tokens = sum(len(sample.token_ids) for sample in samples)
            speed = tokens / (time.perf_counter() - started)
            bar.update(task, completed=len(samples) - left, speed=speed)
