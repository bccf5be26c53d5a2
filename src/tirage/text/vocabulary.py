"""The bytes that tokens add to a text, with look-ups of the tokens that equal, start with or contain given bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.text.tokenizer import Tokenizer
from tirage.workers.cancel import checkpoint

_MAX_CACHED_BYTES = 4 << 20


class TextVocabulary:
    """The non-empty tokens of a vocabulary, sorted by their bytes, so that tokens with a common prefix are neighbours.

    `size` is one more than the highest id, `longest` the length in bytes of the longest token.
    """

    def __init__(self, texts: Iterable[tuple[bytes, int]]) -> None:
        given = list(texts)
        self.size = max((token for _, token in given), default=-1) + 1
        ordered = sorted((text, token) for text, token in given if text)
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([token for _, token in ordered], np.int32)
        self.longest = max(map(len, self._texts), default=0)
        # All texts concatenated, for fast search; token i is the bytes from start i to start i + 1.
        self._joined = b"".join(self._texts)
        self._starts = np.cumsum([0, *map(len, self._texts)])
        self._containing: dict[bytes, NDArray[np.int32]] = {}
        self._cached_bytes = 0

    def exact(self, text: bytes) -> NDArray[np.int32]:
        """The ids of the tokens that are exactly these bytes, int32 [N], ascending."""
        low = bisect_left(self._texts, text)
        return self._ids[low : bisect_left(self._texts, text + b"\0", low)]

    def starting(self, beginning: bytes) -> NDArray[np.int32]:
        """The ids of the tokens that start with these bytes, int32 [N]."""
        low = bisect_left(self._texts, beginning)
        after = beginning.rstrip(b"\xff")
        if not after:
            return self._ids[low:]
        return self._ids[low : bisect_left(self._texts, after[:-1] + bytes([after[-1] + 1]), low)]

    def containing(self, part: bytes) -> NDArray[np.int32]:
        """The ids of the tokens that contain these bytes, int32 [N]."""
        found = self._containing.get(part)
        if found is None:
            found = self._ids[self._search(part)]
            self._cache(part, found)
        return found

    def _cache(self, part: bytes, found: NDArray[np.int32]) -> None:
        if self._cached_bytes > _MAX_CACHED_BYTES:
            self._containing.clear()
            self._cached_bytes = 0
        self._containing[part] = found
        self._cached_bytes += len(part) + found.nbytes + 256

    def _search(self, part: bytes) -> NDArray[np.intp]:
        checkpoint()
        places, at = [], self._joined.find(part)
        while at >= 0:
            places.append(at)
            at = self._joined.find(part, at + 1)
        found = np.array(places, np.intp)
        tokens = np.searchsorted(self._starts, found, side="right") - 1
        return np.unique(tokens[found + len(part) <= self._starts[tokens + 1]])


# By wrapped tokenizer: its number of tokens, which grows when tokens are added, and its vocabularies.
_known: WeakKeyDictionary[Any, tuple[int | None, dict[bool, TextVocabulary]]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> TextVocabulary:
    """The TextVocabulary of a tokenizer, cached; with `skip_special_tokens` special tokens have no bytes.

    Raises ParamsError for a tokenizer that does not tell how many tokens it has.
    """
    known = _vocabularies(tokenizer)
    if skip_special_tokens not in known:
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        texts = ((b"" if token in skipped else tokenizer.inner_bytes(token), token) for token in all_ids(tokenizer))
        known[skip_special_tokens] = TextVocabulary(texts)
    return known[skip_special_tokens]


def _vocabularies(tokenizer: Tokenizer) -> dict[bool, TextVocabulary]:
    """The vocabularies made so far, shared by all wrappers of a tokenizer if it is hashable."""
    size = tokenizer.vocab_size
    try:
        known = _known.get(tokenizer.raw)
        if known is None or known[0] != size:
            known = _known[tokenizer.raw] = (size, {})
    except TypeError:  # not hashable, or not weakly referable
        return tokenizer.memo.setdefault("vocabularies", {})
    return known[1]


def all_ids(tokenizer: Tokenizer) -> Iterable[int]:
    """Every id of a tokenizer, ascending; ParamsError if it does not tell its size."""
    size = tokenizer.vocab_size
    if size is None:
        raise ParamsError(
            f"tokenizer must have get_vocab_size(), len() or vocab_size, got {type(tokenizer.raw).__name__}; wrap it"
        )
    return tokenizer.token_ids() or range(size)
