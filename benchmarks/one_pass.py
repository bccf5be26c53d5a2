"""How far is a draw from one pass over the logits? (1 thread, ratio to the fastest max over the same rows)

python -m benchmarks.one_pass [--rounds 15]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TIRAGE_THREADS", "1")

import numpy as np

import tirage
from benchmarks.harness import interleaved, logits, save

CONFIGS = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_k+top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
}
GOALS = {"greedy": 1.3, "min_p": 1.3, "top_k": 2.1, "top_k+top_p": 2.1, "temperature": 4.0, "top_p": 4.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    tirage.warmup()
    rows = []
    for shape in ("peaked", "medium", "flat"):
        for vocab in (128256, 151936, 262144) if shape == "peaked" else (128256,):
            for batch in (1, 64):
                rows += measure(shape, vocab, batch, rounds)
    save("one_pass", rows, notes="thread CPU time, medians of interleaved rounds, 1 thread; B=64 does not fit caches")


def measure(shape: str, vocab: int, batch: int, rounds: int) -> list[dict]:
    x = logits(shape, batch, vocab)
    jobs = {"max": lambda: x.max(axis=1), "max by row": lambda: [row.max() for row in x]}
    for name, options in CONFIGS.items():
        flight = tirage.Batch(vocab, batch)
        for row in range(batch):
            flight.add(tirage.SamplingParams(seed=row, **options))
        jobs[name] = lambda flight=flight: flight.sample(x)
    jobs["argmax (numpy)"] = lambda: np.argmax(x, axis=1)
    seconds = interleaved(jobs, rounds=rounds if batch > 1 else rounds * 10)
    floor = min(seconds["max"], seconds["max by row"])
    return [
        {
            "shape": shape,
            "V": vocab,
            "B": batch,
            "config": name,
            "us_per_row": round(seconds[name] / batch * 1e6, 2),
            "floor_us_per_row": round(floor / batch * 1e6, 2),
            "ratio": round(seconds[name] / floor, 2),
            "goal": GOALS.get(name) if shape == "peaked" and batch > 1 else None,
        }
        for name in CONFIGS
    ]


if __name__ == "__main__":
    main()
