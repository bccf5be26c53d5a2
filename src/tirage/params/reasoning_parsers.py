"""The tags that models write around their reasoning, by the names of the parsers that look for them."""

from __future__ import annotations

import types
from collections.abc import Mapping

_THINK = ("<think>", "</think>")
_NAMES = ("think", "deepseek-r1", "deepseek_r1", "deepseek-v3", "deepseek_v3", "qwen3", "qwen3-thinking", "glm45")
REASONING_PARSERS: Mapping[str, tuple[str, str]] = types.MappingProxyType({
    **dict.fromkeys((*_NAMES, "kimi_k2", "minimax_m2"), _THINK),
    "kimi": ("◁think▷", "◁/think▷"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    **dict.fromkeys(
        ("gpt-oss", "gpt_oss", "openai_gptoss"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ),
})
"""The tags around a model's reasoning, by SGLang's and vLLM's names of their parsers."""
