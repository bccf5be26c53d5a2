"""The model's side: tokens into a cache, logits of the next token out, one conversation at a time.

A conversation has a cache of its own, so nothing is padded against a neighbour and no row depends on another's
length. Two kinds of models are read: Gemma's TransformerLike, and `tirage.models.Model`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.compat.gemma.images import Images, Vision, vision_of
from tirage.errors import ModelError, ParamsError
from tirage.models import Model
from tirage.models.transformer import Forward, is_jax


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
    """A TransformerLike with its parameters.

    All tokens but the last fill the cache, without logits being computed for them; the last gives the logits.
    """

    def __init__(self, model: Any, forward: Forward) -> None:
        self._forward, self.capacity = forward, forward.length
        self.vocab_size, self.uses_jax = forward.vocab_size, forward.uses_jax
        self.vision = vision_of(model)

    def start(self) -> Any:
        """An empty cache."""
        return self._forward.start()

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
            cache = self._forward.fill(cache, head, slots)
            slots += len(head)
        return self._forward.step(cache, last, slots)

    def _look(self, cache: Any, ids: Sequence[int], slots: int, images: Images, vision: Vision) -> Any:
        """The cache with ids and their images read; an image's soft tokens all see each other."""
        _, positions, mask = self._forward.inputs([], slots, vision.slots(ids))
        for block in vision.blocks(ids):
            mask[0, block, slots + block.start : slots + block.stop] = True
        return self._forward.fill_seeing(cache, ids, images, positions, mask)


def reader_of(
    model: Any, params: Any, *, cache_length: int, buckets: Sequence[int], sharding: Any
) -> ModelReader | TransformerReader:
    """The Reader for a model; ModelError for an object of neither kind."""
    if hasattr(model, "apply") and hasattr(model, "init_cache"):
        if params is None:
            raise ModelError("params must be given with a TransformerLike model, got None")
        check_sharding(sharding, params)
        return TransformerReader(model, Forward(model, params, length=cache_length, buckets=buckets, sharding=sharding))
    if hasattr(model, "prefill") and hasattr(model, "decode"):
        if sharding is not None or params is not None:
            name = "sharding" if params is None else "params"
            raise ParamsError(f"{name} must be None with a tirage model, which holds its own, got a value")
        return ModelReader(model, cache_length)
    raise ModelError(f"model must be a TransformerLike or a tirage.models.Model, got {type(model).__name__}")


def check_sharding(sharding: Any, params: Any) -> None:
    """Raises ParamsError for a sharding that the cache of one prompt cannot have."""
    if sharding is None:
        return
    if not is_jax(params):
        raise ParamsError(f"sharding must be None where params are no JAX arrays, got {type(sharding).__name__}")
    import jax

    for leaf in jax.tree.leaves(sharding):
        first = leaf.spec[0] if isinstance(leaf, jax.sharding.NamedSharding) and len(leaf.spec) else None
        axes = () if first is None else first if isinstance(first, tuple) else (first,)
        parts = math.prod(leaf.mesh.shape[axis] for axis in axes)
        if parts > 1:
            raise ParamsError(
                f"sharding must not split the first axis, for every prompt has a cache of its own, got {leaf.spec} "
                f"with {parts} parts; split the heads, axis 2, or nothing"
            )
