"""What do two threads give over one? (wall time, B = 64, V = 128256; the plain max is split the same way)

python -m benchmarks.threads [--rounds 31]
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import tirage
from benchmarks.harness import interleaved, logits, save
from benchmarks.one_pass import CONFIGS
from tirage.backends.numpy import kernels

VOCAB, BATCH = 128256, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    tirage.warmup()
    one, two = measure(1, rounds), measure(2, rounds)
    rows = [
        {
            "config": name,
            "one_thread_ms": round(one[name] * 1e3, 3),
            "two_threads_ms": round(two[name] * 1e3, 3),
            "times_faster": round(one[name] / two[name], 2),
        }
        for name in one
    ]
    save("threads", rows, notes="wall time, medians of interleaved rounds; max (numpy) shows what the memory allows")


def measure(threads: int, rounds: int) -> dict[str, float]:
    """Median seconds of each configuration over `threads` threads."""
    kernels.set_threads(threads)
    x = logits("peaked", BATCH, VOCAB)
    jobs = {}
    for name, options in CONFIGS.items():
        flight = tirage.Batch(VOCAB, BATCH)
        for row in range(BATCH):
            flight.add(tirage.SamplingParams(seed=row, **options))
        jobs[name] = lambda flight=flight: flight.sample(x)
    with ThreadPoolExecutor(threads) as workers:
        share = BATCH // threads
        parts = [x[start : start + share] for start in range(0, BATCH, share)]
        jobs["max (numpy)"] = lambda: list(workers.map(lambda part: part.max(axis=1), parts))
        return interleaved(jobs, rounds=rounds, clock=time.perf_counter)


if __name__ == "__main__":
    main()
