"""From routes to the engine: the prompts of a request are checked and prepared together, then all of them run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tirage.engine import Completion, EngineRequest, Tenant, share_of
from tirage.engine.constraint_budget import limited
from tirage.errors import UnavailableError
from tirage.llm import LLM
from tirage.server import errors
from tirage.server.adapters import LoadedAdapters
from tirage.server.admission import check_cost, check_length
from tirage.server.circuit_breaker import CircuitBreaker, processors_of
from tirage.server.client import Client, current_client
from tirage.server.engine_input import EngineInput, ModelInfo
from tirage.server.errors import Refusal
from tirage.server.metrics import Metrics
from tirage.server.options import Options, OverLimitError, check_limit
from tirage.server.preparation import Lane
from tirage.server.rate_limit import RateLimiter
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.watermark import marked, operator_watermark
from tirage.workers.cancel import cancellable

T = TypeVar("T")
# Threads that tokenise prompts and render templates, and others that compile constraints, so that no plain request
# waits for a constraint; more threads would only compete for the processor. No tenant gets all of the latter.
_PLAIN_THREADS, _GUIDED_THREADS, _GUIDED_OF_A_TENANT = 2, 4, 3
# Deltas that a stream may leave unread before they are merged.
STREAM_BUFFER = 64


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request whose prompts are being prepared; it can be aborted by id like one that runs.

    `deadline`, of the monotonic clock, holds for preparing and running together.
    """

    tenant: Tenant
    names: frozenset[str | None]
    client: Client
    deadline: float
    aborted: bool = False

    def check(self) -> None:
        """Raises Refusal when the request was aborted, its client has left, or its time is over; safe in any thread."""
        if self.client.disconnected:
            raise Refusal(499, "the client has left")
        if self.aborted:
            raise Refusal(503, "the request was aborted", code="aborted")
        if time.monotonic() > self.deadline:
            raise errors.timed_out()


class RequestManager:
    """Checks the size of requests, prepares their prompts in a pool of threads, and submits them to the engine."""

    def __init__(
        self,
        llm: LLM,
        options: Options,
        *,
        metrics: Metrics,
        model_info: ModelInfo,
        rate_limiter: RateLimiter | None = None,
    ) -> None:
        self.llm, self.options, self.metrics, self.model_info = llm, options, metrics, model_info
        self.adapters = LoadedAdapters(llm, options)
        self._watermark = operator_watermark(options.watermark)
        self._plain = Lane("plain", _PLAIN_THREADS)
        self._guided = Lane("guided", _GUIDED_THREADS, of_a_tenant=_GUIDED_OF_A_TENANT)
        self.lanes = (self._plain, self._guided)
        self._pending: set[PendingRequest] = set()
        self._groups: set[RequestGroup] = set()
        self._preparing = Counter[Tenant]()
        self._rate_limiter = RateLimiter.of(options) if rate_limiter is None else rate_limiter
        self._breaker = CircuitBreaker(options.limits.processor_cool_down)
        metrics.in_flight.set_function(self._in_flight)
        for lane in self.lanes:
            metrics.watch_lane(lane)

    async def submit(
        self, inputs: Sequence[EngineInput], *, tenant: Tenant, rid: str | None = None, stream: bool = False
    ) -> RequestGroup:
        """The running requests. Raises Refusal, ParamsError, GrammarError or UnavailableError before any of them runs.

        `tenant` comes from `tenant_of(request)`: tenants share no cached prefix and abort only their own requests.
        `rid` is an id for all inputs together. With `stream` the deltas can be read, without it only the completions.
        """
        limits, client = self.options.limits, current_client()
        deadline = time.monotonic() + limits.request_timeout
        requests = await self.prepare(inputs, tenant=tenant, rid=rid)
        patience = limits.stall_timeout if stream else None
        reserved = self._rate_limiter.reserve_tokens(tenant, sum(map(most_tokens, requests)))
        try:
            streams = self.llm.engine.submit_all(requests, buffer=STREAM_BUFFER if stream else 0, patience_s=patience)
        except BaseException as error:
            # Also where an adapter has been unloaded since its request was checked: nothing runs, nothing was used.
            self._rate_limiter.settle_tokens(tenant, reserved, 0)
            if isinstance(error, UnavailableError):
                self.metrics.refused()
            raise
        started = [RunningRequest.of(*pair, self.model_info) for pair in zip(inputs, streams, strict=True)]
        group = RequestGroup(started, tenant=tenant, rid=rid, reserved=reserved, on_finished=self._finished)
        self._groups.add(group)
        group.abort_after(deadline - time.monotonic())
        client.on_finished(group.abort)
        return group

    async def prepare(
        self, inputs: Sequence[EngineInput], *, tenant: Tenant, rid: str | None = None
    ) -> list[EngineRequest]:
        """The engine's requests, checked and ready to be submitted; parameters and errors are those of `submit`."""
        limits = self.options.limits
        try:
            check_limit(limits, "max_rid", len(rid or ""), "rid")
            check_cost(inputs, limits, context=self.llm.model.max_length)
        except OverLimitError as error:
            self.metrics.over_limit(error.limit)
            raise
        for engine_input in inputs:
            self._breaker.check(engine_input.params, tenant)
        self._check_capacity(len(inputs), tenant)
        names = frozenset({rid, *(engine_input.rid for engine_input in inputs)})
        pending = PendingRequest(tenant, names, current_client(), time.monotonic() + limits.request_timeout)
        return await self._prepare_all(inputs, pending)

    async def in_pool(self, function: Callable[[], T], *, tenant: Tenant, guided: bool = False) -> T:
        """The function's result, computed in a thread in the tenant's turn; for work that would block the loop.

        With `guided` it is one of the threads for constraints.
        """
        lane = self._guided if guided else self._plain
        return await lane.run(function, tenant=tenant, request=object())

    def abort(self, rid: str, *, tenant: Tenant) -> bool:
        """Aborts the tenant's requests with exactly this id; False when there are none."""
        pending = [each for each in self._pending if each.tenant == tenant and rid in each.names]
        for each in pending:
            each.aborted = True
        if pending:
            self._end_waiting()
        groups = [group for group in self._groups if group.tenant == tenant]
        return sum(group.abort_named(rid) for group in groups) > 0 or bool(pending)

    def abort_all(self, *, reason: str = "request") -> list[str]:
        """Aborts everything; the ids of what was running, and of what was being prepared as far as it has one."""
        names = [running.rid or running.id for group in self._groups for running in group.requests]
        for pending in self._pending:
            pending.aborted = True
            names += sorted(name for name in pending.names if name is not None)
        for group in list(self._groups):
            group.abort(reason)
        self._end_waiting()
        return names

    async def drain(self, seconds: float) -> None:
        """Waits at most so long for the requests to finish, then aborts the rest."""
        deadline = time.monotonic() + seconds
        while (self._groups or self._pending) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.abort_all(reason="drain")

    def close(self) -> None:
        """Cancels what waits for a thread; each thread ends after its current work."""
        for lane in self.lanes:
            lane.close()

    @property
    def full(self) -> bool:
        """Whether another request would be refused because the queue is full."""
        return self._preparing.total() + self.llm.engine.progress().waiting >= max(self.options.limits.max_queue, 1)

    def _end_waiting(self) -> None:
        for lane in self.lanes:
            lane.check_waiting()

    def _in_flight(self) -> int:
        return self._preparing.total() + sum(len(group.requests) for group in list(self._groups))

    def _check_capacity(self, count: int, tenant: Tenant) -> None:
        # What is being prepared will be in the engine's queue in a moment; without this, thousands could.
        most = self.options.limits.max_queue + self.options.limits.max_running
        total, own = self._preparing.total() + count, self._preparing[tenant] + count
        # Where others have filled it, a tenant may still have its share.
        share = share_of(tenant, self._preparing, most)
        if total > most and (total > 2 * most or own > share):
            self.metrics.refused()
            raise UnavailableError("too many requests are being prepared")

    async def _prepare_all(self, inputs: Sequence[EngineInput], pending: PendingRequest) -> list[EngineRequest]:
        """The engine's requests for all inputs; raises the first error in the order of the inputs."""
        self._pending.add(pending)
        self._preparing[pending.tenant] += len(inputs)
        try:
            async with asyncio.timeout(pending.deadline - time.monotonic()):
                made = await asyncio.gather(*(self._schedule(each, pending) for each in inputs), return_exceptions=True)
        except TimeoutError:
            raise errors.timed_out() from None
        finally:
            self._preparing[pending.tenant] -= len(inputs)
            self._preparing += Counter()  # without those that have nothing left
            self._pending.discard(pending)
        wrong = next((each for each in made if isinstance(each, BaseException)), None)
        if wrong is not None:
            raise wrong
        pending.check()
        return [each for each in made if isinstance(each, EngineRequest)]

    async def _schedule(self, engine_input: EngineInput, pending: PendingRequest) -> EngineRequest:
        """The engine's request for an input, prepared in the lane for plain or for constrained requests."""
        lane = self._plain if engine_input.params.guided_decoding is None else self._guided
        return await lane.run(
            lambda: self._prepare(engine_input, pending), tenant=pending.tenant, request=pending, check=pending.check
        )

    def _prepare(self, engine_input: EngineInput, pending: PendingRequest) -> EngineRequest:
        pending.check()
        check_length(engine_input, self.llm, self.options.limits)
        began = time.perf_counter()
        limits = self.options.limits
        seconds = limited(total_s=limits.max_constraint_seconds, mask_s=limits.max_mask_seconds)
        with cancellable(pending.check), seconds:
            chosen = marked(with_backend(engine_input, self.options), self._watermark)
            request = make_request(self.llm, chosen, pending.tenant)
        request.tenant, request.keep_logits = pending.tenant, engine_input.keep_logits
        self.metrics.prepared(time.perf_counter() - began, guided=engine_input.params.guided_decoding is not None)
        return request

    def _finished(self, group: RequestGroup) -> None:
        """Counts a group that has finished, once and with everything it has drawn."""
        try:
            completions = [running.request.completion() for running in group.requests]
            used = sum(completion.usage.total_tokens for completion in completions)
            self._rate_limiter.settle_tokens(group.tenant, group.reserved, used)
            for running, completion in zip(group.requests, completions, strict=True):
                self._count(running, group, completion)
        finally:
            # Last, so that nothing is uncounted when nothing is in flight.
            self._groups.discard(group)

    def _count(self, running: RunningRequest, group: RequestGroup, completion: Completion) -> None:
        self.metrics.finished(completion)
        if running.engine_input.params.guided_decoding is not None:
            self.metrics.constrained(running.request.constraint_budget.total_s)
        if any(sample.finish_reason == "abort" for sample in completion.samples):
            self.metrics.aborted(group.reason or "stalled")
        if self._breaker.record(running.engine_input.params, group.tenant, completion):
            self.metrics.processors_failed(processors_of(running.engine_input.params))


def make_request(llm: LLM, engine_input: EngineInput, tenant: Tenant) -> EngineRequest:
    """The engine's request for an input; for a thread of the pool, because it tokenises and compiles.

    Raises Refusal for an input without a prompt, and what `llm` raises for one that it cannot run.
    """
    params, beams = engine_input.params, engine_input.beams
    # Tenants are written in hexadecimal digits, so that no salt makes one of them another.
    salt = tenant.name if engine_input.cache_salt is None else f"{tenant.name}/{engine_input.cache_salt}"
    if engine_input.messages is not None:
        return llm.chat_request(
            engine_input.messages,
            params,
            salt=salt,
            adapter=engine_input.adapter,
            tools=engine_input.tools,
            arguments=engine_input.template_args,
            beams=beams,
            add_generation_prompt=engine_input.add_generation_prompt,
            continue_final_message=engine_input.continue_final_message,
        )
    if engine_input.prompt is None:
        raise Refusal(400, "a prompt or messages must be given")
    prompt = dataclasses.replace(engine_input.prompt, salt=salt)
    if beams is not None:
        return llm.beam_request(prompt, beams, sampling=params)
    return llm.request(prompt, params, hidden_states=engine_input.hidden_states)


def with_backend(engine_input: EngineInput, options: Options) -> EngineInput:
    """The input with the operator's grammar backend, unless its constraint names its own."""
    guided = engine_input.params.guided_decoding
    if guided is None or guided.backend is not None or options.grammar_backend == "auto":
        return engine_input
    chosen = guided.replace(backend=options.grammar_backend)
    return dataclasses.replace(engine_input, params=engine_input.params.replace(guided_decoding=chosen))


def most_tokens(request: EngineRequest) -> int:
    """The tokens of a prompt and of its answer, if every sample reaches its limit."""
    rows = request.sample_count if request.beams is None else request.beams.returned
    return request.inputs.length + request.limit * rows
