"""How a vocabulary spells its tokens: the rule behind `decode`, one token at a time.

A tokenizer's decoder works on whole sequences. For the two families in use its result can be had token by
token: byte-level vocabularies, where every token is some bytes, and SentencePiece-like ones, where a token is
text with a mark for the space, or one byte written `<0x0A>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A decoder's rule.

    `strip_spaces` leading spaces vanish from the whole text; `bare_start` instead drops every space mark of
    the first token.
    """

    family: Literal["bytes", "pieces"]
    byte_fallback: bool = False
    space_mark: str = ""
    strip_spaces: int = 0
    bare_start: bool = False


def spelling_of(decoder: Mapping[str, Any] | None) -> Spelling | None:
    """The rule of a tokenizer.json decoder; None for one that cannot be followed token by token."""
    if decoder is None:
        return None
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(family="bytes")
    return pieces_spelling(steps, kinds)


def pieces_spelling(steps: list[Mapping[str, Any]], kinds: list[Any]) -> Spelling | None:
    """The rule of a SentencePiece-like chain; None when a step is unknown, repeated or out of place."""
    known = {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}
    if not kinds or len(set(kinds)) != len(kinds) or not known.issuperset(kinds):
        return None
    mark, strip, bare = "", 0, False
    for step, kind in zip(steps, kinds, strict=True):
        if kind == "Replace":
            mark = step.get("pattern", {}).get("String", "")
            if len(mark) != 1 or step.get("content") != " " or "Metaspace" in kinds:
                return None
        elif kind == "Metaspace":
            mark, bare = step.get("replacement", "▁"), step.get("prepend_scheme", "always") != "never"
        elif kind == "Strip":
            strip = step.get("start", 0)
            # Strip acts on each token unless they were fused before.
            if step.get("content") != " " or step.get("stop", 0) or "Fuse" not in kinds[: kinds.index("Strip")]:
                return None
    return Spelling(
        family="pieces",
        byte_fallback="ByteFallback" in kinds,
        space_mark=mark,
        strip_spaces=strip,
        bare_start=bare,
    )


def writes_words(decoder: Mapping[str, Any] | None) -> bool:
    """Whether a decoder puts a space before each token but the first, or drops a mark of WordPiece's in its place."""
    return decoder is None or decoder.get("type") == "WordPiece"


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for.

    Printable Latin-1 letters stand for themselves, the other 68 bytes for U+0100 onwards in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; one with any foreign letter is plain text, as for added tokens."""
    if all(letter in _ALPHABET for letter in token):
        return bytes(_ALPHABET[letter] for letter in token)
    return token.encode("utf-8", "surrogatepass")


def fallback_byte(token: str) -> bytes | None:
    """The byte that a token such as `<0x0A>` stands for, or None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None
