"""From texts to token ids, by what each token of the vocabulary spells.

Tokenizers of every family write one text in several ways: `ed` is `▁ed` after a space, `ed` inside a word and maybe two
byte tokens; WordPiece has `ed` and `##ed`. Encoding the text alone finds one of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from tirage.errors import ModelError, ParamsError
from tirage.text.tokenizer import Tokenizer, wrap_tokenizer
from tirage.text.vocabulary import TextVocabulary, vocabulary_of

Word = tuple[int, ...]

CONTEXTS = ("", "\n", ".", "0", "a", "q", "A")
"""What a word is encoded after, bare and with a space between: the start of a text, and each kind of character.

Where a token ends with the context, the tokens after it are those of the word alone, so one letter that does not melt
into the word is enough.
"""


class Spellings:
    """The ways in which a tokenizer writes texts. Nothing is changed by asking."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._piece = cache(tokenizer.inner_bytes)

    @cached_property
    def _vocabulary(self) -> TextVocabulary:
        return vocabulary_of(self._tokenizer, skip_special_tokens=False)

    def containing(self, texts: Iterable[str]) -> list[int]:
        """Every token whose text contains one of `texts`, ascending."""
        found = [self._vocabulary.containing(text.encode()) for text in texts]
        return np.unique(np.concatenate(found)).tolist() if found else []

    def token(self, text: str) -> int | None:
        """The token by which the tokenizer itself writes this text; None when it takes several."""
        forms = frozenset((text.encode(), b" " + text.encode()))
        for context in CONTEXTS:
            ids = self._encode(context + text)
            tail = ids if not context and len(ids) == 1 and self._name(ids[0]) == text else self._tail(ids, forms)
            if tail is not None and len(tail) == 1:
                return tail[0]
        return None

    def words(self, words: Iterable[str], given: Sequence[Word] = ()) -> list[Word]:
        """The id sequences that S-H6 forbids for some words, without those that end with another one or a given one.

        Raises ParamsError for a word that the vocabulary cannot spell.
        """
        found = dict.fromkeys(ids for word in words for ids in self._word(word))
        kept, known = list[Word](), set(given)
        for ids in sorted(found, key=len):
            if not any(ids[at:] in known for at in range(len(ids))):
                kept.append(ids)
                known.add(ids)
        return kept

    def _word(self, word: str) -> list[Word]:
        """The sequences of one word; of any but whitespace, the space before it does not count."""
        bare = word.lstrip() or word
        gaps = ("",) if bare.isspace() else ("", " ")
        forms = [gap.encode() + form for form in self._forms(bare, word) for gap in gaps]
        single = [(token,) for form in forms for token in self._vocabulary.spelling(form).tolist()]
        encoded = [self._encode(context + gap + bare) for context in CONTEXTS for gap in gaps]
        found = [*single, *(tail for ids in encoded if (tail := self._tail(ids, frozenset(forms))))]
        # Tokens that hold parts of characters are not told apart by a decoder; then the whole encoding must do.
        found += [ids for ids in encoded[: len(gaps)] if not all(map(self._piece, ids)) and self._is_known(ids)]
        if not found:
            raise ParamsError(
                f"bad_words must be text that this tokenizer can spell, got {word!r:.80}, for which it has no tokens; "
                "leave the word out or use bad_words_level 'text'"
            )
        return found

    def _forms(self, bare: str, word: str) -> list[bytes]:
        """The bytes of a word: as it is, and as the tokenizer writes it, perhaps in small letters or with spaces."""
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
        """The last ids that together spell one of `forms`; None when a token reaches across its beginning."""
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
        """What the vocabulary calls a token, which is a special one's text even where texts leave those out."""
        raw = self._tokenizer.raw
        name_of = getattr(raw, "id_to_token", None) or getattr(raw, "convert_ids_to_tokens", None)
        return "" if name_of is None else str(name_of(token))


def folded(text: str) -> str:
    """A text without what tokenizers may change before they look for tokens: case, compatibility forms and spaces."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def spellings_of(tokenizer: Any) -> Spellings:
    """The Spellings of anything that `wrap_tokenizer` takes; ParamsError for what has no `encode` or `decode`."""
    try:
        return Spellings(wrap_tokenizer(tokenizer))
    except ModelError as error:
        raise ParamsError(f"{error}; wrap it") from None
