"""How callers wait for the engine: for all of some requests, or for the deltas of one, in threads and in asyncio."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from tirage.engine.completion import Completion, Delta
from tirage.engine.engine import Engine
from tirage.engine.request import EngineRequest
from tirage.engine.request_stream import RequestStream

# How often the progress bar looks.
_LOOK_S = 0.2


def finish(engine: Engine, requests: Sequence[EngineRequest], *, progress: bool) -> list[Completion]:
    """The completions of requests, once all are over. An exception meanwhile, such as Ctrl-C, aborts them."""
    handles = engine.submit_all(requests, buffer=0)
    try:
        if progress:
            show_progress(handles)
        return [handle.wait() for handle in handles]
    finally:
        for handle in handles:
            handle.abort()


def stream(engine: Engine, request: EngineRequest) -> Iterator[Delta]:
    """The deltas of a request, which starts with the first look; closing the iterator aborts it."""
    with engine.submit(request) as handle:
        yield from handle


async def astream(engine: Engine, request: EngineRequest) -> AsyncIterator[Delta]:
    """The deltas of a request without a thread that waits; cancelling the task aborts it."""
    async with engine.submit(request) as handle:
        async for delta in handle:
            yield delta


def show_progress(handles: Sequence[RequestStream]) -> None:
    """Waits for requests with a bar of finished samples, tokens per second and time left on a terminal's stderr."""
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
    samples = [sample for handle in handles for sample in handle.request.samples]
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("samples", total=len(samples), speed=0.0)
        while running := [handle for handle in handles if not handle.finished]:
            with contextlib.suppress(TimeoutError):
                running[0].wait(_LOOK_S)
            ended = sum(sample.stop is not None for sample in samples)
            tokens = sum(len(sample.token_ids) for sample in samples)
            bar.update(task, completed=ended, speed=tokens / (time.perf_counter() - started))
