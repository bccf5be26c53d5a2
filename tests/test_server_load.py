"""Many clients at once, some of whom leave: nothing is lost, nothing is counted twice, and health stays true."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from servers import Server

CUT = 8


async def read_stream(client: httpx.AsyncClient, number: int, tokens: int) -> int:
    """The tokens of a stream read to its end, which one [DONE] marks; every eighth client leaves on the way, for -1."""
    asked = {"max_new_tokens": tokens, "ignore_eos": True}
    body = {"text": f"Story {number}:", "sampling_params": asked, "stream": True}
    events: list[str] = []
    async with client.stream("POST", "/generate", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(line[6:])
            if number % CUT == 0 and len(events) > number % tokens // 2:
                return -1
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    last = json.loads(events[-2])
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": tokens}
    assert len(last["output_ids"]) == last["meta_info"]["completion_tokens"]
    return len(last["output_ids"])


async def watch(client: httpx.AsyncClient, stop: asyncio.Event) -> list[int]:
    """What /health says, until told to stop."""
    said = []
    while not stop.is_set():
        said.append((await client.get("/health")).status_code)
        await asyncio.sleep(0.05)
    return said


async def run(server: Server, streams: int, tokens: int) -> tuple[list[int], list[int]]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits, verify=False) as client:
        stop = asyncio.Event()
        watching = asyncio.create_task(watch(client, stop))
        counts = await asyncio.gather(*(read_stream(client, number, tokens) for number in range(streams)))
        stop.set()
        return list(counts), await watching


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "tokens"), [(128, 16), pytest.param(256, 64, marks=pytest.mark.exhaustive)])
def test_the_ledger_of_hundreds_of_streams_balances(streams: int, tokens: int) -> None:
    with Server("tiny", "--health-timeout", "20") as server:
        before = server.metrics()
        counts, said = asyncio.run(run(server, streams, tokens))
        deadline = time.monotonic() + 60
        while (after := server.metrics())["tirage_requests_in_flight"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        grown = {name: after[name] - before.get(name, 0.0) for name in after}

        whole = [count for count in counts if count >= 0]
        assert len(whole) == streams - streams // CUT
        assert whole == [tokens] * len(whole)
        assert set(said) == {200}
        assert grown["tirage_engine_started_total"] == streams
        assert grown["tirage_engine_failed_total"] == 0
        ended = grown["tirage_engine_completed_total"] + grown["tirage_engine_aborted_total"]
        assert ended == streams
        assert grown["tirage_engine_completed_total"] >= len(whole)
        # Those who left were still sent tokens until it was noticed: the engine's count is that of the answers.
        assert grown["tirage_completion_tokens_total"] == grown["tirage_engine_output_tokens_total"]
        assert sum(whole) <= grown["tirage_completion_tokens_total"] <= streams * tokens
        aborted = grown.get('tirage_aborts_total{reason="disconnect"}', 0.0)
        assert aborted == grown["tirage_engine_aborted_total"]
        assert server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}}).status_code == 200
