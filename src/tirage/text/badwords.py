"""Phrases that must not appear in a text, whatever tokens spell them.

A token is forbidden when its text would complete a phrase, inside the token or across tokens: the text so far ends
with a beginning of the phrase and the token starts with the rest. Both are looked up, not tried: tokens that hold a
phrase are found once, and tokens that start with a rest lie side by side in the sorted vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.text.automaton import START, PhraseAutomaton
from tirage.text.tokenizer import Tokenizer
from tirage.text.vocabulary import vocabulary_of

MASK_BYTES = 1 << 20
"""The most that the masks of one set of phrases may hold, however many places in a text ask for one."""
_NONE = np.zeros(0, np.int32)
_REPLACEMENT = "\ufffd"


class Phrases:
    """Some phrases over one vocabulary: what is looked up in it, and the masks made last. The same for every text."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._vocabulary = vocabulary_of(tokenizer, skip_special_tokens=skip_special_tokens)
        self._automaton = PhraseAutomaton(phrase.encode() for phrase in phrases)
        parts = [self._vocabulary.containing(phrase) for phrase in self._automaton.phrases]
        self._always = np.unique(np.concatenate(parts))
        self._masks: dict[tuple[int, int], NDArray[np.int32]] = {}
        # By the size of the vocabulary, one flag for each token that holds no phrase.
        self._allowed: dict[int, NDArray[np.uint8]] = {}

    def after(self, node: int, token_id: int) -> int:
        """The node of the automaton after one more token."""
        return node if token_id in self._skipped else self._automaton.walk(node, self._tokenizer.inner_bytes(token_id))

    def forbidden(self, node: int) -> NDArray[np.int32]:
        """Ids of the tokens that would complete a phrase at a node, ascending."""
        return np.union1d(self._always, self._completing(node))

    def mask(self, node: int, vocab_size: int) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] of the tokens that may come at a node; not to be changed."""
        found = self._masks.get((node, vocab_size))
        if found is None:
            found = self._mask(node, vocab_size)
            if (len(self._masks) + 1) * found.nbytes > MASK_BYTES:
                self._masks.clear()
            self._masks[node, vocab_size] = found
        return found

    def _mask(self, node: int, vocab_size: int) -> NDArray[np.int32]:
        if vocab_size not in self._allowed:
            self._allowed = {
                vocab_size: without(self._always, np.ones(-(-vocab_size // 32) * 32, np.uint8), vocab_size)
            }
        flags = without(self._completing(node), self._allowed[vocab_size].copy(), vocab_size)
        return np.packbits(flags, bitorder="little").view(np.int32)

    def _completing(self, node: int) -> NDArray[np.int32]:
        """Ids of the tokens that start with the rest of a phrase that is begun, maybe several times."""
        rests = self._automaton.rests(node, self._vocabulary.longest)
        return np.concatenate([_NONE, *map(self._vocabulary.starting, rests)])


def without(token_ids: NDArray[np.int32], flags: NDArray[np.uint8], vocab_size: int) -> NDArray[np.uint8]:
    """The same flags, cleared for those of the tokens that the model knows."""
    flags[token_ids[token_ids < vocab_size]] = 0
    return flags


class BadWords:
    """Where one text stands among the phrases of its request; `accept` each token in turn.

    Phrases are compared letter by letter, case and spaces included; a phrase inside a longer word counts. Only the
    text after the prompt is looked at. What is made of the phrases is shared with every other text that has the same.
    Raises ParamsError for a phrase that holds U+FFFD, which also stands for broken bytes, and for a tokenizer whose
    text is not that of its tokens, one after the other.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], *, skip_special_tokens: bool = True) -> None:
        self._phrases = phrases_of(tokenizer, phrases, skip_special_tokens=skip_special_tokens)
        self._node = START

    def accept(self, token_id: int) -> None:
        """Goes on by a token's text."""
        self._node = self._phrases.after(self._node, token_id)

    def copy(self) -> BadWords:
        """An independent one at the same place."""
        return copy(self)

    def forbidden(self) -> NDArray[np.int32]:
        """Ids of the tokens that would complete a phrase now, ascending."""
        return self._phrases.forbidden(self._node)

    def mask(self, vocab_size: int) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] of the tokens that may come next, least significant bit first."""
        return self._phrases.mask(self._node, vocab_size)


def phrases_of(tokenizer: Tokenizer, phrases: Sequence[str], *, skip_special_tokens: bool) -> Phrases:
    """The Phrases of some texts, made once for all that ask for the same, and kept while one of them is in use."""
    kept: WeakValueDictionary[tuple[bool, tuple[str, ...]], Phrases]
    kept = tokenizer.memo.setdefault("phrases", WeakValueDictionary())
    key = skip_special_tokens, tuple(phrases)
    found = kept.get(key)
    if found is None:
        check_phrases(tokenizer, phrases)
        made = Phrases(tokenizer, phrases, skip_special_tokens=skip_special_tokens)
        found = kept.setdefault(key, made)
    return found


def followed(tokenizer: Tokenizer, phrases: Sequence[str]) -> tuple[str, ...]:
    """Those of the phrases that can be looked for in a text, whatever tokens spell them."""
    if not tokenizer.adds_up:
        return ()
    return tuple(phrase for phrase in phrases if _REPLACEMENT not in phrase)


def check_phrases(tokenizer: Tokenizer, phrases: Sequence[str]) -> None:
    """ParamsError for what cannot be enforced in a text."""
    if not tokenizer.adds_up:
        raise ParamsError(
            "bad_words_level must be 'auto' or 'sequence' with this tokenizer, whose text cannot be followed token by "
            "token, got 'text'; use one of them or give bad_words_token_ids"
        )
    for phrase in phrases:
        if _REPLACEMENT in phrase:
            raise ParamsError(
                f"bad_words must not hold U+FFFD, the sign of broken bytes, at bad_words_level 'text', got "
                f"{phrase!r:.80}; leave the word out"
            )
