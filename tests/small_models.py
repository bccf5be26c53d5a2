"""Models whose words are known in advance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Script:
    """Says one text after any prompt, whatever was drawn; ids are letters (see `Letters`).

    `{` in the text stands for logits that are NaN, `}` for logits that are all -inf. After the text comes
    the letter 0 forever.
    """

    vocab_size = 300

    def __init__(self, text: str, *, max_length: int = 1000) -> None:
        self.text, self.max_length = text, max_length
        self.calls: list[int] = []

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        self.calls.append(len(token_ids))
        return self._logits(0), [0]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        for cache in caches:
            cache[0] += 1
        return np.stack([self._logits(cache[0]) for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.zeros((len(token_ids), self.vocab_size), np.float32)

    def _logits(self, place: int) -> NDArray[np.float32]:
        letter = self.text[place] if place < len(self.text) else "\0"
        row = np.full(self.vocab_size, -20.0, np.float32)
        row[ord(letter)] = 20.0
        # Stop tokens that a minimum length forbids leave the letters to a runner-up.
        row[ord("-")] = max(row[ord("-")], 0.0)
        if letter == "{":
            row[:] = np.nan
        if letter == "}":
            row[:] = -np.inf
        return row
