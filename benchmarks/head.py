"""What do tokens straight from hidden states cost beside whole logits, in time and memory? (1 thread, V = 128256)

python -m benchmarks.head [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("TIRAGE_THREADS", "1")

import torch
from torch.profiler import ProfilerActivity, profile

import tirage
from benchmarks.harness import interleaved, logits, save
from tirage.torch import sample_hidden

VOCAB, WIDTH, BATCH = 128256, 512, 64
CONFIGS = {
    "greedy": {"temperature": 0.0},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "no filter": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    tirage.warmup()
    rows = [row for shape in ("peaked", "flat") for row in measure(shape, rounds)]
    notes = (
        "thread CPU time, medians of interleaved rounds, 1 thread; MB: the most that PyTorch held beyond hidden states "
        f"and weights; hidden [{BATCH}, {WIDTH}] float32, so whole logits are {BATCH * VOCAB * 4 / 1e6:.0f} MB"
    )
    save("head", rows, notes=notes)


def measure(shape: str, rounds: int) -> list[dict]:
    # Logits of a known shape: some directions of the head are made of them, one for each row of hidden states.
    hidden = torch.eye(BATCH, WIDTH)
    weight = torch.zeros(VOCAB, WIDTH)
    weight[:, :BATCH] = torch.from_numpy(logits(shape, BATCH, VOCAB)).T
    jobs: dict[str, Callable[[], object]] = {}
    for name, options in CONFIGS.items():
        params = tirage.SamplingParams(seed=1, **options)
        jobs[f"whole {name}"] = lambda params=params: tirage.sample(hidden @ weight.T, params)
        jobs[f"blocks {name}"] = lambda params=params: sample_hidden(hidden, weight, params)
    seconds = interleaved(jobs, rounds=rounds)
    return [
        {
            "shape": shape,
            "config": name,
            "whole_ms": round(seconds[f"whole {name}"] * 1e3, 1),
            "blocks_ms": round(seconds[f"blocks {name}"] * 1e3, 1),
            "ratio": round(seconds[f"blocks {name}"] / seconds[f"whole {name}"], 2),
            "whole_MB": megabytes(jobs[f"whole {name}"]),
            "blocks_MB": megabytes(jobs[f"blocks {name}"]),
        }
        for name in CONFIGS
    ]


def megabytes(job: Callable[[], object]) -> float:
    """The most that PyTorch's tensors held at once while it ran, from the allocations that its profiler saw."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        job()
    held = most = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            most = max(most, held)
    return round(most / 1e6, 1)


if __name__ == "__main__":
    main()
