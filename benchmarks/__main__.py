"""`make bench`: every question in turn, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

QUESTIONS = (
    "one_pass", "laws", "head", "threads", "operators", "peers", "torch_peers", "jax_cpu", "guided", "cold_start",
    "engine", "server", "admission", "schemas", "batch", "scale", "watermarks", "readme",
)  # fmt: skip


def main() -> None:
    for question in QUESTIONS:
        print(f"== {question}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{question}"], check=True)


if __name__ == "__main__":
    main()
