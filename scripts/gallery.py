"""docs/gallery.md from the files in examples/: `python scripts/gallery.py` runs them and writes the page anew.

The title and the text of an entry are the docstring of its file. What is printed under it is what it printed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "gallery.md"

GROUPS: dict[str, tuple[str, ...]] = {
    "Tokens from logits": (
        "numpy_loop",
        "torch_loop",
        "jax_scan",
        "mixed_batch",
        "shards",
        "own_semantics",
        "custom_processor",
        "constrained_loop",
        "from_the_spec",
    ),
    "Text": (
        "chat",
        "several_seeds",
        "stream_text",
        "bad_words",
        "beams",
        "prompt_logprobs",
        "alone_or_in_batch",
        "gguf_model",
        "batch_file",
    ),
    "Text that keeps to a form": ("json_from_pydantic", "regex_and_choice"),
    "Why this token": ("explain_a_token", "compare_engines"),
    "Clients of `tirage serve`": ("openai_stream", "openai_tool_call", "sglang_client", "replay"),
}
"""Every example by the part of the page where it stands."""

SERVED = GROUPS["Clients of `tirage serve`"]
"""Examples that talk to a server, whose address is in TIRAGE_URL."""

WITH_FILES = ("gguf_model", "from_the_spec")
"""Examples that take the path of a file or read their input, so the page shows no output."""

LINES = {"from_the_spec": 86}
"""The lines that an example may have, where 40 cannot hold its idea."""

NEEDS = {"shards": {"torch"}, "gguf_model": {"llama_cpp"}}
"""Packages that an example needs without importing them itself."""

_INTRO = """\
# Gallery

Small programs, each with one idea. They are the files in `examples/`, and `python examples/NAME.py` runs one; what
stands below each is what it printed. This page is written from them by `python scripts/gallery.py`.
"""

_ENTRY = re.compile(r"^\[`examples/(\w+)\.py`\].*?^```\n\n(?:^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A file of examples/: its title, its text, its code, and the packages that it needs besides tirage's own."""

    name: str
    title: str
    text: str
    code: str
    packages: tuple[str, ...]


def read(name: str) -> Example:
    """The example of that name; ValueError where its docstring is not a title and a text."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, text = (ast.get_docstring(tree) or "").partition("\n\n")
    if not text or "\n" in title:
        raise ValueError(f"examples/{name}.py must begin with a docstring of a title, an empty line and a text")
    code = "".join(source.splitlines(keepends=True)[tree.body[0].end_lineno :]).lstrip("\n")
    return Example(name, title, text, code, tuple(sorted(imported(tree) | NEEDS.get(name, set()))))


def imported(tree: ast.Module) -> set[str]:
    """The packages that a program imports, those that tirage always has left out."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names} - {"tirage", "numpy"} - sys.stdlib_module_names


def page(outputs: Mapping[str, str]) -> str:
    """The whole page, given what each example prints."""
    parts = [_INTRO]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [entry(read(name), outputs.get(name, "")) for name in names]
    return "\n".join(parts)


def entry(example: Example, output: str) -> str:
    """The part of the page about one example."""
    needs = "".join(f" · needs `{package}`" for package in example.packages)
    link = f"[`examples/{example.name}.py`](../examples/{example.name}.py){needs}"
    printed = f"\n```text\n{output}```\n" if output else ""
    return f"### {example.title}\n\n{example.text}\n\n{link}\n\n```py\n{example.code}```\n{printed}"


def outputs_on(text: str) -> dict[str, str]:
    """What the page says that each example prints."""
    return {name: output for name, output in _ENTRY.findall(text + "\n") if output}


def run(name: str, url: str) -> str:
    """What an example prints in a process of its own."""
    environ = {**os.environ, "TIRAGE_URL": url, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    return subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Runs the examples, those named or all, and writes the page."""
    sys.path.insert(0, str(ROOT / "tests"))
    from servers import Server

    names = sys.argv[1:] or [name for names in GROUPS.values() for name in names if name not in WITH_FILES]
    outputs = outputs_on(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    with Server("tiny") as server:
        for name in names:
            outputs[name] = run(name, server.url)
    PAGE.write_text(page(outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
