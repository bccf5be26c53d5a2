"""Phrases that must not appear in a text, whatever tokens spell them.

A token is forbidden when its text would complete a phrase, inside the token or across tokens: the text so far ends
with a beginning of the phrase and the token starts with the rest. Both are looked up, not tried: tokens that hold a
phrase are found once, and tokens that start with a rest lie side by side in the sorted vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.text.automaton import START, Automaton
from tirage.text.tokenizer import Tokenizer

_REMEMBERED = 1024


class Vocabulary:
    """The bytes of every token that has some, sorted, so that tokens with a common beginning are neighbours."""

    def __init__(self, texts: Iterable[tuple[bytes, int]]) -> None:
        ordered = sorted((text, token) for text, token in texts if text)
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([token for _, token in ordered], np.int32)
        # All texts in a row, where one search is quick; token i has the bytes from start i to start i + 1.
        self._row = b"".join(self._texts)
        self._starts = np.cumsum([0, *map(len, self._texts)])
        self._containing: dict[bytes, NDArray[np.int32]] = {}

    def starting(self, beginning: bytes) -> NDArray[np.int32]:
        """Ids of the tokens whose text starts with these bytes."""
        low = bisect_left(self._texts, beginning)
        after = beginning.rstrip(b"\xff")
        if not after:
            return self._ids[low:]
        return self._ids[low : bisect_left(self._texts, after[:-1] + bytes([after[-1] + 1]), low)]

    def containing(self, part: bytes) -> NDArray[np.int32]:
        """Ids of the tokens whose text holds these bytes anywhere."""
        if part not in self._containing:
            if len(self._containing) >= _REMEMBERED:
                self._containing.clear()
            self._containing[part] = self._ids[self._search(part)]
        return self._containing[part]

    def _search(self, part: bytes) -> NDArray[np.intp]:
        places, at = [], self._row.find(part)
        while at >= 0:
            places.append(at)
            at = self._row.find(part, at + 1)
        found = np.array(places, np.intp)
        tokens = np.searchsorted(self._starts, found, side="right") - 1
        return np.unique(tokens[found + len(part) <= self._starts[tokens + 1]])


def vocabulary_of(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Vocabulary:
    """The Vocabulary of a tokenizer, kept with it; tokens that the text leaves out have no bytes in it.

    Raises ParamsError for a tokenizer whose text is not that of its tokens, one after the other.
    """
    if tokenizer.spelling is None:
        raise ParamsError(
            "bad_words_level must be 'sequence' with this tokenizer, whose text cannot be followed token by token, "
            "got 'text'; use 'sequence' or give bad_words_token_ids"
        )
    skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
    known: dict[bool, Vocabulary] = tokenizer.memo.setdefault("vocabularies", {})
    if skip_special_tokens not in known:
        ids = tokenizer.token_ids()
        known[skip_special_tokens] = Vocabulary((tokenizer.token_bytes(i), i) for i in ids if i not in skipped)
    return known[skip_special_tokens]


class BadWords:
    """The phrases of one request over one vocabulary, and where its text stands; `accept` each token in turn.

    Phrases are compared letter by letter, case and spaces included; a phrase inside a longer word counts. Only the
    text after the prompt is looked at. Raises ParamsError for a phrase that holds U+FFFD, which also stands for
    broken bytes, and for a tokenizer whose text cannot be followed.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], *, skip_special_tokens: bool = True) -> None:
        for phrase in phrases:
            if "\ufffd" in phrase:
                raise ParamsError(
                    f"bad_words must not hold U+FFFD, the sign of broken bytes, at bad_words_level 'text', got "
                    f"{phrase!r:.80}; leave the word out"
                )
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._vocabulary = vocabulary_of(tokenizer, skip_special_tokens=skip_special_tokens)
        self._phrases = Automaton(phrase.encode() for phrase in phrases)
        parts = [self._vocabulary.containing(bytes(phrase)) for phrase in self._phrases.phrases]
        self._always = np.unique(np.concatenate(parts))
        self._node = START
        self._masks: dict[tuple[int, int], NDArray[np.int32]] = {}

    def accept(self, token_id: int) -> None:
        """Goes on by a token's text."""
        if token_id not in self._skipped:
            self._node = self._phrases.walk(self._node, self._tokenizer.token_bytes(token_id))

    def copy(self) -> BadWords:
        """An independent one at the same place; what was looked up is shared."""
        other = object.__new__(BadWords)
        other.__dict__.update(self.__dict__)
        return other

    def forbidden(self) -> NDArray[np.int32]:
        """Ids of the tokens that would complete a phrase now, ascending."""
        phrases = self._phrases.phrases
        rests = (bytes(phrases[index][letters:]) for index, letters in self._phrases.begun(self._node))
        return np.unique(np.concatenate([self._always, *map(self._vocabulary.starting, rests)]))

    def mask(self, vocab_size: int) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] of the tokens that may come next, least significant bit first."""
        key = (self._node, vocab_size)
        if key not in self._masks:
            if len(self._masks) >= _REMEMBERED:
                self._masks.clear()
            flags = np.ones(-(-vocab_size // 32) * 32, np.uint8)
            forbidden = self.forbidden()
            flags[forbidden[forbidden < vocab_size]] = 0
            self._masks[key] = np.packbits(flags, bitorder="little").view(np.int32)
        return self._masks[key]
