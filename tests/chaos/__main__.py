"""Runs the cases of the chaos gate by name, or all: `python -m chaos [CASE ...]`, with `tests` on the import path.

Without options each case has its full length, which takes hours; `--scale 0.1` runs a tenth. What came of it is
printed, one JSON line for each row, and kept in `benchmarks/results/chaos.json` with its date and commit, where a case
replaces what it said before; targets of `fuzz` and models of `isolation` that did not run keep their rows. The exit
status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from chaos import bad_requests, faults, fuzz_run, isolation, load, probe, soak
from chaos.maxima import ROUTES

from benchmarks.harness import commit, machine

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
Row = dict[str, Any]


def neighbour(given: argparse.Namespace) -> Iterator[Row]:
    """A row for each part of the probe, given anew every minute until it is `done`: counts, the worst, failures."""
    limits, over = probe.Limits(clock=given.clock), time.monotonic() + 60 * min(60 * 12 * given.scale, given.minutes)
    told, total = time.monotonic(), Row()
    before = [json.loads(line) for log in given.after for line in log.read_text().splitlines() if line[:1] == "{"]
    rows = probe.probed(
        routes=given.routes,
        limits=limits,
        together=not given.pairs_alone,
        copies=given.copies,
        seed=given.seed,
        before=before,
    )
    for part, row in rows:
        print(json.dumps({"commit": given.commit, **row}), file=sys.stderr, flush=True)
        name = f"neighbour: {part}"
        if total and total["case"] != name:
            yield {**total, "done": True}
            total = Row()
        total = counted(total or empty(name), row)
        if time.monotonic() > told + 60:
            told = time.monotonic()
            yield {**total, "done": False}
        if time.monotonic() > over:
            break
    else:
        total["done"] = True
    yield {"done": False, **total}


WORST = ("first_ms", "gap_ms", "first_spent_ms", "gap_spent_ms", "peak_mb", "rest_s")


def empty(name: str) -> Row:
    """The row of a part of which no case has run."""
    return {"case": name, "cases": 0, "refused": 0, "failed": 0, "seconds": 0.0, "failures": []}


def counted(total: Row, row: Row) -> Row:
    """The row of a part with one more of its cases."""
    count = "refused" if row.get("refused") else "cases"
    worst = {name: max(total.get(name, 0), row[name]) for name in WORST if name in row}
    kept = {name: row[name] for name in ("left", "refused_pairs") if name in row}
    failures = [f"{row['case']}: {failure}" for failure in row["failures"]]
    if row.get("earlier"):
        kept["earlier"] = total.get("earlier", 0) + 1
        kept["earlier_commits"] = sorted({*total.get("earlier_commits", []), row.get("commit", "unknown")})
    return {
        **total, count: total[count] + 1, **worst, **kept, "failed": total["failed"] + bool(failures),
        "seconds": round(total["seconds"] + row.get("seconds", 0.0), 2), "failures": [*total["failures"], *failures],
    }  # fmt: skip


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
    "soak": lambda given: [soak.soak(count=scaled(100_000, given), minutes=given.minutes)],
    "bad-requests": lambda given: [
        bad_requests.bad_requests(
            count=scaled(100_000, given), seed=given.seed, clock=given.clock, minutes=given.minutes
        )
    ],
    "isolation": lambda given: isolation.isolation(count=scaled(10_000, given), seed=given.seed, minutes=given.minutes),
    "fuzz": lambda given: fuzz_run.run(seconds=scaled(600, given), targets=tuple(given.targets), clock=given.clock),
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
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="soak, bad-requests, isolation and neighbour end after so many"
    )
    parser.add_argument("--routes", nargs="+", choices=ROUTES, default=list(ROUTES))
    parser.add_argument("--copies", type=int, default=1, help="how often the stranger sends its request at once")
    parser.add_argument(
        "--pairs-alone", action="store_true", help="neighbour: every two maxima in a request of their own"
    )
    parser.add_argument(
        "--after", type=Path, nargs="+", default=[], metavar="LOG",
        help="neighbour: what earlier runs printed on stderr; what passed there is counted and not asked for again",
    )  # fmt: skip
    parser.add_argument("--targets", nargs="+", choices=tuple(fuzz_run.SEEDS), default=list(fuzz_run.SEEDS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that rows are kept in")
    given = parser.parse_args(arguments)
    given.commit = commit()
    if unknown := [case for case in given.cases if case not in CASES]:
        parser.error(f"CASE must be one of {', '.join(CASES)}, got {unknown[0]}")
    return given


IN_PARTS = ("fuzz", "isolation", "neighbour")
"""Cases whose rows are runs of their own, a few of which may be run alone."""


def save(case: str, rows: Sequence[Row], given: argparse.Namespace) -> None:
    """Replaces the rows of a case in the file of results, of a case in parts only those of the parts that ran."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    run = {
        "date": today, "commit": given.commit, "scale": given.scale, "clock": given.clock,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    with locked(given.results.parent):
        body = read_results(given.results)
        kept = rows_of_others(body["cases"].get(case, {}), rows) if case in IN_PARTS else []
        found = sorted([*kept, *({**row, **run} for row in rows)], key=lambda row: order(case, row))
        body["cases"][case] = {**run, "failed": sum(bool(row["failures"]) for row in found), "rows": found}
        given.results.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def rows_of_others(saved: Row, rows: Sequence[Row]) -> list[Row]:
    """The saved rows of a case that are not among those given, each with what its run was."""
    ran = {row["case"] for row in rows}
    run = {name: value for name, value in saved.items() if name not in {"rows", "failed"}}
    return [{**run, **row} for row in saved.get("rows", []) if row["case"] not in ran]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for one process while the block lasts: cases may run beside each other."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def read_results(path: Path) -> Row:
    """What the file of results holds; no cases where there is none."""
    body: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": {}}
    return {"question": "chaos", "machine": machine(), **body}


def order(case: str, row: Row) -> int:
    """The place of a row among those of its case: targets as they are listed, others as they came."""
    names = [f"fuzz {name}" for name in fuzz_run.SEEDS]
    return names.index(row["case"]) if case == "fuzz" and row["case"] in names else 0


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
        rows = dict[str, Row]()
        for row in rows_of(case, given):
            print(json.dumps(row), flush=True)
            rows[row["case"]] = row
            if case in IN_PARTS:
                save(case, [row], given)
        if case not in IN_PARTS:
            save(case, [*rows.values()], given)
        failed += sum(bool(row["failures"]) for row in rows.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
