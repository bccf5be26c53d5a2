"""docs/sampling_in_ten_minutes.ipynb: its cells print what is stored under them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "sampling_in_ten_minutes.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
TEXT = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")


def stored_text(cell: dict[str, Any]) -> str:
    """What a cell printed when its outputs were stored."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def stored_figures(cell: dict[str, Any]) -> int:
    return sum("image/png" in output.get("data", ()) for output in cell["outputs"])


@pytest.mark.slow
# matplotlib may warn while it looks for fonts on a new machine.
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_every_cell_prints_and_draws_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    shown: list[list[int]] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()) or plt.close("all"))
    namespace: dict[str, Any] = {}
    for cell in CODE:
        out = io.StringIO()
        shown.clear()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), namespace)
        assert out.getvalue() == stored_text(cell)
        assert sum(map(len, shown)) == stored_figures(cell)


def test_the_outputs_are_of_one_run_from_top_to_bottom() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    kinds = {output["output_type"] for cell in CODE for output in cell["outputs"]}
    assert kinds == {"stream", "display_data"}
    assert {output["name"] for cell in CODE for output in cell["outputs"] if "name" in output} == {"stdout"}


def test_every_page_that_the_notebook_links_to_exists() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", TEXT)
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link


def test_the_notebook_takes_ten_minutes() -> None:
    words = len(re.findall(r"\w+", TEXT))
    assert 600 < words < 1500  # read at 150 to 200 words a minute
    assert len(CODE) <= 15
