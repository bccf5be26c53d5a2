"""Builds an environment for each engine that tirage draws in, runs its tests in the real engine, then its proof.

    python scripts/engines.py              every folder of tests/engines
    python scripts/engines.py vllm mlx     these
    python scripts/engines.py --build vllm only the environment

A folder `tests/engines/ENGINE` has `requirements.txt` with exact versions; it may have `no_deps.txt`, packages that are
installed without what they ask for, and `remove.txt`, packages that the others bring along and that do not work there.
The environment is `.engines/ENGINE`; this checkout is installed into it as users install it. Then `pytest` runs the
folder, and `proof.py` writes `benchmarks/results/engines/ENGINE.json`. Tests and proof find the modules of
`tests/engines` itself, such as `every_parameter`. One thread each, unless OMP_NUM_THREADS says otherwise.

The exit status is 1 where an engine failed; the others are run all the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ROOT / "tests" / "engines"
ENVIRONMENTS = ROOT / ".engines"
LISTS = ("requirements.txt", "no_deps.txt", "remove.txt")


def engines() -> list[str]:
    """The names of all folders that can be run."""
    return sorted(path.parent.name for path in FOLDERS.glob("*/requirements.txt"))


def build(engine: str) -> Path:
    """The Python of an engine's environment, made anew where its lists have changed, with this checkout as it is."""
    folder, place = FOLDERS / engine, ENVIRONMENTS / engine
    python, stamp = place / "bin" / "python", place / "lists"
    if not stamp.exists() or stamp.read_text() != _digest(folder):
        venv.create(place, with_pip=True, clear=True)
        _pip(python, "install", "-r", str(folder / "requirements.txt"), str(ROOT))
        if (folder / "no_deps.txt").exists():
            _pip(python, "install", "--no-deps", "-r", str(folder / "no_deps.txt"))
        if (folder / "remove.txt").exists():
            _pip(python, "uninstall", "--yes", "-r", str(folder / "remove.txt"))
        stamp.write_text(_digest(folder))
    _pip(python, "install", "--no-deps", "--force-reinstall", str(ROOT))
    return python


def run(engine: str, python: Path) -> None:
    """Runs an engine's tests, then its proof. Raises CalledProcessError where one fails."""
    folder = FOLDERS / engine
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "TIRAGE_ENGINES": engine, "PYTHONPATH": str(FOLDERS)}
    pytest = [python, "-m", "pytest", "-c", FOLDERS / "pytest.ini", "--confcutdir", FOLDERS, folder]
    subprocess.run(pytest, check=True, cwd=ROOT, env=environment)
    if (folder / "proof.py").exists():
        subprocess.run([python, folder / "proof.py"], check=True, cwd=ROOT, env=environment)


def main(arguments: Sequence[str]) -> int:
    """Builds and runs the named engines, all without names; 1 where one of them failed."""
    named = [each for each in arguments if each != "--build"] or engines()
    if unknown := set(named) - set(engines()):
        raise SystemExit(f"no such engine: {', '.join(sorted(unknown))}; there are {', '.join(engines())}")
    failed = []
    for engine in named:
        try:
            python = build(engine)
            if "--build" not in arguments:
                run(engine, python)
        except subprocess.CalledProcessError as error:
            failed.append(f"{engine}: {error}")
    print("\n".join(failed) or f"passed: {', '.join(named)}")
    return int(bool(failed))


def _digest(folder: Path) -> str:
    texts = [path.read_bytes() for name in LISTS if (path := folder / name).exists()]
    return hashlib.sha256(b"\0".join([*texts, (ROOT / "pyproject.toml").read_bytes()])).hexdigest()


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
