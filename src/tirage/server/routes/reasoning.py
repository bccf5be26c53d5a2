"""Thoughts of a model, told apart from what it says: a text between two marks, before the answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirage.dialects import DialectError
from tirage.server.options import REASONING_PARSERS, Options
from tirage.server.routes.toolcalls import Piece, Thought, ToolCallParser, overlap
from tirage.server.routes.tools import Tools
from tirage.text import Tokenizer

Marks = tuple[str, str]
_PROMPT_END = 64
"""Tokens at the end of a prompt in which a mark is looked for; templates put it there."""


def marks_of(own: Mapping[str, Any], options: Options) -> Marks | None:
    """The marks of a request's thoughts, by its own wish or the operator's; None where they stay in the content."""
    wanted, name = own["separate_reasoning"], options.reasoning_parser
    marks = REASONING_PARSERS[name or "think"] if wanted or (wanted is None and name is not None) else None
    if marks is None and not own["include_reasoning"]:
        raise DialectError(
            "include_reasoning must be true where thoughts are not told apart, got False; add separate_reasoning=true",
            "include_reasoning",
        )
    return marks


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningReader:
    """How messages are read: their thoughts, where `marks` tell them apart, and their calls.

    `begun` says that the prompt has opened the thoughts already, `shown` that the answer holds them.
    """

    tools: Tools
    tokenizer: Tokenizer
    marks: Marks | None = None
    begun: bool = False
    shown: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self.marks is None and self.tools.mode == "none"

    def parser(self) -> ToolCallParser:
        """A parser for one message."""
        parser = self.tools.parser()
        return parser if self.marks is None else ReasoningParser(parser, self.marks, begun=self.begun)

    def count(self, ids: Sequence[int]) -> int:
        """How many of a message's tokens are thoughts, their marks included."""
        if self.marks is None:
            return 0
        begin, end = self.marks

        def text(count: int) -> str:
            return self.tokenizer.decode(ids[:count], skip_special_tokens=False)

        if not self.begun and not text(len(ids)).lstrip().startswith(begin):
            return 0
        one = mark_ids(self.marks, self.tokenizer)[1]
        if one in ids and end not in text(ids.index(one)):
            return ids.index(one) + 1
        return min(len(ids), bisect_left(range(len(ids) + 1), True, key=lambda count: end in text(count)))


def mark_ids(marks: Marks, tokenizer: Tokenizer) -> tuple[int | None, int | None]:
    """The tokens that the marks are; None for one that takes several."""
    find = getattr(tokenizer.raw, "token_to_id", lambda mark: None)
    return find(marks[0]), find(marks[1])


def is_begun(marks: Marks | None, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends with the mark that begins thoughts, as templates of models that always think make it."""
    if marks is None:
        return False
    return tokenizer.decode(prompt_ids[-_PROMPT_END:], skip_special_tokens=False).rstrip().endswith(marks[0])


class ReasoningParser:
    """A text that may begin with thoughts; what follows them goes to another parser.

    Nothing is left out but the marks and the space before the first. Without the second mark all is thoughts.
    """

    def __init__(self, after: ToolCallParser, marks: Marks, *, begun: bool) -> None:
        self._after, (self._begin, self._end) = after, marks
        self._held, self._inside, self._over = "", begun, False

    def feed(self, text: str) -> list[Piece]:
        if self._over:
            return self._after.feed(text)
        self._held += text
        start = self._held.lstrip()
        if not self._inside and start.startswith(self._begin):
            self._held, self._inside = start.removeprefix(self._begin), True
        if self._inside:
            return self._think()
        return [] if self._begin.startswith(start) else self._answer(self._held)

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._over or not rest:
            return self._after.finish()
        last = [Thought(rest)] if self._inside else self._after.feed(rest)
        return [*last, *self._after.finish()]

    def _think(self) -> list[Piece]:
        thought, mark, rest = self._held.partition(self._end)
        if mark:
            return [*([Thought(thought)] if thought else []), *self._answer(rest)]
        certain = len(self._held) - overlap(self._held, self._end)
        thought, self._held = self._held[:certain], self._held[certain:]
        return [Thought(thought)] if thought else []

    def _answer(self, text: str) -> list[Piece]:
        self._held, self._over = "", True
        return self._after.feed(text)
