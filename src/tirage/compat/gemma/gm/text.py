"""`gm.text`: the samplers and sampling methods of this door, and the `gemma` package's tokenizers."""

from __future__ import annotations

from typing import Any

from tirage.compat.gemma import (
    ChatSampler,
    Gemma4Sampler,
    Greedy,
    RandomSampling,
    Sampler,
    SamplerOutput,
    SamplingMethod,
    SamplingState,
    ToolSampler,
    TopkSampling,
    TopPSampling,
)
from tirage.compat.gemma.words import of_package

__all__ = [
    "ChatSampler",
    "Gemma4Sampler",
    "Greedy",
    "RandomSampling",
    "Sampler",
    "SamplerOutput",
    "SamplingMethod",
    "SamplingState",
    "ToolSampler",
    "TopPSampling",
    "TopkSampling",
]


def __getattr__(name: str) -> Any:
    return of_package("gm.text", name)
