"""Gemma's `gm.text` samplers: `Sampler`, `ChatSampler`, `ToolSampler` for JAX models, under the names their users know.

`from tirage.compat.gemma import gm` takes the place of `from gemma import gm`.
"""

from importlib import import_module
from typing import Any

from tirage.compat.gemma.chat import ChatSampler
from tirage.compat.gemma.methods import Greedy, RandomSampling, SamplingMethod, TopkSampling, TopPSampling
from tirage.compat.gemma.sampler import Sampler
from tirage.compat.gemma.state import SamplerOutput, SamplingState
from tirage.compat.gemma.tools import ToolSampler

__all__ = [
    "ChatSampler",
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

NOT_HERE = {
    "Gemma4Sampler": "must come from the gemma package, it is not here: its images of any size and its audio are not "
    "supported; Sampler takes Gemma 4's text",
}


def __getattr__(name: str) -> Any:
    if name == "gm":
        return import_module("tirage.compat.gemma.gm")
    if name in NOT_HERE:
        # An AttributeError would lose its words on the way through a `from` import.
        raise ImportError(f"{name} {NOT_HERE[name]}", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
