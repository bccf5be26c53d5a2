"""The plots of docs/parameters.md and the picture of the first page, drawn from real laws and texts.

python -m scripts.parameter_plots
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scripts import law_plots, text_plots

DOCS = Path(__file__).parents[1] / "docs"


def figures() -> Iterator[tuple[Path, str]]:
    """Each file and what belongs into it."""
    yield DOCS / "pictures" / "stages.svg", law_plots.drawn_stages()
    yield plot("logprobs_mode"), law_plots.drawn_modes("logprobs_mode")
    for name, law_plot in law_plots.laws().items():
        yield plot(name), law_plots.drawn(name, law_plot())
    for name, text_plot in text_plots.plots().items():
        yield plot(name), text_plots.drawn(name, text_plot())


def plot(name: str) -> Path:
    """Where a plot lies."""
    return DOCS / "plots" / f"{name}.svg"


def main() -> None:
    """Writes every figure."""
    for path, text in figures():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
