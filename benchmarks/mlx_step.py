"""How much faster is a step of mlx-lm that tirage draws than one with mlx-lm's own sampler?

A step is what follows the forward pass, as mlx-lm's generator does it: the processors, the normalisation to logprobs
and the sampler, until tokens and logprobs are computed. Both sides get the same logits and parameters. "sampler" and
"logits_processors" are the two forms of `tirage.integrations.mlx`; mlx-lm's samplers see logprobs too. For 32 rows
mlx-lm calls one sampler for the whole batch, and those of tirage for each row.

python -m benchmarks.mlx_step [--rounds 9] [--batches 1 32] [--vocab 128256]      needs mlx and mlx-lm
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TIRAGE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mlx.core as mx  # pyright: ignore[reportMissingImports]
from mlx_lm.sample_utils import make_sampler  # pyright: ignore[reportMissingImports]

import tirage
from benchmarks.harness import interleaved, logits, save
from tirage.integrations.mlx import logits_processors, sampler

PROMPT = 16
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "top_p 0.9": ({"top_p": 0.9}, {"temp": 1.0, "top_p": 0.9}),
    "min_p 0.05": ({"min_p": 0.05}, {"temp": 1.0, "min_p": 0.05}),
    "temperature 0.8 + top_k 50": ({"temperature": 0.8, "top_k": 50}, {"temp": 0.8, "top_k": 50}),
}
"""Parameters of tirage and of mlx-lm for the same law; mlx-lm filters before the temperature, the same for top-k."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--vocab", type=int, default=128256)
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    tirage.warmup()
    rows = [
        measure(name, shape, batch, options.vocab, options.rounds * (5 if batch == 1 else 1))
        for batch in options.batches
        for name in CONFIGS
        for shape in ("peaked", "medium", "flat")
    ]
    notes = (
        f"mlx {version('mlx')} and mlx-lm {version('mlx-lm')} on the CPU; V = {options.vocab}, float32, CPU time of "
        f"the process, 1 thread, busy machine, sides interleaved, medians of {options.rounds} rounds (5 x as many at "
        "B = 1); ratio: time of mlx-lm's own step / time of tirage's"
    )
    save("mlx_step", rows, notes=notes)


def measure(name: str, shape: str, batch: int, vocab: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each side for one setting, and the ratios."""
    ours, theirs = CONFIGS[name]
    given = mx.array(logits(shape, batch, vocab))
    fields = [{**ours, "seed": row} for row in range(batch)]
    jobs = {
        "sampler": steps(given, samplers=[sampler(each) for each in fields]),
        "logits_processors": steps(
            given, samplers=[make_sampler()], processors=[logits_processors(each) for each in fields]
        ),
        "mlx-lm": steps(given, samplers=[make_sampler(**theirs)]),
        "mlx-lm greedy": steps(given, samplers=[make_sampler()]),
    }
    times = interleaved(jobs, rounds=rounds, clock=time.process_time)
    return {
        "params": name,
        "B": batch,
        "logits": shape,
        "ms": {key: round(value * 1e3, 3) for key, value in times.items()},
        "ratio": {key: round(times["mlx-lm"] / times[key], 2) for key in ("sampler", "logits_processors")},
    }


def steps(given: Any, *, samplers: Any, processors: Any = ()) -> Callable[[], object]:
    """One step for logits [B, V] after the forward pass; the ids of each row grow by its token."""
    ids = [mx.arange(PROMPT) for _ in range(len(given))]

    def step() -> None:
        left = given
        if processors:
            rows = [each[0](ids[row], given[row : row + 1]) for row, each in enumerate(processors)]
            left = mx.concatenate(rows, axis=0)
        logprobs = left - mx.logsumexp(left, axis=-1, keepdims=True)
        if len(samplers) == 1:
            tokens = samplers[0](logprobs)
        else:
            tokens = mx.concatenate([each(logprobs[row : row + 1]) for row, each in enumerate(samplers)], axis=0)
        mx.eval(tokens, logprobs)
        if processors:
            ids[:] = [mx.concatenate([each, tokens[row : row + 1]]) for row, each in enumerate(ids)]

    return step


if __name__ == "__main__":
    main()
