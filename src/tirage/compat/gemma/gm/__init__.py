"""`gm`, as in `from gemma import gm`: `gm.text` is tirage's, everything else the `gemma` package's own."""

from __future__ import annotations

from typing import Any

from tirage.compat.gemma.gm import text
from tirage.compat.gemma.tokenization import from_gemma_package

__all__ = ["text"]


def __getattr__(name: str) -> Any:
    return from_gemma_package("gm", name)
