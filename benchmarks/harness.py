"""Interleaved timing in one process, logits to time on, and the file that results go to."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results"


def interleaved(
    jobs: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Median seconds of each job; every round runs each once, so drift of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def logits(shape: str, rows: int, vocab: int, *, seed: int = 20260) -> NDArray[np.float32]:
    """Synthetic logits [rows, vocab]: "peaked" (Zipf 1.7), "medium" (Zipf 1.1), "flat" (sigma 0.03).

    The kernels were tuned on other exponents and other seeds.
    """
    rng = np.random.default_rng(seed + vocab)
    noise = rng.standard_normal((rows, vocab), dtype=np.float32)
    if shape == "flat":
        return noise * np.float32(0.03)
    exponent = {"peaked": 1.7, "medium": 1.1}[shape]
    ranks = np.log(np.arange(1, vocab + 1)).astype(np.float32) * np.float32(exponent)
    order = np.argsort(rng.random((rows, vocab), dtype=np.float32), axis=1)
    return (np.float32(9) - ranks[order] + np.float32(0.7) * noise).astype(np.float32)


def machine() -> dict[str, Any]:
    """What the numbers were measured on, in words that say nothing private."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        **{name: _version(name) for name in ("numpy", "numba", "torch", "jax", "transformers")},
    }


def save(name: str, rows: list[dict[str, Any]], *, notes: str) -> None:
    """Write `results/<name>.json` and print each row as one JSON line."""
    RESULTS.mkdir(exist_ok=True)
    body = {"question": name, "notes": notes, "machine": machine(), "commit": commit(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The short name of the commit that is checked out, None outside of a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
