"""How much faster than Hugging Face's warpers? Same logits, same settings, one process, one thread.

python -m benchmarks.peers [--rounds 5]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TIRAGE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable

import torch
from transformers.generation import logits_process as hf

import tirage
from benchmarks.harness import interleaved, logits, save

VOCAB = 128256
BATCH = 8

CONFIGS: dict[str, tuple[dict, list]] = {
    "temperature": ({}, []),
    "top_p 0.95": ({"top_p": 0.95}, [hf.TopPLogitsWarper(0.95)]),
    "top_p 0.5": ({"top_p": 0.5}, [hf.TopPLogitsWarper(0.5)]),
    "top_k 50": ({"top_k": 50}, [hf.TopKLogitsWarper(50)]),
    "top_k 50 + top_p 0.95": ({"top_k": 50, "top_p": 0.95}, [hf.TopKLogitsWarper(50), hf.TopPLogitsWarper(0.95)]),
    "min_p 0.05": ({"min_p": 0.05}, [hf.MinPLogitsWarper(0.05)]),
    "typical_p 0.9": ({"typical_p": 0.9}, [hf.TypicalLogitsWarper(0.9)]),
    "epsilon 3e-4": ({"epsilon_cutoff": 3e-4}, [hf.EpsilonLogitsWarper(3e-4)]),
    "eta 3e-4": ({"eta_cutoff": 3e-4}, [hf.EtaLogitsWarper(3e-4)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    tirage.warmup()
    rows = [row for shape in ("peaked", "medium", "flat") for row in measure(shape, rounds)]
    save("peers", rows, notes=f"B = {BATCH}, V = {VOCAB}, T = 0.8, thread CPU time, 1 thread, medians")


def measure(shape: str, rounds: int) -> list[dict]:
    x = logits(shape, BATCH, VOCAB)
    ids = torch.zeros((BATCH, 1), dtype=torch.long)
    rows = []
    for name, (options, warpers) in CONFIGS.items():
        flight = tirage.Batch(VOCAB, BATCH)
        for row in range(BATCH):
            flight.add(tirage.SamplingParams(seed=row, temperature=0.8, **options))
        jobs = {
            "tirage": lambda flight=flight: flight.sample(x),
            "hf": peer(torch.from_numpy(x), ids, [hf.TemperatureLogitsWarper(0.8), *warpers]),
        }
        seconds = interleaved(jobs, rounds=rounds)
        rows.append({
            "shape": shape,
            "config": name,
            "tirage_us_per_row": round(seconds["tirage"] / BATCH * 1e6, 1),
            "hf_us_per_row": round(seconds["hf"] / BATCH * 1e6, 1),
            "times_faster": round(seconds["hf"] / seconds["tirage"], 1),
        })
    return rows


def peer(x: torch.Tensor, ids: torch.Tensor, warpers: list) -> Callable[[], object]:
    """The sampling step of `transformers.generate`: warpers, softmax, multinomial."""

    def run() -> object:
        scores = x
        for warper in warpers:
            scores = warper(ids, scores)
        return torch.multinomial(torch.softmax(scores, dim=-1), 1)

    return run


if __name__ == "__main__":
    main()
