"""What the README shows is what happens: every Python block runs, and prints what the block after it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from benchmarks import readme
from tirage.semantics import PRESETS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if "```python" in page.read_text() and page.parent.name != "engines"]
"""The pages on engines are run in the engines' own environments, by the tests there."""


LONG = ("LLM(", "import jax", "import torch")
"""What takes a program more than a moment: a model, or a library that compiles."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=p.name, marks=[pytest.mark.slow] * any(long in p.read_text() for long in LONG))
        for p in WITH_CODE
    ],
)
def test_every_python_block_runs_and_prints_what_the_page_says(page: Path) -> None:
    namespace: dict[str, object] = {}
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for code, printed in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, page.name, "exec"), namespace)
        if printed:
            assert out.getvalue() == printed


def test_the_readme_opens_with_the_two_commands() -> None:
    opening = (ROOT / "README.md").read_text().splitlines()[:6]
    assert any(line.startswith("make demo") for line in opening)
    assert any(line.startswith("make test") for line in opening)


def test_every_page_that_a_page_links_to_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_test_that_a_page_cites_exists() -> None:
    cited = [path for page in PAGES for path in re.findall(r"`(tests/\w+\.py)`", page.read_text())]
    assert [path for path in cited if not (ROOT / path).exists()] == []
    assert len(cited) > 20


def test_the_readme_names_every_preset() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in PRESETS if f"`{name}`" not in text] == []


def test_the_pages_quote_the_committed_results() -> None:
    texts = [page.read_text() for page in readme.PAGES]
    assert [readme.filled(text) for text in texts] == texts
    assert set(re.findall(r"<!-- results: (\w+) -->", "".join(texts))) == set(readme.TABLES)
