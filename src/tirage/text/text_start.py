"""The start of a text, where vocabularies that mark the start of words drop a space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.text.tokenizer import Tokenizer
from tirage.text.vocabulary import TextVocabulary, all_ids, vocabulary_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStart:
    """What the next token does not write of its spaces.

    It loses up to `spaces` of those that it begins with. A `bare` token is written as the tokenizer writes it alone:
    without any of its marks for a space. False where a token is written as it is inside a text.
    """

    spaces: int = 0
    bare: bool = False

    def __bool__(self) -> bool:
        return self.bare or self.spaces > 0

    def written(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        """The UTF-8 bytes that a token adds to the text here."""
        text = tokenizer.inner_bytes(token_id)
        return bare_bytes(tokenizer, token_id) if self.bare else text[self._lost(text) :]

    def after(self, tokenizer: Tokenizer, token_id: int) -> TextStart:
        """What the token after this one loses."""
        if not self:
            return self
        if self.bare:
            begun = bare_bytes(tokenizer, token_id) or (tokenizer.decoder_rule and tokenizer.piece(token_id))
            return INSIDE if begun else self
        text = tokenizer.inner_bytes(token_id)
        lost = self._lost(text)
        return TextStart(spaces=self.spaces - lost) if lost == len(text) else INSIDE

    def _lost(self, text: bytes) -> int:
        return min(self.spaces, len(text) - len(text.lstrip(b" ")))


INSIDE = TextStart()
"""Inside a text nothing is lost."""


def start_of(tokenizer: Tokenizer) -> TextStart:
    """What the first token of a text loses, as far as a rule of the tokenizer's decoder says so."""
    rule = tokenizer.decoder_rule
    return INSIDE if rule is None else TextStart(spaces=rule.strip_spaces, bare=rule.bare_start)


def bare_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The UTF-8 bytes of a token without its marks for a space, or as its decoder writes it alone."""
    rule = tokenizer.decoder_rule
    piece = None if rule is None else tokenizer.piece(token_id)
    if rule is not None and isinstance(piece, str):
        return piece.replace(rule.space_mark, "").encode("utf-8", "surrogatepass")
    # Without a rule these are the bytes of the token alone.
    return tokenizer.token_bytes(token_id)


def changed_tokens(
    tokenizer: Tokenizer, start: TextStart, *, skip_special_tokens: bool
) -> tuple[NDArray[np.int32], TextVocabulary]:
    """The ids int32 [N] of tokens that may be written differently at a start, and what they are there; cached."""
    name = f"written at {start}, skipping {skip_special_tokens}"
    found = tokenizer.memo.get(name)
    if found is None:
        inside = vocabulary_of(tokenizer, skip_special_tokens=skip_special_tokens)
        if tokenizer.decoder_rule is None:
            skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
            ids = np.array([i for i in all_ids(tokenizer) if i not in skipped], np.int32)
        else:
            ids = inside.containing(b" ") if start.bare else inside.starting(b" ")
        texts = TextVocabulary((start.written(tokenizer, token_id), token_id) for token_id in ids.tolist())
        found = tokenizer.memo.setdefault(name, (ids, texts))
    return found
