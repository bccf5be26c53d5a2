"""A soak, short: the same requests over and over leave no more objects behind than the first time."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from chaos.soak import body_at
from starlette.testclient import TestClient

from tirage import LLM
from tirage.server import create_app

REQUESTS = range(60)
ALLOWED = 20
"""Objects of one type that a round may add: a third of what there would be, if each request left one."""


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with LLM("tiny") as llm, TestClient(create_app(llm), base_url="http://127.0.0.1") as client:
        while client.get("/health").status_code != 200:
            time.sleep(0.1)
        yield client


def types_alive() -> Counter[str]:
    """The number of objects that the collector knows, by their type."""
    gc.collect()
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def ask_all(client: TestClient) -> Counter[int]:
    """The statuses of one round of requests: plain, constrained, streamed and refused ones."""
    asked = [body_at(number) for number in REQUESTS]
    return Counter(client.post(route, json=body).status_code for route, body in asked)


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """The types of which there are more than `ALLOWED` more."""
    return {name: count - before[name] for name, count in after.items() if count - before[name] > ALLOWED}


def test_rounds_of_requests_leave_no_objects_behind(client: TestClient) -> None:
    added: list[dict[str, int]] = []
    before, until = types_alive(), time.monotonic() + 120
    # Kernels are loaded in a thread meanwhile, which leaves modules behind; then nothing may be left any more.
    while len(added) < 3 or any(added[-3:]):
        assert time.monotonic() < until, f"a round of {len(REQUESTS)} requests still adds {added[-1]}"
        statuses, after = ask_all(client), types_alive()
        added.append(grown(before, after))
        before = after
        assert set(statuses) == {200, 400}
        assert statuses[200] > 40


def test_an_object_that_each_request_left_would_be_found() -> None:
    left: list[list[int]] = []
    before = types_alive()
    for _ in REQUESTS:
        left.append([len(left)])
    assert grown(before, types_alive()).get("builtins.list", 0) >= len(REQUESTS)
