"""Other systems' own interfaces, under the names that their users know; each loads on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

DOORS = ("easydel", "gemma", "mindie", "sglang")


def __getattr__(name: str) -> Any:
    if name not in DOORS:
        raise AttributeError(f"module 'tirage.compat' has no attribute {name!r}")
    return import_module(f"tirage.compat.{name}")
