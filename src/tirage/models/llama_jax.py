"""The Llama of `llama.py` as a pure JAX function, in Gemma's TransformerLike interface.

The weights are those of the NumPy model, passed as a tree of arrays. Sums run in XLA's order, so the logits agree with
the NumPy model's closely but not bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tirage.errors import ModelError, ParamsError
from tirage.models.config import LlamaConfig
from tirage.models.llama import LlamaNumpy
from tirage.models.transformer import TransformerModel

Tree = Mapping[str, Any]

# The cache of a request is allocated for its longest text at once: a context of 100,000 tokens would take gigabytes.
MAX_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class LlamaTransformer:
    """A Llama without its weights, which every call takes, so that it can be traced, differentiated and sharded."""

    llama: LlamaConfig = field(hash=False)
    INFO: ClassVar[Any] = SimpleNamespace(tokenizer_version=None, default_ckpt=None)

    @property
    def config(self) -> Any:
        """An object with `num_embed`, the width of the logits, and `input_config`, None for a text-only model."""
        return SimpleNamespace(num_embed=self.llama.vocab_size, input_config=None)

    def init_cache(self, *, batch_size: int, dtype: Any, cache_length: int, sharding: Any = None) -> dict[str, Any]:
        """An empty cache: in each layer `k` and `v` [B, cache_length, kv_heads, head_dim], `end_index` int32 [B]."""
        c = self.llama
        shape = (batch_size, cache_length, c.num_key_value_heads, c.head_dim)
        layer = {
            "k": jnp.zeros(shape, dtype),
            "v": jnp.zeros(shape, dtype),
            "end_index": jnp.zeros(batch_size, jnp.int32),
        }
        cache = {f"layer_{index}": layer for index in range(c.num_hidden_layers)}
        return cache if sharding is None else jax.device_put(cache, sharding)

    def apply(
        self,
        variables: Tree,
        tokens: Any,
        *,
        images: Any = None,
        cache: Tree,
        positions: Any,
        attention_mask: Any,
        return_last_only: bool = False,
    ) -> Any:
        """An object with `logits` [B, L, V], `hidden_states` [B, L, hidden], and the `cache` with L more slots filled.

        `tokens` and `positions` are int32 [B, L], `attention_mask` bool [B, L, cache length]. With `return_last_only`
        the logits are [B, V] and the hidden states [B, hidden]. All rows write to the same slots. Raises ParamsError
        for images.
        """
        if images is not None:
            raise ParamsError("images must be None with a Llama, which reads text only, got images")
        w, eps = variables["params"], self.llama.rms_norm_eps
        x = w["embedding"][tokens]
        angles = w["rope"]["cos"][positions][:, :, None], w["rope"]["sin"][positions][:, :, None]
        grown = {}
        for name, weights in zip(cache, w["layers"], strict=True):
            mixed, grown[name] = self._attend(
                weights, rms_norm(x, weights["attention_norm"], eps), angles, cache[name], attention_mask
            )
            x = x + linear(weights["output"], mixed)
            x = x + linear(weights["down"], swiglu(linear(weights["gate_up"], rms_norm(x, weights["mlp_norm"], eps))))
        x = x[:, -1] if return_last_only else x
        hidden = rms_norm(x, w["norm"], eps)
        return SimpleNamespace(logits=linear(w["head"], hidden), cache=grown, hidden_states=hidden)

    def _attend(self, weights: Tree, x: Any, angles: tuple[Any, Any], layer: Tree, mask: Any) -> tuple[Any, Tree]:
        """The attention output [B, L, heads * head_dim], and the layer's cache with L more slots filled."""
        c, (rows, length) = self.llama, x.shape[:2]
        heads = linear(weights["qkv"], x).reshape(rows, length, -1, c.head_dim)
        rotated = rotate(heads[:, :, : -c.num_key_value_heads], *angles).astype(x.dtype)
        start = (0, layer["end_index"][0], 0, 0)
        new = {"k": rotated[:, :, c.num_attention_heads :], "v": heads[:, :, -c.num_key_value_heads :]}
        grown = {
            name: jax.lax.dynamic_update_slice(layer[name], part.astype(layer[name].dtype), start)
            for name, part in new.items()
        }
        queries = rotated[:, :, : c.num_attention_heads].reshape(rows, length, c.num_key_value_heads, -1, c.head_dim)
        scores = jnp.einsum("blkgd,bskd->bkgls", queries, grown["k"]).astype(jnp.float32) * c.head_dim**-0.5
        scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
        mixed = jnp.einsum("bkgls,bskd->blkgd", jax.nn.softmax(scores, axis=-1), grown["v"]).astype(x.dtype)
        return mixed.reshape(rows, length, -1), {**grown, "end_index": layer["end_index"] + length}


def linear(weights: Tree, x: Any) -> Any:
    """x [..., in] times the weight [out, in], plus a bias [out] if there is one: [..., out]."""
    y = x @ weights["weight"].T
    return y if weights.get("bias") is None else y + weights["bias"]


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """The vectors [..., D] scaled to unit root mean square in float32, then multiplied by `weight` [D]."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + eps)).astype(x.dtype) * weight


def swiglu(gate_up: Any) -> Any:
    """silu(gate) * up, [..., D], of the two stacked halves of `gate_up` [..., 2 D]."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return jax.nn.silu(gate) * up


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """The vectors [..., head_dim] rotated by the angles of their positions; see `rope.rotate`."""
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([second, first], axis=-1) * sin


def transformer_of(model: Any, *, max_length: int | None = None) -> tuple[LlamaTransformer, dict[str, Any]]:
    """A NumPy Llama, such as `LLM("tiny").model`, as a TransformerLike and its parameters.

    They hold the rotations of `max_length` positions, by default of all that the model has.
    Raises ModelError for any other model.
    """
    if not isinstance(model, LlamaNumpy):
        raise ModelError(f"model must be a NumPy Llama, as LLM('tiny').model is, got {type(model).__name__}")
    params = model.parameters_up_to(model.max_length if max_length is None else max_length)
    return LlamaTransformer(model.config), jax.tree.map(jnp.asarray, params)


def open_jax(model: LlamaNumpy) -> TransformerModel:
    """The Llama as a `Model` that runs on JAX, with a context of at most 4096 tokens."""
    length = min(model.max_length, MAX_LENGTH)
    transformer, params = transformer_of(model, max_length=length)
    return TransformerModel(transformer, params, max_length=length)
