"""How a token is shown: its own text, with everything that could hide made visible."""

from __future__ import annotations

from typing import Any

from tirage.text import wrap_tokenizer
from tirage.tracing.records import Token

SPACE = "␣"
_LONGEST = 48


class TokenTexts:
    """Token ids to Tokens, each looked up once; without a tokenizer every token is shown by its id."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = None if tokenizer is None else wrap_tokenizer(tokenizer)
        self._known: dict[int, Token] = {}

    def token(self, token_id: int) -> Token:
        """The Token of an id; an id that the tokenizer does not have keeps its number alone."""
        if token_id not in self._known:
            self._known[token_id] = self._look_up(token_id)
        return self._known[token_id]

    def _look_up(self, token_id: int) -> Token:
        raw = self._bytes(token_id)
        if not raw:
            return Token(token_id=token_id, text=None, shown=f"#{token_id}")
        return Token(token_id=token_id, text=raw.decode("utf-8", "replace"), shown=visible(raw))

    def _bytes(self, token_id: int) -> bytes:
        if self._tokenizer is None:
            return b""
        try:
            return self._tokenizer.token_bytes(token_id)
        except (LookupError, ValueError, OverflowError):
            # Logits are often padded beyond the vocabulary, and tokenizers differ in how they refuse such ids.
            return b""


def visible(raw: bytes) -> str:
    """Text of token bytes in quotes: spaces as ␣, control and invisible characters and broken UTF-8 as escapes.

    Cut after 48 characters, which the … tells.
    """
    letters = raw.decode("utf-8", "surrogateescape")
    more = "…" if len(letters) > _LONGEST else ""
    return '"' + "".join(map(_letter, letters[:_LONGEST])) + more + '"'


def printable(text: str) -> str:
    """`text` with control and invisible characters as escapes: names that came with a request may hold any."""
    return "".join(letter if letter.isprintable() else _letter(letter) for letter in text)


def _letter(letter: str) -> str:
    if letter == " ":
        return SPACE
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    if letter.isprintable() and letter != "\\":
        return letter
    return letter.encode("unicode_escape").decode("ascii")
