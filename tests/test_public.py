"""The public surface: the names, their documentation, their signatures, and what importing them costs."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import metadata, resources
from typing import Any

import pytest

import tirage

NAMES = (
    "Batch",
    "BeamSearchParams",
    "Completion",
    "Delta",
    "Detection",
    "Draw",
    "EngineReplay",
    "Explanation",
    "GrammarError",
    "GuidedDecodingParams",
    "LLM",
    "ModelError",
    "ParamsError",
    "Prompt",
    "RequestOutputKind",
    "RowError",
    "SamplingParams",
    "SamplingType",
    "Semantics",
    "Status",
    "TirageError",
    "Verification",
    "Watermark",
    "detect",
    "explain",
    "law",
    "register_processor",
    "replay_engine",
    "sample",
    "seeds",
    "tokenizer_fingerprint",
    "verify",
    "warmup",
)
SLOW = ("concurrent.futures", "decimal", "difflib", "hashlib", "logging", "numpy.ma", "queue", "secrets")
HEAVY = (
    *SLOW,
    "jax",
    "jinja2",
    "numba",
    "numpy",
    "rich",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
)


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions and properties that a class of ours defines or inherits from us."""
    for name, member in inspect.getmembers(owner):
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        ours = getattr(function, "__module__", "") or ""
        if not name.startswith("_") and inspect.isfunction(function) and ours.startswith("tirage"):
            yield name, function


def loaded_after(code: str) -> list[str]:
    """Which heavy packages and slow modules a fresh interpreter holds after running `code`."""
    script = f"import json, sys\n{code}\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(run.stdout)


def test_the_public_names_are_these() -> None:
    assert tuple(tirage.__all__) == NAMES


def test_packages_can_be_called_by_their_own_name() -> None:
    script = (
        "import tirage; tirage.dialects.from_sglang({}); tirage.compat.sglang.CustomLogitProcessor; "
        "tirage.guided.supported(); tirage.compat.mindie.sample"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    with pytest.raises(AttributeError, match="nowhere"):
        _ = tirage.compat.nowhere


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(inspect.getsource(tirage))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [
        (alias.name, alias.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    ]
    assert sorted(imported) == [(name, name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_loads_is_documented_and_knows_its_name(name: str) -> None:
    value = getattr(tirage, name)
    assert value.__name__ == name
    assert value.__module__.startswith("tirage.")
    first = (value.__doc__ or "").split("\n")[0]
    assert first.endswith((".", ":"))
    assert not first.startswith(f"{name}(")


@pytest.mark.parametrize("name", [n for n in NAMES if n[0].isupper()])
def test_a_public_method_is_documented(name: str) -> None:
    owner = getattr(tirage, name)
    undocumented = [
        method for method, function in methods(owner) if not inspect.getdoc(getattr(owner, method, function))
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", NAMES)
def test_at_most_two_arguments_go_without_a_name(name: str) -> None:
    value = getattr(tirage, name)
    callables = list(methods(value)) if isinstance(value, type) else [(name, value)]
    if isinstance(value, type) and not issubclass(value, (Exception, Enum)):
        callables.append(("__init__", value.__init__))
    for called, function in callables:
        positional = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} and p.name not in {"self", "cls"}
        ]
        # Whose design names three.
        most = 3 if name == "verify" else 2
        assert len(positional) <= most, f"{name}.{called}{tuple(positional)}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as error:
        tirage.sampel  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert str(error.value) == "module 'tirage' has no attribute 'sampel'"


def test_dir_lists_every_public_name() -> None:
    assert set(NAMES) <= set(dir(tirage))


def test_star_import_gives_the_public_names() -> None:
    space: dict[str, Any] = {}
    exec("from tirage import *", space)
    assert sorted(name for name in space if name != "__builtins__") == sorted(NAMES)


def test_the_version_is_that_of_the_distribution() -> None:
    assert tirage.__version__ == metadata.version("tirage")


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("tirage").joinpath("py.typed").is_file()


def test_errors_are_one_tree_and_bad_requests_are_value_errors() -> None:
    names = ("ParamsError", "GrammarError", "ModelError", "RowError")
    bases = {name: getattr(tirage, name).__mro__[1:3] for name in names}
    assert bases == {
        "ParamsError": (tirage.TirageError, ValueError),
        "GrammarError": (tirage.TirageError, ValueError),
        "ModelError": (tirage.TirageError, Exception),
        "RowError": (tirage.TirageError, Exception),
    }


def test_importing_tirage_loads_nothing_heavy() -> None:
    assert loaded_after("import tirage") == []


def test_making_parameters_loads_no_more_than_numpy() -> None:
    code = "import tirage; tirage.SamplingParams(top_p=0.9); tirage.BeamSearchParams(beam_width=2, max_tokens=3)"
    assert set(loaded_after(code)) <= {"numpy"}


def test_drawing_loads_no_text_and_no_command_line() -> None:
    code = "import numpy, tirage\ntirage.sample(numpy.zeros((2, 9)), tirage.SamplingParams())"
    assert set(loaded_after(code)) <= {"numpy"}
