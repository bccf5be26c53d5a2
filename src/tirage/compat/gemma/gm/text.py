"""`gm.text`: the samplers and sampling methods of `tirage.compat.gemma`, and the `gemma` package's tokenizers."""

from __future__ import annotations

from typing import Any

from tirage.compat import gemma
from tirage.compat.gemma import *  # noqa: F403 - exactly the names of its __all__
from tirage.compat.gemma.tokenization import from_gemma_package

__all__: list[str] = []
__all__ += gemma.__all__


def __getattr__(name: str) -> Any:
    return from_gemma_package("gm.text", name)
