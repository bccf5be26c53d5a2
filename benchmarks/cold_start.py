"""How long until the first token? Import, first draw on an empty kernel cache, kernels ready, with and without cache.

python -m benchmarks.cold_start
"""

from __future__ import annotations

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
MEASURE = (
    "import time; t = time.perf_counter(); {body}; print(time.perf_counter() - t, flush=True); import os; os._exit(0)"
)


def main() -> None:
    with tempfile.TemporaryDirectory() as filled:
        seconds("import tirage; tirage.warmup()", filled)
        rows = [row(name, body, filled) for name, body in SCRIPTS.items()]
    rows += [row(name, body, None) for name, body in SCRIPTS.items()]
    save("cold_start", rows, notes="wall seconds inside a fresh process, median of 3; 1 for a cold compile")


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
