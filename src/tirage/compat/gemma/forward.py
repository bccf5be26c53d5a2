"""The model's side: tokens into a cache, logits of the next token out, one conversation at a time.

A conversation has a cache of its own, so nothing is padded against a neighbour and no row depends on another's
length. Two kinds of models are read: Gemma's TransformerLike, and `tirage.models.Model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.compat.gemma.images import Images, Vision, vision_of
from tirage.compat.gemma.methods import float32
from tirage.errors import ModelError, ParamsError
from tirage.models import Model


class Reader(Protocol):
    """A model as a sampler sees it."""

    vocab_size: int
    capacity: int
    uses_jax: bool
    vision: Vision | None

    def start(self) -> Any:
        """An empty cache."""
        ...

    def share(self, cache: Any) -> Any:
        """A cache that may be read on from while the given one stays as it is."""
        ...

    def read(
        self, cache: Any, ids: Sequence[int], read: int, slots: int, images: Images | None
    ) -> tuple[NDArray[np.float32], Any]:
        """Logits [V] after the last of a conversation's `ids`, of which `read` fill `slots` of the cache already.

        `images` are those of the ids that are not read yet.
        """
        ...


class ModelReader:
    """A `tirage.models.Model`; a new turn reads the conversation anew, which gives its logits bit for bit."""

    uses_jax: bool = False
    vision: Vision | None = None

    def __init__(self, model: Model, cache_length: int) -> None:
        self._model = model
        self.vocab_size, self.capacity = model.vocab_size, min(cache_length, model.max_length)

    def start(self) -> Any:
        """None: the prompt makes the cache."""
        return None

    def share(self, cache: Any) -> Any:
        """A copy of the cache."""
        return None if cache is None else self._model.fork(cache)

    def read(
        self, cache: Any, ids: Sequence[int], read: int, slots: int, images: Images | None
    ) -> tuple[NDArray[np.float32], Any]:
        """See Reader."""
        if cache is not None and len(ids) - read == 1:
            return self._model.decode([ids[-1]], [cache])[0], cache
        return self._model.prefill(list(ids))


class TransformerReader:
    """A TransformerLike with its parameters; compiled where these are JAX arrays.

    All tokens but the last fill the cache, without logits being computed for them; the last gives the logits.
    `buckets` are the lengths that a prompt is padded to, so that few lengths are compiled; what padding writes into
    the cache is never looked at and soon overwritten.
    """

    def __init__(
        self, model: Any, params: Any, *, cache_length: int, buckets: Sequence[int], sharding: Any = None
    ) -> None:
        self._model, self._params, self._sharding = model, params, sharding
        self._buckets, self.capacity = sorted(buckets), cache_length
        self.vocab_size = int(model.config.num_embed)
        self.vision = vision_of(model)
        leaf = first_leaf(params)
        self._dtype = leaf.dtype
        self.uses_jax = type(leaf).__module__.partition(".")[0] in {"jax", "jaxlib"}
        self._fill, self._step = functions_of(model) if self.uses_jax else plain_functions(model)

    def start(self) -> Any:
        """An empty cache of `cache_length` slots."""
        return self._model.init_cache(
            batch_size=1, dtype=self._dtype, cache_length=self.capacity, sharding=self._sharding
        )

    def share(self, cache: Any) -> Any:
        """The cache itself: reading makes new arrays."""
        return cache

    def read(
        self, cache: Any, ids: Sequence[int], read: int, slots: int, images: Images | None
    ) -> tuple[NDArray[np.float32], Any]:
        """See Reader."""
        *head, last = ids[read:]
        if images is not None and self.vision is not None:
            cache = self._look(cache, head, slots, images, self.vision)
            slots += self.vision.slots(head)
        elif head:
            cache = self._prefill(cache, head, slots)
            slots += len(head)
        logits, cache = self._step(self._params, *self._inputs([last], slots, 1), cache)
        # Kept in what the model computes in until here: sampling is always in float32.
        return float32(logits).reshape(-1)[-self.vocab_size :], cache

    def _prefill(self, cache: Any, ids: Sequence[int], slots: int) -> Any:
        length = len(ids)
        if has_end_index(cache):
            fitting = [bucket for bucket in self._buckets if len(ids) <= bucket <= self.capacity - slots]
            length = fitting[0] if fitting else length
        filled = self._fill(self._params, *self._inputs(ids, slots, length), cache)
        return filled if length == len(ids) else with_end_index(filled, slots + len(ids))

    def _look(self, cache: Any, ids: Sequence[int], slots: int, images: Images, vision: Vision) -> Any:
        """The cache with ids and their images read; an image's soft tokens all see each other."""
        length = vision.slots(ids)
        _, positions, mask = self._inputs([], slots, length)
        mask = mask.copy()
        for block in vision.blocks(ids):
            mask[0, block, slots + block.start : slots + block.stop] = True
        return self._fill(self._params, np.array([ids], np.int32), positions, mask, cache, images[None])

    def _inputs(self, ids: Sequence[int], slots: int, length: int) -> tuple[Any, Any, Any]:
        """Tokens [1, length], their positions, and which slots each may look at [1, length, cache_length]."""
        tokens = np.zeros((1, length), np.int32)
        tokens[0, : len(ids)] = ids
        positions = np.arange(slots, slots + length, dtype=np.int32)
        mask = np.arange(self.capacity) <= positions[:, None]
        return tokens, positions[None], mask[None]


Fill = Callable[..., Any]
Step = Callable[..., tuple[Any, Any]]


def plain_functions(model: Any) -> tuple[Fill, Step]:
    """How a model is called: to fill a cache, and for logits and cache."""

    def step(params: Any, tokens: Any, positions: Any, mask: Any, cache: Any, images: Any = None) -> tuple[Any, Any]:
        seen = {} if images is None else {"images": images}
        out = model.apply({"params": params}, tokens, cache=cache, positions=positions, attention_mask=mask, **seen)
        return out.logits, out.cache

    def fill(*inputs: Any) -> Any:
        return step(*inputs)[1]

    return fill, step


@lru_cache(maxsize=16)
def compiled_functions(model: Any) -> tuple[Fill, Step]:
    """The calls compiled by JAX; a model that is equal to an earlier one compiles nothing again."""
    import jax

    fill, step = plain_functions(model)
    return jax.jit(fill), jax.jit(step)


def functions_of(model: Any) -> tuple[Fill, Step]:
    """Compiled calls of a model; kept for later samplers when the model can be a key."""
    try:
        return compiled_functions(model)
    except TypeError:
        return compiled_functions.__wrapped__(model)


def reader_of(
    model: Any, params: Any, *, cache_length: int, buckets: Sequence[int], sharding: Any
) -> ModelReader | TransformerReader:
    """The Reader for a model; ModelError for an object of neither kind."""
    if hasattr(model, "apply") and hasattr(model, "init_cache"):
        if params is None:
            raise ModelError("params must be given with a TransformerLike model, got None")
        return TransformerReader(model, params, cache_length=cache_length, buckets=buckets, sharding=sharding)
    if hasattr(model, "prefill") and hasattr(model, "decode"):
        if sharding is not None or params is not None:
            name = "sharding" if params is None else "params"
            raise ParamsError(f"{name} must be None with a tirage model, which holds its own, got a value")
        return ModelReader(model, cache_length)
    raise ModelError(f"model must be a TransformerLike or a tirage.models.Model, got {type(model).__name__}")


def first_leaf(tree: Any) -> Any:
    """The first array of nested mappings and sequences; ModelError when there is none."""
    if hasattr(tree, "dtype"):
        return tree
    children = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else ()
    for child in children:
        try:
            return first_leaf(child)
        except ModelError:
            continue
    raise ModelError("params must be a nested mapping with at least one array, got none")


def has_end_index(cache: Any) -> bool:
    """Whether a cache is of Gemma's layout: a mapping of layers, each with the index that it writes at."""
    return isinstance(cache, Mapping) and all(isinstance(v, Mapping) and "end_index" in v for v in cache.values())


def with_end_index(cache: Any, end: int) -> Any:
    """The cache with that many slots counted as filled."""
    return {name: {**layer, "end_index": layer["end_index"] * 0 + end} for name, layer in cache.items()}
