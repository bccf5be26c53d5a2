"""Asks engines for the laws of thousands of rows, compares, and writes tests/peers/laws and docs/divergence.md.

    python -m scripts.peers                          every engine
    python -m scripts.peers mlx transformers         these
    python -m scripts.peers --page                   no engine: the page anew from tests/peers/laws
    python -m scripts.peers mlx --python PATH        an environment that is there already
    python -m scripts.peers mlx --with mlx-lm==0.33  another release: what has changed is printed, nothing is written
    python -m scripts.peers mlx --again              no engine: its last answers are judged anew
    python -m scripts.peers --changes OLD NEW        no engine: what differs between two result files

An engine's environment is `.engines/peer-ENGINE`, made from `tests/peers/requirements/ENGINE.txt`, and its last answers
are in it. A package that is compiled there with CMake leaves out what `ENGINE.cmake` beside that list says. The exit
status is 1 where a row is wrong or an engine failed, and with --changes where something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.peers import masks
from scripts.peers.classify import classify
from scripts.peers.engines import ENGINES
from scripts.peers.page import FOLDER, PAGE, Cell, Engine, page, read_engine, read_engines
from scripts.peers.rows import Row, rows_of

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "peers"
ENVIRONMENTS = ROOT / ".engines"


def build(engine: str, extra: str | None) -> Path:
    """The Python of an engine's environment, made anew where its list or the `extra` requirement has changed."""
    wanted = PEERS / "requirements" / f"{engine}.txt"
    place = ENVIRONMENTS / f"peer-{engine}"
    python, stamp, settings = place / "bin" / "python", place / "list", wanted.with_suffix(".cmake")
    text = wanted.read_text() + (settings.read_text() if settings.exists() else "") + (extra or "")
    if not stamp.exists() or stamp.read_text() != text:
        subprocess.run([_interpreter(engine), "-m", "venv", "--clear", place], check=True)
        _pip(python, settings, "-r", str(wanted))
        without = wanted.with_name(f"{engine}_no_deps.txt")
        if without.exists():
            _pip(python, settings, "--no-deps", "-r", str(without))
        if extra:
            _pip(python, settings, extra)
        stamp.write_text(text)
    return python


def _interpreter(engine: str) -> str:
    """The Python that an environment is made with; FileNotFoundError where the engine needs one that is not there."""
    wanted = ENGINES[engine].python
    if wanted is None:
        return sys.executable
    for found in _all_on_path(wanted):
        # A version manager's shim may be on the PATH without the version that it stands for.
        if subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    raise FileNotFoundError(f"it needs {wanted} on the PATH; install it, or name an environment with --python")


def _all_on_path(command: str) -> Iterator[str]:
    for folder in os.get_exec_path():
        found = shutil.which(command, path=folder)
        if found is not None:
            yield found


def _pip(python: Path, settings: Path, *arguments: str) -> None:
    """Installs what the arguments say, compiled with the settings where there is such a file for CMake."""
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile", *arguments]
    environment = dict(os.environ)
    if settings.exists():
        # Not into pip's cache, where other environments would find a wheel of which parts are missing, nor from there.
        command.append("--no-cache-dir")
        environment["CMAKE_ARGS"] = f"-DCMAKE_PROJECT_INCLUDE={settings}"
    subprocess.run(command, check=True, env=environment)


def ask(engine: str, python: Path, questions: Iterable[Mapping[str, Any]]) -> str:
    """What the adapter says: one line about itself, then one answer for each question, in order."""
    adapter = PEERS / "adapters" / ENGINES[engine].adapter
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    environment = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", **os.environ}
    found = subprocess.run(
        [python, adapter], input=lines, stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return found.stdout


def questions_for(engine: str) -> Iterator[Mapping[str, Any]]:
    """What an engine is asked: the rows of its presets, or masks."""
    if ENGINES[engine].presets:
        yield from (row.to_dict() for row in rows_for(engine))
    else:
        yield from (question for question, _ in masks.questions())


def rows_for(engine: str) -> list[Row]:
    """The rows of all presets of an engine."""
    return [row for preset in ENGINES[engine].presets for row in rows_of(preset)]


def compare(engine: str, said: str, *, details: bool) -> Engine:
    """All presets, or masks, of an engine against what its adapter said."""
    about, *answers = (json.loads(line) for line in said.splitlines())
    cells: dict[tuple[str, str], Cell] = {}
    for preset, operator, name, kind, why in _judged(engine, answers):
        cells.setdefault((preset, operator), Cell(preset=preset, operator=operator)).count(kind, name, why)
        if details and kind in {"wrong", "documented"}:
            print(kind, name, why or "", file=sys.stderr)
    return Engine(engine=engine, package=about["engine"], version=about["version"], cells=list(cells.values()))


def _judged(engine: str, answers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str, str | None]]:
    """Preset, operator, id, class, and the rule or reason of each answer."""
    if not ENGINES[engine].presets:
        yield from ((engine, *judged) for judged in masks.judged(engine, answers))
        return
    for row, answer in zip(rows_for(engine), answers, strict=True):
        assert answer["id"] == row.id, (answer["id"], row.id)
        if "refused" in answer:
            yield row.preset, row.operator, row.id, "refused", answer["refused"]
        else:
            verdict = classify(row, answer["law"])
            yield row.preset, row.operator, row.id, verdict.kind, verdict.rule


def main(arguments: Sequence[str]) -> int:
    """Runs what the command line asks for; 1 where a row is wrong or an engine failed."""
    given = _parser().parse_args(arguments)
    if given.changes:
        return _print_changes(*given.changes)
    failed = [] if given.page else [name for name in given.engines or ENGINES if not _run(name, given)]
    if not given.extra:
        PAGE.write_text(page(read_engines()))
    print(f"failed: {', '.join(failed)}" if failed else "nothing is wrong")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.peers")
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, []], metavar="ENGINE")
    parser.add_argument("--python", type=Path, help="an environment that is there already, for one engine")
    parser.add_argument("--with", dest="extra", help="a requirement to install besides: another release of the engine")
    parser.add_argument("--again", action="store_true", help="judge the last answers anew, without the engine")
    parser.add_argument("--page", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--changes", nargs=2, type=Path, metavar=("OLD", "NEW"), help="compare two result files")
    parser.add_argument("--details", action="store_true", help="print every row that is wrong or documented")
    return parser


def _print_changes(old: Path, new: Path) -> int:
    lines = read_engine(new).changes(read_engine(old))
    print("\n".join(lines) or "nothing has changed")
    return int(bool(lines))


def _said(name: str, given: argparse.Namespace) -> str:
    """An engine's answers, kept in its environment; the last ones with --again."""
    kept = ENVIRONMENTS / f"peer-{name}" / "answers.jsonl"
    if given.again:
        return kept.read_text()
    print(f"{name}: its environment, {ENVIRONMENTS.name}/peer-{name}", file=sys.stderr)
    python, asked = given.python or build(name, given.extra), list(questions_for(name))
    print(f"{name}: {len(asked)} questions", file=sys.stderr)
    said = ask(name, python, asked)
    if not given.python:
        kept.write_text(said)
    return said


def _run(name: str, given: argparse.Namespace) -> bool:
    """Whether an engine could be asked and no row was wrong."""
    try:
        found = compare(name, _said(name, given), details=given.details)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
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
