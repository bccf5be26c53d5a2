"""Phrases that must not appear in a text, whatever tokens spell them.

A token is forbidden when its text would complete a phrase, inside the token or across tokens: the text so far ends with
a prefix of the phrase and the token starts with the rest. No token is tried: those that contain a phrase are found
once, and those that start with a given rest are neighbours in the sorted vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.text.aho_corasick import START, PhraseAutomaton
from tirage.text.copies import twin
from tirage.text.text_start import INSIDE, TextStart, changed_tokens
from tirage.text.tokenizer import Tokenizer
from tirage.text.vocabulary import vocabulary_of

MASK_BYTES = 1 << 20
"""Most memory that the cached masks of one set of phrases may take."""
_NONE = np.zeros(0, np.int32)
_REPLACEMENT = "\ufffd"


class PhraseMasks:
    """Some phrases over one vocabulary, shared by all texts: their automaton, and the latest masks."""

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._vocabulary = vocabulary_of(tokenizer, skip_special_tokens=skip_special_tokens)
        self._automaton = PhraseAutomaton(phrase.encode() for phrase in phrases)
        parts = [self._vocabulary.containing(phrase) for phrase in self._automaton.phrases]
        self._always = np.unique(np.concatenate(parts))
        self._skip_special_tokens = skip_special_tokens
        self._masks: dict[tuple[int, TextStart, int], NDArray[np.int32]] = {}
        # By size of the vocabulary: one flag per token, 0 for those that contain a phrase.
        self._allowed: dict[int, NDArray[np.uint8]] = {}

    def after(self, node: int, token_id: int, start: TextStart = INSIDE) -> int:
        """The node of the automaton after one more token, which loses of its spaces what `start` says."""
        return (
            node if token_id in self._skipped else self._automaton.walk(node, start.written(self._tokenizer, token_id))
        )

    def start_after(self, start: TextStart, token_id: int) -> TextStart:
        """What the token after this one loses of its spaces."""
        return start if token_id in self._skipped else start.after(self._tokenizer, token_id)

    def forbidden(self, node: int, start: TextStart = INSIDE) -> NDArray[np.int32]:
        """The ids of the tokens that would complete a phrase at a node, int32 [N], ascending."""
        return self._at_start(start) if start else np.union1d(self._always, self._completing(node))

    def mask(self, node: int, vocab_size: int, start: TextStart = INSIDE) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] of the tokens allowed at a node; shared, so not to be modified."""
        found = self._masks.get((node, start, vocab_size))
        if found is None:
            found = self._first_mask(start, vocab_size) if start else self._mask(node, vocab_size)
            if (len(self._masks) + 1) * found.nbytes > MASK_BYTES:
                self._masks.clear()
            self._masks[node, start, vocab_size] = found
        return found

    def _at_start(self, start: TextStart) -> NDArray[np.int32]:
        """The ids of the tokens that write a phrase where they lose spaces: before any text, so no phrase has begun."""
        changed, texts = changed_tokens(self._tokenizer, start, skip_special_tokens=self._skip_special_tokens)
        parts = [texts.containing(phrase) for phrase in self._automaton.phrases]
        return np.union1d(np.setdiff1d(self._always, changed), np.concatenate(parts))

    def _first_mask(self, start: TextStart, vocab_size: int) -> NDArray[np.int32]:
        flags = without(self._at_start(start), np.ones(-(-vocab_size // 32) * 32, np.uint8), vocab_size)
        return np.packbits(flags, bitorder="little").view(np.int32)

    def _mask(self, node: int, vocab_size: int) -> NDArray[np.int32]:
        if vocab_size not in self._allowed:
            self._allowed = {
                vocab_size: without(self._always, np.ones(-(-vocab_size // 32) * 32, np.uint8), vocab_size)
            }
        flags = without(self._completing(node), self._allowed[vocab_size].copy(), vocab_size)
        return np.packbits(flags, bitorder="little").view(np.int32)

    def _completing(self, node: int) -> NDArray[np.int32]:
        """The ids of the tokens that start with the rest of a phrase that has begun; an id may occur several times."""
        rests = self._automaton.rests(node, self._vocabulary.longest)
        return np.concatenate([_NONE, *map(self._vocabulary.starting, rests)])


def without(token_ids: NDArray[np.int32], flags: NDArray[np.uint8], vocab_size: int) -> NDArray[np.uint8]:
    """The flags uint8 [32 * ceil(V / 32)], cleared in place for the tokens int32 [N] below the vocabulary size."""
    flags[token_ids[token_ids < vocab_size]] = 0
    return flags


class BadWords:
    """The state of one text with respect to the bad words of its request; `accept` every token.

    Phrases are compared exactly, case and spaces included, and are found inside longer words. The prompt is not looked
    at; `start` is what the first token of the text loses, which is not in the text either. Texts with the same phrases
    share their masks. Raises ParamsError for a phrase that contains U+FFFD, which also
    stands for invalid bytes, and for a tokenizer whose text is not the concatenation of that of its tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        phrases: Sequence[str],
        *,
        skip_special_tokens: bool = True,
        start: TextStart = INSIDE,
    ) -> None:
        self._phrases = phrase_masks_of(tokenizer, phrases, skip_special_tokens=skip_special_tokens)
        self._node, self._start = START, start

    def accept(self, token_id: int) -> None:
        """Moves past a token."""
        self._node = self._phrases.after(self._node, token_id, self._start)
        self._start = self._phrases.start_after(self._start, token_id)

    def copy(self) -> BadWords:
        """An independent copy in the same state."""
        return twin(self)

    def forbidden(self) -> NDArray[np.int32]:
        """The ids of the tokens that would complete a phrase now, int32 [N], ascending."""
        return self._phrases.forbidden(self._node, self._start)

    def mask(self, vocab_size: int) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] of the tokens that may come next, least significant bit first, 1 = allowed."""
        return self._phrases.mask(self._node, vocab_size, self._start)


def phrase_masks_of(tokenizer: Tokenizer, phrases: Sequence[str], *, skip_special_tokens: bool) -> PhraseMasks:
    """The PhraseMasks of some phrases, shared by all who ask for the same and kept while one of them is in use.

    Raises ParamsError for phrases and tokenizers with which they cannot be enforced.
    """
    kept: WeakValueDictionary[tuple[bool, tuple[str, ...]], PhraseMasks]
    kept = tokenizer.memo.setdefault("phrases", WeakValueDictionary())
    key = skip_special_tokens, tuple(phrases)
    found = kept.get(key)
    if found is None:
        check_phrases(tokenizer, phrases)
        made = PhraseMasks(tokenizer, phrases, skip_special_tokens=skip_special_tokens)
        found = kept.setdefault(key, made)
    return found


def enforceable_phrases(tokenizer: Tokenizer, phrases: Sequence[str]) -> tuple[str, ...]:
    """The phrases that can be enforced in the text of this tokenizer, whatever tokens spell them."""
    if not tokenizer.adds_up:
        return ()
    return tuple(phrase for phrase in phrases if _REPLACEMENT not in phrase)


def check_phrases(tokenizer: Tokenizer, phrases: Sequence[str]) -> None:
    """Raises ParamsError for phrases that cannot be enforced in the text of this tokenizer."""
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
