"""A user's own small `Model`, or the bundled NumPy one, driven like the models that know rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.models import Inputs, Model, StepModel

# Prompts are read in pieces of this many tokens where the model can continue one.
CHUNK = 256


class PlainRow:
    """One request: its tokens, and the model's own cache once something was read."""

    __slots__ = ("cache", "cached", "hidden", "inputs", "left", "token_ids")

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.left, self.cached = inputs, inputs.length, 0
        self.token_ids = list(inputs.token_ids)
        self.cache: Any = None
        self.hidden: NDArray[np.float32] | None = None


class PlainModel:
    """The `StepModel` of a `Model`: text and token ids only.

    A model with `extend(token_ids, cache) -> (logits, cache)` reads long prompts in pieces, so that rows beside
    them keep moving; any other reads each prompt in one call.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocab_size, self.max_length = model.vocab_size, model.max_length
        self._extend = getattr(model, "extend", None)
        self.media_marks, self.sampling_rate = dict[str, str](), None

    def check(self, inputs: Inputs) -> None:
        """Raises ParamsError for anything besides token ids."""
        given = {
            "prompt embeds": inputs.embeds is not None,
            "prompt images and audio": bool(inputs.media),
            "prompt adapter": inputs.adapter is not None,
            "return_hidden_states": inputs.hidden_states,
        }
        for name, present in given.items():
            if present:
                raise ParamsError(f"{name} must not be given, this model takes text and token ids only")

    def read_media(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """ParamsError, always."""
        name = next(name for name, items in given.items() if len(items))
        raise ParamsError(f"prompt {name} must not be given, this model takes text and token ids only")

    def open(self, inputs: Inputs) -> PlainRow:
        """A row that has read nothing yet."""
        return PlainRow(inputs)

    def prefill_chunk(self, row: PlainRow) -> NDArray[np.float32]:
        """Logits [k, V] of the next piece of the prompt."""
        ids, done = row.inputs.token_ids, row.inputs.length - row.left
        if row.inputs.score or self._extend is None:
            row.left = 0
            logits, row.cache = self.model.prefill(ids)
            return self.model.score(ids) if row.inputs.score else logits[None]
        piece = ids[done : done + CHUNK]
        logits, row.cache = self._extend(piece, row.cache)
        row.left -= len(piece)
        return logits[None] if row.left == 0 else logits[None][:0]

    def decode(self, token_ids: Sequence[int], caches: Sequence[PlainRow]) -> NDArray[np.float32]:
        """Logits [B, V] after one more id per row."""
        own = [self._cache_of(row) for row in caches]
        try:
            logits = self.model.decode(token_ids, own)
        except BaseException:
            # The model may have moved some caches on: whoever tries again starts from tokens.
            for row in caches:
                row.cache = None
            raise
        for token_id, row in zip(token_ids, caches, strict=True):
            row.token_ids.append(token_id)
        return logits

    def fork(self, cache: PlainRow) -> PlainRow:
        """A second row with the same past."""
        twin = PlainRow(cache.inputs)
        twin.left, twin.token_ids = 0, [*cache.token_ids]
        twin.cache = self.model.fork(self._cache_of(cache))
        return twin

    def close(self, row: PlainRow, *, reuse: bool = False) -> None:
        """Frees a row; nothing is kept."""
        row.cache = None

    def forget(self) -> None:
        """Nothing was kept."""

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], Any]:
        """Logits [V] after the last id, and the row that continues from there."""
        row = self.open(Inputs(token_ids=tuple(token_ids)))
        logits, row.cache = self.model.prefill(token_ids)
        row.left = 0
        return logits, row

    def _cache_of(self, row: PlainRow) -> Any:
        """The row's cache, read again where a step that failed has spoilt it."""
        if row.cache is None:
            row.cache = self.model.prefill(row.token_ids)[1]
        return row.cache

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """The model's own."""
        return self.model.score(token_ids)


def as_step_model(model: Model) -> StepModel:
    """The model itself when it knows rows, else in the shape that the engine drives."""
    return model if hasattr(model, "open") and hasattr(model, "prefill_chunk") else PlainModel(model)  # type: ignore[return-value]
