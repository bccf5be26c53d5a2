"""Builds a Llama from the tensors of a checkpoint; every tensor must be used, and every shape is checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError
from tirage.models.config import LlamaConfig
from tirage.models.llama import Layer, Linear, LlamaNumpy

Array = NDArray[np.float32]


class Checkpoint:
    """The float32 tensors [...] of a checkpoint by name, to be taken one by one; those left at the end are an error."""

    def __init__(self, tensors: dict[str, Array], folder: Path) -> None:
        self._left, self._folder = dict(tensors), folder

    def take(self, name: str, *shape: int) -> Array:
        """The tensor of that name, float32 [*shape]; ModelError if it is missing or has another shape."""
        if name not in self._left:
            raise ModelError(f"{self._folder}: tensor {name!r} is missing")
        array = self._left.pop(name)
        if array.shape != shape:
            raise ModelError(
                f"{self._folder}: tensor {name!r} must have shape {list(shape)} by config.json, got {list(array.shape)}"
            )
        return array

    def linear(self, prefix: str, parts: dict[str, int], width: int) -> Linear:
        """Matrices with the same input, stacked to [sum of rows, width]; if only some have a bias, the others' is 0.

        Raises ModelError for a tensor that is missing or has another shape.
        """
        weight = np.concatenate([self.take(f"{prefix}.{part}.weight", n, width) for part, n in parts.items()])
        if not any(f"{prefix}.{part}.bias" in self._left for part in parts):
            return Linear(weight=weight)
        biases = [self._bias(f"{prefix}.{part}.bias", n) for part, n in parts.items()]
        return Linear(weight=weight, bias=np.concatenate(biases))

    def _bias(self, name: str, rows: int) -> Array:
        return self.take(name, rows) if name in self._left else np.zeros(rows, np.float32)

    def finish(self) -> None:
        """Raises ModelError if a tensor was not used, except the rotary tables that old exporters wrote."""
        unused = sorted(name for name in self._left if not name.endswith("rotary_emb.inv_freq"))
        if unused:
            raise ModelError(
                f"{self._folder}: {len(unused)} tensors are no part of a Llama, first {unused[0]!r}; "
                "such a model needs the torch extra: pip install 'tirage[torch]'"
            )


def build_llama(config: LlamaConfig, tensors: dict[str, Array], folder: Path) -> LlamaNumpy:
    """The model made of the tensors of a Hugging Face Llama.

    Their shapes [...] are those that config.json implies. Raises ModelError naming a tensor that is missing, left over,
    or of another shape.
    """
    checkpoint = Checkpoint(tensors, folder)
    v, d = config.vocab_size, config.hidden_size
    embedding = checkpoint.take("model.embed_tokens.weight", v, d)
    layers = [take_layer(checkpoint, config, f"model.layers.{i}") for i in range(config.num_hidden_layers)]
    norm = checkpoint.take("model.norm.weight", d)
    tied = config.tie_word_embeddings
    if tied and "lm_head.weight" in tensors:
        checkpoint.take("lm_head.weight", v, d)
    head = Linear(weight=embedding) if tied else Linear(weight=checkpoint.take("lm_head.weight", v, d))
    checkpoint.finish()
    return LlamaNumpy(config, embedding, layers, norm=norm, head=head)


def take_layer(checkpoint: Checkpoint, config: LlamaConfig, prefix: str) -> Layer:
    """One transformer block; ModelError for a tensor that is missing or of another shape."""
    d, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return Layer(
        attention_norm=checkpoint.take(f"{prefix}.input_layernorm.weight", d),
        qkv=checkpoint.linear(attention, {"q_proj": q, "k_proj": kv, "v_proj": kv}, d),
        output=checkpoint.linear(attention, {"o_proj": d}, q),
        mlp_norm=checkpoint.take(f"{prefix}.post_attention_layernorm.weight", d),
        gate_up=checkpoint.linear(mlp, {"gate_proj": inner, "up_proj": inner}, d),
        down=checkpoint.linear(mlp, {"down_proj": d}, inner),
    )
