"""The model's side: tokens into a cache, logits of the next token out, for the prompts of a call together.

Here are the readers that take one prompt at a time, for a `tirage.models.Model` and for a TransformerLike that is no
JAX model or keeps its cache in another layout than Gemma's; `joined.py` has the one that takes all in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.compat.gemma.images import Images, Vision, vision_of
from tirage.compat.gemma.media import Media
from tirage.errors import ParamsError
from tirage.models import Model
from tirage.models.transformer import Forward, has_end_index, with_end_index

Never = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one conversation reads next: ids, of which the last gives the logits, into its cache from `slots` on.

    `token_ids` is the whole conversation and `row` its number in the call; `images` are those of the new ids.
    """

    row: int
    ids: Sequence[int]
    token_ids: Sequence[int]
    slots: int
    images: Images | Media | None = None


class Reader(Protocol):
    """A model as a sampler sees it."""

    vocab_size: int
    capacity: int
    uses_jax: bool
    vision: Vision | None

    def start(self, count: int) -> Any:
        """Empty caches for so many prompts."""
        ...

    def share(self, cache: Any) -> Any:
        """Caches that may be read on from while the given ones stay as they are."""
        ...

    def read(self, cache: Any, readings: Sequence[Reading], never: Never) -> tuple[NDArray[np.float32], Any]:
        """Logits [len(readings), V] after the last id of each, and the caches; -inf for the tokens in `never`."""
        ...


class OneReader(Protocol):
    """A model that reads one prompt at a time."""

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

    def read(self, cache: Any, reading: Reading) -> tuple[NDArray[np.float32], Any]:
        """Logits [V] after the last id, and the cache."""
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

    def read(self, cache: Any, reading: Reading) -> tuple[NDArray[np.float32], Any]:
        """See OneReader."""
        if cache is not None and len(reading.ids) == 1:
            return self._model.decode([reading.ids[0]], [cache])[0], cache
        return self._model.prefill(list(reading.token_ids))


class TransformerReader:
    """A TransformerLike with its parameters, asked for one prompt at a time.

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

    def read(self, cache: Any, reading: Reading) -> tuple[NDArray[np.float32], Any]:
        """See OneReader."""
        head, last, slots = list(reading.ids[:-1]), reading.ids[-1], reading.slots
        if isinstance(reading.images, np.ndarray) and self.vision is not None:
            head, last, rewound = self.vision.split(reading.ids)
            cache = self._look(cache, head, slots, reading.images, self.vision)
            slots += self.vision.slots(head) - rewound
            cache = self._rewound(cache, slots) if rewound else cache
        elif head:
            cache = self._forward.fill(cache, head, slots)
            slots += len(head)
        return self._forward.step(cache, last, slots)

    def _rewound(self, cache: Any, slots: int) -> Any:
        """The cache with fewer slots in use, whose last token is to be read again for its logits."""
        if not has_end_index(cache):
            raise ParamsError("prompt must go on after its last image, as this model's cache is not in Gemma's layout")
        return with_end_index(cache, slots)

    def _look(self, cache: Any, ids: Sequence[int], slots: int, images: Images, vision: Vision) -> Any:
        """The cache with ids and their images read; an image's soft tokens all see each other."""
        _, positions, mask = self._forward.inputs([], slots, vision.slots(ids))
        for block in vision.blocks(ids):
            mask[0, block, slots + block.start : slots + block.stop] = True
        return self._forward.fill_seeing(cache, ids, images, positions, mask)


class SeparateReader:
    """Prompts read one after the other; the caches are a tuple."""

    def __init__(self, one: OneReader) -> None:
        self._one = one
        self.vocab_size, self.capacity = one.vocab_size, one.capacity
        self.uses_jax, self.vision = one.uses_jax, one.vision

    def start(self, count: int) -> Any:
        """See Reader."""
        return tuple(self._one.start() for _ in range(count))

    def share(self, cache: Any) -> Any:
        """See Reader."""
        return tuple(self._one.share(each) for each in cache)

    def read(self, cache: Any, readings: Sequence[Reading], never: Never) -> tuple[NDArray[np.float32], Any]:
        """See Reader."""
        caches, logits = list(cache), np.empty((len(readings), self.vocab_size), np.float32)
        for reading, out in zip(readings, logits, strict=True):
            out[:], caches[reading.row] = self._one.read(caches[reading.row], reading)
            out[never] = -np.inf
        return logits, tuple(caches)
