"""The adapter that gives a `Model` without rows of its own, such as the bundled one, the interface of a `StepModel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.models import Inputs, Model, StepModel
from tirage.models.text_only import TextOnly

# The number of tokens of a prefill chunk, where the model can extend a cache.
CHUNK = 256


class PlainRow:
    """One sequence: its tokens, and the model's cache once there is one. `left` prompt tokens are still to prefill."""

    __slots__ = ("cache", "cached", "hidden", "inputs", "left", "token_ids")

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.left, self.cached = inputs, inputs.length, 0
        self.token_ids = list(inputs.token_ids)
        self.cache: Any = None
        self.hidden: NDArray[np.float32] | None = None


class PlainModel(TextOnly):
    """A `Model` as a `StepModel`; it takes text and token ids only.

    A model with `extend(token_ids, cache) -> (logits [V], cache)` prefills long prompts in chunks, so that other rows
    get their tokens in between; any other prefills each prompt in one call. So it is with prompts that are scored and
    `extend_scored`, whose logits are [T, V].
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocab_size, self.max_length = model.vocab_size, model.max_length
        if hasattr(model, "draft_cost"):
            self.draft_cost = float(getattr(model, "draft_cost"))  # noqa: B009
        self._extend: Any = getattr(model, "extend", None)
        self._extend_scored: Any = getattr(model, "extend_scored", None)
        self._extend_each: Any = getattr(model, "extend_each", None)
        # Whether several tokens in one pass have the bits of passes of their own.
        self._exact = getattr(model, "extends_exactly", False)

    def open(self, inputs: Inputs) -> PlainRow:
        """A row whose prompt is yet to be prefilled."""
        return PlainRow(inputs)

    def prefill_chunk(self, row: PlainRow) -> NDArray[np.float32]:
        """Logits float32 [k, V] of the next chunk of the prompt; k is 0 before its end unless it is scored."""
        ids, done, score = row.inputs.token_ids, row.inputs.length - row.left, row.inputs.score
        extend = self._extend_scored if score else self._extend
        if extend is None:
            row.left = 0
            logits, row.cache = self.model.prefill(ids)
            return self.model.score(ids) if score else logits[None]
        chunk = ids[done : done + CHUNK]
        logits, row.cache = extend(chunk, row.cache)
        row.left -= len(chunk)
        if score:
            return logits
        return logits[None] if row.left == 0 else logits[None][:0]

    def decode(self, token_ids: Sequence[int], caches: Sequence[PlainRow]) -> NDArray[np.float32]:
        """Logits float32 [B, V] after one more id per row."""
        own = [self._cache_of(row) for row in caches]
        try:
            logits = self.model.decode(token_ids, own)
        except BaseException:
            # The model may have advanced some of the caches, so a second attempt starts from the tokens.
            for row in caches:
                row.cache = None
            raise
        for token_id, row in zip(token_ids, caches, strict=True):
            row.token_ids.append(token_id)
        return logits

    def extend_row(self, row: PlainRow, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits float32 [1, V] after the last of more ids of a row."""
        cache = self._cache_of(row)
        try:
            if self._exact:
                # As drafts are read: forced text may have been one.
                *_, logits = self._extend_each(token_ids, cache)
            elif self._extend is not None and len(token_ids) <= CHUNK:
                logits, cache = self._extend(token_ids, cache)
            else:
                logits = [self.model.decode([token_id], [cache])[0] for token_id in token_ids][-1]
        except BaseException:
            row.cache = None
            raise
        row.cache = cache
        row.token_ids += token_ids
        return np.asarray(logits)[None]

    @property
    def draft_refusal(self) -> str:
        """Why rows cannot have drafts; empty where they can."""
        if not all(hasattr(self.model, name) for name in ("extend_each", "truncate")):
            return "it has no extend_each(token_ids, cache) and truncate(cache, count)"
        return "" if getattr(self.model, "takes_back", True) else "its caches do not say how many slots are filled"

    def room_for_draft(self, row: PlainRow) -> int:
        """The most tokens of a draft that a row may read now."""
        return self.max_length - len(row.token_ids) - 1

    def extend_rows(self, token_ids: Sequence[Sequence[int]], rows: Sequence[PlainRow]) -> NDArray[np.float32]:
        """Logits float32 [n, V] after each of the ids of each row, those of a row together."""
        assert self._extend_each is not None
        try:
            parts = [self._extend_each(ids, self._cache_of(row)) for ids, row in zip(token_ids, rows, strict=True)]
        except BaseException:
            for row in rows:
                row.cache = None
            raise
        for ids, row in zip(token_ids, rows, strict=True):
            row.token_ids += ids
        return np.concatenate(parts)

    def truncate_row(self, row: PlainRow, count: int) -> None:
        """Takes back the last `count` ids that `extend_rows` has read."""
        del row.token_ids[-count:]
        if row.cache is not None:
            model: Any = self.model
            model.truncate(row.cache, count)

    def fork(self, cache: PlainRow) -> PlainRow:
        """An independent row with the same tokens."""
        other = PlainRow(cache.inputs)
        other.left, other.token_ids = 0, [*cache.token_ids]
        other.cache = self.model.fork(self._cache_of(cache))
        return other

    def close(self, row: PlainRow, *, reuse: bool = False) -> None:
        """Frees a row; nothing is cached for other requests."""
        row.cache = None

    def forget(self) -> None:
        """Does nothing, as nothing is cached."""

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], Any]:
        """Logits float32 [V] after the last id, and the row that continues from there."""
        row = self.open(Inputs(token_ids=tuple(token_ids)))
        logits, row.cache = self.model.prefill(token_ids)
        row.left = 0
        return logits, row

    def _cache_of(self, row: PlainRow) -> Any:
        """The row's cache, computed again from its tokens after a step that failed."""
        if row.cache is None:
            row.cache = self.model.prefill(row.token_ids)[1]
        return row.cache

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits float32 [T, V] after each of T ids."""
        return self.model.score(token_ids)


def as_step_model(model: Model) -> StepModel:
    """The model itself if it is a StepModel, else a PlainModel of it."""
    return model if hasattr(model, "open") and hasattr(model, "prefill_chunk") else PlainModel(model)  # type: ignore[return-value]
