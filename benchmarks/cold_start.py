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
    rows = []
    for name, body in SCRIPTS.items():
        for cached in (False, True):
            rows.append({"what": name, "kernel_cache": cached, "seconds": round(measure(body, cached), 3)})
    save("cold_start", rows, notes="wall seconds inside a fresh process, median of 3 (1 for a cold compile)")


def measure(body: str, cached: bool) -> float:
    """Median seconds of `body` in fresh processes whose kernel cache is filled beforehand, or empty each time."""
    runs = []
    for _ in range(1 if "warmup" in body and not cached else 3):
        with tempfile.TemporaryDirectory() as cache:
            if cached:
                seconds("import tirage; tirage.warmup()", cache)
            runs.append(seconds(body, cache))
    return statistics.median(runs)


def seconds(body: str, cache: str) -> float:
    """What one fresh process says that `body` took."""
    command = [sys.executable, "-c", MEASURE.format(body=body)]
    done = subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": cache}, capture_output=True, check=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
