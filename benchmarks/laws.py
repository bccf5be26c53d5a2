"""What does `law` cost beside `sample`? (1 thread, V = 128256)

python -m benchmarks.laws [--rounds 15]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TIRAGE_THREADS", "1")

import tirage
from benchmarks.harness import interleaved, logits, save
from benchmarks.one_pass import CONFIGS

VOCAB = 128256
GOAL = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    tirage.warmup()
    rows = [row for shape in ("peaked", "medium", "flat") for batch in (8, 64) for row in measure(shape, batch, rounds)]
    notes = "thread CPU time, medians of interleaved rounds, 1 thread; a law is float64 [B, V], 66 MB at B = 64"
    save("laws", rows, notes=notes)


def measure(shape: str, batch: int, rounds: int) -> list[dict]:
    x = logits(shape, batch, VOCAB)
    jobs = {}
    for name, options in CONFIGS.items():
        params = tirage.SamplingParams(seed=1, **options)
        jobs[f"sample {name}"] = lambda params=params: tirage.sample(x, params)
        jobs[f"law {name}"] = lambda params=params: tirage.law(x, params)
    seconds = interleaved(jobs, rounds=rounds)
    return [
        {
            "shape": shape,
            "B": batch,
            "config": name,
            "sample_us_per_row": round(seconds[f"sample {name}"] / batch * 1e6, 1),
            "law_us_per_row": round(seconds[f"law {name}"] / batch * 1e6, 1),
            "ratio": round(seconds[f"law {name}"] / seconds[f"sample {name}"], 2),
            "goal": GOAL,
        }
        for name in CONFIGS
    ]


if __name__ == "__main__":
    main()
