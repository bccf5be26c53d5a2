"""What a route hands to the desk, and the model that will answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tirage.engine import Prompt
from tirage.params import BeamSearchParams, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInput:
    """One prompt of a request, as the route understood it: either `prompt` or `messages`.

    `messages` are for the chat template, with their images and sounds loaded already; as are `tools` and the
    variables in `template_args`. `adapter` is a LoRA adapter's name. `params` are complete. `rid` is the
    client's name for the call.
    """

    prompt: Prompt | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    adapter: str | None = None
    params: SamplingParams
    beams: BeamSearchParams | None = None
    hidden_states: bool = False
    rid: str | None = None
    echo: bool = False

    @property
    def answers(self) -> int:
        """The texts that come back: samples, or at most so many hypotheses of a beam search."""
        return self.params.n if self.beams is None else self.beams.returned


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What tells a model from others: the name that answers give, and a digest of its folder.

    `numerics` are what else the last bits of its logits depend on, such as the library and the number of threads.
    """

    name: str
    fingerprint: str
    numerics: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
