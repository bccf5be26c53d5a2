"""Gemma's `gm.text` samplers: `Sampler` and `ChatSampler` for JAX models, under the names their users know."""

from typing import Any

from tirage.compat.gemma.chat import ChatSampler
from tirage.compat.gemma.methods import Greedy, RandomSampling, SamplingMethod, TopkSampling, TopPSampling
from tirage.compat.gemma.sampler import Sampler
from tirage.compat.gemma.state import SamplerOutput, SamplingState

__all__ = [
    "ChatSampler",
    "Greedy",
    "RandomSampling",
    "Sampler",
    "SamplerOutput",
    "SamplingMethod",
    "SamplingState",
    "TopPSampling",
    "TopkSampling",
]

_NOT_HERE = {
    "Gemma4Sampler": "its images of any size and its audio are not supported; Sampler takes Gemma 4's text",
    "ToolSampler": "run the tool yourself and pass its answer to ChatSampler.chat(..., multi_turn=True)",
}


def __getattr__(name: str) -> Any:
    if name in _NOT_HERE:
        # An AttributeError would lose its words on the way through a `from` import.
        raise ImportError(f"{name} must come from the gemma package, it is not here: {_NOT_HERE[name]}", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
