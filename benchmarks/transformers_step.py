"""How much faster is a step of transformers' `generate` that tirage draws than one with transformers' own warpers?

A step is what follows the forward pass: processors, then the choice of a token. Both sides get the same logits and
parameters; the ids grow by a token per step, as in `generate`. `custom_generate` and `do_sample=False` end with argmax;
with `do_sample=True` transformers' softmax and multinomial follow a row that has one token left.

python -m benchmarks.transformers_step [--rounds 9] [--batches 1 32] [--vocab 128256]
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TIRAGE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper
from transformers import TopPLogitsWarper as TopP

import tirage
from benchmarks.harness import interleaved, logits, save
from tirage import SamplingParams
from tirage.integrations.transformers import TirageLogitsProcessor

GOAL = 1.5
PROMPT = 16
CONFIGS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "temperature 0.8 + top_k 50 + top_p 0.9": (
        {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
        [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopP(0.9)],
    ),
    "top_p 0.9": ({"top_p": 0.9}, [TopP(0.9)]),
    "min_p 0.05": ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--vocab", type=int, default=128256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tirage.warmup()
    rows = [
        measure(name, shape, batch, options.vocab, options.rounds * (10 if batch == 1 else 1))
        for batch in options.batches
        for name in CONFIGS
        for shape in ("peaked", "medium", "flat")
    ]
    notes = (
        f"V = {options.vocab}, float32, CPU time of the process, 1 thread, busy machine, sides interleaved, medians of "
        f"{options.rounds} rounds (10 x as many at B = 1); ratio: time of transformers' warpers, softmax and "
        f"multinomial / time of tirage's step; goal {GOAL}"
    )
    save("transformers_step", rows, notes=notes)


def measure(name: str, shape: str, batch: int, vocab: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each side for one setting, and their ratios."""
    fields, warpers = CONFIGS[name]
    scores = torch.from_numpy(logits(shape, batch, vocab))
    jobs = {
        "tirage": steps(_tirage(batch, fields), scores, do_sample=False),
        "tirage do_sample": steps(_tirage(batch, fields), scores, do_sample=True),
        "transformers": steps(LogitsProcessorList(warpers), scores, do_sample=True),
    }
    times = interleaved(jobs, rounds=rounds, clock=time.process_time)
    ratios = {key: round(times["transformers"] / times[key], 2) for key in jobs if key != "transformers"}
    return {
        "params": name,
        "B": batch,
        "logits": shape,
        "ms": {key: round(value * 1e3, 3) for key, value in times.items()},
        "ratio": ratios["tirage"],
        "ratio do_sample": ratios["tirage do_sample"],
    }


def steps(processors: LogitsProcessorList, scores: torch.Tensor, *, do_sample: bool) -> Callable[[], object]:
    """One step of `generate` after the forward pass, for ids that grow."""
    ids: list[Any] = [torch.arange(PROMPT)[None].repeat(len(scores), 1)]

    def step() -> None:
        left = processors(ids[0], scores)
        token = torch.multinomial(left.softmax(dim=-1), num_samples=1) if do_sample else left.argmax(dim=-1)[:, None]
        ids[0] = torch.cat([ids[0], token], dim=1)

    return step


def _tirage(batch: int, fields: dict[str, Any]) -> LogitsProcessorList:
    params = [SamplingParams(seed=row, **fields) for row in range(batch)]
    return LogitsProcessorList([TirageLogitsProcessor(params, attention_mask=torch.ones(batch, PROMPT))])


if __name__ == "__main__":
    main()
