"""Is anything slower than at an earlier commit? The same questions asked of both in turns, on one machine.

python -m benchmarks.before_after 64c7966 [operators engine:small ...] [--turns 3]

What follows a colon is the arguments of that benchmark.
Each commit is checked out beside this tree and both are asked by the benchmarks of the earlier one, as a job that only
one of them has would change the caches that its neighbours find; but for `MENDED` ones, which measured wrongly then. A
ratio is a figure after the change divided by the figure before it, of one turn; the median over the turns is reported,
and for durations `best`, the ratio of the shortest turn of each: what else the machine does can only lengthen a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, commit, save

QUESTIONS = (
    "one_pass",
    "operators",
    "laws",
    "peers",
    "torch_peers",
    "jax_cpu:--cases:temperature:top_p 0.95:min_p 0.05:--name:jax_cpu",
    "cold_start",
    "engine",
    "server",
    "guided",
)
"""What `make bench` asked at the first of the commits compared."""

MENDED = ("jax_cpu",)
"""Benchmarks that both are asked as they are now, with cases that the earlier commit has.

`jax_cpu` looked at the clock of the process after each call, when it lags behind XLA's threads by up to half a call."""

SIZES = ("B", "V", "streams", "logits_std")
"""Numbers that were given, not measured."""

DURATION = re.compile(r"(us|ms|seconds)(_per_row)?$")
"""Ends the names of figures that are durations."""

Figures = dict[tuple[str, str], float]
"""A figure by the names of its row, as JSON, and its column."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit before the change")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    rows, head = kept(options.base, options.questions), commit() or "HEAD"
    with tempfile.TemporaryDirectory() as folder:
        trees = [checkout(Path(folder) / "before", options.base), checkout(Path(folder) / "after", "HEAD")]
        git("-C", str(trees[1]), "checkout", "--quiet", options.base, "--", "benchmarks")
        for tree in trees:
            git("-C", str(tree), "checkout", "--quiet", head, "--", *(f"benchmarks/{name}.py" for name in MENDED))
        try:
            for question in options.questions:
                rows += compared(question, trees, options.turns)
                note = f"{options.turns} turns against {options.base}; ratio: after / before, median of the turns"
                save("before_after", rows, notes=f"{note}; best: of the shortest ones")
        finally:
            for tree in trees:
                git("worktree", "remove", "--force", str(tree))


def kept(base: str, questions: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of an earlier run against the same commit, for the questions that are not asked again."""
    file = RESULTS / "before_after.json"
    if not file.exists() or base not in (body := json.loads(file.read_text()))["notes"]:
        return []
    asked_again = {question.partition(":")[0] for question in questions if question.startswith(MENDED)}
    return [row for row in body["rows"] if row["question"] not in {*questions, *asked_again}]


def compared(question: str, trees: list[Path], turns: int) -> list[dict[str, Any]]:
    """A row per figure that both trees give; they are asked in turns, each first in every second one."""
    taken: list[list[Figures]] = []
    for turn in range(turns):
        found = {tree: asked(question, tree) for tree in trees[:: (-1) ** turn]}
        taken.append([found[tree] for tree in trees])
    both = [key for key in taken[0][0] if all(key in figures for turn in taken for figures in turn)]
    return [row for key in both if (row := _row(question, key, taken))]


def _row(question: str, key: tuple[str, str], taken: list[list[Figures]]) -> dict[str, Any] | None:
    pairs = [(before[key], after[key]) for before, after in taken]
    if not all(before > 0 and after > 0 for before, after in pairs):
        return None
    ratios = sorted(after / before for before, after in pairs)
    names, column = key
    shortest = [min(turn) for turn in zip(*pairs, strict=True)]
    best = {"best": round(shortest[1] / shortest[0], 3)} if DURATION.search(column) else {}
    return {
        **json.loads(names),
        "question": question,
        "figure": column,
        "before": statistics.median(before for before, _ in pairs),
        "after": statistics.median(after for _, after in pairs),
        "ratio": round(statistics.median(ratios), 3),
        **best,
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def asked(question: str, tree: Path) -> Figures:
    """The figures of one question, measured by a process of its own in a tree."""
    print(f"== {question} at {tree.name}", flush=True)
    # With bytecode, as an installation has it; a new checkout would be compiled at every import.
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": ""}
    name, *arguments = question.split(":")
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((tree / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]
    found = list(figures(rows))
    assert len(dict(found)) == len(found), f"two rows of {name} have one name"
    return dict(found)


def figures(rows: list[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], float]]:
    """Every measured number of the rows; what is a word or a size names the row."""
    for row in rows:
        named = {name for name, value in row.items() if isinstance(value, str | bool) or name in SIZES}
        names = {"what" if name == "question" else name: row[name] for name in named}
        for column in row.keys() - named - {"goal"}:
            yield (json.dumps(names, sort_keys=True), column), row[column]


def checkout(tree: Path, commit: str) -> Path:
    """A folder that holds a commit, beside the working tree."""
    git("worktree", "add", "--quiet", "--detach", str(tree), commit)
    return tree


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True)


if __name__ == "__main__":
    main()
