"""Incremental detokenisation: tokens to text as they arrive, with nothing taken back and nothing lost.

Only an unfinished UTF-8 character is held back. A byte that cannot become part of a character is shown as U+FFFD at
once, because waiting would block the stream; a real U+FFFD in the text does not look like an unfinished character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tirage.text.copies import twin
from tirage.text.decoder_rule import DecoderRule
from tirage.text.text_start import TextStart
from tirage.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# A character has at most 4 bytes, so at most 3 tokens can wait for the last one.
_MAX_WAITING = 3


class Detokenizer(Protocol):
    """Gives the text of a growing list of tokens."""

    def push(self, token_id: int) -> str:
        """The characters that are certain with this token; possibly none."""
        ...

    def finish(self) -> str:
        """The rest of an unfinished character as U+FFFD; possibly nothing."""
        ...

    def copy(self) -> Detokenizer:
        """An independent detokenizer after the same tokens."""
        ...

    @property
    def drops_space(self) -> bool:
        """Whether a space at the beginning of the next token would be dropped."""
        ...

    @property
    def start(self) -> TextStart:
        """What the next token loses of its spaces."""
        ...


def open_detokenizer(
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int] = (),
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
) -> Detokenizer:
    """A detokenizer that continues a prompt: prompt text + new text is the text of all ids together.

    Without a prompt the text stands alone, and vocabularies that mark the start of words drop the first space.
    Byte-level and SentencePiece-like vocabularies are decoded exactly, token by token; for any other decoder, the text
    of the last few tokens is compared before and after each step.

    `spaces_between_special_tokens=False` drops the space that some decoders put between two special tokens; the two
    exact families never put one.
    """
    if tokenizer.decoder_rule is None:
        return WindowDetokenizer(tokenizer, prompt_ids, skip_special_tokens, spaces_between_special_tokens)
    detokenizer = PieceDetokenizer(tokenizer, tokenizer.decoder_rule, skip_special_tokens)
    for token_id in prompt_ids:
        detokenizer.push(token_id)
    return detokenizer


class PieceDetokenizer:
    """Decodes token by token, by the rule of the vocabulary's decoder."""

    def __init__(self, tokenizer: Tokenizer, rule: DecoderRule, skip_special_tokens: bool) -> None:
        self._tokenizer, self._rule = tokenizer, rule
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._waiting = bytearray()
        self._spaces_left = rule.strip_spaces
        self._bare = rule.bare_start
        # Shared by all texts: what tokens add wherever no character is unfinished and no space is dropped.
        self._texts: dict[int, str] = tokenizer.memo.setdefault(f"texts, skipping {skip_special_tokens}", {})

    def push(self, token_id: int) -> str:
        """The characters that are certain with this token."""
        if self._waiting or self._spaces_left or self._bare:
            return self._push(token_id)
        text = self._texts.get(token_id)
        if text is None:
            text = self._push(token_id)
            if not self._waiting:
                self._texts[token_id] = text
        return text

    def _push(self, token_id: int) -> str:
        piece = None if token_id in self._skipped else self._tokenizer.piece(token_id)
        if piece is None:
            return ""
        bare, self._bare = self._bare, False
        if isinstance(piece, bytes):
            self._waiting += piece
            return self._strip(self._take(final=False))
        mark = self._rule.space_mark
        text = piece.replace(mark, "" if bare else " ") if mark else piece
        return self._strip(self._take(final=True) + text)

    def finish(self) -> str:
        """The rest of an unfinished character as U+FFFD."""
        return self._strip(self._take(final=True))

    def copy(self) -> PieceDetokenizer:
        """An independent detokenizer after the same tokens."""
        other = twin(self)
        other._waiting = bytearray(self._waiting)
        return other

    @property
    def drops_space(self) -> bool:
        """Whether a space at the beginning of the next token would be dropped."""
        return self._bare or self._spaces_left > 0

    @property
    def start(self) -> TextStart:
        """What the next token loses of its spaces; an unfinished character is not a space."""
        return TextStart(spaces=0 if self._waiting else self._spaces_left, bare=self._bare)

    def _take(self, *, final: bool) -> str:
        # As the decoders of the two families do: one U+FFFD per byte, or per invalid sequence.
        per_byte = self._rule.family == "pieces"
        return take_characters(self._waiting, final=final, per_byte=per_byte)

    def _strip(self, text: str) -> str:
        while self._spaces_left and text:
            if text[0] != " ":
                self._spaces_left = 0
                break
            text, self._spaces_left = text[1:], self._spaces_left - 1
        return text


def take_characters(waiting: bytearray, *, final: bool, per_byte: bool) -> str:
    """The complete characters at the start of `waiting`, whose bytes are removed; with `final` also an unfinished one.

    An invalid sequence becomes one U+FFFD, or with `per_byte` one for each of its bytes.
    """
    text = ""
    while waiting:
        try:
            text += waiting.decode("utf-8")
            waiting.clear()
        except UnicodeDecodeError as error:
            text += waiting[: error.start].decode("utf-8")
            del waiting[: error.start]
            if error.reason == "unexpected end of data" and not final:
                break
            text += REPLACEMENT
            del waiting[: 1 if per_byte else error.end - error.start]
    return text


class WindowDetokenizer:
    """Decodes a window of recent tokens with the tokenizer's own `decode`."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool, spaces: bool
    ) -> None:
        self._tokenizer, self._skip, self._spaces = tokenizer, skip_special_tokens, spaces
        # Some decoders treat the first token differently, so the window starts a little before the text.
        self._ids = list(prompt_ids[-8:])
        self._start, self._read = 0, len(self._ids)

    def push(self, token_id: int) -> str:
        """The characters that are certain with this token."""
        self._ids.append(token_id)
        fresh = self._fresh()
        waiting = len(self._ids) - self._read <= _MAX_WAITING
        if not fresh or (fresh.endswith(REPLACEMENT) and waiting):
            return ""
        self._start, self._read = self._read, len(self._ids)
        if not self._spaces and self._tokenizer.special_ids.issuperset(self._ids[-2:]):
            return fresh.removeprefix(" ")
        return fresh

    def finish(self) -> str:
        """The rest of an unfinished character as U+FFFD."""
        fresh = self._fresh()
        self._start, self._read = self._read, len(self._ids)
        return fresh

    def copy(self) -> WindowDetokenizer:
        """An independent detokenizer after the same tokens."""
        other = twin(self)
        other._ids = [*self._ids]
        return other

    @property
    def drops_space(self) -> bool:
        """False, since it cannot be known here."""
        return False

    @property
    def start(self) -> TextStart:
        """What the next token loses of its spaces: it is written as one alone where nothing is before it."""
        return TextStart(bare=not self._decode(self._ids))

    def _fresh(self) -> str:
        known = self._decode(self._ids[self._start : self._read])
        return self._decode(self._ids[self._start :])[len(known) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
