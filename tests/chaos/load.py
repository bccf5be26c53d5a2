"""Many clients at once: streams that all complete, clients that all leave, and clients that are slow on purpose."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos.neighbour import Watch
from raw_http import connect, request, status_of
from servers import Server

STREAMS, TOKENS = 256, 64
ASKED = {"sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True}, "stream": True,
         "stream_options": {"mode": "delta"}}  # fmt: skip
LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 480, "ignore_eos": True}, "stream": True}


def allow_files(count: int) -> None:
    """Lets this process and those that it starts open so many files, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


async def read_stream(port: int, number: int) -> str:
    """How one stream ended: "whole", or what was wrong with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(request("/generate", {**ASKED, "text": f"Story {number}:"}))
        await writer.drain()
        answer = await reader.read(-1)
    except OSError as error:
        return type(error).__name__
    finally:
        writer.close()
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    if status_of(answer) != 200 or answer.count(b"data: [DONE]") != 1 or not events:
        return f"status {status_of(answer)}, {len(events)} events"
    tokens = sum(len(json.loads(event)["output_ids"]) for event in events)
    reason = json.loads(events[-1])["meta_info"]["finish_reason"]
    return "whole" if (tokens, reason) == (TOKENS, {"type": "length", "length": TOKENS}) else f"{tokens} {reason}"


async def read_streams(port: int, seconds: float, count: int) -> Counter[str]:
    """How the streams ended that so many clients read one after another, each until the time is over."""
    ended: Counter[str] = Counter()
    over = time.monotonic() + seconds

    async def client(number: int) -> None:
        while time.monotonic() < over:
            ended[await read_stream(port, number)] += 1

    await asyncio.gather(*(client(number) for number in range(count)))
    return ended


def streams(*, seconds: float = 600.0, count: int = STREAMS) -> dict[str, Any]:
    """So many streams at once for so long: every one must be whole."""
    allow_files(count + 200)
    with Server("tiny", "--max-queue", "1024") as server:
        began = time.monotonic()
        ended = asyncio.run(read_streams(server.port, seconds, count))
        took = time.monotonic() - began
        rest = at_rest(server, within=10.0)
    broken = [f"{number} streams: {how}" for how, number in ended.items() if how != "whole"]
    row = {"case": "streams", "streams": count, "seconds": round(took, 1), "whole": ended["whole"]}
    return {**row, "failures": [*broken, *rest]}


def held(server: Server) -> dict[str, int]:
    """What a server holds now: requests, open files (connections among them), and threads."""
    flight = ("tirage_requests_in_flight", "tirage_engine_waiting", "tirage_engine_reading", "tirage_engine_running")
    metrics = server.metrics()
    return {
        "requests": int(max(metrics.get(name, 0.0) for name in flight)),
        "files": len(list(Path(f"/proc/{server.pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{server.pid}/task").iterdir())),
    }


def at_rest(server: Server, *, within: float) -> list[str]:
    """Complaints unless nothing is in flight within some seconds."""
    over = time.monotonic() + within
    while (now := held(server))["requests"]:
        if time.monotonic() > over:
            return [f"{now['requests']} requests in flight after {within:g} s"]
        time.sleep(0.02)
    return []


def storm(*, count: int = 2000, within: float = 2.0, clock: str = "wall") -> dict[str, Any]:
    """So many streams whose clients leave at once: requests, files and threads are those of before soon after.

    By the clock "spent" it is the processor time of the server that counts, as in `chaos.probe`.
    """
    allow_files(count + 300)
    with Server("tiny", "--max-queue", str(2 * count), "--max-pending-body", str(1 << 30)) as server:
        warm(server)
        before, watch = held(server), Watch(server.pid)
        with ExitStack() as open_connections:
            for _ in range(count):
                open_connections.enter_context(connect(server.port)).sendall(request("/generate", LONG))
            over = time.monotonic() + 60
            while (peak := held(server))["requests"] < count and time.monotonic() < over:
                time.sleep(0.1)
            began = watch.read()
        left = before
        while left and time.monotonic() < began[0] + 30 * within:
            time.sleep(0.02)
            after = held(server)
            left = {name: after[name] - before[name] for name in before if after[name] > before[name]}
        wall, spent = (after - start for after, start in zip(watch.read(), began, strict=True))
        alive = server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 2}}).status_code
    failures = [f"{left} more than before after {wall:.0f} s"] if left else []
    if (spent if clock == "spent" else wall) > within:
        failures.append(f"at rest after {wall:.1f} s, of which the server has spent {spent:.1f} s")
    failures += [] if alive == 200 else [f"status {alive} afterwards"]
    row = {"case": "storm", "clients": count, "peak": peak, "rest_s": round(wall, 2), "rest_spent_s": round(spent, 2)}
    return {**row, "failures": failures}


def warm(server: Server, *, count: int = 16) -> None:
    """A few requests, so that threads and connections that stay are there."""
    asyncio.run(read_streams(server.port, 0.5, count))
    assert at_rest(server, within=30.0) == []
    time.sleep(0.2)


def probe(server: Server, seconds: float) -> list[float]:
    """Seconds that each of some plain requests took, asked one after another for so long."""
    waits, over = [], time.monotonic() + seconds
    while time.monotonic() < over:
        began = time.monotonic()
        answer = server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 2}})
        assert answer.status_code == 200, answer.text
        waits.append(time.monotonic() - began)
    return waits


def slow_readers(*, count: int = 64, patience_s: float = 3.0) -> dict[str, Any]:
    """Clients that read nothing: others are served, and each is cut off after the stall timeout."""
    allow_files(count + 200)
    with Server("tiny", "--stall-timeout", str(patience_s)) as server, ExitStack() as stack:
        warm(server)
        before = held(server)
        for _ in range(count):
            slow = stack.enter_context(connect(server.port, receive_buffer=2048))
            # Cumulative events of many tokens are more than the buffers of both ends hold.
            body = {**LONG, "return_logprob": True, "top_logprobs_num": 20}
            slow.sendall(request("/generate", body))
        waits = probe(server, patience_s)
        over = time.monotonic() + 20 * patience_s
        while (after := held(server))["files"] > before["files"] and time.monotonic() < over:
            time.sleep(0.1)
    left = after["files"] - before["files"]
    row = {"case": "slow readers", "clients": count, "others": len(waits), "longest_s": round(max(waits), 2)}
    return {**row, "failures": [f"{left} connections stay"] if left > 0 else []}


def slow_senders(*, count: int = 64, patience_s: float = 3.0) -> dict[str, Any]:
    """Clients that send a byte now and then: others are served, and each is closed after its timeout."""
    allow_files(count + 200)
    flags = ("--header-timeout", str(patience_s), "--body-timeout", str(patience_s))
    data = request("/generate", LONG)
    with Server("tiny", *flags) as server, ExitStack() as stack:
        slow = [stack.enter_context(connect(server.port)) for _ in range(count)]
        sent = [0 if index % 2 else data.index(b"\r\n\r\n") + 4 for index in range(count)]
        for connection, start in zip(slow, sent, strict=True):
            connection.sendall(data[:start])
        waits: list[float] = []
        over, closed = time.monotonic() + 10 * patience_s, set[int]()
        while len(closed) < count and time.monotonic() < over:
            waits += probe(server, 0.3)
            closed |= {index for index, each in enumerate(slow) if drip(each, data, sent, index)}
    row = {"case": "slow senders", "clients": count, "others": len(waits), "longest_s": round(max(waits), 2)}
    return {**row, "failures": [f"{count - len(closed)} connections stay"] if len(closed) < count else []}


def drip(connection: socket.socket, data: bytes, sent: list[int], index: int) -> bool:
    """Sends the next byte of a request; whether the server has closed the connection."""
    connection.setblocking(False)
    try:
        connection.send(data[sent[index] : sent[index] + 1])
        sent[index] += 1
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def slow_clients() -> Sequence[dict[str, Any]]:
    """Both kinds of slow clients."""
    return [slow_readers(), slow_senders()]
