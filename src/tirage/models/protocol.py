"""What the engine asks of a model, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Model(Protocol):
    """Token ids to logits, one cache per request.

    A cache belongs to the model: nobody else looks inside, so its type is open. Every method must give a
    request the same logits whoever shares the call; that is what makes a request a pure function of itself.
    """

    @property
    def vocab_size(self) -> int:
        """Width of the logits, which may exceed the tokenizer's length."""
        ...

    @property
    def max_length(self) -> int:
        """Largest number of tokens, prompt and output together."""
        ...

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, Any]:
        """Logits [V] float32 after the last of 1..max_length ids, and the cache that continues from there."""
        ...

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> Logits:
        """Logits [B, V] float32 after one more id per request; each cache grows by that id in place."""
        ...

    def fork(self, cache: Any) -> Any:
        """An independent copy of a cache, for a second sample of the same prompt."""
        ...

    def score(self, token_ids: Sequence[int]) -> Logits:
        """Logits [T, V] float32 after each of the T ids."""
        ...
