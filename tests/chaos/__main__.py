"""Runs the cases of the chaos gate by name, or all: `python -m chaos [CASE ...]`, with `tests` on the import path.

Without options each case has its full length, which takes hours; `--scale 0.1` runs a tenth. What came of it is
printed, one JSON line for each row, and kept in `benchmarks/results/chaos.json`, where a case replaces what it said
before. The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from chaos import bad_requests, faults, fuzz_run, isolation, load, probe, soak
from chaos.maxima import ROUTES

from benchmarks.harness import machine

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
Row = dict[str, Any]


def neighbour(given: argparse.Namespace) -> Iterator[Row]:
    """One row that counts all cases of the probe, and one for each that failed."""
    counts = {"cases": 0, "refused": 0, "failed": 0}
    limits, minutes = probe.Limits(clock=given.clock), 60 * 12 * given.scale
    alone: Row = {}
    for row in probe.probed(routes=given.routes, minutes=minutes, limits=limits, copies=given.copies, seed=given.seed):
        print(json.dumps(row), file=sys.stderr, flush=True)
        alone = alone or row
        counts["refused" if row.get("refused") else "cases"] += 1
        if row["failures"]:
            counts["failed"] += 1
            yield {**row, "case": f"neighbour beside {row['case']}"}
    yield {**alone, "case": "neighbour", **counts, "routes": given.routes, "copies": given.copies, "failures": []}


def scaled(count: int, given: argparse.Namespace) -> int:
    """A number of the full length, scaled."""
    return max(1, round(count * given.scale))


CASES: Mapping[str, Callable[[argparse.Namespace], Iterable[Row]]] = {
    "neighbour": neighbour,
    "streams": lambda given: [load.streams(seconds=600 * given.scale)],
    "storm": lambda given: [load.storm(clock=given.clock)],
    "slow-clients": lambda given: load.slow_clients(),
    "kill": lambda given: [faults.killed(times=scaled(20, given))],
    "drain": lambda given: [faults.drained()],
    "full-disk": lambda given: [faults.full_disk()],
    "read-only-home": lambda given: [faults.read_only_home()],
    "few-descriptors": lambda given: [faults.few_descriptors()],
    "clock": lambda given: [faults.clock_jumps()],
    "soak": lambda given: [soak.soak(count=scaled(100_000, given))],
    "bad-requests": lambda given: [
        bad_requests.bad_requests(count=scaled(100_000, given), seed=given.seed, clock=given.clock)
    ],
    "isolation": lambda given: isolation.isolation(count=scaled(10_000, given), seed=given.seed),
    "fuzz": lambda given: fuzz_run.run(seconds=scaled(600, given), targets=tuple(given.targets)),
}
"""What each name runs, at a scale of 1 for as long as it is meant to."""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--scale", type=float, default=float(os.environ.get("TIRAGE_CHAOS_SCALE", "1")))
    clock = "judge by the wall clock, or on a busy machine by the server's processor time"
    parser.add_argument(
        "--clock", choices=("wall", "spent"), default=os.environ.get("TIRAGE_CHAOS_CLOCK", "wall"), help=clock
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routes", nargs="+", choices=ROUTES, default=list(ROUTES))
    parser.add_argument("--copies", type=int, default=1, help="how often the stranger sends its request at once")
    parser.add_argument("--targets", nargs="+", choices=tuple(fuzz_run.SEEDS), default=list(fuzz_run.SEEDS))
    given = parser.parse_args(arguments)
    if unknown := [case for case in given.cases if case not in CASES]:
        parser.error(f"CASE must be one of {', '.join(CASES)}, got {unknown[0]}")
    return given


def save(case: str, rows: Sequence[Row], given: argparse.Namespace) -> None:
    """Replaces the rows of a case in the file of results."""
    body: Row = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"cases": {}}
    body = {"question": "chaos", "machine": machine(), **body}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    run = {"date": today, "scale": given.scale, "clock": given.clock, "load": round(os.getloadavg()[0], 1)}
    body["cases"][case] = {**run, "failed": sum(bool(row["failures"]) for row in rows), "rows": list(rows)}
    RESULTS.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def rows_of(case: str, given: argparse.Namespace) -> Iterator[Row]:
    """The rows of a case; one that cannot be run to its end is a failure, and the next goes on."""
    try:
        yield from CASES[case](given)
    except (AssertionError, OSError, httpx.HTTPError) as error:
        yield {"case": case, "failures": [f"{type(error).__name__}: {error}"[:1000]]}


def main() -> int:
    given = options()
    failed = 0
    for case in given.cases or CASES:
        rows = []
        for row in rows_of(case, given):
            print(json.dumps(row), flush=True)
            rows.append(row)
        save(case, rows, given)
        failed += sum(bool(row["failures"]) for row in rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
