"""Constraints that would take for ever: what they cost the server, and those who wait beside them."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from servers import Server, slow_server

BUDGET_S = 2.0
"""Processor time that a compilation may take."""
HARD = {
    "choices of counts": ("regex", f"({'|'.join(f'[a-z]{{{n}}}x' for n in range(1, 90))}){{1,40}}"),
    "states that double": ("regex", "(a|b)*a(a|b){60}(a|b)*b(a|b){60}"),
    "counts of counts": ("regex", "((a{1,100}){1,100}){1,100}"),
    "nested quantifiers": ("regex", "((((a+)+)+)+)+$"),
    "classes of counts": ("regex", "([a-m]{1,90}[n-z]{1,90}){1,90}"),
    "many values": ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(10_000)]})),
    "a pattern in a schema": ("json_schema", '{"type": "string", "pattern": "^((a{1,99}){1,99}){1,99}$"}'),
    "ambiguity": ("ebnf", "root ::= s\ns ::= s s s | s s | \"a\" | \"\""),
}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is read from /proc"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """20 ms a step."""
    with slow_server() as running:
        yield running


def spent(server: Server) -> float:
    """Seconds of processor time of a server and its children, living and ended."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == server.pid:
            found += sum(map(int, words[11:15]))
        elif int(words[1]) == server.pid:
            found += sum(map(int, words[11:13]))
    return found / os.sysconf("SC_CLK_TCK")


def ask(server: Server, name: str, number: int) -> httpx.Response:
    """The answer under a hard constraint, a new one for every number."""
    kind, text = HARD[name]
    unlike = {"regex": f"{text}{number}", "ebnf": text.replace('"a"', f'"a{number}"')}.get(kind)
    if unlike is None:
        unlike = json.dumps({**json.loads(text), "description": str(number)})
    return server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 3, kind: unlike}})


@pytest.mark.parametrize("name", HARD)
def test_the_work_of_a_hard_constraint_is_bounded_and_over_with_its_answer(server: Server, name: str) -> None:
    ask(server, name, 0)
    before = spent(server)
    assert ask(server, name, 1).status_code in {200, 400}
    answered = spent(server)
    time.sleep(2 * BUDGET_S)
    # The time is the processor's own, which a busy machine stretches less than the clock's.
    assert answered - before < 3 * BUDGET_S
    assert spent(server) - answered < BUDGET_S / 4


def gaps(server: Server, tokens: int) -> list[float]:
    """The seconds between the events of a stream."""
    body = {"text": "Once upon", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, "stream": True}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=120) as answer:
        times = [time.perf_counter() for line in answer.iter_lines() if line.startswith("data: {")]
    return [after - before for before, after in pairwise(times)]


def test_streams_go_on_while_hard_constraints_are_compiled(server: Server) -> None:
    alone, over = statistics.median(gaps(server, 60)), threading.Event()

    def disturb() -> None:
        for number in range(2, 1000):
            for name in HARD:
                if over.is_set():
                    return
                ask(server, name, number)

    thread = threading.Thread(target=disturb, daemon=True)
    thread.start()
    beside = gaps(server, 200)
    over.set()
    thread.join(60)
    assert statistics.median(beside) < 5 * alone
    # A compilation that held the loop up would do so for as long as it may take: a hundred steps.
    assert statistics.quantiles(beside, n=20)[-1] < 40 * alone
