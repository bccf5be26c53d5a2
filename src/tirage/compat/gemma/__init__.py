"""Gemma's `gm.text` samplers: `Sampler` and `ChatSampler` for JAX models, under the names their users know."""

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
