"""Prompts of every kind as token ids, for Gemma's tokenizers and for any other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tirage.errors import ModelError, ParamsError
from tirage.text import Detokenizer, open_detokenizer, wrap_tokenizer
from tirage.text.detokenizer import REPLACEMENT
from tirage.text.spellings import Spellings

START_OF_TURN, END_OF_TURN = "<start_of_turn>", "<end_of_turn>"
_ENDS = ("EOS", "END_OF_TURN", "BEGIN_OF_TOOL_RESPONSE")


class PromptTokenizer:
    """A tokenizer for a sampler: ids of prompts and of single tokens, and text of ids.

    Takes a tokenizer of the `gemma` package, whose `special_tokens` name ids, and any that `tirage.LLM` takes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._wrapped = wrap_tokenizer(tokenizer)
        special = getattr(tokenizer, "special_tokens", None)
        self._is_gemma = hasattr(special, "BOS")
        self.bos = self._find_bos(special)
        # Gemma 2 has no tool responses, so not every name exists.
        ends = [getattr(special, name) for name in _ENDS if hasattr(special, name)]
        self.ends = frozenset(int(end) for end in ends) if self._is_gemma else self._plain_ends()
        self.forbidden = tuple(int(token) for token in getattr(tokenizer, "FORBIDDEN_TOKENS", ()))

    def _find_bos(self, special: Any) -> int | None:
        if self._is_gemma:
            return int(special.BOS)
        token = self._wrapped.bos_token
        ids = self._wrapped.encode(token, add_special_tokens=False) if token else []
        return ids[0] if len(ids) == 1 else None

    def _plain_ends(self) -> frozenset[int]:
        """The end tokens of any other tokenizer: EOS, and the end of a turn where the vocabulary has it."""
        eos, turn = self._wrapped.eos_token_id, self.encode(END_OF_TURN)
        return frozenset([*([] if eos is None else [eos]), *(turn if len(turn) == 1 else [])])

    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens; ParamsError for text that is not valid Unicode."""
        return self._wrapped.encode(text, add_special_tokens=False)

    def ids(self, prompt: Any, *, first: bool, vocab_size: int) -> list[int]:
        """Ids of one prompt; on a `first` turn they begin with BOS."""
        given = self.encode(self.text(prompt)) if not is_ids(prompt) else check_ids(prompt, vocab_size)
        if first and self.bos is not None and given[:1] != [self.bos]:
            return [self.bos, *given]
        return given

    def text(self, prompt: Any, *, tagged: bool = True) -> str:
        """A prompt's text; a Conversation is written in the tokenizer's own format.

        `tagged`: whether the tag that tools' answers begin with belongs to the turn before them. Raises ParamsError for
        what is neither, and for a Conversation where the tokenizer has no format.
        """
        if isinstance(prompt, str):
            return str(prompt)
        if hasattr(prompt, "as_text"):
            layout = getattr(self.tokenizer, "FORMAT", None)
            if layout is None:
                raise ParamsError("prompt must be text with this tokenizer, which names no FORMAT, got a Conversation")
            options = {} if tagged else {"add_tool_response_tag_after_call": False}
            return prompt.as_text(format=layout, **options)
        raise ParamsError(f"prompt must be a text, a Conversation or token ids, got {type(prompt).__name__}")

    def token_ids(self, tokens: Sequence[str | int] | None, name: str) -> tuple[int, ...]:
        """Ids of `forbidden_tokens` or `stop_tokens`; ParamsError for a text that is not exactly one token."""
        single = isinstance(tokens, (str, bytes)) or getattr(tokens, "ndim", 1) != 1
        if single or not isinstance(tokens, (Iterable, type(None))):
            raise ParamsError(f"{name} must be a list of tokens or ids, got {tokens!r:.60}; put it into a list")
        return tuple(self._token_id(token, name) for token in tokens or ())

    def _token_id(self, token: Any, name: str) -> int:
        if isinstance(token, (int, np.integer)) and not isinstance(token, bool) and token >= 0:
            return int(token)
        ids = self.encode(token) if isinstance(token, str) else []
        # A tokenizer that writes a mark before a text may have the text as a token all the same.
        found = ids[0] if len(ids) == 1 else Spellings(self._wrapped).token(str(token)) if ids else None
        if found is None:
            raise ParamsError(f"{name} must hold ids >= 0 and texts of exactly one token, got {token!r} = {ids}")
        return found

    def decode(self, ids: list[int]) -> str | None:
        """Text of new tokens, decoded at once; None where decoding them one by one might give another text."""
        text = self.tokenizer.decode(ids) if self._is_gemma else REPLACEMENT
        return None if REPLACEMENT in text else text

    def detokenizer(self) -> Detokenizer:
        """A detokenizer for new tokens, whose text does not depend on the prompt."""
        return open_detokenizer(self._wrapped)


def is_ids(prompt: Any) -> bool:
    """Whether a prompt is one list or array [L] of token ids."""
    if isinstance(prompt, (str, bytes)) or hasattr(prompt, "as_text"):
        return False
    if hasattr(prompt, "dtype"):
        return np.asarray(prompt).ndim == 1 and np.asarray(prompt).dtype.kind in "iu"
    return isinstance(prompt, Sequence) and all(isinstance(i, (int, np.integer)) for i in prompt)


def check_ids(prompt: Any, vocab_size: int) -> list[int]:
    """The ids as Python integers; raises ParamsError for one outside the vocabulary."""
    for token in prompt:
        if isinstance(token, (bool, np.bool_)) or not 0 <= int(token) < vocab_size:
            raise ParamsError(f"prompt token ids must be integers in [0, {vocab_size}), got {token!r}")
    return [int(token) for token in prompt]


def prompt_list(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts of a call, and whether the caller gave several.

    A text, a Conversation, a list of ids, a 0-d array of text and a 1-d array of ids are one prompt. ParamsError for an
    array of more axes than texts [B] or ids [B, L] have, and for another type.
    """
    if hasattr(prompt, "dtype"):
        prompt = np.asarray(prompt)
        if prompt.ndim == 0:
            return [prompt.item()], False
        if prompt.ndim > (2 if prompt.dtype.kind in "iu" else 1):
            raise ParamsError(f"prompt must be an array of texts [B] or of ids [L] or [B, L], got {prompt.ndim} axes")
        if prompt.dtype.kind in "iu":
            return ([prompt], False) if prompt.ndim == 1 else (list(prompt), True)
        return prompt.tolist(), True
    if isinstance(prompt, str) or hasattr(prompt, "as_text"):
        return [prompt], False
    if isinstance(prompt, (bytes, dict)) or not isinstance(prompt, Iterable):
        raise ParamsError(f"prompt must be a text, a Conversation, token ids or a list, got {type(prompt).__name__}")
    prompts = list(prompt)
    return ([prompts], False) if prompts and is_ids(prompts) else (prompts, True)


def tokenizer_of(model: Any) -> Any:
    """The tokenizer that a model of the `gemma` package names in its INFO; raises ModelError when there is none."""
    version = getattr(getattr(model, "INFO", None), "tokenizer_version", None)
    if not version:
        raise ModelError("tokenizer must be given, for the model does not specify one, got None; pass tokenizer=...")
    try:
        from gemma import gm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ModelError(f"tokenizer {version!r} of the model needs the gemma package; pip install gemma") from error
    return gm.text.Tokenizer.from_version(version)


def from_gemma_package(part: str, name: str) -> Any:
    """A name of the `gemma` package's own `gm` or `gm.text`; AttributeError without the package."""
    try:
        from gemma import gm  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise AttributeError(f"{part}.{name} needs the gemma package; pip install gemma") from None
    return getattr(gm.text if part == "gm.text" else gm, name)


def check_same_version(model: Any, tokenizer: Any) -> None:
    """Raises ModelError when the model and the tokenizer name different versions."""
    ours = getattr(getattr(model, "INFO", None), "tokenizer_version", None)
    theirs = getattr(tokenizer, "VERSION", None)
    if ours and theirs and ours != theirs:
        raise ModelError(f"tokenizer must be of the model's version, which is {ours!r}, got {theirs!r}")
