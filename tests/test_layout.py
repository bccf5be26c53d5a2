"""The repository itself: sizes, the direction of imports, and words that must not appear."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tirage"
FOLDERS = ("src", "tests", "scripts", "benchmarks", "training", "docs", "examples")
TEXT = {".py", ".md", ".toml", ".json", ".jsonl", ".csv", ".css", ".html", ".txt", ".yml", ".yaml", ".cfg", ""}

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "cli",
        "server cluster",
        "compat dialects",
        "llm",
        "engine",
        "tracing",
        "guided models",
        "batch warm",
        "sampling",
        "sampling_batch",
        "backends",
        "stages",
        "compiled_params exact.reference",
        "params",
        "semantics",
        "operators",
        "text fields history",
        "exact processors patterns",
        "children draw",
        "cancel errors",
    )
)
"""Which part may import which: only from lines below its own. Parts on one line know nothing of each other."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    for path in (*ROOT.glob("*"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))):
        if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


# --- sizes -------------------------------------------------------------------------------------------------------


def test_no_file_reaches_600_lines() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("src", "tests", "scripts", "benchmarks", "training")
    }
    assert {name: size for name, size in sizes.items() if size >= 600} == {}
    assert len(sizes) > 50


def test_no_function_passes_60_lines_and_half_have_at_most_10() -> None:
    sizes = {f"{path.relative_to(ROOT)}:{f.name}": length(f) for path in python_files("src") for f in functions(path)}
    assert {name: size for name, size in sizes.items() if size > 60} == {}
    assert statistics.median(sizes.values()) <= 10
    tests = {f"{path.relative_to(ROOT)}:{f.name}": length(f) for path in python_files("tests") for f in functions(path)}
    assert {name: size for name, size in tests.items() if size > 60} == {}


def test_no_module_is_a_drawer_for_leftovers() -> None:
    drawers = {"util", "utils", "helpers", "common", "misc", "core", "base"}
    assert [str(p) for p in SOURCE.rglob("*") if p.stem in drawers] == []


# --- imports -----------------------------------------------------------------------------------------------------


def part(module: str) -> str:
    """The part of tirage that a dotted module name belongs to; "" for the package itself."""
    names = module.split(".")[1:]
    return ".".join(names[:2]) if names[:2] == ["exact", "reference"] else ".".join(names[:1])


def module_of(path: Path) -> str:
    names = ["tirage", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules that a file imports, at its top or inside functions, for running or for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(importer: str, imported: str) -> bool:
    """Whether an import points up or sideways; a part that is in no layer is a KeyError."""
    depth = {name: i for i, names in enumerate(LAYERS) for name in names}
    return importer != imported and depth[imported] <= depth[importer]


def test_imports_point_downward() -> None:
    wrong = []
    for path in python_files("src"):
        importer = part(module_of(path))
        if importer in {"", "__main__"}:
            continue
        for name in imports(parsed(path)):
            if name.startswith("tirage.") and upward(importer, part(name)):
                wrong.append(f"{module_of(path)} imports {name}")
    assert wrong == []


def test_the_check_of_imports_can_fail() -> None:
    assert upward("stages", "sampling")
    assert upward("guided", "models")
    assert not upward("llm", "engine")
    found = list(imports(ast.parse("def f():\n    from tirage.llm import LLM\n    import tirage.cli")))
    assert found == ["tirage.llm.LLM", "tirage.cli"]
    assert [part("tirage.exact.reference.row"), part("tirage.exact.keys"), part("tirage")] == [
        "exact.reference",
        "exact",
        "",
    ]


def test_nothing_that_runs_reads_the_executable_specification() -> None:
    readers = {
        part(module_of(path))
        for path in python_files("src")
        for name in imports(parsed(path))
        if name.startswith("tirage.exact.reference")
    }
    assert readers <= {"exact.reference"}


def test_only_backends_know_an_array_library_by_name() -> None:
    libraries = {"torch", "jax", "numba"}
    users = {
        (module_of(path), name.split(".")[0])
        for path in python_files("src")
        for name in imports(parsed(path))
        if name.split(".")[0] in libraries
    }
    allowed = {"backends", "models", "compat"}
    assert {user for user in users if part(user[0]) not in allowed and user[0] != "tirage.batch.jax"} == set()


# --- words -------------------------------------------------------------------------------------------------------

UNFINISHED = "|".join((r"\bTO[D]O\b", r"\bFIX[M]E\b", r"\bXX[X]\b", "NotImplemented[E]rror", "no co[v]er"))
UNSAFE = "|".join((
    r"\b(?:c?pickl[e]|dill|shelve|marshal)\b",
    r"(?<![\w.])(?:eva[l]|exe[c])\(",
    r"torch\.loa[d]\(",
    "trust_remote_code=Tru[e]",
))
MACHINE = r"(?<![\w.~)\]])/(?:tm[p]|roo[t]|hom[e]|wor[k]|mn[t]|User[s])\b"
PUT_OFF = r"pytest\.(?:ski[p]\(|xfai[l]\(|mark\.(?:ski[p]|xfai[l])\b(?!if))"
# One letter of each word stands in brackets, so that this file does not find itself.


def found(pattern: str, paths: list[Path]) -> list[str]:
    hits = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := re.search(pattern, line):
                hits.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    return hits


def test_nothing_in_the_source_is_unfinished() -> None:
    assert found(UNFINISHED, python_files("src", "scripts", "benchmarks", "training")) == []


def test_the_source_runs_and_unpacks_nothing_that_it_was_given() -> None:
    assert found(UNSAFE, python_files("src", "scripts", "benchmarks", "training")) == []


def test_no_test_is_put_off() -> None:
    assert found(PUT_OFF, python_files("tests")) == []


def test_no_path_of_some_machine_is_written_down() -> None:
    assert found(MACHINE, list(text_files())) == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (UNFINISHED, ["# TO", "DO: later"]),
        (UNFINISHED, ["raise NotImplemented", "Error"]),
        (UNSAFE, ["value = ev", "al(text)"]),
        (UNSAFE, ["import pick", "le"]),
        (PUT_OFF, ["@pytest.mark.sk", "ip"]),
        (MACHINE, ["open('/tm", "p/x')"]),
        (MACHINE, ["see /ro", "ot"]),
    ],
)
def test_the_search_for_words_can_fail(pattern: str, words: list[str]) -> None:
    assert re.search(pattern, "".join(words))


@pytest.mark.parametrize(
    ("pattern", "line"),
    [(UNSAFE, "model.eval()"), (UNSAFE, "retrieval(x)"), (MACHINE, "docs/root.md"), (PUT_OFF, "pytest.mark.skipif(")],
)
def test_the_search_for_words_passes_over_likenesses(pattern: str, line: str) -> None:
    assert re.search(pattern, line) is None
