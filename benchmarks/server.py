"""What does HTTP cost? Events per second of a model that takes no time, overhead on a 12 M Llama, `/health` under load.

The server runs in a process of its own; clients read raw bytes on one asyncio loop. `python -m benchmarks.server
[--tokens 400]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tirage
from benchmarks.harness import save

EVENT_STREAMS = (1, 64, 256)
OVERHEAD_STREAMS = 16
HEALTH_STREAMS = 256
ROUTES = {
    "/generate": lambda tokens: {
        "text": "ab",
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        "stream": True,
        "stream_options": {"mode": "delta"},
    },
    "/v1/completions": lambda tokens: {
        "prompt": "ab", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
    },
}  # fmt: skip


class Table:
    """A model whose logits are a table: the next letter after each."""

    vocab_size, max_length = 32, 1 << 20

    def __init__(self) -> None:
        self._rows = np.eye(self.vocab_size, k=1, dtype=np.float32) * 9
        self._rows[-1, 0] = 9

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], Any]:
        return self._rows[token_ids[-1]], None

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> NDArray[np.float32]:
        del caches
        return self._rows[np.asarray(token_ids)]

    def fork(self, cache: Any) -> Any:
        return cache

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return self._rows[np.asarray(token_ids)]


class Letters:
    """A tokenizer of one letter per id."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 32 for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(96 + i) for i in ids)


def open_llm(name: str) -> tirage.LLM:
    """The table, or a random Llama of 12 M parameters on PyTorch."""
    if name == "table":
        return tirage.LLM(Table(), tokenizer=Letters(), max_running=256)
    import torch

    from benchmarks.engine import llama
    from tirage.models.huggingface import wrap_module

    torch.set_num_threads(1)
    # Ids as letters of the Basic Multilingual Plane, so that each has a text of its own.
    return tirage.LLM(wrap_module(llama("small")), tokenizer=Planes(), max_running=256)


class Planes(Letters):
    """A tokenizer of one character per id, for wide vocabularies."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(0x3400 + i) if i < 0x5000 else chr(0x10000 + i) for i in ids)


def serve(name: str) -> None:
    """Serves a model on a free port, which the first line of stdout says."""
    import socket

    import uvicorn

    from tirage.server import create_app

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    tirage.warmup()
    app = create_app(open_llm(name))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])


class Child:
    """A server in a process of its own."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.server", "--serve", name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Child:
        asyncio.run(self._ready())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    async def _ready(self) -> None:
        while not (await exchange(self.port, "GET", "/health")).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0.1)


async def exchange(port: int, method: str, path: str, body: Any = None) -> bytes:
    """The bytes of one answer, to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    parts = []
    while part := await reader.read(1 << 20):
        parts.append(part)
    writer.close()
    return b"".join(parts)


async def streams(port: int, path: str, *, count: int, tokens: int) -> dict[str, Any]:
    """Events and tokens per second of so many streams at once."""
    body = ROUTES[path](tokens)
    start = time.perf_counter()
    answers = await asyncio.gather(*(exchange(port, "POST", path, body) for _ in range(count)))
    seconds = time.perf_counter() - start
    events = sum(answer.count(b"data: {") for answer in answers)
    if not all(answer.count(b"data: [DONE]") == 1 for answer in answers):
        raise RuntimeError(f"a stream did not end: {answers[0][-300:]!r}")
    return {"events_per_s": round(events / seconds), "tokens_per_s": round(count * tokens / seconds)}


def with_health(port: int, *, tokens: int) -> dict[str, Any]:
    """Milliseconds of `/health` while streams run, read by a process of its own, which must not delay probes."""
    command = [sys.executable, "-m", "benchmarks.server", "--load", str(port), "--tokens", str(tokens)]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert load.stdout is not None
    load.stdout.readline()
    waits = []
    while load.poll() is None:
        start = time.perf_counter()
        asyncio.run(exchange(port, "GET", "/health"))
        waits.append((time.perf_counter() - start) * 1000)
        time.sleep(0.02)
    found = json.loads(load.stdout.readline())
    p99 = statistics.quantiles(waits, n=100)[98]
    return {"probes": len(waits), "median_ms": round(statistics.median(waits), 1), "p99_ms": round(p99, 1), **found}


def load(port: int, tokens: int) -> None:
    """Reads streams, and prints a line when it begins and one with what it found."""
    print("reading", flush=True)
    print(json.dumps(asyncio.run(streams(port, "/generate", count=HEALTH_STREAMS, tokens=tokens))), flush=True)


def in_process(llm: tirage.LLM, *, tokens: int) -> float:
    """Tokens per second of as many requests without a server, all their deltas read."""
    params = tirage.SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=tirage.RequestOutputKind.DELTA
    )

    async def read() -> None:
        async for _ in llm.astream("ab", params):
            pass

    async def read_all() -> None:
        await asyncio.gather(*(read() for _ in range(OVERHEAD_STREAMS)))

    start = time.perf_counter()
    asyncio.run(read_all())
    return OVERHEAD_STREAMS * tokens / (time.perf_counter() - start)


def events(tokens: int) -> list[dict[str, Any]]:
    """The table model over each route."""
    rows = []
    with Child("table") as child:
        for path in ROUTES:
            for count in EVENT_STREAMS:
                asyncio.run(streams(child.port, path, count=count, tokens=tokens))
                found = asyncio.run(streams(child.port, path, count=count, tokens=tokens))
                rows.append({"question": "events", "route": path, "streams": count, **found})
        health = with_health(child.port, tokens=2 * tokens)
        rows.append({"question": "health", "streams": HEALTH_STREAMS, **health})
    return rows


def overhead(tokens: int, rounds: int) -> list[dict[str, Any]]:
    """The 12 M Llama without a server and over each route, in turn; the best round of each."""
    best: dict[str, float] = {}
    llm = open_llm("llama")
    with Child("llama") as child:
        for _ in range(rounds):
            found = {"in process": in_process(llm, tokens=tokens)}
            for path in ROUTES:
                job = streams(child.port, path, count=OVERHEAD_STREAMS, tokens=tokens)
                found[path] = asyncio.run(job)["tokens_per_s"]
            best = {way: max(speed, best.get(way, 0.0)) for way, speed in found.items()}
    llm.close()
    plain = best["in process"]
    return [
        {
            "question": "overhead",
            "model": "Llama 12 M",
            "streams": OVERHEAD_STREAMS,
            "way": way,
            "tokens_per_s": round(speed, 1),
            "overhead": round(plain / speed - 1, 4),
        }
        for way, speed in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--serve", choices=("table", "llama"))
    parser.add_argument("--load", type=int, metavar="PORT")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    if given.load:
        load(given.load, given.tokens)
        return
    rows = events(given.tokens) + overhead(max(32, given.tokens // 4), given.rounds)
    save("server", rows, notes="client and server share the machine's cores; streams of deltas, greedy, raw bytes read")


if __name__ == "__main__":
    main()
