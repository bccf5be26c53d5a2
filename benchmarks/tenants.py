"""Can a client tell by the clock what other tenants have asked, how their keys begin, or that they are busy?

`area` is the chance that a time of the first kind is longer than one of the second: 0.5 tells nothing, 0.0 or 1.0 all.
`p` is that of Mann and Whitney's test, two-sided. `python -m benchmarks.tenants [--rounds 40]`; needs scipy.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats

from benchmarks.harness import save
from tirage.engine import EngineRequest, Prompt, Tenant
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


def seconds(llm: LLM, key: str, text: str) -> float:
    """The processor time of one token: what a clock would show on a machine that does nothing else."""
    request = llm.request(Prompt(text=text, salt=key), SamplingParams(max_tokens=1, seed=1))
    began = time.process_time()
    llm.engine.submit(request, buffer=0).wait()
    return time.process_time() - began


def story(number: int) -> str:
    """A prompt of about 120 tokens, from its beginning unlike those of other numbers."""
    return f"{number} {' '.join(np.random.default_rng(number + 1).choice(WORDS.split(), 100))}"


def prefixes(rounds: int) -> list[dict[str, Any]]:
    """Prompts that the same key, another key or nobody has asked before, in turn."""
    own, theirs, unseen = list[float](), list[float](), list[float]()
    with LLM("tiny", backend="torch") as llm:
        seconds(llm, "one", story(-1))
        for number in range(0, 3 * rounds, 3):
            seconds(llm, "one", story(number))
            seconds(llm, "one", story(number + 1))
            own.append(seconds(llm, "one", story(number)))
            # In turn first and second, as the one before warms the processor for the other.
            pair = [(theirs, number + 1), (unseen, number + 2)]
            for times, which in pair if number % 2 else reversed(pair):
                times.append(seconds(llm, "two", story(which)))
    return [
        compared("prefix of the same key, and of nobody (the clock can tell)", own, unseen, rounds=rounds),
        compared("prefix of another key, and of nobody", theirs, unseen, rounds=rounds),
    ]


# --- keys ----------------------------------------------------------------------------------------------------------


async def nothing(*_: Any) -> Any:
    """An application, a `receive` and a `send` that do nothing."""


def keys(rounds: int) -> list[dict[str, Any]]:
    """Wrong keys that share none or nearly all letters with the right one; the first of 8 keys and the last."""
    known = [KEY, *(f"{number}{KEY[1:]}" for number in range(1, 8))]
    auth = Auth(nothing, api_keys=known, admin_key="admin")
    guesses = {
        "nothing in common": "x" * len(KEY),
        "all but the last letter": KEY[:-1] + "x",
        "the same again": "y" * len(KEY),
        "the first key": known[0],
        "the first key again": known[0],
        "the last key": known[-1],
    }
    times: dict[str, list[float]] = {name: [] for name in guesses}

    async def ask() -> None:
        rng = np.random.default_rng(0)
        for _ in range(rounds):
            for name in rng.permutation([*guesses]).tolist():
                # Made anew each time: where an object lies in memory shows, and is no secret.
                header = b"authorization", f"Bearer {guesses[name]}".encode()
                scope = {"type": "http", "path": "/", "headers": [header]}
                began = time.perf_counter()
                await auth(scope, nothing, nothing)
                times[name].append(time.perf_counter() - began)

    asyncio.run(ask())
    pairs = {
        "two wrong keys (noise)": ("the same again", "nothing in common"),
        "a wrong key that is nearly right, and one that is not": ("all but the last letter", "nothing in common"),
        "one right key twice (noise)": ("the first key again", "the first key"),
        "the last of eight keys, and the first": ("the last key", "the first key"),
    }
    return [compared(question, times[one], times[other], rounds=rounds) for question, (one, other) in pairs.items()]


# --- a busy neighbour ----------------------------------------------------------------------------------------------


def told(llm: LLM) -> tuple[float, float, float, float]:
    """Seconds to the first token of a small request and the longest between two, and both in processor time."""
    request = llm.request("Once upon a time", NEIGHBOUR)
    request.tenant = Tenant("neighbour")
    seen = [(time.perf_counter(), time.process_time())]
    for _ in llm.engine.submit(request):
        seen.append((time.perf_counter(), time.process_time()))
    wall, cpu = ([after - before for before, after in itertools.pairwise(times)] for times in zip(*seen, strict=True))
    return wall[0], max(wall[1:]), cpu[0], max(cpu[1:])


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
        for company, requests in heavy(llm).items():
            streams = llm.engine.submit_all(requests, buffer=0) if requests else []
            time.sleep(3 if streams else 0)
            cpu, wall = time.process_time(), time.perf_counter()
            found = [told(llm) for _ in range(rounds)]
            share = (time.process_time() - cpu) / (time.perf_counter() - wall)
            names = ("first_ms", "gap_ms", "first_processor_ms", "gap_processor_ms")
            worst = [round(1000 * max(values), 1) for values in zip(*found, strict=True)]
            row = dict(zip((f"longest_{name}" for name in names), worst, strict=True))
            rows.append({
                "question": "a small request beside",
                "company": company,
                **row,
                "processor_share": round(share, 2),
            })
            for stream in streams:
                stream.abort()
            for stream in streams:
                stream.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rows = prefixes(rounds) + keys(500 * rounds) + neighbours(5)
    save(
        "tenants",
        rows,
        notes="prefixes by processor time, the rest by wall time; a processor_share far below 1 means a busy machine",
    )


if __name__ == "__main__":
    main()
