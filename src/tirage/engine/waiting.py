"""How callers wait for the engine: for all completions of some requests, or for the deltas of one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from tirage.engine.completion import Completion, Delta
from tirage.engine.engine import Engine
from tirage.engine.request import EngineRequest
from tirage.engine.request_stream import RequestStream
from tirage.errors import ParamsError

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


def checked_stream(request: EngineRequest) -> EngineRequest:
    """The request itself. Raises ParamsError for `best_of` above `n`, which is decided only at the end."""
    params = request.params
    if params.best_of is not None and params.best_of > params.n:
        raise ParamsError(f"best_of must be n or None to stream, got {params.best_of}; use generate")
    return request


def show_progress(streams: Sequence[RequestStream]) -> None:
    """Waits for requests and shows a bar on a terminal's stderr, which moves with their tokens; tokens per second."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[ended]}/{task.total} requests"),
        BarColumn(),
        TextColumn("{task.fields[tokens]} tokens, {task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    requests = [stream.request for stream in streams]
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=len(requests), ended=0, tokens=0, speed=0.0)
        while running := [stream for stream in streams if not stream.finished]:
            with contextlib.suppress(TimeoutError):
                running[0].wait(_UPDATE_S)
            ended = sum(request.finished for request in requests)
            tokens = sum(request.output_tokens for request in requests)
            speed = tokens / (time.perf_counter() - started)
            done = sum(request.done_share for request in requests)
            bar.update(task, completed=done, ended=ended, tokens=tokens, speed=speed)
