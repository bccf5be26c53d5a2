"""Puts the request functions of SGLang's and vLLM's own benchmark clients into a folder, where tests find them.

    python scripts/peer_clients.py FOLDER
    TIRAGE_TEST_PEERS=FOLDER python -m pytest tests/test_bench_clients.py

The packages are downloaded at the versions of tests/peers/versions.csv (40 and 340 MB) and not installed: of
`sglang.benchmark.serving` and `vllm.benchmarks.lib.endpoint_request_func` the folder gets the request functions and all
that they use, unchanged; what else the modules import stays out. A wheel that is here already may be named instead:
`sglang=WHEEL`, `vllm=WHEEL`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from peer_fields import downloaded, source_of, versions

NEEDS = ("aiohttp", "msgspec", "orjson", "regex", "requests", "tqdm")
"""What the functions themselves import, besides what development has."""

_COMMON = ("async_request_openai_completions", "async_request_openai_chat_completions")
CLIENTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "sglang": ("sglang/benchmark/serving.py", (*_COMMON, "async_request_sglang_generate")),
    "vllm": ("vllm/benchmarks/lib/endpoint_request_func.py", _COMMON),
}
HELPERS = {"sglang.benchmark.utils": "sglang/benchmark/utils.py"}
"""Modules of theirs that the functions import from, whose parts go into the same file."""


def bound(node: ast.stmt) -> Iterable[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Global):
        return node.names
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def used(node: ast.AST) -> set[str]:
    """The names that a statement mentions."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def part_of(source: str, names: Iterable[str]) -> tuple[str, dict[str, set[str]]]:
    """The statements of a module that these names need, as they stand; and the names to take from its HELPERS."""
    body = ast.parse(source).body
    wanted, kept = set(names), dict[int, ast.stmt]()
    while more := [n for n in body if id(n) not in kept and wanted & set(bound(n))]:
        for node in more:
            kept[id(node)] = node
            wanted |= set() if isinstance(node, (ast.Import, ast.ImportFrom)) else used(node)
    lines, helpers = [], dict[str, set[str]]()
    for node in (each for each in body if id(each) in kept):
        if isinstance(node, ast.ImportFrom) and node.module in HELPERS:
            helpers.setdefault(node.module, set()).update(wanted & set(bound(node)))
        else:
            lines.append(
                imported(node, wanted) if isinstance(node, (ast.Import, ast.ImportFrom)) else text(source, node)
            )
    return "\n\n".join(lines), helpers


def imported(node: ast.Import | ast.ImportFrom, wanted: set[str]) -> str:
    """An import statement with only those of its names that are wanted."""
    names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in wanted]
    kept = ast.ImportFrom(node.module, names, node.level) if isinstance(node, ast.ImportFrom) else ast.Import(names)
    return ast.unparse(kept)


def text(source: str, node: ast.stmt) -> str:
    """A statement as it is written, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def client_of(place: Path, path: str, names: Sequence[str]) -> str:
    """The module that a peer's request functions make, taken from its archive."""
    own, helpers = part_of(source_of(place, path), names)
    parts = [part_of(source_of(place, HELPERS[module]), found)[0] for module, found in helpers.items()]
    return "\n\n".join([*parts, own]) + "\n"


def main(arguments: Sequence[str]) -> None:
    folder, *given = arguments
    local = dict(each.split("=", 1) for each in given)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), *NEEDS]
    subprocess.run(pip, check=True)
    for peer, (path, names) in CLIENTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(local[peer]) if peer in local else downloaded(versions()[peer], Path(scratch))
            (place / f"bench_{peer}.py").write_text(client_of(archive, path, names), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
