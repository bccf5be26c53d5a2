"""What do 1, 10 and 1,000 machines wait and cost? A simulation with stated assumptions and committed measurements.

A machine runs so many samples at once, each at its share of the machine's tokens per second. Requests arrive at random
and go to the less busy of two random machines, as Ray Serve sends them; a file's parts go to whoever is free.
`python -m benchmarks.scale` writes the results and the table in docs/scale.md.
"""

from __future__ import annotations

import heapq
import json
import statistics
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, save
from tirage.cluster.input_file import PART_LINES

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
MACHINES = (1, 10, 1000)
TOKENS_PER_S, SLOTS, VOCAB = 2500, 64, 128_256
"""Assumed of a machine: its tokens per second, the samples that it runs at once; and the vocabulary of the model."""
MEAN_TOKENS, SPREAD = 300, 0.8
"""Assumed of answers: lognormal lengths with this mean, and this standard deviation of the logarithm."""
SECONDS = 120.0
BEGIN, END = "<!-- scale -->\n", "<!-- /scale -->\n"


def lengths(count: int, seed: int) -> Any:
    """Random lengths of answers, in tokens."""
    return np.random.default_rng(seed).lognormal(np.log(MEAN_TOKENS) - SPREAD**2 / 2, SPREAD, count)


def waits(machines: int, load: float) -> list[float]:
    """Seconds that each request waits for a slot at this share of what the machines can do."""
    rng = np.random.default_rng(machines)
    count = int(load * machines * TOKENS_PER_S / MEAN_TOKENS * SECONDS * 2)
    arrivals = np.sort(rng.random(count) * SECONDS * 2)
    # A sample gets its share of the machine's tokens, also when others are few.
    busy_s = lengths(count, machines) / (TOKENS_PER_S / SLOTS)
    pairs = rng.integers(0, machines, (count, 2))
    free = [SLOTS] * machines
    queues: list[deque[int]] = [deque() for _ in range(machines)]
    ends: list[tuple[float, int]] = []
    waited = np.zeros(count)

    def finish(until: float) -> None:
        while ends and ends[0][0] <= until:
            now, machine = heapq.heappop(ends)
            if queues[machine]:
                at = queues[machine].popleft()
                waited[at] = now - arrivals[at]
                heapq.heappush(ends, (now + busy_s[at], machine))
            else:
                free[machine] += 1

    for at in range(count):
        finish(arrivals[at])
        machine = min(pairs[at].tolist(), key=lambda each: len(queues[each]) - free[each])
        if free[machine]:
            free[machine] -= 1
            heapq.heappush(ends, (arrivals[at] + busy_s[at], machine))
        else:
            queues[machine].append(at)
    finish(float("inf"))
    # Without the time in which the machines fill.
    return list(waited[arrivals > SECONDS])


def file_efficiency(machines: int, rows: int) -> float:
    """The share of the machines' time that a file of so many rows uses, in parts of `PART_LINES`."""
    parts = -(-rows // PART_LINES)
    seconds = [chunk.sum() / TOKENS_PER_S for chunk in np.array_split(lengths(rows, rows), parts)]
    free = [0.0] * machines
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return sum(seconds) / (machines * max(free))


def committed(name: str, **wanted: Any) -> dict[str, Any]:
    """The row of a committed result with these values."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def simulated() -> list[dict[str, Any]]:
    """A row for each number of machines."""
    draw_us = committed("one_pass", shape="medium", V=VOCAB, B=64, config="top_p")["us_per_row"]
    serve_us = committed("ray_serve", way="two replicas", streams=16)["more_than_one_server_us"]
    rows = []
    for machines in MACHINES:
        found = {load: waits(machines, load) for load in (0.7, 0.9)}
        tokens = machines * TOKENS_PER_S
        rows.append({
            "question": "scale",
            "machines": machines,
            "tokens_per_s": tokens,
            "draws_cores": round(tokens * draw_us / 1e6, 1),
            "draws_bytes_between_machines": 0,
            "logits_read_gb_per_s": round(tokens * VOCAB * 4 / 1e9, 1),
            "ray_serve_cores": round(tokens * serve_us / 1e6, 1),
            "wait_ms_p50_p99_at_70": percentiles(found[0.7]),
            "wait_ms_p50_p99_at_90": percentiles(found[0.9]),
            **{f"file_of_{count}": round(file_efficiency(machines, count), 2) for count in (100_000, 10_000_000)},
        })
    return rows


def percentiles(seconds: list[float]) -> list[int]:
    """The median and the 99th percentile, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return [round(cuts[49] * 1000), round(cuts[98] * 1000)]


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    head = [
        "machines", "tokens/s", "cores for draws", "bytes between machines for a draw", "cores for Ray's proxies",
        "wait at 70 % load, p50 / p99", "wait at 90 %", "a file of 100,000 rows", "of 10 million",
    ]  # fmt: skip
    lines = [head, ["---"] * len(head)]
    for row in rows:
        waited = [f"{p50:,} / {p99:,} ms" for p50, p99 in (row["wait_ms_p50_p99_at_70"], row["wait_ms_p50_p99_at_90"])]
        used = [f"{row[f'file_of_{count}']:.0%}" for count in (100_000, 10_000_000)]
        numbers = [f"{row['machines']:,}", f"{row['tokens_per_s']:,}", f"{row['draws_cores']:g}"]
        lines.append([
            *numbers,
            str(row["draws_bytes_between_machines"]),
            f"{row['ray_serve_cores']:g}",
            *waited,
            *used,
        ])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(text: str, rows: list[dict[str, Any]]) -> str:
    """The page with its table updated."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{table(rows)}{END}{rest.split(END)[1]}"


def main() -> None:
    rows = simulated()
    save("scale", rows, notes="simulated; draws and Ray Serve from one_pass.json and ray_serve.json")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
