"""Protection of control tokens: what a client writes is encoded as ordinary text.

A client can spell a control token in one message, or across the seam between two texts. So before a template sees the
client's text, every character with which a control token begins or ends is replaced by a random private-use character.
Whatever spells a control token in the rendered prompt then comes from the template.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tirage.errors import ParamsError
from tirage.text.messages import strings
from tirage.text.tokenizer import Tokenizer

_FIRST_PRIVATE, _PRIVATE = 0xF0000, 65534


class ControlTokens:
    """The control tokens of a tokenizer: the special ones, and added ones that look like markup.

    The latter (`<think>`, `<tool_call>`) are allowed in assistant messages, because models write them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pattern = alternatives(tokenizer.special_spellings | tokenizer.mark_spellings)
        self._marks = alternatives(tokenizer.mark_spellings - tokenizer.special_spellings)
        # The first and last character that identifiers cannot contain. A spelling without one can only be refused.
        found = [re.findall(r"[\W_]", spelling) for spelling in tokenizer.special_spellings | tokenizer.mark_spellings]
        self._edges = sorted({edge for signs in found if signs for edge in (signs[0], signs[-1])})
        self._words = alternatives({s for s in tokenizer.special_spellings if not re.search(r"[\W_]", s)})

    def spelled_in(self, text: str) -> bool:
        """Whether a text spells a control token."""
        return self._pattern.search(text) is not None

    def escape(self, content: Mapping[str, Any]) -> EscapedContent:
        """The content with its edge characters replaced; ParamsError for a special token that is spelled as a word."""
        written = list(strings(content))
        if any(self._words.search(text) for text in written):
            raise ParamsError("messages must not spell a special token that is a plain word; leave it out")
        letters = set("".join(written))
        if letters.isdisjoint(self._edges):
            return EscapedContent(self._tokenizer, self._pattern, content, {})
        replacements = dict(zip(self._edges, fresh_characters(len(self._edges), letters), strict=True))
        return EscapedContent(
            self._tokenizer, self._pattern, self._escape(content, str.maketrans(replacements)), replacements
        )

    def _escape(self, value: Any, table: Mapping[int, Any]) -> Any:
        """The data with its texts translated, except roles and identifiers, which templates look up."""
        if isinstance(value, str):
            return value.translate(table)
        if isinstance(value, Mapping):
            own = value.get("role") == "assistant"
            return {
                self._escape_key(key, table): self._escape_item(key, inner, table, own) for key, inner in value.items()
            }
        return [self._escape(inner, table) for inner in value] if isinstance(value, (list, tuple)) else value

    def _escape_key(self, key: Any, table: Mapping[int, Any]) -> Any:
        return key if not isinstance(key, str) or key.isidentifier() else key.translate(table)

    def _escape_item(self, key: Any, value: Any, table: Mapping[int, Any], own: bool) -> Any:
        if key == "role":
            return value
        if not (own and key == "content" and isinstance(value, str)):
            return self._escape(value, table)
        kept = self._marks.findall(value)
        escaped = [piece.translate(table) for piece in self._marks.split(value)]
        return "".join(piece + mark for piece, mark in zip(escaped, [*kept, ""], strict=True))


@dataclass(frozen=True, slots=True)
class EscapedContent:
    """`content` that a template may see, and how to encode the prompt that it renders."""

    tokenizer: Tokenizer
    pattern: re.Pattern[str]
    content: Mapping[str, Any]
    replacements: Mapping[str, str]

    def encode(self, rendered: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a rendered prompt, in which only the template's control tokens become tokens.

        Text in which a client has spelled a control token is encoded separately. Raises ParamsError for text that is
        not valid Unicode or that the vocabulary cannot tell from a special token.
        """
        shown = str.maketrans({private: edge for edge, private in self.replacements.items()})
        whole = rendered.translate(shown)
        if len(self.pattern.findall(rendered)) == len(self.pattern.findall(whole)):
            return self.tokenizer.encode(whole, add_special_tokens=add_special_tokens)
        ids = self.tokenizer.encode("") if add_special_tokens else []
        start = 0
        for first, last in self._forged_spans(rendered, shown):
            ids += self.tokenizer.encode(whole[start:first], add_special_tokens=False)
            ids += self.tokenizer.encode_plain(whole[first:last])
            start = last
        return ids + self.tokenizer.encode(whole[start:], add_special_tokens=False)

    def text(self, rendered: str) -> str:
        """The text of a rendered prompt, for another encoder; ParamsError if a client has spelled a control token."""
        whole = rendered.translate(str.maketrans({private: edge for edge, private in self.replacements.items()}))
        if len(self.pattern.findall(rendered)) != len(self.pattern.findall(whole)):
            raise ParamsError("messages with images or audio must not spell special tokens; leave them out")
        return whole

    def _forged_spans(self, rendered: str, shown: Mapping[int, str]) -> list[tuple[int, int]]:
        """The spans between the template's control tokens in which a client has spelled one."""
        edges = [place for found in self.pattern.finditer(rendered) for place in found.span()]
        cuts = [0, *edges, len(rendered)]
        pieces = zip(cuts[::2], cuts[1::2], strict=True)
        return [(i, j) for i, j in pieces if self.pattern.search(rendered[i:j].translate(shown))]


def fresh_characters(count: int, written: set[str]) -> list[str]:
    """`count` random private-use characters that do not occur in the text; ParamsError if it has too many of them."""
    if sum(_FIRST_PRIVATE <= ord(character) < _FIRST_PRIVATE + _PRIVATE for character in written) > _PRIVATE // 2:
        raise ParamsError("messages must not hold tens of thousands of private-use characters; remove them")
    found: list[str] = []
    while len(found) < count:
        character = chr(_FIRST_PRIVATE + secrets.randbelow(_PRIVATE))
        if character not in written and character not in found:
            found.append(character)
    return found


def alternatives(spellings: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches any of the spellings, the longest first; without spellings it matches nothing."""
    ordered = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
