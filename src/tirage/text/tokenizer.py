"""One interface to all tokenizers: a tokenizer.json, a Hugging Face object, or the user's own."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tirage.errors import ModelError, ParamsError
from tirage.text.decoder_rule import DecoderRule, byte_level_bytes, decoder_rule_of, fallback_byte, writes_words
from tirage.text.tokenizer_growth import MOST_ADDED, MOST_GROWTH, added, growth
from tirage.text.tokenizer_trial import check_file

MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""Matches added tokens that mark up a text although they are not declared special, such as `<think>`."""
_LONG = 4096


class RawTokenizer(Protocol):
    """What a user's own tokenizer must offer."""

    def encode(self, text: str) -> Any:
        """The ids of a text: a sequence of int, or an object with the attribute `ids`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids."""
        ...


class SpelledTokenizer(RawTokenizer, Protocol):
    """A tokenizer that says what each of its tokens spells, so that its text is decoded one token at a time."""

    @property
    def decoder_rule(self) -> DecoderRule:
        """The rule by which `piece` gives the text."""
        ...

    @property
    def all_special_ids(self) -> Sequence[int]:
        """The ids of tokens that are no text."""
        ...

    @property
    def added_ids(self) -> Sequence[int]:
        """The ids of added tokens that are text, some of which may look like markup."""
        ...

    def piece(self, token_id: int) -> str | bytes | None:
        """What a token spells: text, or bytes that may be part of a character; None for an id without a token."""
        ...

    def id_to_token(self, token_id: int) -> str | None:
        """The spelling of a token in the vocabulary; None for an id without a token."""
        ...

    def encode_plain(self, text: str) -> Sequence[int]:
        """The ids of a text in which spellings of special and added tokens are ordinary text."""
        ...


class Tokenizer:
    """Encodes and decodes text, and gives what streaming needs to know about the vocabulary.

    `raw` is the wrapped object. `settings` are keys of tokenizer_config.json: `bos_token`, `eos_token`,
    `chat_template`.
    """

    def __init__(self, raw: Any, settings: Mapping[str, Any] | None = None) -> None:
        self.raw = raw
        self.settings: Mapping[str, Any] = dict(settings or {})
        # Only objects of the `tokenizers` library have this method.
        self._is_fast = hasattr(raw, "get_added_tokens_decoder")
        self._is_spelled = hasattr(raw, "decoder_rule")
        self._plain: Any = None
        # A cache for what other modules derive from the vocabulary; it lives as long as the tokenizer.
        self.memo: dict[str, Any] = {}
        self.special_ids = self._find_special_ids()
        self.special_spellings, self.mark_spellings = self._find_spellings()
        decoder = self._find_decoder()
        self.decoder_rule: DecoderRule | None = raw.decoder_rule if self._is_spelled else decoder_rule_of(decoder)
        # Whether the text of several tokens, inside a text, is the concatenation of the text of each.
        self.adds_up = self.decoder_rule is not None or (self._is_fast and writes_words(decoder))
        self._before: tuple[list[int], str] | None = None

    def _find_special_ids(self) -> frozenset[int]:
        if not self._is_fast:
            # Hugging Face tokenizers written in Python have this list, and a `decode` that uses it.
            return frozenset(getattr(self.raw, "all_special_ids", ()))
        return frozenset(i for i, token in self.raw.get_added_tokens_decoder().items() if token.special)

    def _find_spellings(self) -> tuple[frozenset[str], frozenset[str]]:
        """The spellings of special tokens, and of ordinary added ones that look like markup, such as `<tool_call>`."""
        if self._is_spelled:
            added = filter(None, map(self.raw.id_to_token, self.raw.added_ids))
            special = filter(None, map(self.raw.id_to_token, self.special_ids))
            return frozenset(special), frozenset(word for word in added if MARKUP.fullmatch(word))
        if not self._is_fast:
            found = {self.decode([i], skip_special_tokens=False) for i in self.special_ids}
            return frozenset(found - {""}), frozenset()
        added = self.raw.get_added_tokens_decoder().values()
        special = frozenset(token.content for token in added if token.special and token.content)
        return special, frozenset(t.content for t in added if not t.special and MARKUP.fullmatch(t.content))

    def _find_decoder(self) -> Mapping[str, Any] | None:
        decoder = self.raw.decoder if self._is_fast else None
        # The state of a decoder is its JSON; that of the whole tokenizer would contain the vocabulary.
        return json.loads(decoder.__getstate__()) if decoder is not None else None

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens, added ones included; None if the tokenizer does not tell."""
        if self._is_fast:
            return self.raw.get_vocab_size(with_added_tokens=True)
        if hasattr(self.raw, "__len__"):
            return len(self.raw)
        size = getattr(self.raw, "vocab_size", None)
        return None if size is None else int(size)

    def token_ids(self) -> list[int]:
        """Every id that has a token, ascending; empty if the tokenizer does not tell."""
        return sorted(self.raw.get_vocab(with_added_tokens=True).values()) if self._is_fast else []

    @cached_property
    def unk_token_id(self) -> int | None:
        """The id that stands for text the vocabulary cannot spell, or None."""
        model = self.raw.model if self._is_fast else None
        if model is None:
            found = getattr(self.raw, "unk_token_id", None)
        elif hasattr(model, "unk_token"):
            found = self.raw.token_to_id(model.unk_token) if model.unk_token else None
        else:
            # A Unigram model has it only in its JSON.
            found = json.loads(model.__getstate__()).get("unk_id")
        return found if isinstance(found, int) else None

    @property
    def bos_token(self) -> str:
        """The spelling of the BOS token; empty if there is none."""
        return self._token_setting("bos_token")

    @property
    def eos_token(self) -> str:
        """The spelling of the EOS token; empty if there is none."""
        return self._token_setting("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the EOS token, or None."""
        if self._is_fast:
            return self.raw.token_to_id(self.eos_token) if self.eos_token else None
        found = getattr(self.raw, "eos_token_id", None)
        return found if isinstance(found, int) else None

    def _token_setting(self, name: str) -> str:
        value = self.settings.get(name)
        # Older files write the token as an object with its flags.
        value = value.get("content") if isinstance(value, Mapping) else value
        return value if isinstance(value, str) else ""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text, in which spellings of special tokens become those tokens.

        `add_special_tokens` adds what the tokenizer puts around a text, usually BOS. Raises ParamsError for text that
        is not valid Unicode.
        """
        check_unicode(text)
        if not self._is_fast:
            return as_ids(encode_own(self.raw, text, add_special_tokens))
        return ids_of(self.raw, text, add_special_tokens=add_special_tokens)

    def encode_plain(self, text: str) -> list[int]:
        """The ids of untrusted text, in which spellings of special tokens are ordinary text.

        Raises ParamsError for text that is not valid Unicode, and if the encoding contains special tokens nevertheless.
        """
        check_unicode(text)
        if self._is_fast and self._plain is None:
            self._plain = without_markup(self.raw)
        if self._is_fast:
            ids = ids_of(self._plain, text, add_special_tokens=False)
        elif self._is_spelled:
            ids = list(self.raw.encode_plain(text))
        else:
            ids = self.encode(text, add_special_tokens=False)
        forged = self.special_ids.intersection(ids)
        if forged:
            raise ParamsError(f"message content must not hold special tokens, got {sorted(forged)} in {text[:60]!r}")
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids, by the tokenizer's own decoder."""
        if self._is_fast or hasattr(self.raw, "all_special_ids"):
            return self.raw.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return self.raw.decode(list(token_ids))

    def piece(self, token_id: int) -> str | bytes | None:
        """A token as the decoder sees it: bytes, or text with space marks; None for an id without a token."""
        if self._is_spelled:
            return self.raw.piece(token_id)
        token = self.raw.id_to_token(token_id)
        if token is None or self.decoder_rule is None:
            return token
        if self.decoder_rule.family == "bytes":
            return byte_level_bytes(token)
        if self.decoder_rule.byte_fallback and (byte := fallback_byte(token)) is not None:
            return byte
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of a token inside a text; empty for an id without a token."""
        if self.decoder_rule is None:
            return self.decode([token_id], skip_special_tokens=False).encode("utf-8", "surrogatepass")
        piece = self.piece(token_id)
        if isinstance(piece, str):
            mark = self.decoder_rule.space_mark
            piece = (piece.replace(mark, " ") if mark else piece).encode("utf-8", "surrogatepass")
        return piece or b""

    def inner_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token adds to a text that has begun, such as `ed` for WordPiece's `##ed`.

        Empty for an id without a token and, if only the decoder knows what tokens spell, for part of a character.
        """
        if self.decoder_rule is not None:
            return self.token_bytes(token_id)
        if self._before is None:
            ids = self.encode("a", add_special_tokens=False)[-1:]
            self._before = ids, self.decode(ids, skip_special_tokens=False)
        ids, before = self._before
        try:
            text = self.decode([*ids, token_id], skip_special_tokens=False)
            text = (
                text[len(before) :] if text.startswith(before) else self.decode([token_id], skip_special_tokens=False)
            )
        except Exception:  # a user's own tokenizer may refuse an id in any way it likes
            return b""
        return b"" if "\ufffd" in text else text.encode("utf-8", "surrogatepass")


def without_markup(raw: Any) -> Any:
    """A copy of a `tokenizers` object that encodes spellings of special tokens and of markup as ordinary text."""
    form = json.loads(raw.to_str())
    form["added_tokens"] = [t for t in form["added_tokens"] if t["special"] or not MARKUP.fullmatch(t["content"])]
    # A copy, because the setting would change the tokenizer for everyone who shares it.
    plain = type(raw).from_str(json.dumps(form))
    plain.encode_special_tokens = True
    return plain


def ids_of(raw: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text by the `tokenizers` library, which releases the GIL for long texts.

    Raises ParamsError where the library gives up: on a word that it does not know, without a token for such, or on a
    pattern of a hostile folder that takes too many steps.
    """
    try:
        if len(text) < _LONG:
            return list(raw.encode(text, add_special_tokens=add_special_tokens).ids)
        # `encode` holds the GIL, for about a microsecond per character; encoding a batch does not.
        return list(raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
    except BaseException as error:
        if not is_of_tokenizers(error):
            raise
        raise ParamsError(f"text must be one that the model's tokenizer can read, it failed: {error!s:.120}") from None


def is_of_tokenizers(error: BaseException) -> bool:
    """Whether the `tokenizers` library gave up: it raises a bare Exception, and panics in what is no Exception."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def encode_own(raw: Any, text: str, add_special_tokens: bool) -> Any:
    """The encoding by a user's tokenizer, called with `add_special_tokens` if it has that parameter."""
    if hasattr(raw, "all_special_ids") or (not add_special_tokens and knows_flag(raw)):
        return raw.encode(text, add_special_tokens=add_special_tokens)
    return raw.encode(text)


def knows_flag(raw: Any) -> bool:
    """Whether `encode` has a parameter `add_special_tokens`."""
    try:
        return "add_special_tokens" in inspect.signature(raw.encode).parameters
    except (TypeError, ValueError):  # a function without a signature
        return False


def as_ids(encoded: Any) -> list[int]:
    """The ids of an encoding, as a list of int."""
    return [int(i) for i in getattr(encoded, "ids", encoded)]


def check_unicode(text: str) -> None:
    """Raises ParamsError for lone surrogates, which no tokenizer can encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParamsError(
            f"text must be valid Unicode, got a lone surrogate at character {error.start}; remove it"
        ) from error


def wrap_tokenizer(raw: Any) -> Tokenizer:
    """A Tokenizer for a `tokenizers`, Hugging Face or user's own object; a Tokenizer is returned as it is.

    Raises ModelError for an object without `encode` or `decode`.
    """
    if isinstance(raw, Tokenizer):
        return raw
    if not hasattr(raw, "encode") or not hasattr(raw, "decode"):
        raise ModelError(f"tokenizer must have encode and decode, got {type(raw).__name__}")
    names = ("bos_token", "eos_token", "chat_template")
    settings = {name: getattr(raw, name) for name in names if isinstance(getattr(raw, name, None), str)}
    return Tokenizer(getattr(raw, "backend_tokenizer", raw), settings)


def load_tokenizer(path: Path, settings: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json file, with the settings of tokenizer_config.json.

    Raises ModelError naming the file if it is missing or damaged, or would take too much time or memory.
    """
    from tokenizers import Tokenizer as FastTokenizer

    if not path.is_file():
        raise ModelError(f"{path} is missing; other tokenizers need the torch extra: pip install 'tirage[torch]'")
    check_file(path)
    try:
        raw = FastTokenizer.from_file(str(path))
    except BaseException as error:
        if not is_of_tokenizers(error):
            raise
        raise ModelError(f"{path} is not a valid tokenizer: {error}") from error
    if (times := growth(raw)) > MOST_GROWTH:
        raise ModelError(f"{path} must make a text at most {MOST_GROWTH} times as long, got replacements of {times:g}")
    if (count := added(raw)) > MOST_ADDED:
        raise ModelError(f"{path} must add at most {MOST_ADDED} characters and tokens to a text, got {count}")
    # Files may contain the truncation and padding of a training run, which would silently change prompts.
    raw.no_truncation()
    raw.no_padding()
    return Tokenizer(raw, settings)
