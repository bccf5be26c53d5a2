"""The prompts of one HTTP request while the engine runs them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tirage.engine import Completion, Delta, EngineRequest, RequestStream, Tenant
from tirage.server.engine_input import EngineInput, ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRequest:
    """One prompt that the engine runs on `model`.

    `id` is random and the server's own, `rid` is the client's; `request.params` are the parameters in force.
    """

    id: str
    rid: str | None
    request: EngineRequest
    engine_input: EngineInput
    stream: RequestStream
    model: ModelInfo

    @classmethod
    def of(cls, engine_input: EngineInput, stream: RequestStream, model: ModelInfo) -> RunningRequest:
        """The running request of an input that was submitted to the engine."""
        return cls(
            id=secrets.token_hex(16),
            rid=engine_input.rid,
            request=stream.request,
            engine_input=engine_input,
            stream=stream,
            model=model,
        )


class RequestGroup:
    """The running requests of one HTTP request; leaving the `async with` block aborts those that have not finished.

    `on_finished` is called once, when all have finished. `reason` says why the group was aborted, if it was;
    `reserved` is how many tokens of its tenant's budget it has taken.
    """

    def __init__(
        self,
        requests: Sequence[RunningRequest],
        *,
        tenant: Tenant,
        rid: str | None,
        reserved: int = 0,
        on_finished: Callable[[RequestGroup], None],
    ) -> None:
        self.requests, self.tenant, self.reason = tuple(requests), tenant, None
        self._rid, self.reserved, self._on_finished = rid, reserved, on_finished
        self._timer: asyncio.TimerHandle | None = None
        self._cleanup: asyncio.Task[None] | None = None

    reason: str | None

    async def __aenter__(self) -> RequestGroup:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.abort()

    def abort(self, reason: str = "disconnect") -> None:
        """Aborts what has not finished, with finish reason "abort"; returns at once and may be called at any time."""
        if self.reason is None and not self._finished:
            self.reason = reason
        for running in self.requests:
            running.stream.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if reason == "disconnect" and self._cleanup is None:
            self._cleanup = asyncio.get_running_loop().create_task(self._finish())

    def abort_named(self, rid: str) -> bool:
        """Aborts the requests with this id, the client's or the server's; False if there is none, or all finished."""
        named = [each for each in self.requests if rid in {each.rid, each.id, self._rid} and not each.stream.finished]
        if named and self.reason is None:
            self.reason = "request"
        for running in named:
            running.stream.abort()
        return bool(named)

    def abort_after(self, seconds: float) -> None:
        """Sets a timer that aborts the group with reason "timeout"."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort, "timeout")

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(number of the request, delta) in the order of arrival, without a pause between deltas that are ready."""
        if len(self.requests) == 1:
            async for delta in self.requests[0].stream:
                yield 0, delta
            return
        async for pair in merged(self.requests):
            yield pair

    async def completions(self) -> list[Completion]:
        """The completions of all requests, in their order, once the last has finished."""
        return list(await asyncio.gather(*(running.stream.result() for running in self.requests)))

    @property
    def _finished(self) -> bool:
        return all(running.stream.finished for running in self.requests)

    async def _finish(self) -> None:
        """Waits until the engine has released every request, then calls `on_finished`."""
        try:
            await self.completions()
        finally:
            self._on_finished(self)


async def merged(requests: Sequence[RunningRequest]) -> AsyncIterator[tuple[int, Delta]]:
    """The deltas of several requests in the order of arrival."""
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue(len(requests))

    async def pump(number: int, running: RunningRequest) -> None:
        async for delta in running.stream:
            await queue.put((number, delta))
        await queue.put(None)

    tasks = [asyncio.create_task(pump(number, running)) for number, running in enumerate(requests)]
    try:
        left = len(tasks)
        while left:
            pair = await queue.get()
            if pair is None:
                left -= 1
            else:
                yield pair
    finally:
        for task in tasks:
            task.cancel()
