"""How callers wait for the engine: for all completions of some requests, or for the deltas of one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from tirage.engine.completion import Completion, Delta
from tirage.engine.engine import Engine
from tirage.engine.request import EngineRequest
from tirage.engine.request_stream import RequestStream

# Seconds between two updates of the progress bar.
_UPDATE_S = 0.2


def finish(engine: Engine, requests: Sequence[EngineRequest], *, progress: bool) -> list[Completion]:
    """The completions of the requests, once all have finished; an exception meanwhile, such as Ctrl-C, aborts them."""
    streams = engine.submit_all(requests, buffer=0)
    try:
        if progress:
            show_progress(streams)
        return [stream.wait() for stream in streams]
    finally:
        for stream in streams:
            stream.abort()


def stream(engine: Engine, request: EngineRequest) -> Iterator[Delta]:
    """The deltas of a request, which is submitted when the first is asked for; closing the iterator aborts it."""
    with engine.submit(request) as deltas:
        yield from deltas


async def astream(engine: Engine, request: EngineRequest) -> AsyncIterator[Delta]:
    """The deltas of a request, for an event loop; cancelling the task aborts it."""
    async with engine.submit(request) as deltas:
        async for delta in deltas:
            yield delta


def show_progress(streams: Sequence[RequestStream]) -> None:
    """Waits for requests and shows a bar on a terminal's stderr: finished samples, tokens per second, time left."""
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
    samples = [sample for stream in streams for sample in stream.request.samples]
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("samples", total=len(samples), speed=0.0)
        while running := [stream for stream in streams if not stream.finished]:
            with contextlib.suppress(TimeoutError):
                running[0].wait(_UPDATE_S)
            ended = sum(sample.stop is not None for sample in samples)
            tokens = sum(len(sample.token_ids) for sample in samples)
            bar.update(task, completed=ended, speed=tokens / (time.perf_counter() - started))
