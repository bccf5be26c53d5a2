"""The rules by which decoders spell tokens, so that text can be decoded one token at a time.

The decoder of a tokenizer works on whole sequences. For the two families in use, its result can be computed token by
token: in byte-level vocabularies every token is some bytes; in SentencePiece-like ones a token is text with a mark for
the space, or one byte, written `<0x0A>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRule:
    """The rule of a decoder.

    `family` is "bytes" for byte-level and "pieces" for SentencePiece-like vocabularies. `strip_spaces` leading spaces
    are dropped from the whole text; `bare_start` instead drops every space mark of the first token.
    """

    family: Literal["bytes", "pieces"]
    byte_fallback: bool = False
    space_mark: str = ""
    strip_spaces: int = 0
    bare_start: bool = False


def decoder_rule_of(decoder: Mapping[str, Any] | None) -> DecoderRule | None:
    """The rule of a decoder in tokenizer.json; None for one that cannot be applied token by token."""
    if decoder is None:
        return None
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRule(family="bytes")
    return sentencepiece_rule(steps, kinds)


def sentencepiece_rule(steps: list[Mapping[str, Any]], kinds: list[Any]) -> DecoderRule | None:
    """The rule of a SentencePiece-like chain of decoders; None if a step is unknown, repeated or out of place."""
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
    return DecoderRule(
        family="pieces",
        byte_fallback="ByteFallback" in kinds,
        space_mark=mark,
        strip_spaces=strip,
        bare_start=bare,
    )


def writes_words(decoder: Mapping[str, Any] | None) -> bool:
    """Whether a decoder puts a space before each token, except the first and WordPiece's marked ones."""
    return decoder is None or decoder.get("type") == "WordPiece"


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves; U+0100 and the following stand for the other 68 bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; a token with any other character, such as an added one, is plain text."""
    if all(letter in _ALPHABET for letter in token):
        return bytes(_ALPHABET[letter] for letter in token)
    return token.encode("utf-8", "surrogatepass")


def fallback_byte(token: str) -> bytes | None:
    """The byte that a token such as `<0x0A>` stands for; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None
