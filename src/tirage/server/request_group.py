"""The calls of one HTTP request while they run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tirage.engine import Completion, Delta, EngineRequest, RequestStream
from tirage.server.engine_input import EngineInput, ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRequest:
    """A call that runs. `id` is random and ours, `rid` the client's; `request.params` are those in force.

    `model` is the one that it runs on.
    """

    id: str
    rid: str | None
    request: EngineRequest
    call: EngineInput
    handle: RequestStream
    model: ModelInfo

    @classmethod
    def of(cls, call: EngineInput, handle: RequestStream, model: ModelInfo) -> RunningRequest:
        """The ticket of a call that was handed to the engine."""
        name = secrets.token_hex(16)
        return cls(id=name, rid=call.rid, request=handle.request, call=call, handle=handle, model=model)


class RequestGroup:
    """The calls of one HTTP request while they run; leaving the `async with` block aborts what still does.

    `over` is called once, when nothing runs any more. `reason` says why the visit was aborted, if it was.
    """

    def __init__(
        self, tickets: Sequence[RunningRequest], *, tenant: str, rid: str | None, over: Callable[[RequestGroup], None]
    ) -> None:
        self.tickets, self.tenant, self.reason = tuple(tickets), tenant, None
        self._rid, self._over = rid, over
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.Task[None] | None = None

    reason: str | None

    async def __aenter__(self) -> RequestGroup:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.abort()

    def abort(self, reason: str = "disconnect") -> None:
        """Ends what still runs, with finish reason "abort"; returns at once, and is harmless when all is over."""
        if self.reason is None and not self._finished:
            self.reason = reason
        for ticket in self.tickets:
            ticket.handle.abort()
        if self._timer is not None:
            self._timer.cancel()
        if reason == "disconnect" and self._end is None:
            self._end = asyncio.get_running_loop().create_task(self._settle())

    def abort_named(self, rid: str) -> bool:
        """Ends the calls with this name, the client's or ours; False when none has it or they are over."""
        named = [t for t in self.tickets if rid in {t.rid, t.id, self._rid} and not t.handle.finished]
        if named and self.reason is None:
            self.reason = "request"
        for ticket in named:
            ticket.handle.abort()
        return bool(named)

    def expire_after(self, seconds: float) -> None:
        """Has the visit end by itself."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort, "timeout")

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(number of the request, delta) as they come; deltas that wait already come without a pause between."""
        if len(self.tickets) == 1:
            async for delta in self.tickets[0].handle:
                yield 0, delta
            return
        async for pair in merged(self.tickets):
            yield pair

    async def completions(self) -> list[Completion]:
        """The answers of all calls, in order, when the last has ended."""
        return list(await asyncio.gather(*(ticket.handle.result() for ticket in self.tickets)))

    @property
    def _finished(self) -> bool:
        return all(ticket.handle.finished for ticket in self.tickets)

    async def _settle(self) -> None:
        """Waits until the engine has let go of every call, and tells that the visit is over."""
        try:
            await self.completions()
        finally:
            self._over(self)


async def merged(tickets: Sequence[RunningRequest]) -> AsyncIterator[tuple[int, Delta]]:
    """The deltas of several calls as they come."""
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue(len(tickets))

    async def pump(number: int, ticket: RunningRequest) -> None:
        async for delta in ticket.handle:
            await queue.put((number, delta))
        await queue.put(None)

    tasks = [asyncio.create_task(pump(number, ticket)) for number, ticket in enumerate(tickets)]
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
