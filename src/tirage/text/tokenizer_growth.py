"""Tokenizers of hostile folders: what would make any text huge is refused before one is encoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MOST_GROWTH = 64
"""How many times as long as before the replacements of a tokenizer may make a text."""

MOST_ADDED = 4096
"""How many characters and tokens a tokenizer may add to a text, whatever its length; known ones add one or two."""


def growth(raw: Any) -> float:
    """How many times as long a text can become by the replacements of a `tokenizers` object, at least 1.

    Known tokenizers replace a character by one or two.
    """
    parts = [part.__getstate__() for part in (raw.normalizer, raw.pre_tokenizer, raw.decoder) if part is not None]
    total = 1.0
    for part in parts:
        for replace in parts_of(json.loads(part), "Replace"):
            total *= factor(replace)
    return total


def added(raw: Any) -> int:
    """How many characters a `tokenizers` object puts before a text, and how many tokens around it."""
    parts = [part.__getstate__() for part in (raw.normalizer, raw.post_processor) if part is not None]
    states = [json.loads(part) for part in parts]
    before = sum(len(str(each.get("prepend", ""))) for state in states for each in parts_of(state, "Prepend"))
    return before + sum(around(each) for state in states for each in parts_of(state, "TemplateProcessing"))


def around(template: dict[str, Any]) -> int:
    """The number of tokens that a `TemplateProcessing` adds to a text."""
    tokens = {name: len(each.get("ids", ())) for name, each in template.get("special_tokens", {}).items()}
    names = [each["SpecialToken"].get("id") for each in template.get("single", ()) if "SpecialToken" in each]
    return sum(tokens.get(name, 0) for name in names)


def parts_of(value: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Every part of that kind inside the description of a part of a tokenizer."""
    if isinstance(value, dict):
        if value.get("type") == kind:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from parts_of(each, kind)


def factor(replace: dict[str, Any]) -> float:
    """How many times as long one replacement can make a text; a regular expression may match one character."""
    pattern = replace.get("pattern", {})
    found = len(str(pattern.get("String", ""))) or 1
    return max(1.0, len(str(replace.get("content", ""))) / found)
