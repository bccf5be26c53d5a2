"""The repository itself: sizes, the direction of imports, and words that must not appear."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tirage
from tirage.compat import DOORS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tirage"
FOLDERS = ("src", "tests", "scripts", "benchmarks", "training", "docs", "examples", "deploy")
CACHES = {"__pycache__", ".hypothesis"}
TEXT = {".py", ".md", ".toml", ".json", ".jsonl", ".csv", ".css", ".html", ".txt", ".yml", ".yaml", ".cfg", ""}

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "cli",
        "cluster",
        "server audit",
        "remote",
        "compat conformance dialects",
        "llm",
        "explained_requests",
        "engine",
        "tracing",
        "guided models",
        "jax torch",
        "batch warm engine_replay integrations laws verification",
        "sample_hidden",
        "sampling",
        "backends",
        "sampling_batch",
        "compiled_params sampling_metadata",
        "params",
        "semantics",
        "operators differences",
        "watermarks",
        "text fields history",
        "exact processors patterns",
        "draw token_records workers",
        "errors providers recently_used",
    )
)
"""Which part may import which: only from lines below its own. Parts on one line know nothing of each other."""


KERNEL_FOLDERS = ("reports", "open_range", "sets", "histogram", "exact")
"""Folders of the Triton kernels, from the top: each imports from those behind it, and from none of their launches."""


def parsed(path: Path) -> ast.Module:
    # All files together have a million nodes: not to be kept, nor to be looked at by the garbage collector.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    for path in (*ROOT.glob("*"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))):
        is_cached = not CACHES.isdisjoint(path.parts)
        if path.is_file() and path.suffix in TEXT and not is_cached and not path.name.startswith("."):
            yield path


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


@dataclass(frozen=True, slots=True)
class Outline:
    """What most tests ask of a file: small enough to be kept, where its nodes are not."""

    functions: tuple[tuple[str, int], ...]
    """Names, and lines without the docstring."""
    classes: tuple[str, ...]
    imports: tuple[str, ...]


@cache
def outline(path: Path) -> Outline:
    tree = parsed(path)
    nodes = [*statements(tree)]
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return Outline(
        functions=tuple((node.name, length(node)) for node in functions),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        imports=tuple(imports(tree)),
    )


def lengths(folder: str) -> dict[str, int]:
    """Lines of each function in the files of a folder."""
    found = ((path, *function) for path in python_files(folder) for function in outline(path).functions)
    return {f"{path.relative_to(ROOT)}:{name}": lines for path, name, lines in found}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements inside a node, and those inside them; what is in expressions is left out."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, name, ()):
            yield each
            yield from statements(each)


# --- sizes -------------------------------------------------------------------------------------------------------


def test_no_file_reaches_600_lines() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("src", "tests", "scripts", "benchmarks", "training")
    }
    assert {name: size for name, size in sizes.items() if size >= 600} == {}
    assert len(sizes) > 50


def test_no_function_passes_60_lines_and_half_have_at_most_10() -> None:
    sizes = lengths("src")
    assert {name: size for name, size in sizes.items() if size > 60} == {}
    assert statistics.median(sizes.values()) <= 10
    assert {name: size for name, size in lengths("tests").items() if size > 60} == {}


def test_no_module_is_a_drawer_for_leftovers() -> None:
    drawers = {"util", "utils", "helpers", "common", "misc", "core", "base"}
    assert [str(p) for p in SOURCE.rglob("*") if p.stem in drawers] == []


# --- imports -----------------------------------------------------------------------------------------------------


OWN_NAME = re.compile(r"tirage(?:\.[A-Za-z_]\w*)+")


def part(module: str) -> str:
    """The part of tirage that a dotted module name belongs to; "" for the package itself."""
    return ".".join(module.split(".")[1:2])


def module_of(path: Path) -> str:
    names = ["tirage", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


@cache
def modules() -> frozenset[str]:
    return frozenset(map(module_of, python_files("src")))


def home(name: str) -> str:
    """The module that a dotted name stands for; a public name of the package stands for the module that defines it."""
    while name != "tirage" and name not in modules():
        name, _, last = name.rpartition(".")
        if name == "tirage":
            return public_home(last)
    return name


@cache
def public_home(name: str) -> str:
    value = None if name in {"tirage", "__version__"} else getattr(tirage, name)
    return "tirage" if value is None else getattr(value, "__module__", None) or value.__name__


def imports(tree: ast.Module) -> Iterator[str]:
    """Names that a file imports, at its top or inside functions, for running or for type checking."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def mentions(tree: ast.Module) -> Iterator[str]:
    """Names of ours that a file reaches without an import statement: `tirage.law`, `import_module("tirage.cli")`.

    Any text that is the name of a module counts, such as an entry of a table for `__getattr__`; of a text that is put
    together the part before the first value, `tirage.compat` of `f"tirage.compat.{name}"`.
    """
    texts = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in node.values}
    roots = {
        alias.asname or "tirage"
        for node in statements(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "tirage" or (alias.name.startswith("tirage.") and not alias.asname)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in roots:
            yield f"tirage.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.rstrip(".") if id(node) in texts and node.value.endswith(".") else node.value
            if name == "tirage" and name != node.value:
                yield "tirage.*"
            elif OWN_NAME.fullmatch(name) and name in modules():
                yield name


def reached(tree: ast.Module) -> Iterator[str]:
    """The modules of ours that a file reaches, in whatever way."""
    for name in (*imports(tree), *mentions(tree)):
        if name.split(".")[0] == "tirage":
            yield name if name.endswith("*") else home(name)


def upward(importer: str, imported: str) -> bool:
    """Whether an import points up or sideways; a part that is in no layer is a KeyError."""
    depth = {name: i for i, names in enumerate(LAYERS) for name in names}
    return importer != imported and depth[imported] <= depth[importer]


def wrong_imports(importer: str, tree: ast.Module) -> list[str]:
    """What a file in some part of tirage must not import: what lies above, and a module whose name is computed."""
    found = {name for name in reached(tree) if part(name)}
    return sorted(name for name in found if name == "tirage.*" or upward(importer, part(name)))


@pytest.mark.slow
def test_imports_point_downward() -> None:
    wrong = {
        module_of(path): found
        for path in python_files("src")
        if part(module_of(path)) not in {"", "__main__"}
        and (found := wrong_imports(part(module_of(path)), parsed(path)))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("importer", "text", "wrong"),
    [
        ("compiled_params", "from tirage import sampling", ["tirage.sampling"]),
        ("params", "from tirage import law", ["tirage.sampling"]),
        ("exact", "from tirage import SamplingParams", ["tirage.params.sampling"]),
        ("params", "import tirage.batch.host as h", ["tirage.batch.host"]),
        ("params", "import tirage\ntirage.sample(x)", ["tirage.sampling"]),
        ("params", "import tirage as t\nt.compat.easydel", ["tirage.compat"]),
        ("params", "import importlib\nimportlib.import_module('tirage.compat.easydel')", ["tirage.compat.easydel"]),
        ("params", "def f():\n    from tirage.backends import numpy", ["tirage.backends.numpy"]),
        ("params", "if TYPE_CHECKING:\n    from tirage.llm import LLM", ["tirage.llm"]),
        ("text", "_HOMES = {'LLM': 'tirage.llm'}\ndef __getattr__(name): ...", ["tirage.llm"]),
        ("text", "import_module(f'tirage.{name}')", ["tirage.*"]),
        ("text", "import_module(f'tirage.server.{name}')", ["tirage.server"]),
        ("guided", "import tirage.models.rope", ["tirage.models.rope"]),
        ("server", "from tirage import params\nfrom tirage.llm import LLM\nimport tirage\ntirage.__version__", []),
        ("cli", "log = 'tirage.nothing'\ntext = 'see tirage.cli'\nimport os.path", []),
    ],
)
def test_the_check_of_imports_can_fail(importer: str, text: str, wrong: list[str]) -> None:
    assert wrong_imports(importer, ast.parse(text)) == wrong


def test_the_folders_of_the_kernels_import_what_is_below_them() -> None:
    package = "tirage.backends.torch.kernels."
    wrong = []
    for path in python_files("src"):
        home, _, _ = module_of(path).removeprefix(package).partition(".")
        if module_of(path).startswith(package) and home in KERNEL_FOLDERS:
            below = {home, "layout", *KERNEL_FOLDERS[KERNEL_FOLDERS.index(home) :]}
            read = {name.removeprefix(package).split(".")[0] for name in imports(parsed(path)) if package in name}
            wrong += [f"{module_of(path)}: {name}" for name in sorted(read - below)]
    assert wrong == []
    assert {path.name for path in (SOURCE / "backends/torch/kernels").iterdir() if path.is_dir()} >= {*KERNEL_FOLDERS}


def circle(reads: Mapping[str, set[str]]) -> list[str]:
    """Modules that import one another, each the one before it, until the first comes again; empty without any."""
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def read_by(name: str, imported: Iterable[str]) -> set[str]:
    """The modules of ours, itself apart, that a module imports anywhere: at its top, in functions, for types."""
    return {home(found) for found in imported if found.split(".")[0] == "tirage"} - {name}


def test_no_modules_import_each_other() -> None:
    reads = {module_of(path): read_by(module_of(path), outline(path).imports) for path in python_files("src")}
    assert circle(reads) == []
    assert reads["tirage.params.sampling"] >= {"tirage.params.checks", "tirage.params.sampling_fields"}


@pytest.mark.parametrize(
    "back",
    [
        "from tirage.params.sampling import SamplingParams",
        "from tirage.params import sampling",
        "from tirage import SamplingParams",
        "def f():\n    import tirage.params.sampling",
        "if TYPE_CHECKING:\n    from tirage.params.sampling import SamplingParams",
    ],
)
def test_the_check_of_circles_can_fail(back: str) -> None:
    reads = {
        "tirage.params.sampling": {"tirage.params.checks"},
        "tirage.params.checks": read_by("tirage.params.checks", imports(ast.parse(back))),
    }
    found = circle(reads)
    assert found[0] == found[-1]
    assert set(found) == set(reads)


def test_the_executable_specification_reads_parameters_and_no_path_that_it_checks() -> None:
    files = python_files("tests/reference")
    read = {part(home(name)) for path in files for name in outline(path).imports if name.startswith("tirage")}
    assert len(files) > 3
    assert read <= {"params", "semantics", "processors"}
    assert not [name for name in modules() if name.startswith("tirage.exact.reference")], "it is no part of the wheel"


def class_names(*folders: str) -> Iterator[tuple[str, str]]:
    for path in python_files(*folders):
        yield from ((name, module_of(path)) for name in outline(path).classes)


def exported_by_doors() -> set[str]:
    """Names of other systems' classes, which the modules in `compat` export because their users know them."""
    doors = [importlib.import_module(f"tirage.compat.{name}") for name in DOORS]
    return {name for door in [*doors, importlib.import_module("tirage.compat.gemma.gm.text")] for name in door.__all__}


LOADED_BY_ENGINES = {"TirageLogitsProcessor"}
"""Names that users give to their engine, the same for each."""


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    known = {"compat": exported_by_doors(), "integrations": LOADED_BY_ENGINES}
    for name, module in class_names("src"):
        if name not in known.get(part(module), ()):
            homes.setdefault(name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_only_backends_know_an_array_library_by_name() -> None:
    libraries = {"torch", "jax", "numba"}
    users = {
        (module_of(path), name.split(".")[0])
        for path in python_files("src")
        for name in outline(path).imports
        if name.split(".")[0] in libraries
    }
    allowed = {"backends", "models", "compat", "integrations", "jax", "torch"}
    held = {"tirage.batch.jax", "tirage.batch.torch"}
    assert {user for user in users if part(user[0]) not in allowed and user[0] not in held} == set()


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
