"""A Llama forward pass in NumPy: small, readable, and the same for a request whoever runs beside it.

Rows of a batch are computed one at a time, and BLAS runs on one thread. Matrix libraries choose their summation
order by the shape of the whole batch and by the number of threads, so a joint product would let neighbours, and
threads would let the environment, change the last bits of a row's logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError
from tirage.models.blas import on_one_thread
from tirage.models.config import LlamaConfig
from tirage.models.rope import Rotations, inverse_frequencies, rotate

Array = NDArray[np.float32]

# Prompts are read in pieces of this many tokens, so that attention scores stay small for long ones. Pieces
# start at multiples of it, whatever the batch, to keep the sums of a prompt fixed.
CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A matrix [out, in] and an optional bias [out]."""

    weight: Array
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        y = self.weight @ x if x.ndim == 1 else x @ self.weight.T
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block; projections that read the same input are stacked into one product."""

    attention_norm: Array
    qkv: Linear
    output: Linear
    mlp_norm: Array
    gate_up: Linear
    down: Linear


class KVCache:
    """Keys and values of one request, [layers, kv_heads, capacity, head_dim], doubling as they fill."""

    __slots__ = ("keys", "length", "values")

    def __init__(self, keys: Array, values: Array, length: int = 0) -> None:
        self.keys, self.values, self.length = keys, values, length

    def reserve(self, length: int) -> None:
        """Makes room for `length` positions; filled ones keep their values."""
        capacity = self.keys.shape[2]
        if length <= capacity:
            return
        shape = (*self.keys.shape[:2], max(length, 2 * capacity), self.keys.shape[3])
        for name in ("keys", "values"):
            grown = np.zeros(shape, np.float32)
            grown[:, :, : self.length] = getattr(self, name)[:, :, : self.length]
            setattr(self, name, grown)

    def copy(self) -> KVCache:
        return KVCache(self.keys.copy(), self.values.copy(), self.length)


class LlamaNumpy:
    """A Llama that runs on NumPy alone; implements `tirage.models.Model`.

    Holds no state between calls: every request brings its own cache. Grouped-query attention, SwiGLU, tied or
    separate head, and biases where the checkpoint has them.
    """

    def __init__(
        self, config: LlamaConfig, embedding: Array, layers: Sequence[Layer], *, norm: Array, head: Linear
    ) -> None:
        self.config = config
        self._embedding, self._layers, self._norm, self._head = embedding, tuple(layers), norm, head
        steps = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._rotations = Rotations(steps)
        self._scale = np.float32(config.head_dim**-0.5)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        """Largest number of tokens, prompt and output together."""
        return self.config.max_position_embeddings

    @property
    def parameters(self) -> dict[str, Any]:
        """The weights by name, layers in a list, and cosines and sines of every position as `rope`; not copied."""
        cos, sin = self._rotations.between(0, self.max_length)
        layers = [tree_of(layer) for layer in self._layers]
        own = {"embedding": self._embedding, "layers": layers, "norm": self._norm, "head": tree_of(self._head)}
        return {**own, "rope": {"cos": cos[: self.max_length], "sin": sin[: self.max_length]}}

    @on_one_thread
    def prefill(self, token_ids: Sequence[int]) -> tuple[Array, KVCache]:
        """Logits [V] after the last id, and the cache to continue from."""
        cache, hidden = self._read(token_ids)
        return self._logits(hidden[-1]), cache

    @on_one_thread
    def extend(self, token_ids: Sequence[int], cache: KVCache | None) -> tuple[Array, KVCache]:
        """Logits [V] after the last of at most 256 more ids, and the cache; None begins a prompt.

        Pieces of 256 ids give the logits of `prefill` bit for bit.
        """
        grown = self._new_cache(len(token_ids) + 32) if cache is None else cache
        return self._logits(self._extend(token_ids, grown)[-1]), grown

    @on_one_thread
    def score(self, token_ids: Sequence[int]) -> Array:
        """Logits [T, V] after each of the T ids; the last row equals `prefill` bit for bit."""
        _, hidden = self._read(token_ids)
        return np.stack([self._logits(row) for row in hidden])

    @on_one_thread
    def decode(self, token_ids: Sequence[int], caches: Sequence[KVCache]) -> Array:
        """Logits [B, V] after one more id per request; a row does not depend on the others by a bit."""
        logits = np.empty((len(caches), self.vocab_size), np.float32)
        for row, (token_id, cache) in enumerate(zip(token_ids, caches, strict=True)):
            logits[row] = self._logits(self._extend([token_id], cache)[0])
        return logits

    def fork(self, cache: KVCache) -> KVCache:
        """An independent copy of the cache."""
        return cache.copy()

    def _read(self, token_ids: Sequence[int]) -> tuple[KVCache, Array]:
        if not token_ids:
            raise ModelError("a prompt must hold at least one token id")
        cache = self._new_cache(len(token_ids) + 32)
        pieces = [token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK)]
        return cache, np.concatenate([self._extend(piece, cache) for piece in pieces])

    def _new_cache(self, capacity: int) -> KVCache:
        c = self.config
        shape = (c.num_hidden_layers, c.num_key_value_heads, min(capacity, self.max_length), c.head_dim)
        return KVCache(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def _logits(self, hidden: Array) -> Array:
        return self._head(rms_norm(hidden, self._norm, self.config.rms_norm_eps))

    def _extend(self, token_ids: Sequence[int], cache: KVCache) -> Array:
        """Hidden states [T, hidden] of the next T ids, whose keys and values join the cache."""
        start, stop = cache.length, cache.length + len(token_ids)
        if stop > self.max_length:
            raise ModelError(f"the model's context holds {self.max_length} tokens, got {stop}")
        cache.reserve(stop)
        angles = self._rotations.between(start, stop)
        x = self._embedding[np.asarray(token_ids, np.int64)]
        # One token is a vector, not a 1-row matrix: matrix-vector products are the quick ones.
        x = x[0] if len(token_ids) == 1 else x
        eps = self.config.rms_norm_eps
        for index, layer in enumerate(self._layers):
            normed = rms_norm(x, layer.attention_norm, eps)
            x = x + layer.output(self._attend(layer.qkv(normed), angles, cache, index, (start, stop)))
            x = x + layer.down(swiglu(layer.gate_up(rms_norm(x, layer.mlp_norm, eps))))
        cache.length = stop
        return x.reshape(len(token_ids), -1)

    def _attend(
        self, qkv: Array, angles: tuple[Array, Array], cache: KVCache, index: int, span: tuple[int, int]
    ) -> Array:
        """Attention output, [T, heads * head_dim] or a vector for one token."""
        c, (start, stop) = self.config, span
        cos, sin = angles
        length, groups = stop - start, c.num_attention_heads // c.num_key_value_heads
        heads = qkv.reshape(length, -1, c.head_dim).swapaxes(0, 1)
        split = c.num_attention_heads + c.num_key_value_heads
        turned = rotate(heads[:split], cos, sin)
        cache.keys[index, :, start:stop] = turned[c.num_attention_heads :]
        cache.values[index, :, start:stop] = heads[split:]
        keys, values = cache.keys[index, :, :stop], cache.values[index, :, :stop]
        queries = turned[: c.num_attention_heads] * self._scale
        # Query heads that share a key head become extra rows of one product.
        queries = queries.reshape(c.num_key_value_heads, groups * length, c.head_dim)
        scores = np.matmul(queries, keys.swapaxes(1, 2))
        if length > 1:
            scores = scores + np.tile(causal_mask(length, stop), (groups, 1))
        mixed = softmax_(scores) @ values
        mixed = mixed.reshape(c.num_attention_heads, length, c.head_dim)
        return mixed.reshape(-1) if qkv.ndim == 1 else mixed.swapaxes(0, 1).reshape(length, -1)


def tree_of(part: Layer | Linear) -> dict[str, Any]:
    """The arrays of a part by name."""
    values = {spec.name: getattr(part, spec.name) for spec in fields(part)}
    return {name: tree_of(value) if isinstance(value, Linear) else value for name, value in values.items()}


def causal_mask(length: int, stop: int) -> Array:
    """[length, stop], -inf where a query among the last `length` positions would look ahead."""
    future = np.arange(stop) > np.arange(stop - length, stop)[:, None]
    return np.where(future, np.float32(-np.inf), np.float32(0))


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Vectors scaled to unit root mean square, then by `weight`."""
    squares = np.dot(x, x) if x.ndim == 1 else np.square(x).sum(axis=-1, keepdims=True)
    mean = squares / np.float32(x.shape[-1])
    return x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight


def swiglu(gate_up: Array) -> Array:
    """silu(gate) * up for the two stacked halves of the last axis."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    # exp of a large -gate overflows to inf, which divides to the right answer, 0.
    with np.errstate(over="ignore"):
        return gate / (np.float32(1) + np.exp(-gate)) * up


def softmax_(scores: Array) -> Array:
    """Softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
