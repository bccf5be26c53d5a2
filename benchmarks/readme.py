"""The tables of speed in the README and in docs/speed.md, written from the committed results, lest they drift apart.

python -m benchmarks.readme
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "speed.md")
SHAPES = ("peaked", "medium", "flat")


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """A page with each `<!-- results: name -->` ... `<!-- end -->` holding what the results say now."""
    return re.sub(
        r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def one_pass() -> str:
    """Ratios to one pass over the rows, by shape of the logits."""
    configs = ("greedy", "min_p", "top_k", "top_k+top_p", "temperature", "top_p")
    cells = {
        (row["shape"], row["config"]): f"{row['ratio']:.1f}"
        for row in rows("one_pass")
        if row["V"] == 128256 and row["B"] == 64
    }
    return table("ratio to one `np.max` over the rows, V = 128256, B = 64", configs, cells)


def peers() -> str:
    """Times faster than Hugging Face's warpers, by shape of the logits."""
    configs = (
        "temperature",
        "top_p 0.95",
        "top_p 0.5",
        "top_k 50",
        "top_k 50 + top_p 0.95",
        "min_p 0.05",
        "typical_p 0.9",
        "eta 3e-4",
    )
    cells = {(row["shape"], row["config"]): f"{row['times_faster']:.0f}" for row in rows("peers")}
    return table("times faster than Hugging Face's warpers + multinomial, B = 8", configs, cells)


def operators() -> str:
    """The slowest operators, the threads, the compile, and the machine, in sentences."""
    slow = sorted((row for row in rows("operators") if row["B"] == 64), key=lambda row: -row["us_per_row"])[:5]
    floor = slow[0]["us_per_row"] / slow[0]["ratio_to_max"]
    named = ", ".join(f"{row['operator']} {row['us_per_row']:.0f}" for row in slow)
    gains = [row["times_faster"] for row in rows("threads")]
    cold = next(
        row["seconds"] for row in rows("cold_start") if row["what"] == "kernels ready" and not row["kernel_cache"]
    )
    slowest = (
        "Slowest operators at B = 64, V = 128256, with 4096 tokens of history (µs per row; one pass costs "
        f"{floor:.0f}): {named}. A single row (B = 1) pays a fixed cost per call besides: see `one_pass.json`. "
        f"Two threads are {min(gains):.1f}-{max(gains):.1f} times faster than one. Measured on {machine()}."
    )
    compiling = (
        f"The kernels compile once per machine, in the background (about {cold:.0f} s on one core of that machine), "
        "and are cached on disk; until they are ready the plain NumPy path answers, with the same tokens. "
        "`tirage.warmup()` waits for them."
    )
    return "\n\n".join(textwrap.fill(paragraph, 116) for paragraph in (slowest, compiling))


def libraries() -> str:
    """Times faster than other engines' samplers, per library of the logits: the least and the most."""
    heads = ("least", "most")
    lines = [line(("times faster, V = 128256", *heads)), line("---" for _ in range(len(heads) + 1))]
    for (peer, batch), ratios in _ratios().items():
        lines.append(line((f"{peer}, B = {batch}", f"{min(ratios):.1f}", f"{max(ratios):.1f}")))
    return "\n".join(lines)


def _ratios() -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows("torch_peers"):
        kind = "top-k" if "top_k" in row["config"] else "top-p"
        kind = "top-k + top-p" if "+" in row["config"] else kind
        found.setdefault((f"PyTorch: {kind}, {row['peer']}", row["B"]), []).append(row["times_faster"])
    for row in rows("jax_cpu"):
        found.setdefault((f"JAX, inside jit: {row['case']}, plain JAX", row["B"]), []).append(row["ratio"])
    return dict(sorted(found.items()))


TABLES: dict[str, Callable[[], str]] = {
    "one_pass": one_pass,
    "peers": peers,
    "libraries": libraries,
    "operators": operators,
}


def table(title: str, configs: Sequence[str], cells: dict[tuple[str, str], str]) -> str:
    """A Markdown table with a line for each shape."""
    head = [line((title, *configs)), line("---" for _ in range(len(configs) + 1))]
    return "\n".join(head + [line((shape, *(cells[shape, config] for config in configs))) for shape in SHAPES])


def line(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def rows(question: str) -> list[dict[str, Any]]:
    """The rows of a committed result."""
    return _result(question)["rows"]


def machine() -> str:
    """The processor that the results were measured on."""
    known = _result("one_pass")["machine"]
    return f"{known['cores']} cores of an {known['processor']}"


def _result(question: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{question}.json").read_text())


if __name__ == "__main__":
    main()
