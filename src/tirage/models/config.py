"""The configuration of a Llama, validated."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirage.errors import ModelError
from tirage.fields.rules import shown

MODEL_TYPES = ("llama",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The dimensions and constants of a Llama, under their Hugging Face names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any]
    tie_word_embeddings: bool


def parse_config(raw: Mapping[str, Any], path: Path) -> LlamaConfig:
    """The configuration in a config.json object, with older and newer key names.

    Raises ModelError naming the file and the key for a value out of range, and for anything that would change the
    result and is not implemented: another architecture, activation or quantisation.
    """
    refuse_unsupported(raw, path)
    hidden = integer(raw, "hidden_size", path)
    heads = integer(raw, "num_attention_heads", path)
    kv_heads = integer(raw, "num_key_value_heads", path, default=heads)
    head_dim = integer(raw, "head_dim", path, default=hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{path}: num_attention_heads must be a multiple of num_key_value_heads and head_dim even, "
            f"got {heads}, {kv_heads} and {head_dim}"
        )
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ModelError(f"{path}: rope_scaling must be an object, got {rope!r}")
    return LlamaConfig(
        vocab_size=integer(raw, "vocab_size", path),
        hidden_size=hidden,
        intermediate_size=integer(raw, "intermediate_size", path),
        num_hidden_layers=integer(raw, "num_hidden_layers", path),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=integer(raw, "max_position_embeddings", path),
        rms_norm_eps=positive(raw, "rms_norm_eps", path, default=1e-6),
        rope_theta=positive({**raw, **rope}, "rope_theta", path, default=10000.0),
        rope_scaling=dict(rope),
        tie_word_embeddings=boolean(raw, "tie_word_embeddings", path),
    )


def refuse_unsupported(raw: Mapping[str, Any], path: Path) -> None:
    """Raises ModelError for another architecture, activation or quantisation."""
    kind = raw.get("model_type")
    if kind not in MODEL_TYPES:
        raise ModelError(
            f"{path}: model_type must be {' or '.join(MODEL_TYPES)} for the NumPy model, got {kind!r}; "
            "other architectures need the torch extra: pip install 'tirage[torch]'"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path}: hidden_act must be silu, got {raw['hidden_act']!r}")
    if raw.get("quantization_config"):
        raise ModelError(f"{path}: quantization_config is not supported; use the unquantised weights")


def integer(raw: Mapping[str, Any], key: str, path: Path, *, default: int | None = None) -> int:
    """The positive integer of a key, or the default if it is absent; ModelError for another value."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{path}: {key} must be a positive integer, got {raw.get(key)!r}")
    return value


def boolean(raw: Mapping[str, Any], key: str, path: Path) -> bool:
    """The truth value of a key, false if it is absent; ModelError for another value."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"{path}: {key} must be true or false, got {shown(value)}")
    return value is True


def positive(raw: Mapping[str, Any], key: str, path: Path, *, default: float) -> float:
    """The positive number of a key, or the default if it is absent; ModelError for another value."""
    value = raw.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise ModelError(f"{path}: {key} must be a positive number, got {shown(value)}")
    return float(value)
