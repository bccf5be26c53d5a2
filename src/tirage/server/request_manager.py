"""The one door from routes to the engine: calls are checked and prepared as a whole, then all of them run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tirage.cancel import cancellable
from tirage.engine import Completion, EngineRequest
from tirage.errors import UnavailableError
from tirage.llm import LLM
from tirage.params import SamplingParams
from tirage.server import client, errors
from tirage.server.circuit_breaker import CircuitBreaker, processors_of
from tirage.server.engine_input import EngineInput, ModelInfo
from tirage.server.errors import Refusal
from tirage.server.metrics import Metrics
from tirage.server.options import Limits, Options, check_limit
from tirage.server.request_group import RequestGroup, RunningRequest

T = TypeVar("T")
# Threads that tokenise prompts and render templates, and others that compile constraints, so that no plain request
# waits for a constraint; more would only wait for the processor. One tenant leaves some of the latter to the others.
_PLAIN_THREADS, _GUIDED_THREADS, _GUIDED_OF_A_TENANT = 2, 4, 3
POOL = "tirage-desk"
"""How the names of these threads begin."""
# Deltas that a stream may leave unread before they are put together.
_BUFFER = 64


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request whose calls are being prepared, which can be aborted by name as one that runs can.

    `deadline`, of the monotonic clock, is the end of its time, which preparation is part of.
    """

    tenant: str
    names: frozenset[str | None]
    caller: client.Client
    deadline: float
    aborted: bool = False

    def check(self) -> None:
        """Refusal when nobody waits for the request any more, or its time is over; for any thread."""
        if self.aborted or self.caller.gone:
            raise aborted(self.caller)
        if time.monotonic() > self.deadline:
            raise errors.late()


class RequestManager:
    """Admits calls: checks their number, prepares them in a pool of threads, and hands them to the engine."""

    def __init__(self, llm: LLM, options: Options, *, metrics: Metrics, mark: ModelInfo) -> None:
        self.llm, self.options, self.metrics, self.mark = llm, options, metrics, mark
        self._pool = ThreadPoolExecutor(_PLAIN_THREADS, thread_name_prefix=POOL)
        self._guided_pool = ThreadPoolExecutor(_GUIDED_THREADS, thread_name_prefix=f"{POOL}-guided")
        self._guided_turns = WeakValueDictionary[str, asyncio.Semaphore]()
        self._arrivals: set[PendingRequest] = set()
        self._visits: set[RequestGroup] = set()
        self._preparing = 0
        self._breaker = CircuitBreaker(options.limits.processor_cool_down)
        metrics.in_flight.set_function(self._in_flight)

    async def admit(
        self, calls: Sequence[EngineInput], *, tenant: str, route: str, rid: str | None = None, stream: bool = False
    ) -> RequestGroup:
        """The running calls. Raises Refusal, ParamsError or GrammarError before any of them runs.

        `tenant` is that of `tenant_of(request)`: tenants share no cached prefix, and abort only their own. `rid` names
        all calls together. `stream` says that deltas will be read; without it only the end can be waited for.
        """
        check_counts(calls, self.options.limits)
        check_limit(self.options.limits, "max_rid", len(rid or ""), "rid")
        for call in calls:
            self._breaker.check(call.params, tenant)
        self._check_room(len(calls))
        names = frozenset({rid, *(call.rid for call in calls)})
        deadline = time.monotonic() + self.options.limits.request_timeout
        arrival = PendingRequest(tenant, names, client.current(), deadline)
        requests = await self._prepared(calls, arrival)
        entries = sum(map(named_logprobs, requests))
        check_limit(self.options.limits, "max_logprob_entries", entries, "logprob entries of the answer")
        patience = self.options.limits.stall_timeout if stream else None
        try:
            handles = self.llm.engine.submit_all(requests, buffer=_BUFFER if stream else 0, patience_s=patience)
        except UnavailableError:
            self.metrics.refused()
            raise
        tickets = [RunningRequest.of(call, handle, self.mark) for call, handle in zip(calls, handles, strict=True)]
        visit = RequestGroup(tickets, tenant=tenant, rid=rid, over=self._over)
        self._visits.add(visit)
        visit.expire_after(deadline - time.monotonic())
        client.current().at_end(visit.abort)
        return visit

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function returns, run in the pool; for work that would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def abort(self, rid: str, *, tenant: str) -> bool:
        """Ends the tenant's calls with exactly this name; False when there are none."""
        arrivals = [each for each in self._arrivals if each.tenant == tenant and rid in each.names]
        for each in arrivals:
            each.aborted = True
        visits = [visit for visit in self._visits if visit.tenant == tenant]
        return sum(visit.abort_named(rid) for visit in visits) > 0 or bool(arrivals)

    def abort_all(self, *, reason: str = "request") -> list[str]:
        """Ends everything; the names of what ran, and of what was about to where it has a name."""
        arriving: list[str] = []
        for each in self._arrivals:
            each.aborted = True
            arriving += sorted(name for name in each.names if name is not None)
        running = [ticket.rid or ticket.id for visit in self._visits for ticket in visit.tickets]
        for visit in list(self._visits):
            visit.abort(reason)
        return [*running, *arriving]

    async def drain(self, seconds: float) -> None:
        """Waits for what runs, then ends the rest."""
        deadline = time.monotonic() + seconds
        while (self._visits or self._arrivals) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.abort_all(reason="drain")

    def close(self) -> None:
        """Drops what waits in the pool; its threads end with what they are doing."""
        for pool in (self._pool, self._guided_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def full(self) -> bool:
        """Whether another request would be refused for want of room."""
        return self._preparing + self.llm.engine.progress().waiting >= max(self.options.limits.max_queue, 1)

    def _in_flight(self) -> int:
        return self._preparing + sum(len(visit.tickets) for visit in list(self._visits))

    def _check_room(self, count: int) -> None:
        # What is being prepared will wait in the engine's queue in a moment; without this, thousands could.
        if self._preparing + count > self.options.limits.max_queue + self.options.limits.max_running:
            self.metrics.refused()
            raise UnavailableError("too many requests are being prepared")

    async def _prepared(self, calls: Sequence[EngineInput], arrival: PendingRequest) -> list[EngineRequest]:
        """The engine's requests for all calls; the first error, in their order, when some cannot be had."""
        self._arrivals.add(arrival)
        self._preparing += len(calls)
        try:
            async with asyncio.timeout(arrival.deadline - time.monotonic()):
                made = await asyncio.gather(*(self._made(call, arrival) for call in calls), return_exceptions=True)
        except TimeoutError:
            raise errors.late() from None
        finally:
            self._preparing -= len(calls)
            self._arrivals.discard(arrival)
        wrong = next((each for each in made if isinstance(each, BaseException)), None)
        if wrong is not None:
            raise wrong
        arrival.check()
        return [each for each in made if isinstance(each, EngineRequest)]

    async def _made(self, call: EngineInput, arrival: PendingRequest) -> EngineRequest:
        """The engine's request for a call, made in a thread of the pool for its kind."""
        if call.params.guided_decoding is None:
            return await self.apart(self._prepare, call, arrival)
        turns = self._guided_turns.setdefault(arrival.tenant, asyncio.Semaphore(_GUIDED_OF_A_TENANT))
        async with turns:
            arrival.check()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._guided_pool, self._prepare, call, arrival)

    def _prepare(self, call: EngineInput, arrival: PendingRequest) -> EngineRequest:
        arrival.check()
        check_length(call, self.llm, self.options.limits)
        began = time.perf_counter()
        with cancellable(arrival.check):
            request = make_request(self.llm, with_backend(call, self.options), arrival.tenant)
        self.metrics.prepared(time.perf_counter() - began, guided=call.params.guided_decoding is not None)
        return request

    def _over(self, visit: RequestGroup) -> None:
        """Notes that a visit has ended, once and with everything it has drawn."""
        try:
            for ticket in visit.tickets:
                self._count(ticket, visit, ticket.request.completion())
        finally:
            # Last, so that nothing is uncounted when nothing is in flight.
            self._visits.discard(visit)

    def _count(self, ticket: RunningRequest, visit: RequestGroup, completion: Completion) -> None:
        self.metrics.ended(completion)
        if any(sample.finish_reason == "abort" for sample in completion.samples):
            self.metrics.aborted(visit.reason or "stalled")
        if self._breaker.note(ticket.call.params, visit.tenant, completion):
            self.metrics.processors_failed(processors_of(ticket.call.params))


def aborted(caller: client.Client) -> Refusal:
    """The answer to a request that was stopped before it ran."""
    if caller.gone:
        return Refusal(499, "the client has left")
    return Refusal(503, "the request was aborted", code="aborted")


def make_request(llm: LLM, call: EngineInput, tenant: str) -> EngineRequest:
    """The engine's request for a call; for a thread of the pool, because it tokenises and compiles."""
    if call.messages is not None:
        more = {"tools": call.tools, "arguments": call.template_args, "beams": call.beams}
        return llm.chat_request(call.messages, call.params, salt=tenant, adapter=call.adapter, **more)
    if call.prompt is None:
        raise Refusal(400, "a prompt or messages must be given")
    prompt = dataclasses.replace(call.prompt, salt=tenant)
    if call.beams is not None:
        return llm.beam_request(prompt, call.beams, sampling=call.params)
    return llm.request(prompt, call.params, hidden_states=call.hidden_states)


def with_backend(call: EngineInput, options: Options) -> EngineInput:
    """The call with the operator's compiler of constraints, unless it names its own."""
    guided = call.params.guided_decoding
    if guided is None or guided.backend is not None or options.grammar_backend == "auto":
        return call
    chosen = guided.replace(backend=options.grammar_backend)
    return dataclasses.replace(call, params=call.params.replace(guided_decoding=chosen))


def check_counts(calls: Sequence[EngineInput], limits: Limits) -> None:
    """ParamsError for more prompts, samples or logprobs than the limits allow; nothing has been copied yet."""
    check_limit(limits, "max_prompts", len(calls), "prompts")
    for call in calls:
        asked = call.params.n if call.beams is None else call.beams.num_return_sequences or 1
        check_limit(limits, "max_n", asked, "n")
        check_limit(limits, "max_best_of", call.params.best_of or 0, "best_of")
        for name in ("logprobs", "prompt_logprobs"):
            check_limit(limits, "max_top_logprobs", getattr(call.params, name) or 0, name)
        check_limit(limits, "max_rid", len(call.rid or ""), "rid")
        check_lists(call.params, limits)
    total = sum(samples_of(call) for call in calls)
    check_limit(limits, "max_samples", total, "n times the number of prompts")


def check_lists(params: SamplingParams, limits: Limits) -> None:
    """ParamsError for more stops, bad words or biases than the limits allow."""
    check_limit(limits, "max_stop", len(params.stop), "stop strings")
    check_limit(limits, "max_stop_chars", max(map(len, params.stop), default=0), "stop characters")
    for name in ("bad_words", "bad_words_token_ids"):
        check_limit(limits, "max_bad_words", len(getattr(params, name)), f"number of {name}")
    check_limit(limits, "max_bad_word_chars", max(map(len, params.bad_words), default=0), "bad_words characters")
    check_limit(limits, "max_logprob_ids", len(params.logprob_token_ids), "number of logprob_token_ids")
    check_limit(limits, "max_logit_bias", len(params.logit_bias or ()), "number of logit_bias entries")


def named_logprobs(request: EngineRequest) -> int:
    """The log-probabilities that an answer holds for the prompt's tokens, and at most for tokens named for each step.

    How many likely tokens a text has beside it is not foreseen: most texts end long before their limit.
    """
    params = request.params
    named = len(params.logprob_token_ids)
    prompt = 0 if params.prompt_logprobs is None else request.inputs.length * (1 + params.prompt_logprobs + named)
    return prompt + request.limit * len(request.samples) * named


def samples_of(call: EngineInput) -> int:
    """The samples that a call keeps running at once."""
    return call.beams.beam_width if call.beams is not None else call.params.best_of or call.params.n


def characters(value: Any) -> int:
    """The characters of all texts in a value, whose depth is that of a JSON body."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(characters(each) for pair in value.items() for each in pair)
    return sum(map(characters, value)) if isinstance(value, (list, tuple)) else 0


def longest_text(llm: LLM, limits: Limits) -> int:
    """The most characters that can be worth tokenising for a model."""
    return limits.max_chars_per_token * llm.model.max_length


def check_length(call: EngineInput, llm: LLM, limits: Limits) -> None:
    """ParamsError for a text so long that tokenising it would be a waste."""
    most = longest_text(llm, limits)
    length = characters([call.messages, call.tools, call.template_args] if call.prompt is None else call.prompt.text)
    # A prompt that will be truncated is tokenised as a whole all the same.
    if length > most:
        raise errors.Refusal(
            400,
            f"prompt must hold at most {most} characters, got {length}; the operator can raise it with "
            "--max-chars-per-token",
            param="prompt",
            code="context_length_exceeded",
        )
