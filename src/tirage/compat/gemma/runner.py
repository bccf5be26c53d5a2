"""Model runners: token ids go into a cache, and logits of the next token come out, for all prompts of a call.

Those here run one prompt at a time: a `tirage.models.Model`, and a TransformerLike that is no JAX model or whose cache
has another layout than Gemma's. `batched_runner.py` has the one that runs all prompts in one pass.
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

ForbiddenMask = NDArray[np.bool_]
"""Which tokens can never be drawn, [V]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInput:
    """The next ids of one conversation, which fill its cache from slot `slots` on; logits follow the last of them.

    `token_ids` is the whole conversation and `row` its number in the call; `images` are those of the new ids.
    """

    row: int
    ids: Sequence[int]
    token_ids: Sequence[int]
    slots: int
    images: Images | Media | None = None


class ModelRunner(Protocol):
    """A model that runs the prompts of a call together."""

    vocab_size: int
    capacity: int
    uses_jax: bool
    vision: Vision | None

    def start(self, count: int) -> Any:
        """Empty caches for `count` prompts."""
        ...

    def share(self, cache: Any) -> Any:
        """Caches that later calls extend without changing the given ones."""
        ...

    def forward(
        self, cache: Any, inputs: Sequence[ForwardInput], forbidden_mask: ForbiddenMask
    ) -> tuple[NDArray[np.float32], Any]:
        """Logits [len(inputs), V] after the last id of each, -inf where `forbidden_mask` [V] is set, and the caches."""
        ...


class SinglePromptRunner(Protocol):
    """A model that runs one prompt at a time."""

    vocab_size: int
    capacity: int
    uses_jax: bool
    vision: Vision | None

    def start(self) -> Any:
        """An empty cache."""
        ...

    def share(self, cache: Any) -> Any:
        """A cache that later calls extend without changing the given one."""
        ...

    def forward(self, cache: Any, given: ForwardInput) -> tuple[NDArray[np.float32], Any]:
        """Logits [V] after the last id, and the cache."""
        ...


class TirageModelRunner:
    """A `tirage.models.Model`; a new turn prefills the whole conversation again, so its logits are the same bits."""

    uses_jax: bool = False
    vision: Vision | None = None

    def __init__(self, model: Model, cache_length: int) -> None:
        self._model = model
        self.vocab_size, self.capacity = model.vocab_size, min(cache_length, model.max_length)

    def start(self) -> Any:
        """None: the cache is made by the prefill of the prompt."""
        return None

    def share(self, cache: Any) -> Any:
        """A copy of the cache."""
        return None if cache is None else self._model.fork(cache)

    def forward(self, cache: Any, given: ForwardInput) -> tuple[NDArray[np.float32], Any]:
        """Logits [V] after the last id, and the cache."""
        if cache is not None and len(given.ids) == 1:
            return self._model.decode([given.ids[0]], [cache])[0], cache
        return self._model.prefill(list(given.token_ids))


class TransformerRunner:
    """A TransformerLike with its parameters, request for one prompt at a time.

    All tokens but the last fill the cache, without logits; the last one is run for the logits.
    """

    def __init__(self, model: Any, forward: Forward) -> None:
        self._forward, self.capacity = forward, forward.length
        self.vocab_size, self.uses_jax = forward.vocab_size, forward.uses_jax
        self.vision = vision_of(model)

    def start(self) -> Any:
        """An empty cache."""
        return self._forward.start()

    def share(self, cache: Any) -> Any:
        """The cache itself: the model makes new arrays."""
        return cache

    def forward(self, cache: Any, given: ForwardInput) -> tuple[NDArray[np.float32], Any]:
        """Logits [V] after the last id, and the cache."""
        head, last, slots = list(given.ids[:-1]), given.ids[-1], given.slots
        if isinstance(given.images, np.ndarray) and self.vision is not None:
            head, last, rewound = self.vision.split(given.ids)
            cache = self._fill_images(cache, head, slots, given.images, self.vision)
            slots += self.vision.slots(head) - rewound
            cache = self._rewound(cache, slots) if rewound else cache
        elif head:
            cache = self._forward.fill(cache, head, slots)
            slots += len(head)
        return self._forward.step(cache, last, slots)

    def _rewound(self, cache: Any, slots: int) -> Any:
        """The cache with fewer slots in use, whose last token is to be run again for its logits."""
        if not has_end_index(cache):
            raise ParamsError("prompt must go on after its last image, as this model's cache is not in Gemma's layout")
        return with_end_index(cache, slots)

    def _fill_images(self, cache: Any, ids: Sequence[int], slots: int, images: Images, vision: Vision) -> Any:
        """The cache filled with ids and their images; the soft tokens of an image attend to each other."""
        _, positions, mask = self._forward.inputs([], slots, vision.slots(ids))
        for block in vision.blocks(ids):
            mask[0, block, slots + block.start : slots + block.stop] = True
        return self._forward.fill_seeing(cache, ids, images, positions, mask)


class SequentialRunner:
    """Prompts that run one after the other; the caches are a tuple."""

    def __init__(self, one: SinglePromptRunner) -> None:
        self._one = one
        self.vocab_size, self.capacity = one.vocab_size, one.capacity
        self.uses_jax, self.vision = one.uses_jax, one.vision

    def start(self, count: int) -> Any:
        """One empty cache for each prompt."""
        return tuple(self._one.start() for _ in range(count))

    def share(self, cache: Any) -> Any:
        """The caches, each shared."""
        return tuple(self._one.share(each) for each in cache)

    def forward(
        self, cache: Any, inputs: Sequence[ForwardInput], forbidden_mask: ForbiddenMask
    ) -> tuple[NDArray[np.float32], Any]:
        """Logits [len(inputs), V] after the last id of each, -inf where `forbidden_mask` [V] is set, and the caches."""
        caches, logits = list(cache), np.empty((len(inputs), self.vocab_size), np.float32)
        for given, row_logits in zip(inputs, logits, strict=True):
            row_logits[:], caches[given.row] = self._one.forward(caches[given.row], given)
            row_logits[forbidden_mask] = -np.inf
        return logits, tuple(caches)
