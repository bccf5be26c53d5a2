"""The vocabulary of a model: the bytes of every token id."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.errors import GrammarError
from tirage.guided.trie import Trie


class VocabularySource(Protocol):
    """What a vocabulary needs of a tokenizer; `tirage.text.Tokenizer` has it."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the tokens that are not text."""
        ...

    @property
    def decoder_rule(self) -> Any:
        """The rule by which the decoder spells tokens; None when it is not known."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for inside a text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids."""
        ...


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of every token id of a model.

    `tokens` has as many entries as the logits have columns. Empty entries are padding, which is never allowed.
    `special` maps the ids of special tokens to their spelling, by which a Lark grammar may refer to them.
    """

    tokens: tuple[bytes, ...]
    special: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: VocabularySource, width: int) -> Vocabulary:
        """The vocabulary of a tokenizer for logits of that width; ids that the tokenizer does not know are padding.

        Raises GrammarError for a tokenizer whose text is not the concatenation of what its tokens spell.
        """
        spelled = [spell(tokenizer, i) for i in range(width)]
        if tokenizer.decoder_rule is None:
            check_spelling(tokenizer, spelled)
        special = {i: spelled[i] for i in tokenizer.special_ids if i < width}
        return cls(tuple(b"" if i in special else token for i, token in enumerate(spelled)), special)

    @property
    def width(self) -> int:
        """The number of ids, which is the width V of the logits."""
        return len(self.tokens)

    @property
    def words(self) -> int:
        """The number of int32 words of a mask, ceil(V / 32)."""
        return -(-self.width // 32)

    @cached_property
    def key(self) -> str:
        """A hash of the vocabulary, in hexadecimal."""
        digest = hashlib.blake2b(digest_size=16)
        for i, token in enumerate(self.tokens):
            part = self.special.get(i, token)
            digest.update(len(part).to_bytes(4, "little") + bytes([i in self.special]) + part)
        return digest.hexdigest()

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        ids: dict[bytes, int] = {}
        for i, token in enumerate(self.tokens):
            ids.setdefault(token, i)
        ids.pop(b"", None)
        return ids

    @cached_property
    def trie(self) -> Trie:
        """The tokens as a trie."""
        return Trie.of(self.tokens)

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((token, i) for i, token in enumerate(self.tokens) if token)

    def longer_than(self, text: bytes) -> Iterator[int]:
        """The ids of the tokens that begin with a text and go on after it."""
        for at in range(bisect_left(self._sorted, (text, -1)), len(self._sorted)):
            token, token_id = self._sorted[at]
            if not token.startswith(text):
                return
            if token != text:
                yield token_id

    @cached_property
    def has_bytes(self) -> bool:
        """Whether every byte is a token, so that every text can be spelled."""
        return all(bytes([byte]) in self._ids for byte in range(256))

    @cached_property
    def _longest(self) -> dict[int, int]:
        """For each byte, the length of the longest token that begins with it."""
        longest: dict[int, int] = {}
        for token in self._ids:
            longest[token[0]] = max(len(token), longest.get(token[0], 0))
        return longest

    @cached_property
    def with_space(self) -> NDArray[np.int32]:
        """The tokens that begin with a space, as a mask int32 [ceil(V / 32)]."""
        bits = np.zeros(self.words * 32, np.uint8)
        bits[[i for i, token in enumerate(self.tokens) if token.startswith(b" ")]] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def cover(self, text: bytes, unusable: frozenset[int] = frozenset()) -> list[int] | None:
        """The fewest tokens that spell the bytes, without the unusable ones; None when no tokens do."""
        # From the end: best[at] = (number of tokens from there on, the first of them, where it ends).
        best: dict[int, tuple[int, int, int]] = {len(text): (0, -1, len(text))}
        for at in reversed(range(len(text))):
            ends = range(min(at + self._longest.get(text[at], 0), len(text)), at, -1)
            ways = [(best[end][0] + 1, self._usable(text[at:end], unusable), end) for end in ends if end in best]
            known = [way for way in ways if way[1] >= 0]
            if known:
                # Of several ways with the same number of tokens, the one whose first token is longest: it comes first.
                best[at] = min(known, key=itemgetter(0))
        if 0 not in best:
            return None
        found, at = [], 0
        while at < len(text):
            _, token_id, at = best[at]
            found.append(token_id)
        return found

    def _usable(self, spelled: bytes, unusable: frozenset[int]) -> int:
        """The id of the token of these bytes; -1 if there is none or it is unusable."""
        token_id = self._ids.get(spelled, -1)
        return -1 if token_id in unusable else token_id


def spell(tokenizer: VocabularySource, token_id: int) -> bytes:
    """The bytes of a token; empty for an id that the tokenizer does not know, and for part of a character."""
    try:
        spelled = tokenizer.token_bytes(token_id)
    except Exception:  # a user's own tokenizer may refuse an id in any way it likes
        return b""
    return b"" if tokenizer.decoder_rule is None and "\ufffd".encode() in spelled else spelled


def check_spelling(tokenizer: VocabularySource, spelled: Sequence[bytes]) -> None:
    """Raises GrammarError when two tokens together do not spell the concatenation of what each spells."""
    ids = [i for i, token in enumerate(spelled) if token and i not in tokenizer.special_ids]
    step = max(1, len(ids) // 64)
    for one, other in zip(ids[::step], ids[step // 2 :: step], strict=False):
        together = tokenizer.decode([one, other]).encode("utf-8", "surrogatepass")
        if together != spelled[one] + spelled[other]:
            raise GrammarError(
                "guided_decoding needs a tokenizer whose tokens spell text one after the other (byte-level or "
                f"SentencePiece-like), got one where tokens {one} and {other} do not"
            )
