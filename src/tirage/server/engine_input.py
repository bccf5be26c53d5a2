"""What a route passes to the request manager for one prompt, and what is known of the model that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tirage.engine import Prompt
from tirage.params import BeamSearchParams, SamplingParams
from tirage.text import final_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInput:
    """One prompt of a request, as its route has read it: either `prompt` or `messages`.

    `messages`, `tools` and the variables in `template_args` go to the chat template; images and audio are loaded
    already. `add_generation_prompt` and `continue_final_message` say how the prompt ends, as in `LLM.chat`. `adapter`
    is the name of a LoRA adapter. `params` are complete. Within a tenant, only inputs with the same `cache_salt` share
    cached prefixes. `rid` is the client's id for the prompt. `keep_logits` is that of the engine's request.
    `repeats_logprobs` says that each event of a stream has all log-probabilities so far.
    """

    prompt: Prompt | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    adapter: str | None = None
    params: SamplingParams
    beams: BeamSearchParams | None = None
    hidden_states: bool = False
    keep_logits: bool = False
    repeats_logprobs: bool = False
    cache_salt: str | None = None
    rid: str | None = None

    @property
    def returned(self) -> int:
        """How many texts come back: the samples, or at most that many hypotheses of a beam search."""
        return self.params.n if self.beams is None else self.beams.returned

    @property
    def begun(self) -> str:
        """The text of the message that the answer continues; empty where it begins a new one."""
        return final_text(self.messages or ()) if self.continue_final_message else ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's identity: the name that answers give, and a digest of its folder.

    `numerics` lists what else the last bits of its logits depend on, such as the library and the number of threads.
    """

    name: str
    fingerprint: str
    numerics: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
