"""A model whose text repeats itself, so that drafts come true: its logits follow from the last three tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from every_stage import hashed_logits
from numpy.typing import NDArray

from tirage.text import wrap_tokenizer

V = 64
Logits = NDArray[np.float32]


class Repeating:
    """A `tirage.models.Model` over 64 ids; a cache is the list of the ids that it has read.

    `wrong` plants a mistake: taken back is one token less. `fails` counts down the passes with drafts that fail.
    """

    vocab_size = V
    draft_cost = 0.1

    def __init__(self, *, max_length: int = 400, key: int = 0, wrong: bool = False, fails: int = 0) -> None:
        self.max_length, self.key, self.wrong, self.fails = max_length, key, wrong, fails
        self.drafted = 0

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, list[int]]:
        return self._after(token_ids), [*token_ids]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> Logits:
        return np.concatenate([
            self.extend_each([token_id], cache) for token_id, cache in zip(token_ids, caches, strict=True)
        ])

    def extend_each(self, token_ids: Sequence[int], cache: list[int]) -> Logits:
        self.drafted += len(token_ids) > 1
        if len(token_ids) > 1 and self.fails:
            self.fails -= 1
            cache += token_ids[:1]
            raise RuntimeError("planted")
        rows = []
        for token_id in token_ids:
            cache.append(token_id)
            assert len(cache) <= self.max_length
            rows.append(self._after(cache))
        return np.stack(rows)

    def truncate(self, cache: list[int], count: int) -> None:
        del cache[len(cache) - count + self.wrong :]

    def fork(self, cache: list[int]) -> list[int]:
        return [*cache]

    def score(self, token_ids: Sequence[int]) -> Logits:
        return np.stack([self._after(token_ids[: end + 1]) for end in range(len(token_ids))])

    def _after(self, token_ids: Sequence[int]) -> Logits:
        return logits_of(self.key, *(token_id % 6 for token_id in token_ids[-3:]))


@cache
def logits_of(key: int, *last: int) -> Logits:
    return hashed_logits(key, *last, size=V, scale=4.0)


class Symbols:
    """A tokenizer of 64 ids: letters, digits, space and full stop."""

    vocab_size = 64
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."

    def encode(self, text: str) -> list[int]:
        return [self.letters.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.letters[i] for i in ids)


SYMBOLS = wrap_tokenizer(Symbols())
"""One for all tests, as what is derived from a vocabulary is kept with it."""
