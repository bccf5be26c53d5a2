"""The dependencies are ranges, and their oldest releases are those that `make test-oldest` runs the tests with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTED = ("torch", "jax", "serve", "xgrammar")
"""The extras whose oldest releases run in one environment; an engine's own extra is tested with the engine."""
RAISED = {"tokenizers", "safetensors"}
"""What the oldest transformers asks for in newer releases than the core does."""


def ranges(*extras: str) -> list[Requirement]:
    """The direct dependencies, with those of some extras."""
    extra = [line for name in extras for line in PROJECT["optional-dependencies"][name]]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *extra]]


def oldest() -> dict[str, Version]:
    """The version of each package in requirements/oldest.txt, for the Python that it was resolved for."""
    text = (ROOT / "requirements" / "oldest.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([a-z0-9_.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {name: Version(version) for name, version in reversed(pins)}


def test_no_dependency_is_pinned() -> None:
    for wanted in ranges(*PROJECT["optional-dependencies"]):
        assert ">=" in str(wanted.specifier), str(wanted)
        assert not {"==", "===", "~="} & {each.operator for each in wanted.specifier}, str(wanted)


def test_the_oldest_releases_are_the_lower_bounds() -> None:
    versions = oldest()
    for wanted in ranges(*TESTED):
        (bound,) = (each.version for each in wanted.specifier if each.operator == ">=")
        found = versions[wanted.name]
        assert found == Version(bound) or (wanted.name in RAISED and found > Version(bound)), str(wanted)


def test_an_extra_that_two_need_has_one_range() -> None:
    found: dict[str, set[str]] = {}
    for wanted in ranges(*PROJECT["optional-dependencies"]):
        found.setdefault(wanted.name, set()).add(str(wanted.specifier))
    assert {name: sorted(each) for name, each in found.items() if len(each) > 1} == {}
