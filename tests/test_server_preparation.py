"""The threads that prepare prompts: whose turn it is, what waits, and how a wait ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from tirage.engine import Tenant
from tirage.server.preparation import FairQueue, Job, Lane


def job_of(name: str, tenant: str, request: str) -> Job:
    return Job(lambda: name, Tenant(tenant), request, lambda: None, 0.0, None)  # type: ignore[arg-type]


def taken(queue: FairQueue, seconds: float = 1.0) -> str:
    """The names of all jobs in the order of their turns, each of which takes so long."""
    names = []
    while (job := queue.take(())) is not None:
        names.append(job.call())
        queue.done(job, seconds)
    return "".join(names)


def test_tenants_and_within_a_tenant_requests_take_turns() -> None:
    queue = FairQueue()
    for names, tenant, request in (("pqr", "a", "1"), ("xy", "a", "2"), ("ST", "b", "3")):
        for name in names:
            queue.put(job_of(name, tenant, request))
    assert len(queue) == 7
    assert taken(queue) == "pSxTqyr"
    assert len(queue) == 0


def test_one_that_comes_later_does_not_wait_for_the_time_that_it_has_not_used() -> None:
    queue = FairQueue()
    for name in "pqrs":
        queue.put(job_of(name, "a", "1"))
    for _ in range(3):
        job = queue.take(())
        assert job is not None
        queue.done(job, 10.0)
    for name in "XYZ":
        queue.put(job_of(name, "b", "2"))
    # It begins level with the other, who is not kept waiting either.
    assert taken(queue) == "sXYZ"


def test_a_tenant_has_turns_as_its_weight_is() -> None:
    queue = FairQueue()
    for name in "pqrs":
        queue.put(job_of(name, "a", "1"))
    for name in "TUVWXY":
        queue.put(dataclasses.replace(job_of(name, "b", "2"), tenant=Tenant("b", 3)))
    assert taken(queue) == "pTUVqWXYrs"


def test_a_tenant_that_is_full_is_passed() -> None:
    queue = FairQueue()
    queue.put(job_of("p", "a", "1"))
    queue.put(job_of("q", "b", "2"))
    job = queue.take({Tenant("a")})
    assert job is not None
    assert (job.call(), queue.running(Tenant("b")), queue.running(Tenant("a"))) == ("q", 1, 0)
    assert queue.take({Tenant("a")}) is None
    queue.drop(next(iter(queue)))
    assert len(queue) == 0


class Gate:
    """Work that goes on when it may; `names` are those that have begun."""

    def __init__(self) -> None:
        self.open, self.names = threading.Event(), list[str]()

    def work(self, name: str) -> str:
        self.names.append(name)
        assert self.open.wait(60)
        return name


def run(lane: Lane, session: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(asyncio.wait_for(session, 60))
    finally:
        lane.close()


def test_the_threads_of_a_lane_are_not_exceeded_nor_those_of_a_tenant() -> None:
    lane, gate = Lane("test", 3, of_a_tenant=2, clock=lambda: 5.0), Gate()

    async def session() -> None:
        def begin(name: str, tenant: str) -> asyncio.Task[Any]:
            return asyncio.create_task(lane.run(lambda: gate.work(name), tenant=Tenant(tenant), request=name))

        tasks = [begin(f"a{number}", "a") for number in range(4)]
        await asyncio.sleep(0)
        assert (lane.running, lane.waiting, lane.oldest_s) == (2, 2, 0.0)
        tasks.append(begin("b", "b"))
        await asyncio.sleep(0)
        assert (lane.running, lane.waiting) == (3, 2)
        gate.open.set()
        assert await asyncio.gather(*tasks) == ["a0", "a1", "a2", "a3", "b"]
        assert (lane.running, lane.waiting) == (0, 0)

    run(lane, session())


def test_what_waits_ends_with_its_check_with_its_task_and_with_an_error() -> None:
    lane, gate, unwanted = Lane("test", 1), Gate(), threading.Event()

    def check() -> None:
        if unwanted.is_set():
            raise LookupError("not wanted")

    async def session() -> None:
        first = asyncio.create_task(lane.run(lambda: gate.work("first"), tenant=Tenant(), request=1))
        await asyncio.sleep(0)
        checked = asyncio.create_task(lane.run(lambda: gate.work("checked"), tenant=Tenant(), request=2, check=check))
        cancelled = asyncio.create_task(lane.run(lambda: gate.work("cancelled"), tenant=Tenant(), request=3))
        wrong = asyncio.create_task(lane.run(lambda: 1 // 0, tenant=Tenant(), request=4))
        await asyncio.sleep(0)
        assert lane.waiting == 3
        cancelled.cancel()
        unwanted.set()
        # Nobody calls: the lane asks by itself.
        with pytest.raises(LookupError, match="not wanted"):
            await checked
        assert (lane.waiting, lane.running) == (1, 1)
        gate.open.set()
        with pytest.raises(ZeroDivisionError):
            await wrong
        assert await first == "first"
        assert gate.names == ["first"]

    run(lane, session())


def test_a_task_that_is_cancelled_while_it_has_a_thread_leaves_the_thread_to_the_next() -> None:
    lane, gate = Lane("test", 1), Gate()

    async def session() -> None:
        first = asyncio.create_task(lane.run(lambda: gate.work("first"), tenant=Tenant(), request=1))
        while not gate.names:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(lane.run(lambda: "second", tenant=Tenant(), request=2))
        first.cancel()
        await asyncio.sleep(0)
        assert (lane.running, lane.waiting) == (1, 1)
        gate.open.set()
        assert await second == "second"
        assert first.cancelled()

    run(lane, session())
