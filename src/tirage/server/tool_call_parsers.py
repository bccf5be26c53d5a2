"""The formats of tool calls, by the names that vLLM and SGLang have for their parsers."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Literal

ToolCallFormat = Literal[
    "hermes",
    "mistral",
    "mistral_args",
    "llama3",
    "pythonic",
    "qwen_xml",
    "deepseek_v3",
    "deepseek_v31",
    "glm45",
    "harmony",
]
TOOL_CALL_PARSERS: Mapping[str, ToolCallFormat] = types.MappingProxyType({
    "hermes": "hermes",
    "qwen": "hermes",
    "qwen25": "hermes",
    "mistral": "mistral",
    "mistral_args": "mistral_args",
    "llama3": "llama3",
    "llama3_json": "llama3",
    "pythonic": "pythonic",
    "llama4_pythonic": "pythonic",
    "qwen3_coder": "qwen_xml",
    "qwen3_xml": "qwen_xml",
    "deepseek_v3": "deepseek_v3",
    "deepseekv3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "deepseekv31": "deepseek_v31",
    "glm45": "glm45",
    "openai": "harmony",
    "gpt-oss": "harmony",
})
