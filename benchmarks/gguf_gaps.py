"""Microseconds that a token of a GGUF model costs inside libllama, between two of its passes, and around them.

    python -m benchmarks.gguf_gaps FILE.gguf [--rounds 6] [--streams 1 8]

One stream, or several in one batch, through `tirage.LLM` and through llama.cpp's own loop, called from Python, in
turns. Times are those of the thread that decodes, medians over all steps, so that they hold on a busy machine; what
is around the first and last pass of a request, of all threads, is counted per step, as prompts are. Needs
llama-cpp-python. Results: `results/gguf_gaps.json`.
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


Costs = tuple[list[float], list[float], float, float]
"""Microseconds of each pass of one token a stream, of each gap between two, and per step of prompts and all else."""


def costs_of(passes: list[Pass], job: Callable[[], object], streams: int) -> Costs:
    """What a job costs."""
    passes.clear()
    began = time.process_time_ns()
    job()
    whole = time.process_time_ns() - began
    steps = [end - start for start, end, count in passes if count == streams]
    both = [(one, other) for one, other in pairwise(passes) if one[2] == other[2] == streams]
    gaps = [after[0] - before[1] for before, after in both]
    prefill = sum(end - start for start, end, count in passes if count > streams)
    rest = whole - sum(steps) - sum(gaps) - prefill
    per_step = [each / NEW / 1e3 for each in (prefill, rest)]
    return [each / 1e3 for each in steps], [each / 1e3 for each in gaps], per_step[0], per_step[1]


def row_of(jobs: dict[str, Callable[[], object]], passes: list[Pass], *, rounds: int, streams: int) -> dict[str, Any]:
    """Medians of each job, and how many times as fast tirage is as the loop by their sum."""
    found: dict[str, list[Costs]] = {name: [] for name in jobs}
    for at in range(rounds + 1):
        for name, job in jobs.items():
            costs = costs_of(passes, job, streams)
            if at:
                found[name].append(costs)
    median = statistics.median
    parts = {
        name: {
            "in_libllama_us": round(median([us for steps, *_ in each for us in steps])),
            "between_us": round(median([us for _, gaps, *_ in each for us in gaps])),
            "prompts_us": round(median([prefill for _, _, prefill, _ in each])),
            "around_us": round(median([rest for *_, rest in each])),
        }
        for name, each in found.items()
    }
    whole = {name: sum(each.values()) for name, each in parts.items()}
    # Both call the same function with the same batches: where its times differ, that is the machine's doing.
    step = min(each["in_libllama_us"] for each in parts.values())
    equal = {name: whole[name] - each["in_libllama_us"] + step for name, each in parts.items()}
    ratios = {"tirage_to_own_loop": whole, "with_equal_passes": equal}
    return {**parts, **{name: round(each["own loop"] / each["tirage"], 3) for name, each in ratios.items()}}


def measure(path: Path, *, rounds: int, all_streams: list[int]) -> list[dict[str, Any]]:
    """A row for each number of streams and each set of parameters."""
    rows, passes = list[dict[str, Any]](), watched(load_library())
    tirage.warmup()
    with tirage.LLM(path) as llm:
        random = np.random.default_rng(1)
        every = [random.integers(3, llm.model.vocab_size, 16).tolist() for _ in range(max(all_streams))]
        for streams in all_streams:
            own, prompts = OwnLoop(path, streams), every[:streams]
            for name, fields in PARAMETERS.items():
                jobs: dict[str, Callable[[], object]] = {
                    "tirage": lambda g=prompts, f=fields: tirage_llm(llm, g, f),
                    "own loop": lambda o=own, g=prompts, f=fields: o.run(g, f),
                }
                about = {"model": path.name, "streams": streams, "parameters": name, "rounds": rounds}
                rows.append({**about, **row_of(jobs, passes, rounds=rounds, streams=streams)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measures the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    asked = parser.parse_args()
    notes = (
        f"llama-cpp-python {version('llama-cpp-python')}, one thread, {NEW} new tokens after prompts of 16, sides "
        "interleaved, processor time, medians, on a very busy machine; tirage also detokenises"
    )
    save("gguf_gaps", measure(asked.file, rounds=asked.rounds, all_streams=asked.streams), notes=notes)


if __name__ == "__main__":
    main()
