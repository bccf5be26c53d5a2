"""Packages that take every process of the tests a second and many megabytes, imported by the first test that asks."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A module by its name; what it holds, and its own modules, as its attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest asks everything in a file for the attributes that plugins leave.
        if name.startswith(("__", "pytest")):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


anthropic = Later("anthropic")
anthropic_types = Later("anthropic.types")
openai = Later("openai")
openai_responses = Later("openai.types.responses")
