"""Triton's oldest release that comes with a PyTorch we allow has all that the kernels are written with."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from platforms import needs_triton

import tirage.backends.torch

pytestmark = needs_triton

OF_OLDEST = {
    "triton": frozenset({"jit"}),
    "tl": frozenset({
        *("abs", "arange", "atomic_add", "atomic_max", "atomic_min", "cdiv", "constexpr", "cumsum"),
        *("debug_barrier", "div_rn", "expand_dims", "full", "gather", "histogram", "load", "max", "maximum"),
        *(
            "min",
            "minimum",
            "philox",
            "program_id",
            "reshape",
            "sqrt_rn",
            "static_range",
            "store",
            "sum",
            "umulhi",
            "where",
        ),
        *("float32", "float64", "int1", "int8", "int32", "int64", "uint8", "uint32", "uint64"),
    }),
}
"""Names that the kernels use. Triton 3.4, which PyTorch 2.8 brings, has all of them; add one only if it does."""
KERNELS = (
    *("measure", "weigh", "bound", "split", "split_first", "resolve", "resolve LEVELED", "general", "log_masses"),
    *("measure_slots", "edit", "append", "view_ends", "view_weigh"),
)


def names_used() -> set[tuple[str, str]]:
    """The module and the name of all that the kernels use of Triton."""
    found = set()
    for path in (Path(tirage.backends.torch.__file__).parent / "kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OF_OLDEST:
                found.add((node.value.id, node.attr))
    return found


def test_the_kernels_use_nothing_that_the_oldest_triton_lacks() -> None:
    used = names_used()
    assert ("tl", "histogram") in used
    assert {(module, name) for module, name in used if name not in OF_OLDEST[module]} == set()


def test_the_names_are_those_of_the_installed_triton() -> None:
    import triton
    import triton.language as tl

    assert all(hasattr(triton, name) for name in OF_OLDEST["triton"])
    assert all(hasattr(tl, name) for name in OF_OLDEST["tl"])


@pytest.mark.slow
@pytest.mark.skipif("TIRAGE_OLDEST" not in os.environ, reason="test_triton_counts.py compiles with the newest Triton")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_with_the_oldest_triton(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from ptx import as_launched

    assert ".visible .entry" in as_launched(name, 90)
