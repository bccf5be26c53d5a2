"""The tokenizer of a GGUF file: libllama's own, as `tirage.text.Tokenizer` takes it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tirage.errors import ModelError
from tirage.models.gguf.header import Header
from tirage.models.gguf.library import LoadedModel
from tirage.text import DecoderRule, take_characters

_TEMPLATE = "tokenizer.chat_template"
_PIECE_BYTES = 64


class GGUFTokenizer:
    """libllama's tokenizer of a loaded model; implements `tirage.text.SpelledTokenizer`.

    Raises ModelError for a vocabulary with which
    libllama would end the process, or that it does not write as text.
    """

    def __init__(self, loaded: LoadedModel, header: Header) -> None:
        library, vocab = loaded.library, loaded.vocab
        # Held, because the vocabulary lives as long as the model.
        self._loaded, self._library, self._vocab = loaded, library, vocab
        kind = library.llama_vocab_type(vocab)
        self._is_spm = kind == library.LLAMA_VOCAB_TYPE_SPM
        if kind not in (library.LLAMA_VOCAB_TYPE_SPM, library.LLAMA_VOCAB_TYPE_BPE, library.LLAMA_VOCAB_TYPE_RWKV):
            found = header.metadata.get("tokenizer.ggml.model")
            raise ModelError(f"{header.path}: tokenizer.ggml.model must be llama, gpt2 or rwkv, got {found!r:.40}")
        self._size = library.llama_vocab_n_tokens(vocab)
        self._attributes = [library.llama_vocab_get_attr(vocab, i) for i in range(self._size)]
        self._spelled: dict[int, bytes] = {}
        self._check(header)
        prefixed = self._is_spm and header.metadata.get("tokenizer.ggml.add_space_prefix", True)
        self.decoder_rule = DecoderRule(
            family="pieces" if self._is_spm else "bytes", byte_fallback=self._is_spm, strip_spaces=int(bool(prefixed))
        )

    def _check(self, header: Header) -> None:
        library, vocab = self._library, self._vocab
        special = {"bos": library.llama_vocab_get_add_bos(vocab), "eos": library.llama_vocab_get_add_eos(vocab)}
        for name, added in special.items():
            token = getattr(library, f"llama_vocab_{name}")(vocab)
            if added and not 0 <= token < self._size:
                raise ModelError(
                    f"{header.path}: tokenizer.ggml.{name}_token_id must be in [0, {self._size}) where it is added, "
                    f"got {token}"
                )
        spelled = sum(1 for attribute in self._attributes if attribute & library.LLAMA_TOKEN_ATTR_BYTE)
        if self._is_spm and spelled < 256:
            raise ModelError(
                f"{header.path}: a vocabulary of model 'llama' must have 256 tokens of type BYTE, got {spelled}; "
                "libllama could not encode text without them"
            )

    def __len__(self) -> int:
        """The number of tokens."""
        return self._size

    @cached_property
    def all_special_ids(self) -> tuple[int, ...]:
        """The ids of tokens that are no text: control tokens and the unknown one."""
        return self._with(self._library.LLAMA_TOKEN_ATTR_CONTROL | self._library.LLAMA_TOKEN_ATTR_UNKNOWN)

    @cached_property
    def added_ids(self) -> tuple[int, ...]:
        """The ids of added tokens that are text, such as `<think>`."""
        return self._with(self._library.LLAMA_TOKEN_ATTR_USER_DEFINED)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a generation: EOS, EOT and whatever else libllama knows as one."""
        return tuple(i for i in range(self._size) if self._library.llama_vocab_is_eog(self._vocab, i))

    @property
    def eos_token_id(self) -> int | None:
        """The id of the EOS token, or None."""
        return self._id(self._library.llama_vocab_eos(self._vocab))

    @property
    def bos_token_id(self) -> int | None:
        """The id of the BOS token, or None."""
        return self._id(self._library.llama_vocab_bos(self._vocab))

    @property
    def unk_token_id(self) -> int | None:
        """The id that stands for text that the vocabulary cannot spell, or None."""
        return next(iter(self._with(self._library.LLAMA_TOKEN_ATTR_UNKNOWN)), None)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text, in which spellings of special tokens become those tokens."""
        return self._encode(text, add_special_tokens, special=True)

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text in which spellings of special and added tokens are ordinary text."""
        ids: list[int] = []
        for part in self._cut(text):
            ids += self._encode(part, False, special=False)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids, as a detokenizer gives it token by token."""
        skipped = frozenset(self.all_special_ids if skip_special_tokens else ())
        text, waiting = "", bytearray()
        for piece in (self.piece(i) for i in ids if i not in skipped):
            if isinstance(piece, str):
                text += take_characters(waiting, final=True, per_byte=self._is_spm) + piece
            else:
                waiting += piece or b""
        text += take_characters(waiting, final=True, per_byte=self._is_spm)
        return text[text.startswith(" ") and self.decoder_rule.strip_spaces :]

    def piece(self, token_id: int) -> str | bytes | None:
        """What a token spells: text, or bytes if it may be part of a character; None for an id without a token."""
        if not 0 <= token_id < self._size:
            return None
        spelled = self._spell(token_id)
        if not self._is_spm or self._attributes[token_id] & self._library.LLAMA_TOKEN_ATTR_BYTE:
            return spelled
        return spelled.decode("utf-8", "replace")

    def id_to_token(self, token_id: int) -> str | None:
        """The text of a token in the vocabulary; None for an id without a token."""
        if not 0 <= token_id < self._size:
            return None
        return self._library.llama_vocab_get_text(self._vocab, token_id).decode("utf-8", "replace")

    def token_to_id(self, text: str) -> int | None:
        """The id of a special or added token that is spelled so; None if there is none."""
        return self._named.get(text)

    def settings(self, metadata: Mapping[str, Any]) -> dict[str, str]:
        """`bos_token`, `eos_token` and `chat_template`, as tokenizer_config.json has them."""
        ids = {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id}
        found = {name: self.id_to_token(i) for name, i in ids.items() if i is not None}
        return {name: text for name, text in [*found.items(), ("chat_template", metadata.get(_TEMPLATE))] if text}

    @cached_property
    def _named(self) -> dict[str, int]:
        return {self._spell(i).decode("utf-8", "replace"): i for i in (*self.all_special_ids, *self.added_ids)}

    def _cut(self, text: str) -> list[str]:
        """The text cut within every spelling of an added token, which libllama would not take for text."""
        added = {self._spell(i).decode("utf-8", "replace") for i in self.added_ids}
        cuts = sorted({at + 1 for word in added if len(word) > 1 for at in _places(text, word)})
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _with(self, attribute: int) -> tuple[int, ...]:
        return tuple(i for i, own in enumerate(self._attributes) if own & attribute)

    def _id(self, token: int) -> int | None:
        return token if 0 <= token < self._size else None

    def _encode(self, text: str, add_special_tokens: bool, *, special: bool) -> list[int]:
        given = text.encode("utf-8")
        room = len(given) + 8
        while True:
            ids = (ctypes.c_int32 * room)()
            count = self._library.llama_tokenize(self._vocab, given, len(given), ids, room, add_special_tokens, special)
            if count >= 0:
                return ids[:count]
            room = -count

    def _spell(self, token_id: int) -> bytes:
        known = self._spelled.get(token_id)
        if known is None:
            known = self._spelled[token_id] = self._ask_spelling(token_id)
        return known

    def _ask_spelling(self, token_id: int) -> bytes:
        spell, room = self._library.llama_token_to_piece, _PIECE_BYTES
        while True:
            # Its own buffer, because any thread may ask.
            buffer = ctypes.create_string_buffer(room)
            length = spell(self._vocab, token_id, buffer, room, 0, True)
            if length >= 0:
                return buffer.raw[:length]
            room = -length


def _places(text: str, word: str) -> list[int]:
    """Where a word begins in a text."""
    found, at = [], text.find(word)
    while at >= 0:
        found.append(at)
        at = text.find(word, at + 1)
    return found
