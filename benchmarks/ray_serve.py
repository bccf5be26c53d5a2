"""What do Ray Serve's proxies cost? Two replicas against one server, in processor time of all processes per token.

Both serve the bundled model to the same streams, in turn. Needs the extras `ray` and `serve`.
`python -m benchmarks.ray_serve [--tokens 100] [--rounds 5]`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.harness import save
from benchmarks.server import streams

WAYS: dict[str, tuple[str, ...]] = {
    "one server": (),
    "one replica": ("--ray", "--num-cpus", "0.1", "--replicas", "1"),
    "two replicas": ("--ray", "--num-cpus", "0.1", "--replicas", "2"),
}
STREAMS = (1, 16)
_START_S = 300
_REST_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Running:
    """`tirage serve` with some options, and the processor time of it and of all that it has started."""

    def __init__(self, *options: str) -> None:
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        command = [sys.executable, "-m", "tirage", "serve", "--port", "0", *options]
        self._process = subprocess.Popen(command, stderr=self._log)
        self.port = self._ready()

    def _ready(self) -> int:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            found = re.search(r"listening on http://[\d.]+:(\d+)", Path(self._log.name).read_text(errors="replace"))
            if found is not None and answers(int(found[1])):
                return int(found[1])
            time.sleep(0.2)
        raise RuntimeError(Path(self._log.name).read_text(errors="replace"))

    def seconds(self) -> float:
        """Processor seconds so far."""
        return sum(family(self._process.pid).values())

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(90)


def answers(port: int) -> bool:
    """Whether a server's model answers."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).status == 200
    except OSError:
        return False


def family(pid: int) -> dict[int, float]:
    """The processor seconds of a process and of its descendants that run."""
    parents, seconds = {}, {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(each.name)] = int(fields[1])
        seconds[int(each.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    found, new = {pid}, {pid}
    while new:
        new = {each for each, parent in parents.items() if parent in new} - found
        found |= new
    return {each: seconds[each] for each in found}


def load(server: Running, count: int, tokens: int) -> float:
    """Processor microseconds per token while so many streams are read."""
    before = server.seconds()
    asyncio.run(streams(server.port, "/generate", count=count, tokens=tokens))
    return (server.seconds() - before) / (count * tokens) * 1e6


def at_rest(server: Running) -> float:
    """The share of a processor that a server takes without requests."""
    before = server.seconds()
    time.sleep(_REST_S)
    return round((server.seconds() - before) / _REST_S, 3)


def measured(tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Each way under each load, in turn."""
    running = {way: Running(*options) for way, options in WAYS.items()}
    found: dict[tuple[str, int], list[float]] = {(way, count): [] for way in WAYS for count in STREAMS}
    try:
        for server in running.values():
            load(server, max(STREAMS), tokens)
        for _ in range(rounds):
            for way, server in running.items():
                for count in STREAMS:
                    found[way, count].append(load(server, count, tokens * (4 if count == 1 else 1)))
        rest = {way: at_rest(server) for way, server in running.items()}
    finally:
        for server in running.values():
            server.close()
    plain = {count: statistics.median(found["one server", count]) for count in STREAMS}
    return [
        {
            "question": "ray serve",
            "way": way,
            "streams": count,
            "cpu_us_per_token": round(statistics.median(times), 1),
            "more_than_one_server_us": round(statistics.median(times) - plain[count], 1),
            "spread_us": [round(min(times), 1), round(max(times), 1)],
            "share_of_a_processor_at_rest": rest[way],
        }
        for (way, count), times in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    notes = (
        "processor time of all processes of each way, medians of rounds in turn; one event for every token; Ray 2.60"
    )
    save("ray_serve", measured(given.tokens, given.rounds), notes=notes)


if __name__ == "__main__":
    main()
