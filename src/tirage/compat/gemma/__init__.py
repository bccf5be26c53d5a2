"""Gemma's `gm.text` samplers for JAX models, under the names their users know.

`from tirage.compat.gemma import gm` takes the place of `from gemma import gm`.
"""

from importlib import import_module
from typing import Any

from tirage.compat.gemma.chat import ChatSampler
from tirage.compat.gemma.gemma4 import Gemma4Sampler
from tirage.compat.gemma.methods import Greedy, RandomSampling, SamplingMethod, TopkSampling, TopPSampling
from tirage.compat.gemma.sampler import Sampler
from tirage.compat.gemma.state import SamplerOutput, SamplingState
from tirage.compat.gemma.tools import ToolSampler

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
    if name == "gm":
        return import_module("tirage.compat.gemma.gm")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
