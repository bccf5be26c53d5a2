"""Audits an honest server of ours many times, and one with each planted fault: benchmarks/results/audit.json.

    python scripts/audit_proof.py --honest 50 --faults

Needs the tests beside it. `--url` names a running `tirage serve --model tiny`; without it one is started.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audit.json"
sys.path.insert(0, str(ROOT / "tests"))


def write(found: dict[str, Any]) -> None:
    """Writes some results down, and leaves the others."""
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**old, **found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


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


def honest(url: str, count: int, first: int) -> list[dict[str, Any]]:
    """Audits of the server as it is."""
    found = []
    for seed in range(first, first + count):
        found.append(one(url, seed))
        write({"honest": found})
        print(seed, found[-1]["not_obeyed"] or "no alarm", found[-1]["seconds"], "s", flush=True)
    return found


def faulty(url: str, *, quick: bool) -> dict[str, Any]:
    """An audit of each faulty server: whether the right check, and no other of those that ran, found it."""
    from faulty_server import FAULTS, FaultyServer

    found = {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        with FaultyServer(url, fault) as server:
            audit = one(server.url, 1000 + number, (fault.found,) if quick else ())
        named = set(audit["not_obeyed"]) == {fault.found}
        found[name] = {"expected": fault.found, "named_rightly": named, "all_checks": not quick, **audit}
        write({"faults": found})
        print("ok " if named else "NOT", name, audit["not_obeyed"], audit["seconds"], "s", flush=True)
    return found


def main() -> None:
    """Runs what is asked for, and writes it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--honest", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only the check that should find a fault, and its needs")
    parser.add_argument("--url")
    options = parser.parse_args()
    from servers import Server

    server = None if options.url else Server("tiny")
    url = options.url or server.url  # type: ignore[union-attr]
    try:
        if options.honest:
            honest(url, options.honest, options.first)
        if options.faults:
            faulty(url, quick=options.quick)
    finally:
        if server is not None:
            server.stop()


if __name__ == "__main__":
    main()
