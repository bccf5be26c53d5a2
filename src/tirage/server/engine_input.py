"""What a route passes to the request manager for one prompt, and what is known of the model that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tirage.engine import Prompt
from tirage.params import BeamSearchParams, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInput:
    """One prompt of a request, as its route has read it: either `prompt` or `messages`.

    `messages`, `tools` and the variables in `template_args` go to the chat template; images and audio are loaded
    already. `adapter` is the name of a LoRA adapter. `params` are complete. Within a tenant, only inputs with the
    same `cache_salt` share cached prefixes. `rid` is the client's id for the prompt.
    """

    prompt: Prompt | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    adapter: str | None = None
    params: SamplingParams
    beams: BeamSearchParams | None = None
    hidden_states: bool = False
    cache_salt: str | None = None
    rid: str | None = None

    @property
    def returned(self) -> int:
        """How many texts come back: the samples, or at most that many hypotheses of a beam search."""
        return self.params.n if self.beams is None else self.beams.returned


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's identity: the name that answers give, and a digest of its folder.

    `numerics` lists what else the last bits of its logits depend on, such as the library and the number of threads.
    """

    name: str
    fingerprint: str
    numerics: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
