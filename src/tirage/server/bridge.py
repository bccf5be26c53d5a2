"""From calls to running requests: what the desk asks of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tirage.engine import Completion, Delta, Request, as_prompt
from tirage.engine.deltas import Deltas
from tirage.llm import LLM

if TYPE_CHECKING:
    from tirage.server.desk import Call


def prepare(llm: LLM, call: Call, tenant: str) -> Request:
    """The engine's request for a call; for a thread of the pool, because it tokenises and compiles."""
    if call.messages is not None:
        return llm._chat_request(call.messages, call.params)
    return llm._request(replace(as_prompt(call.prompt)), call.params, hidden_states=call.hidden_states)


class Handle:
    """A running request with its deltas."""

    def __init__(self, engine: Any, request: Request) -> None:
        self._engine, self.request, self.finished = engine, request, False
        self._loop, self._deltas = asyncio.get_running_loop(), asyncio.Queue[Delta | None]()
        self._ended = asyncio.Event()
        self._job = engine.submit(request, Deltas(request, self._put))

    def _put(self, delta: Delta | None) -> None:
        self._loop.call_soon_threadsafe(self._take, delta)

    def _take(self, delta: Delta | None) -> None:
        self._deltas.put_nowait(delta)
        if delta is None:
            self.finished = True
            self._ended.set()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while (delta := await self._deltas.get()) is not None:
                yield delta
        finally:
            self.abort()

    async def result(self) -> Completion:
        try:
            await self._ended.wait()
        finally:
            self.abort()
        return self.request.completion()

    def abort(self) -> None:
        self._engine.abort(self._job)


def submit_all(engine: Any, requests: Sequence[Request], *, buffer: int, patience_s: float | None) -> list[Handle]:
    """Handles of requests that all run."""
    return [Handle(engine, request) for request in requests]
