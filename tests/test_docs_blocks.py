"""No block of code on a page escapes: what test_docs.py does not run is run here, or by the test that is named here."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import servers
import typer
from test_docs import PAGES, ROOT

from tirage.cli import app

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = {"", "sh", "bash"}

ELSEWHERE = {
    ("docs/audit.md", "py"): "tests/test_audit.py",
    ("docs/explain.md", "pycon"): "tests/test_explain.py",
    ("docs/mindie.md", "pycon"): "tests/test_mindie.py",
    ("docs/fastdeploy.md", "py"): "tests/test_fastdeploy.py",
    ("docs/gallery.md", "py"): "tests/test_examples.py",
    ("docs/coming_from/huggingface.md", "py"): "tests/engines/transformers/test_transformers_page.py",
    ("docs/coming_from/mlx.md", "py"): "tests/engines/mlx/test_mlx_page.py",
    ("docs/coming_from/vllm.md", "py"): "tests/engines/vllm/test_page.py",
    ("docs/batch.md", "json"): "tests/test_batch_files.py",
    ("docs/vectors.md", "json"): "tests/test_conformance.py",
    ("docs/operating.md", "yaml"): "tests/test_deploy.py",
    ("docs/watermarks.md", "json"): "tests/test_watermark_served.py",
    ("docs/pytorch.md", "py"): "tests/test_batch_torch.py",
}
"""What other tests run: the page and the language of its blocks, and the test."""

WITH_RAY = {"docs/batch.md", "docs/scale.md"}
"""Pages whose `py` blocks need Ray: that their calls fit is checked here, what they do in tests/engines/ray."""

WITH_SERVER = {
    "docs/messages.md": "http://127.0.0.1:30000",
    "docs/openai.md": "http://127.0.0.1:30000",
    "docs/remote.md": "http://localhost:8000",
    "docs/responses.md": "http://127.0.0.1:30000",
}
"""Pages whose `py` blocks ask a server, by its address."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """The page and the text of every block in one of some languages."""
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language in languages:
                yield name_of(page), text


def commands() -> list[str]:
    """Every command line of `tirage` on the pages."""
    lines = (line for _, text in blocks(*SHELL) for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line.startswith("tirage ")]


def test_every_block_has_a_language_that_something_runs() -> None:
    found = {(name_of(page), kind) for page in PAGES for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}
    run_here = SHELL | {"python", "text", "pycon"}
    kept = {(page, "py") for page in (*WITH_RAY, *WITH_SERVER)}
    assert {each for each in found if each[1] not in run_here} - kept == {
        each for each in ELSEWHERE if each[1] != "pycon"
    }


@pytest.mark.parametrize(("page", "language"), ELSEWHERE)
def test_the_test_that_runs_a_page_names_it(page: str, language: str) -> None:
    text = (ROOT / ELSEWHERE[page, language]).read_text(encoding="utf-8")
    assert Path(page).name in text or Path(page).stem in text


@pytest.mark.parametrize("page", sorted({page for page, _ in blocks("pycon")} - {page for page, _ in ELSEWHERE}))
def test_a_session_prints_what_the_page_says(page: str) -> None:
    failed, tried = doctest.testfile(str(ROOT / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("line", commands())
def test_every_command_of_a_page_is_one(line: str) -> None:
    words = [*takewhile(lambda word: word not in {">", "|", "&"}, shlex.split(line, comments=True))][1:]
    command = command_line()
    with command.make_context("tirage", words) as context:
        name, sub, rest = command.resolve_command(context, words)  # type: ignore[attr-defined]
        sub.make_context(name, rest, parent=context).close()


def test_a_command_with_a_wrong_option_is_none() -> None:
    with pytest.raises(Exception, match="No such option"):
        test_every_command_of_a_page_is_one("tirage generate hello --tempreature 1")


@pytest.mark.parametrize(("page", "text"), [each for each in blocks("py") if each[0] in WITH_RAY])
def test_calls_that_need_ray_fit_their_functions(page: str, text: str) -> None:
    assert fitting_calls(text)


def fitting_calls(text: str) -> list[str]:
    """The names of tirage that a program imports and calls; TypeError where the arguments of a call do not fit."""
    tree = ast.parse(text)
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tirage"):
            known |= {each.name: getattr(import_module(node.module or ""), each.name) for each in node.names}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in known]
    for call in calls:
        given = {each.arg: None for each in call.keywords if each.arg}
        inspect.signature(known[ast.unparse(call.func)]).bind(*call.args, **given)
    return [ast.unparse(call.func) for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({page for page, _ in blocks("py")} & WITH_SERVER.keys()))
def test_programs_that_ask_a_server_get_an_answer(page: str) -> None:
    address = servers.shared().url
    if page == "docs/messages.md":
        pytest.importorskip("anthropic", reason="needs Anthropic's package; the dependency group test has it")
    namespace: dict[str, Any] = {}
    out = io.StringIO()
    for found, text in blocks("py"):
        if found == page:
            with contextlib.redirect_stdout(out):
                exec(compile(text.replace(WITH_SERVER[page], address), page, "exec"), namespace)
    # A connection that is left open would warn when it is collected, in whichever test runs then.
    for client in namespace.values():
        if callable(close := getattr(client, "close", None)) and not isinstance(client, type):
            close()
    assert len(out.getvalue()) > 10
