"""What the engine asks of a model, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Model(Protocol):
    """Token ids to logits, one cache per request: the least that a user's own model offers.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What one request gives a model to read.

    `token_ids` are the prompt's, media placeholders included; with `embeds` [T, hidden] they are empty and the
    vectors stand in their place. `media` are the tensors that the model's own processor made, `media_key` a
    digest of them, `media_end` the position after their last placeholder. `salt` keeps the caches of tenants
    apart. `score` asks for logits after every token, `hidden_states` for the last layer's states.
    """

    token_ids: tuple[int, ...]
    embeds: Any = None
    media: Mapping[str, Any] = field(default_factory=dict)
    media_key: bytes = b""
    media_end: int = 0
    adapter: str | None = None
    salt: str = ""
    score: bool = False
    hidden_states: bool = False

    @property
    def length(self) -> int:
        """Number of positions that the prompt fills."""
        return len(self.token_ids) if self.embeds is None else len(self.embeds)


class CachedRow(Protocol):
    """One request inside a `StepModel`.

    `left` prompt positions are still to be read; `cached` were taken over from an earlier request. `hidden`
    [k, hidden] float32 are the states of the positions read last, where the inputs asked for them.
    """

    left: int
    cached: int
    hidden: NDArray[np.float32] | None


class StepModel(Model, Protocol):
    """A model that reads prompts piece by piece and keeps the rows in flight together.

    Its caches are rows: `decode` and `fork` take what `open` gave. All calls come from one thread. When `decode`
    raises, no row has moved: any of them may be tried again, alone or in other company.
    """

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for inputs that this model cannot read; computes nothing."""
        ...

    @property
    def media_marks(self) -> Mapping[str, str]:
        """What stands for an "image" and an "audio" in a text, of those that the model takes."""
        ...

    @property
    def sampling_rate(self) -> int | None:
        """Samples per second of the sounds that the model takes; None when it takes none."""
        ...

    def read_media(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """The inputs of a text whose marks stand for `images` and `audio`; ParamsError where they do not fit.

        Without `special` the text has its BOS and the like already.
        """
        ...

    def open(self, inputs: Inputs) -> Any:
        """A row that has read nothing yet, except what an earlier request left for reuse."""
        ...

    def read(self, row: Any) -> Logits:
        """Logits [k, V] after the next piece of the prompt: k = 1 at its end, 0 before; all with `score`.

        The pieces of a prompt do not depend on who else is in flight.
        """
        ...

    def close(self, row: Any, *, reuse: bool) -> None:
        """Frees a row; with `reuse` what it read may serve later requests that begin alike."""
        ...

    def forget(self) -> None:
        """Drops everything that was kept for reuse."""
        ...
