"""What a step of several texts of a GGUF model takes where their tokens lie between one another, and side by side.

    python -m benchmarks.gguf_cells FILE.gguf [--texts 8] [--lengths 80 320] [--steps 16]

libllama takes the next free cell of its cache for each token of a batch, so texts that grow together lie scattered;
tirage gathers them now and then (`models/gguf/context.py::Context.gather`). Two contexts hold the same texts, one of
them gathered, and take the same steps in turns; times are those of the thread, medians. Needs llama-cpp-python.
Results: `results/gguf_cells.json`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import save
from tirage.models.gguf.context import Context
from tirage.models.gguf.library import LoadedModel, load_library

CHUNK = 256


def scattered(loaded: LoadedModel, texts: int, length: int) -> Context:
    """A context with texts of that length, one token of each at a time, as if they had grown together."""
    context = Context(loaded, cells=max(4096, texts * (length + CHUNK)), threads=1, exact=False)
    count = texts * length
    tokens = np.random.default_rng(1).integers(3, loaded.library.llama_vocab_n_tokens(loaded.vocab), count)
    for start in range(0, count, CHUNK):
        at = np.arange(start, min(start + CHUNK, count))
        context.run(tokens[at].tolist(), at // texts, at % texts, wanted=at == at[-1])
    return context


def measure(loaded: LoadedModel, *, texts: int, length: int, steps: int) -> dict[str, Any]:
    """A row for texts of one length."""
    contexts = {name: scattered(loaded, texts, length) for name in ("scattered", "gathered")}
    sequences = list(range(texts))
    began = time.thread_time_ns()
    contexts["gathered"].gather(sequences)
    gathering = (time.thread_time_ns() - began) / 1e6
    times: dict[str, list[float]] = {name: [] for name in contexts}
    same = True
    for step in range(steps):
        ids, places, found = [500 + step + at for at in sequences], [length + step] * texts, dict[str, bytes]()
        for name, context in contexts.items():
            began = time.thread_time_ns()
            logits = context.step(ids, places, sequences)
            times[name].append((time.thread_time_ns() - began) / 1e6)
            found[name] = logits.tobytes()
        same &= found["scattered"] == found["gathered"]
    step_ms = {name: round(statistics.median(each), 2) for name, each in times.items()}
    return {
        "texts": texts,
        "length": length,
        "step_ms": step_ms,
        "scattered_to_gathered": round(step_ms["scattered"] / step_ms["gathered"], 3),
        "gathering_ms": round(gathering, 1),
        "same_logits": same,
    }


def main() -> None:
    """Measures the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--lengths", type=int, nargs="+", default=[80, 320])
    parser.add_argument("--steps", type=int, default=16)
    asked = parser.parse_args()
    loaded, rows = LoadedModel(load_library(), asked.file), list[dict[str, Any]]()
    for length in asked.lengths:
        row = measure(loaded, texts=asked.texts, length=length, steps=asked.steps)
        rows.append({"model": asked.file.name, **row})
        print(rows[-1], flush=True)
    notes = (
        f"llama-cpp-python {version('llama-cpp-python')}, one thread, float16 cache, contexts in turns, processor time "
        f"of the thread, medians of {asked.steps} steps, on a very busy machine; gathering is done once"
    )
    save("gguf_cells", rows, notes=notes)


if __name__ == "__main__":
    main()
