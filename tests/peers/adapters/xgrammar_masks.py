"""The masks of xgrammar: its compiler and its matcher, through its own bitmask."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import xgrammar
from serving import serve_masks

_END = 2


def library(tokens: list[bytes]) -> Callable[[str, Any, list[int]], Any]:
    """What xgrammar allows after tokens; the end of the text is left out."""
    info = xgrammar.TokenizerInfo(list(tokens), vocab_size=len(tokens), stop_token_ids=[_END])
    compiler = xgrammar.GrammarCompiler(info)

    @cache
    def compiled(mode: str, wanted: str) -> xgrammar.CompiledGrammar:
        given = json.loads(wanted)
        if mode == "json":
            return compiler.compile_json_schema(wanted, any_whitespace=False, separators=(",", ":"), strict_mode=False)
        return compiler.compile_regex(given if mode == "regex" else "|".join(map(re.escape, given)))

    def allowed(mode: str, wanted: Any, before: list[int]) -> Any:
        matcher = xgrammar.GrammarMatcher(compiled(mode, json.dumps(wanted)))
        if not all(matcher.accept_token(token) for token in before):
            raise ValueError("a token before is not accepted")
        mask = torch.zeros(xgrammar.get_bitmask_shape(1, len(tokens)), dtype=torch.int32)
        matcher.fill_next_token_bitmask(mask)
        logits = torch.zeros(1, len(tokens))
        xgrammar.apply_token_bitmask_inplace(logits, mask)
        found = np.flatnonzero(logits[0].numpy() == 0)
        return found[found != _END]

    return allowed


if __name__ == "__main__":
    serve_masks("xgrammar", version("xgrammar"), library)
