"""Audits an honest server of ours many times, and one with each planted fault: benchmarks/results/audit.json.

    python scripts/audit_proof.py --honest 50 --faults --cost 5

Needs the tests beside it. `--url` names a running `tirage serve --model tiny`; without it one is started.
`--resume` leaves out the seeds and faults that the results hold already. `--cost` says what the audit's own arithmetic
(laws, choices of places, bets) costs beside the run, all in processor time, as wall time also has what else a machine
does: a run cannot end before the busier of its two processes has done its work, so the arithmetic is held against that
one alone. It needs a server that it has started, on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audit.json"
sys.path.insert(0, str(ROOT / "tests"))


def known(results: Path) -> dict[str, Any]:
    """The results written so far."""
    return json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}


def write(results: Path, found: dict[str, Any]) -> None:
    """Writes some results down, and leaves the others."""
    results.write_text(json.dumps({**known(results), **found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def one(url: str, seed: int, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """What an audit found, in short."""
    from tirage.audit import AuditLimits, audit

    began = time.process_time()
    report = audit(url, seed=seed, only=only, limits=AuditLimits(seconds=600))
    p_values = {each.name: each.p_value for each in report.findings if each.p_value is not None}
    return {
        "seed": seed,
        "not_obeyed": {each.name: each.detail for each in report.findings if each.verdict == "not obeyed"},
        "not_tested": {each.name: each.detail for each in report.findings if each.verdict == "not tested"},
        "least_p": min(p_values.values(), default=None),
        "requests": report.requests,
        "seconds": round(report.seconds, 1),
        "arithmetic_s": round(report.arithmetic_s, 2),
        "process_s": round(time.process_time() - began, 2),
    }


def honest(url: str, seeds: range, results: Path, *, resume: bool) -> None:
    """Audits of the server as it is."""
    found = known(results).get("honest", []) if resume else []
    done = {each["seed"] for each in found}
    for seed in (each for each in seeds if each not in done):
        found.append(one(url, seed))
        write(results, {"honest": found})
        print(seed, found[-1]["not_obeyed"] or "no alarm", found[-1]["seconds"], "s", flush=True)


def cost(url: str, pid: int, seeds: range, results: Path) -> None:
    """What audits of the server as it is cost: the arithmetic, the audit's process with it, and the server `pid`."""
    found = []
    for seed in seeds:
        before = processor_s(pid)
        audit = one(url, seed)
        spent = {name: audit[name] for name in ("seed", "requests", "arithmetic_s", "process_s")}
        spent["server_s"] = round(processor_s(pid) - before, 2)
        share = spent["arithmetic_s"] / max(spent["process_s"], spent["server_s"])
        found.append({**spent, "arithmetic_share": round(share, 4)})
        write(results, {"cost": found})
        print(found[-1], flush=True)


def processor_s(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def faulty(url: str, results: Path, *, quick: bool, resume: bool) -> None:
    """An audit of each faulty server: whether the right check, and no other of those that ran, found it."""
    from faulty_server import FAULTS, FaultyServer

    found = known(results).get("faults", {}) if resume else {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        if name in found and found[name]["all_checks"] is not quick:
            continue
        with FaultyServer(url, fault) as server:
            audit = one(server.url, 1000 + number, (fault.found,) if quick else ())
        named = set(audit["not_obeyed"]) == {fault.found}
        found[name] = {"expected": fault.found, "named_rightly": named, "all_checks": not quick, **audit}
        write(results, {"faults": found})
        print("ok " if named else "NOT", name, audit["not_obeyed"], audit["seconds"], "s", flush=True)


def main() -> None:
    """Runs what is asked for, and writes it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--honest", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--cost", type=int, default=0, help="what so many audits cost, in processor time")
    parser.add_argument("--quick", action="store_true", help="only the check that should find a fault, and its needs")
    parser.add_argument("--resume", action="store_true", help="go on where the results end")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--url")
    options = parser.parse_args()
    if options.cost and options.url:
        parser.error("--cost needs a server that it has started itself, so no --url")
    from servers import Server

    server = None if options.url else Server("tiny")
    url = options.url or server.url  # type: ignore[union-attr]
    try:
        if options.honest:
            seeds = range(options.first, options.first + options.honest)
            honest(url, seeds, options.results, resume=options.resume)
        if options.cost and server is not None:
            cost(url, server.pid, range(options.first, options.first + options.cost), options.results)
        if options.faults:
            faulty(url, options.results, quick=options.quick, resume=options.resume)
    finally:
        if server is not None:
            server.stop()


if __name__ == "__main__":
    main()
