"""What every token id of a model spells, as the compilers need to know it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.errors import GrammarError
from tirage.guided.trie import Trie


class Speller(Protocol):
    """The part of a tokenizer that matters here; `tirage.text.Tokenizer` has it."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that are no text."""
        ...

    @property
    def spelling(self) -> Any:
        """The rule by which tokens spell text, None when it is not known."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for inside a text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some ids."""
        ...


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of every id of a model's logits, and which ids are special.

    `tokens` has as many entries as the logits have columns. Empty ones are padding: no text, never allowed. `special`
    maps the ids of special tokens to their spelling, by which a Lark grammar may name them.
    """

    tokens: tuple[bytes, ...]
    special: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Speller, width: int) -> Vocabulary:
        """The vocabulary of a tokenizer for logits of that width; ids the tokenizer does not know are padding.

        Raises GrammarError for a tokenizer whose tokens do not simply spell their text one after the other.
        """
        spelled = [spell(tokenizer, i) for i in range(width)]
        if tokenizer.spelling is None:
            check_spelling(tokenizer, spelled)
        special = {i: spelled[i] for i in tokenizer.special_ids if i < width}
        return cls(tuple(b"" if i in special else token for i, token in enumerate(spelled)), special)

    @property
    def width(self) -> int:
        """Number of ids: the columns of the logits."""
        return len(self.tokens)

    @property
    def words(self) -> int:
        """int32 words of a mask."""
        return -(-self.width // 32)

    @cached_property
    def key(self) -> str:
        """A name that equal vocabularies share."""
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
        """The tokens as a tree."""
        return Trie.of(self.tokens)

    @cached_property
    def has_bytes(self) -> bool:
        """Whether every byte is a token, so that every text can be written."""
        return all(bytes([byte]) in self._ids for byte in range(256))

    @cached_property
    def _longest(self) -> dict[int, int]:
        """For each byte the size of the longest token that begins with it."""
        longest: dict[int, int] = {}
        for token in self._ids:
            longest[token[0]] = max(len(token), longest.get(token[0], 0))
        return longest

    @cached_property
    def with_space(self) -> NDArray[np.int32]:
        """The tokens that begin with a space, as a mask."""
        bits = np.zeros(self.words * 32, np.uint8)
        bits[[i for i, token in enumerate(self.tokens) if token.startswith(b" ")]] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def cover(self, text: bytes, unusable: frozenset[int] = frozenset()) -> list[int] | None:
        """The fewest tokens that spell the bytes; None when no tokens do."""
        # From the end: best[at] = (tokens from there on, the first of them, where it ends).
        best: dict[int, tuple[int, int, int]] = {len(text): (0, -1, len(text))}
        for at in reversed(range(len(text))):
            ends = range(min(at + self._longest.get(text[at], 0), len(text)), at, -1)
            ways = [(best[end][0] + 1, self._usable(text[at:end], unusable), end) for end in ends if end in best]
            known = [way for way in ways if way[1] >= 0]
            if known:
                # Of equally few tokens the one that begins with the longest, which comes first.
                best[at] = min(known, key=itemgetter(0))
        if 0 not in best:
            return None
        found, at = [], 0
        while at < len(text):
            _, token_id, at = best[at]
            found.append(token_id)
        return found

    def _usable(self, spelled: bytes, unusable: frozenset[int]) -> int:
        """The id of a token, -1 when there is none that may be used."""
        token_id = self._ids.get(spelled, -1)
        return -1 if token_id in unusable else token_id


def spell(tokenizer: Speller, token_id: int) -> bytes:
    """The bytes of a token; empty for an id that the tokenizer does not know, or that is part of a character."""
    try:
        spelled = tokenizer.token_bytes(token_id)
    except Exception:  # a user's own tokenizer may refuse an id in any way it likes
        return b""
    return b"" if tokenizer.spelling is None and "\ufffd".encode() in spelled else spelled


def check_spelling(tokenizer: Speller, spelled: Sequence[bytes]) -> None:
    """GrammarError when two tokens together spell something else than one after the other."""
    ids = [i for i, token in enumerate(spelled) if token and i not in tokenizer.special_ids]
    step = max(1, len(ids) // 64)
    for one, other in zip(ids[::step], ids[step // 2 :: step], strict=False):
        together = tokenizer.decode([one, other]).encode("utf-8", "surrogatepass")
        if together != spelled[one] + spelled[other]:
            raise GrammarError(
                "guided_decoding needs a tokenizer whose tokens spell text one after the other (byte-level or "
                f"SentencePiece-like), got one where tokens {one} and {other} do not"
            )
