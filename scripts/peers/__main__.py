"""Asks engines for the laws of thousands of rows, compares, and writes tests/peers/laws and docs/divergence.md.

    python -m scripts.peers                          every engine
    python -m scripts.peers mlx transformers         these
    python -m scripts.peers --page                   no engine: the page anew from tests/peers/laws
    python -m scripts.peers mlx --python PATH        an environment that is there already
    python -m scripts.peers mlx --with mlx-lm==0.33  another release: what has changed is printed, nothing is written

An engine's environment is `.engines/peer-ENGINE`, made from `tests/peers/requirements/ENGINE.txt`. The exit status is 1
where a row is wrong or an engine failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.peers.classify import classify
from scripts.peers.page import FOLDER, PAGE, Cell, Engine, page, read_engines
from scripts.peers.rows import Row, rows_of

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "peers"
ENVIRONMENTS = ROOT / ".engines"

ADAPTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mlx": ("mlx_lm_laws.py", ("mlx",)),
    "transformers": ("transformers_laws.py", ("hf", "hf-cb")),
    "vllm": ("vllm_laws.py", ("vllm-v1",)),
    "sglang": ("sglang_laws.py", ("sglang-pytorch",)),
    "llamacpp": ("llamacpp_laws.py", ("llamacpp",)),
    "gemma": ("gemma_laws.py", ("gemma-topk", "gemma-topp")),
    "tgi": ("tgi_laws.py", ("tgi",)),
    "written": (
        "written_laws.py",
        (
            *("fastdeploy-base", "fastdeploy-base_non_truncated", "fastdeploy-air", "fastdeploy-rejection"),
            *("mindie", "mindie-npu", "trtllm", "trtllm-legacy", "nanovllm", "flashinfer", "vllm-flashinfer"),
        ),
    ),
}
"""By engine: its adapter in tests/peers/adapters, and the presets that it is asked about."""

NEWER = {"gemma": "python3.12"}
"""Engines whose packages need a newer Python than tirage does."""


def build(engine: str, extra: str | None) -> Path:
    """The Python of an engine's environment, made anew where its list or the `extra` requirement has changed."""
    wanted = PEERS / "requirements" / f"{engine}.txt"
    place = ENVIRONMENTS / f"peer-{engine}"
    python, stamp = place / "bin" / "python", place / "list"
    text = wanted.read_text() + (extra or "")
    if not stamp.exists() or stamp.read_text() != text:
        subprocess.run([_interpreter(engine), "-m", "venv", "--clear", place], check=True)
        _pip(python, "-r", str(wanted))
        without = wanted.with_name(f"{engine}_no_deps.txt")
        if without.exists():
            _pip(python, "--no-deps", "-r", str(without))
        if extra:
            _pip(python, extra)
        stamp.write_text(text)
    return python


def _interpreter(engine: str) -> str:
    """The Python that an environment is made with; raises SystemExit where the engine needs one that is not there."""
    wanted = NEWER.get(engine)
    if wanted is None:
        return sys.executable
    found = shutil.which(wanted)
    if found is None:
        raise SystemExit(f"{engine} needs {wanted} on the PATH; install it, or name an environment with --python")
    return found


def _pip(python: Path, *arguments: str) -> None:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *arguments]
    subprocess.run(command, check=True)


def ask(engine: str, python: Path, rows: Sequence[Row]) -> Iterator[dict]:
    """What the adapter says: one line about itself, then one answer for each row, in order."""
    adapter = PEERS / "adapters" / ADAPTERS[engine][0]
    lines = "".join(json.dumps(row.to_dict()) + "\n" for row in rows)
    environment = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", **os.environ}
    found = subprocess.run(
        [python, adapter], input=lines, stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return (json.loads(line) for line in found.stdout.splitlines())


def compare(engine: str, python: Path, *, details: bool) -> Engine:
    """All presets of an engine against its answers."""
    rows = [row for preset in ADAPTERS[engine][1] for row in rows_of(preset)]
    about, *answers = ask(engine, python, rows)
    cells: dict[tuple[str, str], Cell] = {}
    for row, answer in zip(rows, answers, strict=True):
        assert answer["id"] == row.id, (answer["id"], row.id)
        cell = cells.setdefault((row.preset, row.operator), Cell(preset=row.preset, operator=row.operator))
        if "refused" in answer:
            cell.count("refused", row.id, answer["refused"])
            continue
        verdict = classify(row, answer["law"])
        cell.count(verdict.kind, row.id, verdict.rule)
        if details and verdict.kind in {"wrong", "documented"}:
            print(verdict.kind, row.id, row.params, f"{verdict.distance:.3g}", file=sys.stderr)
    return Engine(engine=engine, package=about["engine"], version=about["version"], cells=list(cells.values()))


def main(arguments: Sequence[str]) -> int:
    """Runs what the command line asks for; 1 where a row is wrong or an engine failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.peers")
    parser.add_argument("engines", nargs="*", choices=[*ADAPTERS, []], metavar="ENGINE")
    parser.add_argument("--python", type=Path, help="an environment that is there already, for one engine")
    parser.add_argument("--with", dest="extra", help="a requirement to install besides: another release of the engine")
    parser.add_argument("--page", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--details", action="store_true", help="print every row that is wrong or documented")
    given = parser.parse_args(arguments)
    failed = [] if given.page else [name for name in given.engines or ADAPTERS if not _run(name, given)]
    if not given.extra:
        PAGE.write_text(page(read_engines()))
    print(f"failed: {', '.join(failed)}" if failed else "nothing is wrong")
    return int(bool(failed))


def _run(name: str, given: argparse.Namespace) -> bool:
    """Whether an engine could be asked and no row was wrong."""
    try:
        python = given.python or build(name, given.extra)
        found = compare(name, python, details=given.details)
    except subprocess.CalledProcessError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    before = {engine.engine: engine for engine in read_engines()}.get(name)
    for line in found.changes(before):
        print(line)
    if not given.extra:
        (FOLDER / f"{name}.json").write_text(found.to_json())
    return not found.total("wrong")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
