"""Threads are switched quickly while long work runs beside others, and as before when it has ended."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tirage
from tirage import LLM, SamplingParams
from tirage.engine import Tenant
from tirage.server.preparation import Lane
from tirage.workers.quick_switching import SWITCH_S, quickly

USUAL_S = sys.getswitchinterval()


def happens(condition: Callable[[], bool]) -> bool:
    """Whether it holds within a minute."""
    until = time.monotonic() + 60
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return holds


@pytest.fixture(autouse=True)
def nothing_else_works() -> None:
    """Work that other tests have left behind in threads has ended."""
    assert happens(lambda: sys.getswitchinterval() == USUAL_S)


def switched_s() -> float:
    """The present interval, which the interpreter keeps in whole microseconds."""
    return round(sys.getswitchinterval(), 6)


def test_threads_are_switched_quickly_until_the_last_of_several_calls_has_ended() -> None:
    first, second = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(quickly, first.wait, 60), pool.submit(quickly, second.wait, timeout=60)
        assert quickly(switched_s) == SWITCH_S
        first.set()
        assert one.result()
        assert switched_s() == SWITCH_S
        second.set()
        assert other.result()
    assert sys.getswitchinterval() == USUAL_S


def test_a_call_that_fails_leaves_the_interval_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        quickly(lambda: 1 // 0)
    assert sys.getswitchinterval() == USUAL_S


def test_an_interval_that_is_shorter_stays() -> None:
    sys.setswitchinterval(SWITCH_S / 2)
    try:
        assert quickly(switched_s) == SWITCH_S / 2
        assert switched_s() == SWITCH_S / 2
    finally:
        sys.setswitchinterval(USUAL_S)


def test_a_request_is_prepared_so() -> None:
    async def prepared() -> float:
        lane = Lane("test", 1)
        try:
            return await lane.run(switched_s, tenant=Tenant("a"), request=0)
        finally:
            lane.close()

    assert asyncio.run(prepared()) == SWITCH_S
    assert sys.getswitchinterval() == USUAL_S


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_processor_that_does_not_return_leaves_the_interval_as_it_was(is_aborted: bool) -> None:
    let_go = threading.Event()

    def held(logits: np.ndarray, args: Sequence[dict[str, Any]]) -> np.ndarray:
        let_go.wait()
        return logits

    tirage.register_processor("held", held, replace=True)
    with LLM("tiny", processor_timeout=3600.0 if is_aborted else 0.2) as llm:
        waiting = llm.engine.submit(llm.request("One day", SamplingParams(logits_processors=[("held", {})])))
        try:
            assert happens(lambda: switched_s() == SWITCH_S)
            if is_aborted:
                waiting.abort()
            assert waiting.wait().samples[0].finish_reason == ("abort" if is_aborted else "error")
        finally:
            let_go.set()
        assert happens(lambda: sys.getswitchinterval() == USUAL_S)
