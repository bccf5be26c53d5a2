"""Small GGUF files, written byte by byte, for tests of what a file may get wrong."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b"]
TYPES = [2, 3, 3, *[6] * 256, 1, 1]

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 32,
    "llama.embedding_length": 32,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [0.0] * len(TOKENS),
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
"""The header of a Llama with 261 tokens."""


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(value: Any) -> bytes:
    """A value with its type before it: bool, uint32, float32, text, or an array of int32, float32 or texts."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if value >= 0 else struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    kind = {str: 8, float: 6, int: 5}[type(value[0])] if value else 5
    items = [text(each) if kind == 8 else struct.pack("<f" if kind == 6 else "<i", each) for each in value]
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, bytes] | None = None) -> bytes:
    """A file of version 3 with that metadata, and float32 vectors by name."""
    given = tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(given), len(metadata))
    head += b"".join(text(key) + value_of(value) for key, value in metadata.items())
    at, body = 0, b""
    for name, data in given.items():
        head += text(name) + struct.pack("<IQIQ", 1, len(data) // 4, 0, at)
        body += data.ljust(-(-len(data) // 32) * 32, b"\0")
        at = len(body)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + body


def write_gguf(path: Path, changes: Mapping[str, Any] | None = None, drop: str = "") -> Path:
    """A file with the metadata above, changed; it has one tensor of 16 zeros."""
    metadata = {**METADATA, **(changes or {})}
    metadata.pop(drop, None)
    path.write_bytes(gguf_bytes(metadata, {"output_norm.weight": bytes(64)}))
    return path
