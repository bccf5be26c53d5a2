"""JAX models with Gemma's TransformerLike interface, and their use as a `Model`.

Such a model is a value without weights: `apply({"params": params}, tokens, cache=..., positions=...,
attention_mask=...)` gives logits and a new cache, `init_cache(...)` an empty cache, and `config.num_embed` is the width
of the logits. Every conversation has its own cache, so no row depends on the length of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError, ParamsError

Array = NDArray[np.float32]
Fill = Callable[..., Any]
Step = Callable[..., tuple[Any, Any]]

# Prompts are prefilled in chunks of this many tokens, so that a long one does not hold up other rows.
CHUNK = 256


class TransformerLike(Protocol):
    """A model of the `gemma` package, or any other with these members. Equal hashable models are compiled once."""

    @property
    def config(self) -> Any:
        """An object with `num_embed`, the width of the logits."""
        ...

    def init_cache(self, *, batch_size: int, dtype: Any, cache_length: int, sharding: Any = None) -> Any:
        """An empty cache of `cache_length` slots."""
        ...

    def apply(self, variables: Any, tokens: Any, *, cache: Any, positions: Any, attention_mask: Any) -> Any:
        """An object with `logits` [B, L, V] and the `cache` with L more slots filled.

        `tokens` and `positions` are int32 [B, L], `attention_mask` bool [B, L, cache length].
        """
        ...


class Forward:
    """A TransformerLike with its parameters, called for one conversation at a time.

    It is compiled if the parameters are JAX arrays. `buckets` are the lengths to which chunks of a prompt are padded,
    so that only a few lengths are compiled; what the padding writes into the cache is never attended to. With `stay`
    the logits of a step stay where JAX has computed them.
    """

    def __init__(
        self, model: Any, params: Any, *, length: int, buckets: Sequence[int] = (), stay: bool = False
    ) -> None:
        self._model, self._params, self._stay = model, params, stay
        self._buckets, self.length = sorted(buckets), length
        self.vocab_size = int(model.config.num_embed)
        self._dtype, self.uses_jax = first_leaf(params).dtype, is_jax(params)
        self._fill, self._step = compiled_functions(key_of(model)) if self.uses_jax else plain_functions(model)

    def start(self) -> Any:
        """An empty cache of `length` slots."""
        return self._model.init_cache(batch_size=1, dtype=self._dtype, cache_length=self.length)

    def fill(self, cache: Any, ids: Sequence[int], slots: int) -> Any:
        """The cache, of which `slots` are filled, after these ids; no logits are computed."""
        length = self._padded(len(ids), slots) if has_end_index(cache) else len(ids)
        filled = self._fill(self._params, *self.inputs(ids, slots, length), cache)
        return filled if length == len(ids) else with_end_index(filled, slots + len(ids))

    def fill_seeing(self, cache: Any, ids: Sequence[int], images: Any, positions: Any, mask: Any) -> Any:
        """The cache after ids with images among them.

        `images` are the images of one prompt without batch axis, `positions` int32 [1, L] and `mask` bool
        [1, L, cache length]; L counts the soft tokens of the images.
        """
        return self._fill(self._params, np.array([ids], np.int32), positions, mask, cache, images[None])

    def step(self, cache: Any, token_id: int, slots: int) -> tuple[Any, Any]:
        """Logits float32 [V] after one more id, and the new cache."""
        logits, cache = self._step(self._params, *self.inputs([token_id], slots, 1), cache)
        if self._stay:
            return logits.reshape(-1), cache
        # The model computes in its own dtype; everything after it is float32.
        return np.asarray(logits).astype(np.float32).reshape(-1)[-self.vocab_size :], cache

    def steps(self, cache: Any, ids: Sequence[int], slots: int) -> tuple[Any, Any]:
        """Logits float32 [T, V] after each of T more ids, and the new cache, which must have Gemma's layout."""
        length = self._padded(len(ids), slots)
        logits, cache = self._step(self._params, *self.inputs(ids, slots, length), cache)
        rows = logits.reshape(-1, self.vocab_size)[: len(ids)]
        return rows if self._stay else np.asarray(rows).astype(np.float32), with_end_index(cache, slots + len(ids))

    def score(self, ids: Sequence[int]) -> Array:
        """Logits float32 [T, V] after each of the T ids of a text."""
        inputs = self.inputs(ids, 0, self._padded(len(ids), 0))
        logits, _ = self._step(self._params, *inputs, self.start())
        return np.asarray(logits).astype(np.float32).reshape(-1, self.vocab_size)[: len(ids)]

    def inputs(self, ids: Sequence[int], slots: int, length: int) -> tuple[Any, Any, Any]:
        """The padded tokens and their positions, int32 [1, length], and the mask, bool [1, length, cache length]."""
        tokens = np.zeros((1, length), np.int32)
        tokens[0, : len(ids)] = ids
        positions = np.arange(slots, slots + length, dtype=np.int32)
        mask = np.arange(self.length) <= positions[:, None]
        return tokens, positions[None], mask[None]

    def _padded(self, length: int, slots: int) -> int:
        """The smallest bucket for that many tokens that fits into the cache; the number itself if there is none."""
        fitting = (bucket for bucket in self._buckets if length <= bucket <= self.length - slots)
        return next(fitting, length)


class TransformerCache:
    """The cache of one request: immutable `arrays`, replaced at every step, and the number of `slots` filled."""

    __slots__ = ("arrays", "slots")

    def __init__(self, arrays: Any, slots: int = 0) -> None:
        self.arrays, self.slots = arrays, slots


class TransformerModel:
    """A TransformerLike with its parameters as a `tirage.models.Model`, for `LLM(model, tokenizer=...)`.

    A request has at most `max_length` tokens, prompt and output together, and its cache has that many slots from the
    start. Rows are computed one at a time, so other rows never change a row's logits. With `stay`, logits are JAX
    arrays that stay where they were computed. Raises ModelError for an object without the TransformerLike members and
    for `params` without an array, ParamsError for a wrong `max_length`.
    """

    def __init__(self, model: TransformerLike, params: Any, *, max_length: int, stay: bool = False) -> None:
        missing = [name for name in ("apply", "init_cache", "config") if not hasattr(model, name)]
        if missing:
            raise ModelError(f"model must be a TransformerLike with {missing[0]}, got {type(model).__name__}")
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
            raise ParamsError(f"max_length must be an integer >= 1, got {max_length!r}")
        buckets = [bucket for bucket in (4, 8, 16, 64, CHUNK) if bucket <= max_length]
        self._forward, self._stay = Forward(model, params, length=max_length, buckets=buckets, stay=stay), stay
        self.max_length, self.vocab_size = max_length, self._forward.vocab_size

    def prefill(self, token_ids: Sequence[int]) -> tuple[Array, TransformerCache]:
        """Logits [V] after the last id, and the cache to continue from.

        Raises ModelError for an empty prompt and for one longer than the context.
        """
        if not token_ids:
            raise ModelError("a prompt must hold at least one token id")
        chunks = (token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK))
        logits, cache = self.extend(next(chunks), None)
        for chunk in chunks:
            logits, cache = self.extend(chunk, cache)
        return logits, cache

    def extend(self, token_ids: Sequence[int], cache: TransformerCache | None) -> tuple[Any, TransformerCache]:
        """Logits [V] after the last of more ids, and the cache; `cache` None begins a prompt.

        Chunks of 256 ids give the logits of `prefill` bit for bit. Raises ModelError beyond the context length.
        """
        grown = TransformerCache(self._forward.start()) if cache is None else cache
        self._check_room(grown.slots + len(token_ids))
        *head, last = token_ids
        if head:
            grown.arrays = self._forward.fill(grown.arrays, head, grown.slots)
            grown.slots += len(head)
        return self._next(last, grown), grown

    def decode(self, token_ids: Sequence[int], caches: Sequence[TransformerCache]) -> Any:
        """Logits [B, V] after one more id per request; a row does not depend on the others by a single bit."""
        rows = [self.extend([token], cache)[0] for token, cache in zip(token_ids, caches, strict=True)]
        return stacked(rows) if self._stay else np.stack(rows)

    def extend_each(self, token_ids: Sequence[int], cache: TransformerCache) -> Any:
        """Logits [T, V] after each of T more ids, read in one pass; ModelError beyond the context length."""
        self._check_room(cache.slots + len(token_ids))
        logits, cache.arrays = self._forward.steps(cache.arrays, token_ids, cache.slots)
        cache.slots += len(token_ids)
        return logits

    def truncate(self, cache: TransformerCache, count: int) -> None:
        """Takes back the last `count` ids of a cache."""
        cache.slots -= count
        cache.arrays = with_end_index(cache.arrays, cache.slots)

    @property
    def takes_back(self) -> bool:
        """Whether ids can be taken back: the caches say how many of their slots are filled."""
        return has_end_index(self._forward.start())

    def _check_room(self, length: int) -> None:
        if length > self.max_length:
            raise ModelError(f"the model's context holds {self.max_length} tokens, got {length}")

    def fork(self, cache: TransformerCache) -> TransformerCache:
        """A second cache with the same past; nothing is copied, because the arrays never change."""
        return TransformerCache(cache.arrays, cache.slots)

    def score(self, token_ids: Sequence[int]) -> Array:
        """Logits [T, V] after each of the T ids."""
        return self._forward.score(token_ids)

    def _next(self, token_id: int, cache: TransformerCache) -> Any:
        logits, cache.arrays = self._forward.step(cache.arrays, token_id, cache.slots)
        cache.slots += 1
        return logits


def stacked(rows: Sequence[Any]) -> Any:
    """JAX arrays [V] as one [B, V], where they are."""
    import jax.numpy as jnp

    return jnp.stack(rows)


def plain_functions(model: Any) -> tuple[Fill, Step]:
    """The calls of a model: one that gives the new cache, and one that gives logits and the new cache."""

    def step(params: Any, tokens: Any, positions: Any, mask: Any, cache: Any, images: Any = None) -> tuple[Any, Any]:
        seen = {} if images is None else {"images": images}
        out = model.apply({"params": params}, tokens, cache=cache, positions=positions, attention_mask=mask, **seen)
        return out.logits, out.cache

    def fill(*inputs: Any) -> Any:
        return step(*inputs)[1]

    return fill, step


@lru_cache(maxsize=16)
def compiled_functions(key: Any) -> tuple[Fill, Step]:
    """The calls of a model, compiled by JAX; equal models share them."""
    import jax

    fill, step = plain_functions(model_of(key))
    return jax.jit(fill), jax.jit(step)


class IdentityKey:
    """A hashable stand-in for an unhashable model; it equals only itself."""

    __slots__ = ("model",)

    def __init__(self, model: Any) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.model is self.model


def key_of(model: Any) -> Any:
    """The key of a model's compiled calls: the model itself, or a stand-in if it is not hashable."""
    try:
        hash(model)
    except TypeError:
        return IdentityKey(model)
    return model


def model_of(key: Any) -> Any:
    """The model that a key stands for."""
    return key.model if isinstance(key, IdentityKey) else key


def first_leaf(tree: Any) -> Any:
    """The first array, of any shape, in nested mappings and sequences; ModelError if there is none."""
    if hasattr(tree, "dtype"):
        return tree
    children = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else ()
    for child in children:
        try:
            return first_leaf(child)
        except ModelError:
            continue
    raise ModelError("params must be a nested mapping with at least one array, got none")


def is_jax(params: Any) -> bool:
    """Whether the parameters are JAX arrays, of any shape."""
    return type(first_leaf(params)).__module__.partition(".")[0] in {"jax", "jaxlib"}


def has_end_index(cache: Any) -> bool:
    """Whether a cache has Gemma's layout: a mapping of layers, each with the index of its next slot, int32 [B]."""
    return isinstance(cache, Mapping) and all(isinstance(v, Mapping) and "end_index" in v for v in cache.values())


def with_end_index(cache: Any, end: Any) -> Any:
    """The cache with `end` slots counted as filled: a number for all rows, or int32 [B]."""
    return {name: {**layer, "end_index": layer["end_index"] * 0 + end} for name, layer in cache.items()}
