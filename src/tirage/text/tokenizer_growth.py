"""Tokenizers of hostile folders: replacements that would make any text huge are refused before one is encoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MOST_GROWTH = 64
"""How many times as long as before the replacements of a tokenizer may make a text."""


def growth(raw: Any) -> float:
    """How many times as long a text can become by the replacements of a `tokenizers` object, at least 1.

    Known tokenizers replace a character by one or two.
    """
    parts = [part.__getstate__() for part in (raw.normalizer, raw.pre_tokenizer, raw.decoder) if part is not None]
    total = 1.0
    for part in parts:
        for replace in replacements(json.loads(part)):
            total *= factor(replace)
    return total


def replacements(value: Any) -> Iterator[dict[str, Any]]:
    """Every `Replace` inside the description of a normalizer or a decoder."""
    if isinstance(value, dict):
        if value.get("type") == "Replace":
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from replacements(each)


def factor(replace: dict[str, Any]) -> float:
    """How many times as long one replacement can make a text; a regular expression may match one character."""
    pattern = replace.get("pattern", {})
    found = len(str(pattern.get("String", ""))) or 1
    return max(1.0, len(str(replace.get("content", ""))) / found)
