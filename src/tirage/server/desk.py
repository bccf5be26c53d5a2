"""The one door from routes to the engine: calls are checked and prepared as a whole, then all of them run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any

from tirage.engine import Completion, Delta, Prompt, Request
from tirage.llm import LLM
from tirage.params import BeamSearchParams, SamplingParams
from tirage.server import bridge
from tirage.server.options import Options, check_limit

# Threads that tokenise prompts, render templates and compile grammars; more would only wait for the processor.
_POOL = 6
# Deltas that a stream may leave unread before they are put together.
_BUFFER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One prompt of a request, as the route understood it: either `prompt` or `messages`.

    `messages` are for the chat template, with their images and sounds loaded already; `template_args` hold `tools`
    and the names a template may look at. `params` are complete. `rid` is the client's name for the call.
    """

    prompt: Prompt | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    params: SamplingParams
    beams: BeamSearchParams | None = None
    hidden_states: bool = False
    rid: str | None = None
    echo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A call that runs. `id` is random and ours, `rid` the client's; `request.params` are those in force."""

    id: str
    rid: str | None
    request: Request
    call: Call
    handle: Any


class Visit:
    """The calls of one HTTP request while they run; leaving the `async with` block aborts what still does."""

    def __init__(self, tickets: Sequence[Ticket]) -> None:
        self.tickets = tuple(tickets)

    async def __aenter__(self) -> Visit:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.abort()

    def abort(self) -> None:
        """Ends what still runs, with finish reason "abort"; returns at once, and is harmless when all is over."""
        for ticket in self.tickets:
            ticket.handle.abort()

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Ticket number and delta, as they come; those that are there already come without a pause between."""
        if len(self.tickets) == 1:
            async for delta in self.tickets[0].handle:
                yield 0, delta
            return
        async for pair in merged(self.tickets):
            yield pair

    async def completions(self) -> list[Completion]:
        """The answers of all calls, in order, when the last has ended."""
        return list(await asyncio.gather(*(ticket.handle.result() for ticket in self.tickets)))


async def merged(tickets: Sequence[Ticket]) -> AsyncIterator[tuple[int, Delta]]:
    """The deltas of several calls as they come."""
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue(len(tickets))

    async def pump(number: int, ticket: Ticket) -> None:
        try:
            async for delta in ticket.handle:
                await queue.put((number, delta))
        finally:
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


class Desk:
    """Admits calls: checks their number, prepares them in a pool of threads, and hands them to the engine."""

    def __init__(self, llm: LLM, options: Options) -> None:
        self.llm, self.options = llm, options
        self._pool = ThreadPoolExecutor(_POOL, thread_name_prefix="tirage-desk")

    async def admit(self, calls: Sequence[Call], *, tenant: str, route: str) -> Visit:
        """The running calls. Raises Refusal, ParamsError or GrammarError before any of them runs.

        `tenant` is that of `tenant_of(request)`: tenants share no cached prefix, and abort only their own.
        """
        check_counts(calls, self.options)
        loop = asyncio.get_running_loop()
        requests = await asyncio.gather(
            *(loop.run_in_executor(self._pool, bridge.prepare, self.llm, call, tenant) for call in calls)
        )
        patience = self.options.limits.stall_timeout
        handles = bridge.submit_all(self.llm.engine, requests, buffer=_BUFFER, patience_s=patience)
        return Visit([
            Ticket(id=secrets.token_hex(16), rid=call.rid, request=handle.request, call=call, handle=handle)
            for call, handle in zip(calls, handles, strict=True)
        ])


def check_counts(calls: Sequence[Call], options: Options) -> None:
    """ParamsError for more prompts, samples or logprobs than the limits allow; nothing has been copied yet."""
    limits = options.limits
    check_limit(limits, "max_prompts", len(calls), "prompts")
    for call in calls:
        check_limit(limits, "max_n", call.params.n, "n")
        check_limit(limits, "max_best_of", call.params.best_of or 0, "best_of")
        for name in ("logprobs", "prompt_logprobs"):
            check_limit(limits, "max_top_logprobs", getattr(call.params, name) or 0, name)
    total = sum(samples_of(call) for call in calls)
    check_limit(limits, "max_samples", total, "prompts times n")


def samples_of(call: Call) -> int:
    """The samples that a call keeps running at once."""
    return call.beams.beam_width if call.beams is not None else call.params.best_of or call.params.n
