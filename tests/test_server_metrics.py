"""The numbers of `/metrics` while requests wait, run and are stopped, on a server with slow steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import Server, slow_server

STEP_S = 0.03
TOKENS = 25
ASKED = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True}}
LONG = {**ASKED, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """One place; the others wait."""
    with slow_server("--max-running", "1", step_s=STEP_S) as server:
        yield server


@pytest.fixture
def idle(slow: Server) -> Iterator[Server]:
    soon(slow, lambda now: not now["tirage_requests_in_flight"])
    yield slow
    soon(slow, lambda now: not now["tirage_requests_in_flight"])


def soon(server: Server, true: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The numbers as soon as they are so; the bound is for a machine that is busy."""
    deadline = time.monotonic() + 60
    while not true(now := server.metrics()):
        assert time.monotonic() < deadline, now
        time.sleep(0.02)
    return now


def post(server: Server, body: dict[str, Any]) -> threading.Thread:
    """A request in a thread of its own."""
    thread = threading.Thread(target=lambda: server.post("/generate", body), daemon=True)
    thread.start()
    return thread


def times(now: dict[str, float], name: str, before: dict[str, float]) -> tuple[float, float, float, float]:
    """How many there are of a histogram's times, how many up to 0.01 s and up to 300 s, and their sum."""
    keys = [f"tirage_{name}_seconds_{end}" for end in ("count", 'bucket{le="0.01"}', 'bucket{le="300.0"}', "sum")]
    count, short, all_but, total = (now[key] - before[key] for key in keys)
    return count, short, all_but, total


def test_a_refusal_is_counted_by_the_limit_that_it_exceeds(idle: Server) -> None:
    before = idle.metrics()
    assert idle.post("/generate", {"text": "a", "sampling_params": {"n": 129}}).status_code == 400
    assert idle.post("/v1/completions", {"prompt": ["a"] * 129}).status_code == 400
    now = idle.metrics()
    for limit in ("max_n", "max_prompts"):
        name = f'tirage_over_limit_total{{limit="{limit}"}}'
        assert now[name] - before.get(name, 0) == 1


def test_the_time_of_a_constraint_is_recorded(idle: Server) -> None:
    before = idle.metrics()
    idle.post("/generate", ASKED)
    assert times(idle.metrics(), "constraint", before)[0] == 0
    idle.post("/generate", {"text": "a", "sampling_params": {"regex": "[ab]{3}", "n": 2}})
    now = soon(idle, lambda now: times(now, "constraint", before)[0] > 0)
    count, _, all_but, total = times(now, "constraint", before)
    assert count == all_but == 1
    assert total > 0


def test_the_times_between_tokens_are_counted_one_by_one(idle: Server) -> None:
    before = idle.metrics()
    idle.post("/generate", ASKED)
    count, short, all_but, total = times(idle.metrics(), "inter_token", before)
    assert (count, all_but) == (TOKENS - 1, TOKENS - 1)
    assert short == 0
    assert total >= STEP_S * (TOKENS - 1)


def test_times_are_counted_as_they_come_and_not_at_the_end(idle: Server) -> None:
    before = idle.metrics()
    running = post(idle, {**LONG, "rid": "long", "stream": True})
    now = soon(idle, lambda now: times(now, "inter_token", before)[0] >= 5)
    assert times(now, "time_to_first_token", before)[0] == 1
    assert now["tirage_completion_tokens_total"] == before["tirage_completion_tokens_total"]
    idle.post("/abort_request", {"rid": "long"})
    running.join(60)


@pytest.mark.slow
def test_the_time_to_the_first_token_holds_the_time_in_the_queue(idle: Server) -> None:
    before = idle.metrics()
    first = post(idle, ASKED)
    soon(idle, lambda now: now["tirage_engine_running"] == 1)
    second = post(idle, ASKED)
    now = soon(idle, lambda now: now["tirage_engine_waiting"] == 1)
    assert now["tirage_requests_in_flight"] == 2
    left = TOKENS - 1 - times(now, "inter_token", before)[0]
    for thread in (first, second):
        thread.join(60)
    count, _, _, total = times(idle.metrics(), "time_to_first_token", before)
    assert count == 2
    assert total >= (left - 1) * STEP_S


def test_of_several_samples_each_counts(idle: Server) -> None:
    before = idle.metrics()
    idle.post("/generate", {**ASKED, "sampling_params": {"max_new_tokens": 4, "n": 3, "ignore_eos": True}})
    now = idle.metrics()
    assert times(now, "inter_token", before)[0] == 9
    assert times(now, "time_to_first_token", before)[0] == 1


def test_the_share_of_sampling_is_that_of_its_seconds(idle: Server) -> None:
    idle.post("/generate", ASKED)
    now = idle.metrics()
    sample, text, decode = (now[f"tirage_engine_{name}_s_total"] for name in ("sample", "text", "decode"))
    assert now["tirage_engine_sampling_share"] == pytest.approx(sample / (sample + text + decode))
    assert now["tirage_engine_decode_s_total"] >= STEP_S * (TOKENS - 1)


@pytest.mark.slow
def test_a_request_that_is_aborted_by_name_is_counted_as_such(idle: Server) -> None:
    before = idle.metrics()
    running = post(idle, {**LONG, "rid": "one"})
    soon(idle, lambda now: now["tirage_engine_running"] == 1)
    idle.post("/abort_request", {"rid": "one"})
    running.join(60)
    now = soon(idle, lambda now: not now["tirage_requests_in_flight"])
    for name in ('tirage_aborts_total{reason="request"}', 'tirage_samples_total{reason="abort"}'):
        assert now[name] == before.get(name, 0) + 1
    assert now["tirage_engine_aborted_total"] == before["tirage_engine_aborted_total"] + 1
