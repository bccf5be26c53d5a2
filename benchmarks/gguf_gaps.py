"""Microseconds that a token of a GGUF model costs inside libllama, between two of its passes, and around them.

    python -m benchmarks.gguf_gaps FILE.gguf [--rounds 6]

One stream through `tirage.LLM` and through llama.cpp's own loop, called from Python, in turns. Times are those of the
thread that decodes, medians over all tokens, so that they hold on a busy machine; what is around the first and last
pass of a request, of all threads, is counted per token. Needs llama-cpp-python. Results: `results/gguf_gaps.json`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import tirage
from benchmarks.gguf import NEW, PARAMETERS, OwnLoop, tirage_llm
from benchmarks.harness import save
from tirage.models.gguf.library import load_library

Pass = tuple[int, int, int]
"""When a pass began and ended, in nanoseconds of its thread, and its tokens."""


def watched(library: Any) -> list[Pass]:
    """The passes of libllama from now on."""
    passes, own = list[Pass](), library.llama_decode

    def decode(context: Any, batch: Any) -> int:
        began = time.thread_time_ns()
        status = own(context, batch)
        passes.append((began, time.thread_time_ns(), batch.n_tokens))
        return status

    library.llama_decode = decode
    return passes


def costs_of(passes: list[Pass], job: Callable[[], object]) -> tuple[list[float], list[float], float]:
    """Microseconds of each pass of one token, of each gap between two, and per token of all else."""
    passes.clear()
    began = time.process_time_ns()
    job()
    whole = time.process_time_ns() - began
    steps = [end - start for start, end, count in passes if count == 1]
    gaps = [after[0] - before[1] for before, after in pairwise(passes[1:])]
    prefill = sum(end - start for start, end, count in passes if count > 1)
    rest = whole - sum(steps) - sum(gaps) - prefill
    return [each / 1e3 for each in steps], [each / 1e3 for each in gaps], rest / NEW / 1e3


def row_of(jobs: dict[str, Callable[[], object]], passes: list[Pass], rounds: int) -> dict[str, Any]:
    """Medians of each job, and how many times as fast tirage is as the loop by their sum."""
    found: dict[str, list[tuple[list[float], list[float], float]]] = {name: [] for name in jobs}
    for at in range(rounds + 1):
        for name, job in jobs.items():
            costs = costs_of(passes, job)
            if at:
                found[name].append(costs)
    median = statistics.median
    parts = {
        name: {
            "in_libllama_us": round(median([us for steps, _, _ in each for us in steps])),
            "between_us": round(median([us for _, gaps, _ in each for us in gaps])),
            "around_us": round(median([rest for _, _, rest in each])),
        }
        for name, each in found.items()
    }
    whole = {name: sum(each.values()) for name, each in parts.items()}
    # Both call the same function with the same batches: where its times differ, that is the machine's doing.
    step = min(each["in_libllama_us"] for each in parts.values())
    equal = {name: whole[name] - each["in_libllama_us"] + step for name, each in parts.items()}
    ratios = {"tirage_to_own_loop": whole, "with_equal_passes": equal}
    return {**parts, **{name: round(each["own loop"] / each["tirage"], 3) for name, each in ratios.items()}}


def measure(path: Path, rounds: int) -> list[dict[str, Any]]:
    """A row for each set of parameters."""
    rows, passes = list[dict[str, Any]](), watched(load_library())
    tirage.warmup()
    with tirage.LLM(path) as llm:
        prompts = [np.random.default_rng(1).integers(3, llm.model.vocab_size, 16).tolist()]
        own = OwnLoop(path, 1)
        for name, fields in PARAMETERS.items():
            jobs: dict[str, Callable[[], object]] = {
                "tirage": lambda f=fields: tirage_llm(llm, prompts, f),
                "own loop": lambda f=fields: own.run(prompts, f),
            }
            rows.append({"model": path.name, "parameters": name, "rounds": rounds, **row_of(jobs, passes, rounds)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measures the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    asked = parser.parse_args()
    notes = (
        f"llama-cpp-python {version('llama-cpp-python')}, one thread, {NEW} new tokens after a prompt of 16, sides "
        "interleaved, processor time, medians, on a very busy machine; tirage also detokenises"
    )
    save("gguf_gaps", measure(asked.file, asked.rounds), notes=notes)


if __name__ == "__main__":
    main()
