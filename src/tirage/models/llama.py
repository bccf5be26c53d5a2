"""A Llama forward pass in NumPy: small, readable, and independent of the other rows of a batch.

Rows are computed one at a time, with a single-threaded BLAS. Matrix libraries choose the order of sums by the shape of
the whole batch and by the number of threads; a joint product would let other rows, and several threads the environment,
change the last bits of a row's logits.
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
from tirage.models.kv_cache import KVCache
from tirage.models.rope import Rotations, inverse_frequencies, rotate

Array = NDArray[np.float32]

# Prompts are prefilled in chunks of this many tokens, which limits the size of the attention scores. Chunks start at
# its multiples whatever the batch, so that the sums of a prompt are always the same.
CHUNK = 256
# Elements of the weights that several vectors are multiplied with in turn, and the rows of which a BLAS makes blocks of
# its own: cut between those, a product keeps its bits.
_BLOCK, _ROWS = 1 << 17, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A weight [out, in] and an optional bias [out]; called with [in] or [T, in], it gives [out] or [T, out]."""

    weight: Array
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        y = self.weight @ x if x.ndim == 1 else x @ self.weight.T
        return y if self.bias is None else y + self.bias

    def each(self, vectors: Sequence[Array]) -> list[Array]:
        """The outputs [out] of several vectors [in], each with the bits that it has alone.

        The weight is read in blocks that stay in the processor's cache from one vector to the next.
        """
        size, outputs = max(_ROWS, _BLOCK // (_ROWS * self.weight.shape[1]) * _ROWS), len(self.weight)
        found = [np.empty(outputs, np.float32) for _ in vectors]
        for start in range(0, outputs, size):
            block = self.weight[start : start + size]
            for y, x in zip(found, vectors, strict=True):
                np.dot(block, x, out=y[start : start + size])
        return found if self.bias is None else [y + self.bias for y in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one block; projections with the same input are stacked into one matrix."""

    attention_norm: Array
    qkv: Linear
    output: Linear
    mlp_norm: Array
    gate_up: Linear
    down: Linear


class LlamaNumpy:
    """A Llama that runs on NumPy alone; implements `tirage.models.Model`.

    `embedding` is [V, hidden], `norm` [hidden]. A model has no state between calls; every request has its own cache.
    Grouped-query attention, SwiGLU, a tied or separate head, and biases if the checkpoint has them. Raises ModelError
    for rotary scaling that is not implemented.
    """

    def __init__(
        self, config: LlamaConfig, embedding: Array, layers: Sequence[Layer], *, norm: Array, head: Linear
    ) -> None:
        self.config = config
        self._embedding, self._layers, self._norm, self._head = embedding, tuple(layers), norm, head
        steps = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._rotations = Rotations(steps)
        self._scale = np.float32(config.head_dim**-0.5)

    # Measured by `benchmarks/speculation.py`: a further position takes 0.19 of the time of one alone.
    draft_cost = 0.2

    @property
    def vocab_size(self) -> int:
        """The width V of the logits."""
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        """The context length: most tokens of prompt and output together."""
        return self.config.max_position_embeddings

    @property
    def parameters(self) -> dict[str, Any]:
        """The weights by name, float32 arrays shaped as in `Layer` and `Linear`, with the layers in a list; not copied.

        `rope` holds the cosines `cos` and signed sines `sin` of all positions, [max_length, head_dim].
        """
        return self.parameters_up_to(self.max_length)

    def parameters_up_to(self, length: int) -> dict[str, Any]:
        """As `parameters`, whose `rope` is [length, head_dim]."""
        cos, sin = self._rotations.between(0, length)
        layers = [tree_of(layer) for layer in self._layers]
        own = {"embedding": self._embedding, "layers": layers, "norm": self._norm, "head": tree_of(self._head)}
        return {**own, "rope": {"cos": cos[:length], "sin": sin[:length]}}

    @on_one_thread
    def prefill(self, token_ids: Sequence[int]) -> tuple[Array, KVCache]:
        """Logits [V] after the last id, and the cache to continue from.

        Raises ModelError for an empty prompt and for one longer than the context.
        """
        cache, hidden = self._prefill(token_ids)
        return self._logits(hidden[-1]), cache

    @on_one_thread
    def extend(self, token_ids: Sequence[int], cache: KVCache | None) -> tuple[Array, KVCache]:
        """Logits [V] after the last of at most 256 more ids, and the cache; `cache` None begins a prompt.

        Chunks of 256 ids give the logits of `prefill` bit for bit. Raises ModelError beyond the context length.
        """
        grown = self._new_cache(len(token_ids) + 32) if cache is None else cache
        return self._logits(self._extend(token_ids, grown)[-1]), grown

    @on_one_thread
    def extend_scored(self, token_ids: Sequence[int], cache: KVCache | None) -> tuple[Array, KVCache]:
        """`extend`, with the logits [T, V] after each of the T ids.

        Raises ModelError beyond the context length.
        """
        grown = self._new_cache(len(token_ids) + 32) if cache is None else cache
        return np.stack([self._logits(row) for row in self._extend(token_ids, grown)]), grown

    @on_one_thread
    def score(self, token_ids: Sequence[int]) -> Array:
        """Logits [T, V] after each of the T ids; the last row equals that of `prefill` bit for bit.

        Raises ModelError for an empty prompt and for one longer than the context.
        """
        _, hidden = self._prefill(token_ids)
        return np.stack([self._logits(row) for row in hidden])

    @on_one_thread
    def decode(self, token_ids: Sequence[int], caches: Sequence[KVCache]) -> Array:
        """Logits [B, V] after one more id per request; a row does not depend on the others by a single bit.

        Raises ModelError beyond the context length.
        """
        logits = np.empty((len(caches), self.vocab_size), np.float32)
        for row, (token_id, cache) in enumerate(zip(token_ids, caches, strict=True)):
            logits[row] = self._logits(self._extend([token_id], cache)[0])
        return logits

    @property
    def extends_exactly(self) -> bool:
        """Whether `extend_each` gives the bits of `decode`, as it does here."""
        return True

    @on_one_thread
    def extend_each(self, token_ids: Sequence[int], cache: KVCache) -> Array:
        """Logits [T, V] after each of T more ids, with the bits of `decode` one by one.

        Raises ModelError beyond the context length.
        """
        return np.stack(self._head.each([self._normed(row) for row in self._extend_each(token_ids, cache)]))

    def truncate(self, cache: KVCache, count: int) -> None:
        """Takes back the last `count` ids of a cache."""
        cache.truncate(count)

    def fork(self, cache: KVCache) -> KVCache:
        """A second cache with the same past, which it shares with the first: both are for one thread."""
        return cache.copy()

    def _prefill(self, token_ids: Sequence[int]) -> tuple[KVCache, Array]:
        if not token_ids:
            raise ModelError("a prompt must hold at least one token id")
        cache = self._new_cache(len(token_ids) + 32)
        chunks = [token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK)]
        return cache, np.concatenate([self._extend(chunk, cache) for chunk in chunks])

    def _new_cache(self, capacity: int) -> KVCache:
        c = self.config
        shape = (c.num_hidden_layers, c.num_key_value_heads, min(capacity, self.max_length), c.head_dim)
        return KVCache(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def _logits(self, hidden: Array) -> Array:
        return self._head(self._normed(hidden))

    def _normed(self, hidden: Array) -> Array:
        return rms_norm(hidden, self._norm, self.config.rms_norm_eps)

    def _extend_each(self, token_ids: Sequence[int], cache: KVCache) -> list[Array]:
        """The hidden states [hidden] of the next T ids, each as `_extend` computes it for one id alone."""
        start, stop, eps = cache.length, cache.length + len(token_ids), self.config.rms_norm_eps
        self._check_room(stop)
        cache.reserve(stop)
        places = range(start, stop)
        angles = [self._rotations.between(place, place + 1) for place in places]
        states = [self._embedding[token_id] for token_id in token_ids]
        for index, layer in enumerate(self._layers):
            heads = layer.qkv.each([rms_norm(x, layer.attention_norm, eps) for x in states])
            mixed = [
                self._attend(each, angle, cache, index, (place, place + 1))
                for each, angle, place in zip(heads, angles, places, strict=True)
            ]
            states = [x + y for x, y in zip(states, layer.output.each(mixed), strict=True)]
            gates = layer.gate_up.each([rms_norm(x, layer.mlp_norm, eps) for x in states])
            states = [x + y for x, y in zip(states, layer.down.each(list(map(swiglu, gates))), strict=True)]
        cache.length = stop
        return states

    def _check_room(self, stop: int) -> None:
        if stop > self.max_length:
            raise ModelError(f"the model's context holds {self.max_length} tokens, got {stop}")

    def _extend(self, token_ids: Sequence[int], cache: KVCache) -> Array:
        """Hidden states [T, hidden] of the next T ids, whose keys and values are appended to the cache."""
        start, stop = cache.length, cache.length + len(token_ids)
        self._check_room(stop)
        cache.reserve(stop)
        angles = self._rotations.between(start, stop)
        x = self._embedding[np.asarray(token_ids, np.int64)]
        # One token is a vector, not a matrix of one row: matrix-vector products are faster.
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
        """The attention output [T, heads * head_dim], a vector for one token; `qkv` is [T, outputs] or [outputs]."""
        c, (start, stop) = self.config, span
        cos, sin = angles
        length, groups = stop - start, c.num_attention_heads // c.num_key_value_heads
        heads = qkv.reshape(length, -1, c.head_dim).swapaxes(0, 1)
        split = c.num_attention_heads + c.num_key_value_heads
        rotated = rotate(heads[:split], cos, sin)
        cache.keys[index, :, start:stop] = rotated[c.num_attention_heads :]
        cache.values[index, :, start:stop] = heads[split:]
        keys, values = cache.keys[index, :, :stop], cache.values[index, :, :stop]
        queries = rotated[: c.num_attention_heads] * self._scale
        # Query heads that share a key head become further rows of one product.
        queries = queries.reshape(c.num_key_value_heads, groups * length, c.head_dim)
        scores = np.matmul(queries, keys.swapaxes(1, 2))
        if length > 1:
            scores = scores + np.tile(causal_mask(length, stop), (groups, 1))
        mixed = softmax_(scores) @ values
        mixed = mixed.reshape(c.num_attention_heads, length, c.head_dim)
        return mixed.reshape(-1) if qkv.ndim == 1 else mixed.swapaxes(0, 1).reshape(length, -1)


def tree_of(part: Layer | Linear) -> dict[str, Any]:
    """The arrays of a part by name, of the shapes of the part."""
    values = {spec.name: getattr(part, spec.name) for spec in fields(part)}
    return {name: tree_of(value) if isinstance(value, Linear) else value for name, value in values.items()}


def causal_mask(length: int, stop: int) -> Array:
    """The attention mask [length, stop] of the last `length` positions: -inf at later positions, 0 elsewhere."""
    future = np.arange(stop) > np.arange(stop - length, stop)[:, None]
    return np.where(future, np.float32(-np.inf), np.float32(0))


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """The vectors [..., D] scaled to unit root mean square, then multiplied by `weight` [D]."""
    squares = np.dot(x, x) if x.ndim == 1 else np.square(x).sum(axis=-1, keepdims=True)
    mean = squares / np.float32(x.shape[-1])
    return x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight


def swiglu(gate_up: Array) -> Array:
    """silu(gate) * up, [..., D], of the two stacked halves of `gate_up` [..., 2 D]."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    # exp of a large -gate overflows to inf, and the quotient is 0 as it should be.
    with np.errstate(over="ignore"):
        return gate / (np.float32(1) + np.exp(-gate)) * up


def softmax_(scores: Array) -> Array:
    """Softmax over the last axis of [..., T], in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
