"""What the tokens of a vocabulary spell inside a text, and which of them begin with, hold or are some bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.text.tokenizer import Tokenizer

_REMEMBERED_BYTES = 4 << 20


class TextVocabulary:
    """The bytes of every token that has some, sorted, so that tokens with a common beginning are neighbours.

    `size` is one more than the highest id, `longest` the number of bytes of the longest token.
    """

    def __init__(self, texts: Iterable[tuple[bytes, int]]) -> None:
        given = list(texts)
        self.size = max((token for _, token in given), default=-1) + 1
        ordered = sorted((text, token) for text, token in given if text)
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([token for _, token in ordered], np.int32)
        self.longest = max(map(len, self._texts), default=0)
        # All texts in a row, where one search is quick; token i has the bytes from start i to start i + 1.
        self._row = b"".join(self._texts)
        self._starts = np.cumsum([0, *map(len, self._texts)])
        self._containing: dict[bytes, NDArray[np.int32]] = {}
        self._remembered = 0

    def spelling(self, text: bytes) -> NDArray[np.int32]:
        """Ids of the tokens whose text is exactly these bytes, ascending."""
        low = bisect_left(self._texts, text)
        return self._ids[low : bisect_left(self._texts, text + b"\0", low)]

    def starting(self, beginning: bytes) -> NDArray[np.int32]:
        """Ids of the tokens whose text starts with these bytes."""
        low = bisect_left(self._texts, beginning)
        after = beginning.rstrip(b"\xff")
        if not after:
            return self._ids[low:]
        return self._ids[low : bisect_left(self._texts, after[:-1] + bytes([after[-1] + 1]), low)]

    def containing(self, part: bytes) -> NDArray[np.int32]:
        """Ids of the tokens whose text holds these bytes anywhere."""
        found = self._containing.get(part)
        if found is None:
            found = self._ids[self._search(part)]
            self._remember(part, found)
        return found

    def _remember(self, part: bytes, found: NDArray[np.int32]) -> None:
        if self._remembered > _REMEMBERED_BYTES:
            self._containing.clear()
            self._remembered = 0
        self._containing[part] = found
        self._remembered += len(part) + found.nbytes + 256

    def _search(self, part: bytes) -> NDArray[np.intp]:
        places, at = [], self._row.find(part)
        while at >= 0:
            places.append(at)
            at = self._row.find(part, at + 1)
        found = np.array(places, np.intp)
        tokens = np.searchsorted(self._starts, found, side="right") - 1
        return np.unique(tokens[found + len(part) <= self._starts[tokens + 1]])


# By the tokenizer below the face: its number of tokens, which grows when some are added, and its vocabularies.
_known: WeakKeyDictionary[Any, tuple[int | None, dict[bool, TextVocabulary]]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> TextVocabulary:
    """The Vocabulary of a tokenizer, made once; with `skip_special_tokens` those tokens have no bytes in it.

    Raises ParamsError for a tokenizer that does not tell how many tokens it has.
    """
    known = _vocabularies(tokenizer)
    if skip_special_tokens not in known:
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        texts = ((b"" if token in skipped else tokenizer.inner_bytes(token), token) for token in all_ids(tokenizer))
        known[skip_special_tokens] = TextVocabulary(texts)
    return known[skip_special_tokens]


def _vocabularies(tokenizer: Tokenizer) -> dict[bool, TextVocabulary]:
    """The vocabularies made so far, shared by all faces of one tokenizer where Python can tell that it is one."""
    size = tokenizer.vocab_size
    try:
        known = _known.get(tokenizer.raw)
        if known is None or known[0] != size:
            known = _known[tokenizer.raw] = (size, {})
    except TypeError:  # an object without a hash, or to which nothing can refer weakly
        return tokenizer.memo.setdefault("vocabularies", {})
    return known[1]


def all_ids(tokenizer: Tokenizer) -> Iterable[int]:
    """Every id of a tokenizer, ascending; ParamsError when it does not tell its size."""
    size = tokenizer.vocab_size
    if size is None:
        raise ParamsError(
            f"tokenizer must have get_vocab_size(), len() or vocab_size, got {type(tokenizer.raw).__name__}; wrap it"
        )
    return tokenizer.token_ids() or range(size)
