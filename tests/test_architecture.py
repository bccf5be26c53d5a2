"""docs/architecture.md: its layers are those of the layering test, and every file and name in it exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_layout import LAYERS, class_names, parsed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "tirage"

CODE = re.compile(r"`([\w./]+(?:\.\w+|/))(?:::([\w.]+))?`")
"""A path in backticks, `cli/`, `llm.py` or `llm.py::LLM.request`."""


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def path_of(name: str) -> Path:
    """The file or folder that a path means: below the package, or else in the repository."""
    return SOURCE / name if (SOURCE / name).exists() else ROOT / name


def names_of(path: Path) -> set[str]:
    """Functions, classes, `Class.method` and module-level names that a file defines."""
    found: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.AsyncFunctionDef)}
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def missing(page: str) -> list[str]:
    """Paths and names of a page that the repository does not have."""
    found = []
    for path, name in CODE.findall(page):
        if "/" not in path and not path.endswith((".py", ".md")):
            continue
        if not path_of(path).exists() or (name and name not in names_of(path_of(path))):
            found.append(f"{path}::{name}" if name else path)
    return found


def layers(page: str) -> list[frozenset[str]]:
    """The parts of each line of the picture, from the top."""
    picture = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert picture is not None
    return [frozenset(line.split("   ")[0].split()) for line in picture[1].splitlines()]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its own head."""
    section = text().split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_picture_is_the_layers_of_the_layering_test() -> None:
    assert layers(text()) == list(LAYERS)


def test_every_part_of_the_package_is_in_the_picture_and_exists() -> None:
    parts = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert frozenset().union(*LAYERS) == parts - {"__init__", "__main__"}


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md", ROOT / "README.md"], ids=lambda page: page.name)
def test_every_file_and_name_on_the_page_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_the_map_names_the_parts_of_the_way() -> None:
    assert len(CODE.findall(text())) > 60


def test_the_check_of_names_can_fail() -> None:
    page = "`llm.py::LLM.request` `llm.py::LLM.gone` `gone.py` `cli/` `nowhere/` `tests/paths.py` `docs/gone.md`"
    assert missing(page) == ["llm.py::LLM.gone", "gone.py", "nowhere/", "docs/gone.md"]
    assert layers("```text\nb c   what\na   why\n```") == [frozenset({"b", "c"}), frozenset({"a"})]


@pytest.mark.parametrize("heading", ["One row of logits: from `tirage.sample` to a token", "One streamed request"])
def test_each_step_of_a_walk_names_a_function(heading: str) -> None:
    steps = rows(heading)
    assert [int(step[0]) for step in steps] == list(range(1, len(steps) + 1))
    assert all("::" in step[1] and step[2] for step in steps)


@pytest.mark.slow
def test_the_glossary_speaks_of_classes_that_exist() -> None:
    known = {name for name, _ in class_names("src")}
    ours = [row[0].strip("`") for row in rows("Glossary")]
    assert [name for name in ours if name not in known] == []
    assert all(len(row) == 5 and row[1] for row in rows("Glossary"))
    assert len(ours) == len(set(ours)) > 20
