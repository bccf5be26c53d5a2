"""How long until the first token? Import, first draw on an empty kernel cache, kernels ready, with and without cache;
and what a step of a `Batch` like a JAX array takes to compile, by its filters.

python -m benchmarks.cold_start
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks.harness import save

SCRIPTS = {
    "import tirage": "import tirage",
    "import tirage, use SamplingParams and sample": "import tirage; tirage.SamplingParams; tirage.sample",
    "first draw, V = 128k": (
        "import numpy as np, tirage; x = np.random.default_rng(0).standard_normal(128256).astype(np.float32); "
        "tirage.sample(x, tirage.SamplingParams(temperature=0.8, top_p=0.95, seed=7))"
    ),
    "kernels ready": "import tirage; tirage.warmup()",
}
FILTERS: dict[str, dict[str, float]] = {
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.02},
    "typical_p": {"typical_p": 0.9},
    "epsilon": {"epsilon_cutoff": 3e-4},
    "eta": {"eta_cutoff": 3e-4},
    "top_n_sigma": {"top_n_sigma": 2.0},
    "xtc": {"xtc_threshold": 0.1, "xtc_probability": 0.5},
}
COMPILE = """
import json, sys, time
import jax, jax.numpy as jnp, tirage
filters = json.loads(sys.argv[1])
x = jnp.zeros((8, 128256))
batch = tirage.Batch(128256, 8, like=x)
for slot in range(8):
    batch.add(tirage.SamplingParams(temperature=0.8, seed=slot, **filters[slot % len(filters)]))
def step(batch, x):
    drawn = batch.sample(x)
    batch.advance(drawn)
    return batch, drawn
clocks = lambda: (time.perf_counter(), time.process_time())
start = clocks()
lowered = jax.jit(step).lower(batch, x)
middle = clocks()
lowered.compile()
print(json.dumps([start, middle, clocks()]))
"""
MEASURE = (
    "import time; t = time.perf_counter(); {body}; print(time.perf_counter() - t, flush=True); import os; os._exit(0)"
)


def main() -> None:
    with tempfile.TemporaryDirectory() as filled:
        seconds("import tirage; tirage.warmup()", filled)
        rows = [row(name, body, filled) for name, body in SCRIPTS.items()]
    rows += [row(name, body, None) for name, body in SCRIPTS.items()]
    rows += [compiled("all eight filters, one each", list(FILTERS.values()))]
    rows += [compiled(f"{name} alone", [given]) for name, given in FILTERS.items()]
    notes = "wall seconds inside a fresh process, median of 3; 1 for a cold compile, and for a step in jit"
    save("cold_start", rows, notes=notes)


def compiled(name: str, filters: list[dict[str, float]]) -> dict[str, object]:
    """One line of the result: a jitted step of eight slots that these filters take turns in, traced and compiled."""
    command = [sys.executable, "-c", COMPILE, json.dumps(filters)]
    clocks = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    parts = dict(zip(("lower", "compile"), itertools.pairwise(clocks), strict=True))
    found = {part: [after - before for before, after in zip(*ends, strict=True)] for part, ends in parts.items()}
    line: dict[str, object] = {"what": f"jit, 8 x 128k: {name}"}
    for part, (wall, cpu) in found.items():
        line |= {f"{part}_wall_s": round(wall, 2), f"{part}_cpu_s": round(cpu, 2)}
    return line


def row(name: str, body: str, filled: str | None) -> dict[str, object]:
    """One line of the result: with the `filled` kernel cache, or with an empty one each time."""
    runs = []
    for _ in range(1 if filled is None and "warmup" in body else 3):
        with tempfile.TemporaryDirectory() as empty:
            runs.append(seconds(body, filled or empty))
    return {"what": name, "kernel_cache": filled is not None, "seconds": round(statistics.median(runs), 3)}


def seconds(body: str, cache: str) -> float:
    """What one fresh process says that `body` took."""
    command = [sys.executable, "-c", MEASURE.format(body=body)]
    done = subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": cache}, capture_output=True, check=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
