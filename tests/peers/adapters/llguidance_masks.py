"""The masks of llguidance: its own compiler of regular expressions and schemas, through its own bitmask."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import llguidance
import llguidance.numpy as bitmasks
import numpy as np
from serving import serve_masks

_END = 2
_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class _Tokenizer:
    """What llguidance asks of a tokenizer: pieces, special tokens, and a way to cut text, which masks do not need."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.eos_token_id, self.bos_token_id = _END, None
        self.tokens = tokens
        self.special_token_ids = [token for token, piece in enumerate(tokens) if not piece]
        self._ids = {piece: token for token, piece in enumerate(tokens)}

    def __call__(self, text: bytes | str) -> list[int]:
        spelled = text.encode() if isinstance(text, str) else text
        return [self._ids[bytes([byte])] for byte in spelled]


def library(tokens: list[bytes]) -> Callable[[str, Any, list[int]], Any]:
    """What llguidance allows after tokens; the end of the text is left out."""
    wrapped = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokenizer(tokens)), n_vocab=len(tokens))

    @cache
    def grammar(mode: str, wanted: str) -> str:
        given = json.loads(wanted)
        if mode == "json":
            return llguidance.LLMatcher.grammar_from_json_schema(given, defaults=_COMPACT)
        pattern = given if mode == "regex" else "|".join(map(re.escape, given))
        return llguidance.LLMatcher.grammar_from_regex(pattern)

    def allowed(mode: str, wanted: Any, before: list[int]) -> Any:
        matcher = llguidance.LLMatcher(wrapped, grammar(mode, json.dumps(wanted)))
        if not matcher.consume_tokens(before):
            raise ValueError(matcher.get_error() or "a token before is not accepted")
        if matcher.is_stopped():
            return []
        mask = bitmasks.allocate_token_bitmask(1, len(tokens))
        bitmasks.fill_next_token_bitmask(matcher, mask)
        bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
        found = np.flatnonzero(bits[: len(tokens)])
        return found[found != _END]

    return allowed


if __name__ == "__main__":
    serve_masks("llguidance", version("llguidance"), library)
