"""Can a client tell by the clock what other tenants have asked, how their keys begin, or that they are busy?

`area` is the chance that a time of the first kind is longer than one of the second: 0.5 tells nothing, 1.0 all. `p` is that of Mann and Whitney's test, two-sided. `python -m benchmarks.tenants [--rounds 150]`; needs scipy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.stats

from benchmarks.harness import save
from tirage.engine import EngineRequest
from tirage.llm import LLM
from tirage.params import BeamSearchParams, SamplingParams
from tirage.server.auth import Auth

WORDS = "once upon a time there was a clever girl who lived near a quiet river and every day she went to the bridge"
KEY = "sk-0123456789abcdef0123456789abcdef"
NEIGHBOUR = SamplingParams(max_tokens=40, ignore_eos=True, output_kind="DELTA", seed=1)


def compared(question: str, first: Sequence[float], second: Sequence[float], **more: Any) -> dict[str, Any]:
    """How well the times of two kinds can be told apart."""
    test = scipy.stats.mannwhitneyu(first, second)
    return {
        "question": question,
        **more,
        "median_us": [round(statistics.median(times) * 1e6, 2) for times in (first, second)],
        "area": round(float(test.statistic) / (len(first) * len(second)), 4),
        "p": float(f"{test.pvalue:.3g}"),
    }


# --- the prefix cache ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of a server on PyTorch, which keeps prefixes, with two keys."""
    command = [sys.executable, "-m", "tirage", "serve", "--backend", "torch", "--port", "0"]
    keys = ["--api-key", "one", "--api-key", "two"]
    process = subprocess.Popen([*command, *keys], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    try:
        url = next(line.split()[-1] for line in lines if "listening" in line)
        next(line for line in lines if "ready" in line)
        threading.Thread(target=lambda: [*lines], daemon=True).start()
        yield url
    finally:
        process.terminate()
        process.wait()


def seconds(url: str, key: str, text: str) -> float:
    """How long an answer of one token takes."""
    body = json.dumps({"text": text, "sampling_params": {"max_new_tokens": 1}}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/generate", body, headers)) as answer:
        answer.read()
    return time.perf_counter() - began


def story(number: int) -> str:
    """A prompt of about 250 tokens, from its beginning unlike those of other numbers."""
    return f"{number} {' '.join(np.random.default_rng(number).choice(WORDS.split(), 200))}"


def prefixes(rounds: int) -> list[dict[str, Any]]:
    """Prompts that the same key, another key or nobody has asked before, in turn."""
    own, theirs, unseen = list[float](), list[float](), list[float]()
    with server() as url:
        for number in range(0, 3 * rounds, 3):
            seconds(url, "one", story(number))
            seconds(url, "one", story(number + 1))
            own.append(seconds(url, "one", story(number)))
            # In turn first and second, as the one before warms the processor for the other.
            pair = [(theirs, number + 1), (unseen, number + 2)]
            for times, which in pair if number % 2 else reversed(pair):
                times.append(seconds(url, "two", story(which)))
    return [
        compared("prefix of the same key, and of nobody (the clock can tell)", own, unseen, rounds=rounds),
        compared("prefix of another key, and of nobody", theirs, unseen, rounds=rounds),
    ]


# --- keys ----------------------------------------------------------------------------------------------------------


async def nothing(*_: Any) -> None:
    """An application, a `receive` and a `send` that do nothing."""


def keys(rounds: int) -> list[dict[str, Any]]:
    """Wrong keys that share none or nearly all of their letters with the right one; the first of 8 keys and the last."""
    known = [KEY, *(f"{number}{KEY[1:]}" for number in range(1, 8))]
    auth = Auth(nothing, api_keys=known, admin_key="admin")
    guesses = {
        "nothing in common": "x" * len(KEY),
        "all but the last letter": KEY[:-1] + "x",
        "the same again": "y" * len(KEY),
        "the first key": known[0],
        "the last key": known[-1],
    }
    scopes = {
        name: {"type": "http", "path": "/", "headers": [(b"authorization", f"Bearer {key}".encode())]}
        for name, key in guesses.items()
    }
    times: dict[str, list[float]] = {name: [] for name in guesses}

    async def ask() -> None:
        for number in range(rounds):
            names = [*guesses] if number % 2 else [*guesses][::-1]
            for name in names:
                scope = {**scopes[name]}
                began = time.perf_counter()
                await auth(scope, nothing, nothing)
                times[name].append(time.perf_counter() - began)

    asyncio.run(ask())
    pairs = {
        "two wrong keys (noise)": ("the same again", "nothing in common"),
        "a wrong key that is nearly right, and one that is not": ("all but the last letter", "nothing in common"),
        "the last of eight keys, and the first": ("the last key", "the first key"),
    }
    return [compared(question, times[one], times[other], rounds=rounds) for question, (one, other) in pairs.items()]  # fmt: skip


# --- a busy neighbour ----------------------------------------------------------------------------------------------


def told(llm: LLM) -> tuple[float, float]:
    """Seconds to the first token of a small request, and the longest between two."""
    request = llm.request("Once upon a time", NEIGHBOUR)
    request.tenant = "neighbour"
    began, seen = time.perf_counter(), list[float]()
    for _ in llm.engine.submit(request):
        seen.append(time.perf_counter())
    return seen[0] - began, max(after - before for before, after in itertools.pairwise(seen))


def heavy(llm: LLM) -> dict[str, list[EngineRequest]]:
    """Nothing, and each request that alone could take every slot; not begun yet."""
    text = "Once upon a time"
    samples = SamplingParams(max_tokens=450, n=128, ignore_eos=True, logprobs=20)
    beams = BeamSearchParams(beam_width=256, max_tokens=450, ignore_eos=True)
    return {
        "nobody": [],
        "a search of 256 beams": [llm.beam_request(text, beams)],
        "2 prompts, 128 samples each, 20 logprobs": [llm.request(text, samples) for _ in range(2)],
    }


def neighbours(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a small request beside large ones."""
    rows = []
    with LLM("tiny", max_running=256) as llm:
        told(llm)
        for name, requests in heavy(llm).items():
            streams = llm.engine.submit_all(requests, buffer=0) if requests else []
            time.sleep(3 if streams else 0)
            cpu, wall = time.process_time(), time.perf_counter()
            found = [told(llm) for _ in range(rounds)]
            share = (time.process_time() - cpu) / (time.perf_counter() - wall)
            first, gap = (round(1000 * max(values), 1) for values in zip(*found, strict=True))
            rows.append({
                "question": "a small request beside", "company": name, "longest_first_ms": first,
                "longest_gap_ms": gap, "processor_share": round(share, 2),
            })  # fmt: skip
            for stream in streams:
                stream.abort()
            for stream in streams:
                stream.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    rounds = parser.parse_args().rounds
    rows = prefixes(rounds) + keys(100 * rounds) + neighbours(5)
    save("tenants", rows, notes="wall time; processor_share below 1 means that other programs had the rest of the core")


if __name__ == "__main__":
    main()
