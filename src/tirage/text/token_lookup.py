"""Look-up of the token ids that spell a text.

Every family of tokenizers can spell a text in several ways: `ed` is `▁ed` after a space, `ed` inside a word and perhaps
two byte tokens; WordPiece has `ed` and `##ed`. Encoding the text finds only one of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from tirage.errors import ModelError, ParamsError
from tirage.text.tokenizer import Tokenizer, wrap_tokenizer
from tirage.text.vocabulary import TextVocabulary, vocabulary_of
from tirage.workers.cancel import checkpoint

Word = tuple[int, ...]
_REQUESTS = 8
"""Lists of words whose spellings are kept."""

CONTEXTS = ("", "\n", ".", "0", "a", "q", "A")
"""The contexts in which a word is encoded, with and without a space: the start of a text, and each kind of character.

If a token ends where the context does, the tokens after it are those of the word, so one letter that does not merge
with the word is enough.
"""


class TokenLookup:
    """Finds the token ids with which a tokenizer spells texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._piece = cache(tokenizer.inner_bytes)
        # The prompts of a request have the same words.
        self._found_words = lru_cache(maxsize=_REQUESTS)(self._find_words)

    @cached_property
    def _vocabulary(self) -> TextVocabulary:
        return vocabulary_of(self._tokenizer, skip_special_tokens=False)

    def containing(self, texts: Iterable[str]) -> list[int]:
        """The ids of the tokens whose text contains one of `texts`, ascending."""
        found = [self._vocabulary.containing(text.encode()) for text in texts]
        return np.unique(np.concatenate(found)).tolist() if found else []

    def token(self, text: str) -> int | None:
        """The id of the single token to which the tokenizer encodes this text; None if it takes several."""
        forms = frozenset((text.encode(), b" " + text.encode()))
        for context in CONTEXTS:
            ids = self._encode(context + text)
            tail = ids if not context and len(ids) == 1 and self._name(ids[0]) == text else self._tail(ids, forms)
            if tail is not None and len(tail) == 1:
                return tail[0]
        return None

    def words(self, words: Iterable[str], given: Sequence[Word] = ()) -> list[Word]:
        """The id sequences that spell the words (SPEC.md S-H6), without those that end with another or a given one.

        Raises ParamsError for a word that the vocabulary cannot spell.
        """
        return [*self._found_words(tuple(words), tuple(map(tuple, given)))]

    def _find_words(self, words: tuple[str, ...], given: tuple[Word, ...]) -> list[Word]:
        found = dict.fromkeys(ids for word in words for ids in self._word(word))
        kept, known = list[Word](), set(given)
        for ids in sorted(found, key=len):
            if not any(ids[at:] in known for at in range(len(ids))):
                kept.append(ids)
                known.add(ids)
        return kept

    def _word(self, word: str) -> list[Word]:
        """The sequences of one word. A space before the word is optional, unless the word is whitespace."""
        checkpoint()
        bare = word.lstrip() or word
        gaps = ("",) if bare.isspace() else ("", " ")
        forms = [gap.encode() + form for form in self._forms(bare, word) for gap in gaps]
        single = [(token,) for form in forms for token in self._vocabulary.exact(form).tolist()]
        encoded = [self._encode(context + gap + bare) for context in CONTEXTS for gap in gaps]
        found = [*single, *(tail for ids in encoded if (tail := self._tail(ids, frozenset(forms))))]
        # The decoder does not tell tokens with parts of characters from each other; then the whole encoding is taken.
        found += [ids for ids in encoded[: len(gaps)] if not all(map(self._piece, ids)) and self._is_known(ids)]
        if not found:
            raise ParamsError(
                f"bad_words must be text that this tokenizer can spell, got {word!r:.80}, for which it has no tokens; "
                "leave the word out or use bad_words_level 'text'"
            )
        return found

    def _forms(self, bare: str, word: str) -> list[bytes]:
        """The bytes of a word as given and as the tokenizer normalises it, for example to lower case."""
        ids, size = self._tokenizer.encode(bare, add_special_tokens=False), self._vocabulary.size
        if not all(0 <= token < size for token in ids):
            raise ParamsError(
                f"bad_words must be text that this tokenizer encodes to ids in [0, {size}), got {word!r:.80}, "
                f"which gives {ids!r:.80}; leave the word out"
            )
        written = b"".join(map(self._piece, ids)).decode("utf-8", "replace").lstrip(" ")
        same = bool(written) and folded(written) == folded(bare)
        return list(dict.fromkeys(form.encode() for form in ((bare, written) if same else (bare,))))

    def _is_known(self, ids: Word) -> bool:
        return bool(ids) and self._tokenizer.unk_token_id not in ids

    def _tail(self, ids: Sequence[int], forms: frozenset[bytes]) -> Word | None:
        """The last ids that together spell one of `forms`; None if a token crosses its beginning."""
        text, longest = b"", max(map(len, forms))
        for at in reversed(range(len(ids))):
            piece = self._piece(ids[at])
            text = piece + text
            if not piece or len(text) > longest:
                return None
            if text in forms:
                return tuple(ids[at:])
        return None

    def _encode(self, text: str) -> Word:
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        except Exception:  # a user's own tokenizer may refuse a context in any way it likes
            return ()

    def _name(self, token: int) -> str:
        """The name of a token in the vocabulary: for a special token its text, even if decoding skips it."""
        raw = self._tokenizer.raw
        name_of = getattr(raw, "id_to_token", None) or getattr(raw, "convert_ids_to_tokens", None)
        return "" if name_of is None else str(name_of(token))


def folded(text: str) -> str:
    """The text without what tokenizers may normalise: case, compatibility forms and spaces."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def token_lookup_of(tokenizer: Any) -> TokenLookup:
    """The TokenLookup of anything that `wrap_tokenizer` takes; ParamsError for what has no `encode` or `decode`."""
    try:
        return TokenLookup(wrap_tokenizer(tokenizer))
    except ModelError as error:
        raise ParamsError(f"{error}; wrap it") from None
