"""Threads that prepare prompts, shared fairly: by tenant, and within a tenant by request."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tirage.engine import Tenant
from tirage.workers.quick_switching import quickly

POOL = "tirage-requests"
"""The prefix of the names of these threads."""
# How often what waits is asked whether it is still wanted.
_CHECK_S = 0.1


@dataclass(eq=False, slots=True)
class Job:
    """Work for a thread: `call` raises when it is cancelled, as does `check`, which is also called while it waits."""

    call: Callable[[], Any]
    tenant: Tenant
    request: Hashable
    check: Callable[[], None]
    since: float
    result: asyncio.Future[Any]
    waiting: bool = True


@dataclass(slots=True)
class ThreadUsage:
    """What a tenant or a request has waiting and running, and the thread seconds that it has used, by its weight."""

    used_s: float
    weight: int = 1
    waiting: int = 0
    running: int = 0
    jobs: deque[Job] = field(default_factory=deque)


class FairQueue:
    """Jobs that wait. The next is of the tenant that has the fewest running, then has used the least time, by weight.

    Within a tenant it is of a request chosen in the same way. What comes anew begins with the least that others have
    used, so that it need not wait for them, nor they for it.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[Tenant, ThreadUsage] = OrderedDict()
        self._requests: dict[Tenant, OrderedDict[Hashable, ThreadUsage]] = {}

    def __iter__(self) -> Iterator[Job]:
        return (job for requests in self._requests.values() for usage in requests.values() for job in usage.jobs)

    def __len__(self) -> int:
        return sum(usage.waiting for usage in self._tenants.values())

    def put(self, job: Job) -> None:
        """Adds a job behind those of its request."""
        requests = self._requests.setdefault(job.tenant, OrderedDict())
        of_tenant = usage_of(self._tenants, job.tenant, weight=job.tenant.weight)
        for usage in (of_tenant, usage_of(requests, job.request)):
            usage.waiting += 1
        requests[job.request].jobs.append(job)

    def take(self, full: Container[Tenant]) -> Job | None:
        """The next job, which counts as running until `done`; None without one of a tenant that is not `full`."""
        tenant = next_of(self._tenants, full)
        if tenant is None:
            return None
        requests = self._requests[tenant]
        job = requests[next_of(requests)].jobs.popleft()
        job.waiting = False
        for usage in self._usages(job):
            usage.waiting -= 1
            usage.running += 1
        return job

    def drop(self, job: Job) -> None:
        """Takes out a job that waits."""
        self._requests[job.tenant][job.request].jobs.remove(job)
        job.waiting = False
        for usage in self._usages(job):
            usage.waiting -= 1
        self._forget(job)

    def done(self, job: Job, seconds: float) -> None:
        """Counts the time of a job that has been taken."""
        for usage in self._usages(job):
            usage.running -= 1
            usage.used_s += seconds / usage.weight
        self._forget(job)

    def running(self, tenant: Tenant) -> int:
        """The number of a tenant's jobs that run."""
        return self._tenants[tenant].running if tenant in self._tenants else 0

    def _usages(self, job: Job) -> tuple[ThreadUsage, ThreadUsage]:
        return self._tenants[job.tenant], self._requests[job.tenant][job.request]

    def _forget(self, job: Job) -> None:
        """Drops what neither waits nor runs."""
        tenant, request = self._usages(job)
        if not request.waiting + request.running:
            del self._requests[job.tenant][job.request]
        if not tenant.waiting + tenant.running:
            del self._tenants[job.tenant], self._requests[job.tenant]


def usage_of(usages: OrderedDict[Any, ThreadUsage], key: Hashable, *, weight: int = 1) -> ThreadUsage:
    """The usage of a key; that of a new one begins with the least of the others."""
    if key not in usages:
        usages[key] = ThreadUsage(min((each.used_s for each in usages.values()), default=0.0), weight)
    return usages[key]


def next_of(usages: OrderedDict[Any, ThreadUsage], full: Container[Any] = ()) -> Any:
    """The key that is next among those with something waiting, the first of equals; None without one."""
    found = [
        (each.running / each.weight, each.used_s, key)
        for key, each in usages.items()
        if each.waiting and key not in full
    ]
    return min(found, key=lambda each: each[:2])[2] if found else None


class Lane:
    """Some threads with a queue; at most `of_a_tenant` of them work for one tenant. All calls on one event loop.

    `waiting` and `running` are numbers of jobs, `oldest_s` the seconds that the oldest job has waited.
    """

    def __init__(
        self, name: str, threads: int, *, of_a_tenant: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self._clock = name, clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"{POOL}-{name}")
        self._threads, self._of_a_tenant = threads, threads if of_a_tenant is None else of_a_tenant
        self._queue, self.running, self._closed = FairQueue(), 0, False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of jobs that have no thread yet."""
        return len(self._queue)

    @property
    def oldest_s(self) -> float:
        """The seconds for which the oldest waiting job has waited; 0.0 without one."""
        now = self._clock()
        return now - min((job.since for job in self._queue), default=now)

    async def run(
        self, call: Callable[[], Any], *, tenant: Tenant, request: Hashable, check: Callable[[], None] = lambda: None
    ) -> Any:
        """What the call returns or raises, in a thread.

        While it waits for one, an exception of `check` or the cancellation of the task ends it at once.
        """
        loop = asyncio.get_running_loop()
        job = Job(call, tenant, request, check, self._clock(), loop.create_future())
        self._queue.put(job)
        self._start_next()
        if self._timer is None and self.waiting:
            self._timer = loop.call_later(_CHECK_S, self._check_waiting)
        try:
            return await job.result
        finally:
            if job.waiting:
                self._queue.drop(job)

    def close(self) -> None:
        """Starts nothing more; each thread ends after its current work."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def check_waiting(self) -> None:
        """Ends the waiting jobs whose check raises."""
        for job in list(self._queue):
            try:
                job.check()
            except Exception as error:
                self._queue.drop(job)
                if not job.result.done():
                    job.result.set_exception(error)

    def _check_waiting(self) -> None:
        self.check_waiting()
        waits = self.waiting and not self._closed
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check_waiting) if waits else None

    def _start_next(self) -> None:
        """Gives free threads to the jobs whose turn it is."""
        while self.running < self._threads and not self._closed:
            job = self._queue.take(Full(self._queue, self._of_a_tenant))
            if job is None:
                return
            self.running += 1
            began, loop = self._clock(), asyncio.get_running_loop()
            work = loop.run_in_executor(self._pool, quickly, job.call)
            work.add_done_callback(lambda work, job=job, began=began: self._finish(job, work, began))

    def _finish(self, job: Job, work: asyncio.Future[Any], began: float) -> None:
        self.running -= 1
        self._queue.done(job, self._clock() - began)
        if work.cancelled():
            job.result.cancel()
        else:
            # Read even if nobody waits for the result any more: asyncio logs exceptions that were never read.
            error = work.exception()
            if not job.result.done():
                job.result.set_result(work.result()) if error is None else job.result.set_exception(error)
        self._start_next()


@dataclass(frozen=True, slots=True)
class Full:
    """The tenants that have as many jobs running as they may."""

    queue: FairQueue
    most: int

    def __contains__(self, tenant: object) -> bool:
        return isinstance(tenant, Tenant) and self.queue.running(tenant) >= self.most
