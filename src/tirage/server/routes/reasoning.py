"""A model's reasoning, separated from its answer: the text between two tags at the beginning of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirage.dialects import DialectError
from tirage.engine import opened_by
from tirage.params import REASONING_PARSERS, SamplingParams
from tirage.server.options import Options
from tirage.server.routes.reasoning_count import ReasoningCounter
from tirage.server.routes.toolcalls import ContentParser, MessagePart, Reasoning, ToolCallParser, overlap
from tirage.server.routes.tools import Tools
from tirage.text import ChatTemplate, Tokenizer

ReasoningTags = tuple[str, str]
_REASONING_MEMBERS = ("reasoning_content", "reasoning", "thinking")
"""Where templates look for the reasoning of a message: Qwen's and DeepSeek's, newer ones of OpenAI's, gpt-oss's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSplit:
    """The tags of the reasoning that may precede an answer, and whether it is `separated` or stays in the content."""

    tags: ReasoningTags
    separated: bool


def split_of(fields: Mapping[str, Any], params: SamplingParams, options: Options) -> ReasoningSplit | None:
    """How reasoning is told from the answer, as the request or the operator wants it; None where there is none.

    Raises DialectError for `include_reasoning=False` where it is not separated.
    """
    wanted, name = fields["separate_reasoning"], params.reasoning_parser or options.reasoning_parser
    separated = bool(wanted or (wanted is None and name is not None))
    if not separated and not fields["include_reasoning"]:
        raise DialectError(
            "include_reasoning must be true where reasoning is not separated, got False; add separate_reasoning=true",
            "include_reasoning",
        )
    known = separated or name is not None
    return ReasoningSplit(tags=REASONING_PARSERS[name or "think"], separated=separated) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReader:
    """How messages are parsed: their reasoning, between `tags`, and their tool calls.

    Reasoning that is not `separated` is content; calls are looked for after it.
    `opened` says that the prompt ends inside the reasoning, `answering` that it ends inside the answer, and `included`
    that the message holds its reasoning.
    """

    tools: Tools
    tokenizer: Tokenizer
    tags: ReasoningTags | None = None
    separated: bool = True
    opened: bool = False
    answering: bool = False
    included: bool = True

    @property
    def separates(self) -> bool:
        """Whether reasoning is no content."""
        return self.tags is not None and self.separated

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return not self.separates and self.tools.mode == "none"

    def parser(self) -> ToolCallParser:
        """A parser for one message."""
        if self.tools.tool_format == "harmony" and (self.tools.mode == "none" or self.tools.keeps_format):
            return self.tools.parser(separate=self.separates)
        parser = self.tools.parser()
        if self.tags is None or self.answering or self.is_plain:
            return parser
        return ReasoningParser(parser, self.tags, opened=self.opened, separated=self.separated)

    def count(self, ids: Sequence[int]) -> int:
        """How many of a message's tokens are separated reasoning, the tags included."""
        if self.tags is None or not self.separated or self.answering:
            return 0
        return ReasoningCounter(self.tags, self.tokenizer.inner_bytes, opened=self.opened).add(ids)


def with_reasoning(
    message: Mapping[str, Any], reasoning: str, template: ChatTemplate, tags: ReasoningTags
) -> dict[str, Any]:
    """An earlier message of the assistant with its reasoning.

    It stands where the chat template looks for it, or else between the tags at the beginning of the content.
    """
    name = next((name for name in _REASONING_MEMBERS if template.reads(name)), None)
    if name is not None:
        return {**message, name: reasoning}
    begin, end = tags
    content, text = message.get("content"), f"{begin}{reasoning}{end}"
    parts = [{"type": "text", "text": text}, *content] if isinstance(content, list) else text + (content or "")
    return {**message, "content": parts}


def prompt_opens_reasoning(
    tags: ReasoningTags | None, prompt_ids: Sequence[int], tokenizer: Tokenizer, *, begun: str = ""
) -> bool:
    """Whether a prompt has begun the reasoning, as templates of models that always reason do.

    `begun` is the text of the message that the prompt ends inside.
    """
    return tags is not None and opened_by(prompt_ids, tags, tokenizer, begun=begun) is not None


class ReasoningParser:
    """Parses a text that may begin with reasoning, and passes what follows to another parser.

    Only the tags and the space before the first are dropped, and nothing where reasoning is not `separated`: then it is
    content. Without a closing tag all of the text is reasoning.
    """

    def __init__(self, after: ToolCallParser, tags: ReasoningTags, *, opened: bool, separated: bool = True) -> None:
        self._after, (self._begin, self._end), self._separated = after, tags, separated
        self._buffer, self._inside, self._ended = "", opened, False

    def feed(self, text: str) -> list[MessagePart]:
        if self._ended:
            return self._after.feed(text)
        self._buffer += text
        start = self._buffer.lstrip()
        if self._inside:
            return self._reason("")
        if start.startswith(self._begin):
            before, tag, self._buffer = self._buffer.partition(self._begin)
            self._inside = True
            return self._reason(before + tag)
        return [] if self._begin.startswith(start) else self._answer(self._buffer)

    def finish(self) -> list[MessagePart]:
        if self._ended:
            return self._after.finish()
        # The answer has not begun: a parser of forced calls would make one of nothing, or of half a mark.
        rest, self._buffer = self._buffer, ""
        return self._thought("", rest, "") if self._inside else ContentParser().feed(rest)

    def _reason(self, begun: str) -> list[MessagePart]:
        """The parts of the text that is held back, which is reasoning from its first character after `begun`."""
        reasoning, tag, rest = self._buffer.partition(self._end)
        if tag:
            return [*self._thought(begun, reasoning, tag), *self._answer(rest)]
        certain = len(self._buffer) - overlap(self._buffer, self._end)
        reasoning, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return self._thought(begun, reasoning, "")

    def _thought(self, begun: str, text: str, tag: str) -> list[MessagePart]:
        """A piece of the reasoning, between what begins it and what ends it."""
        if not self._separated:
            return ContentParser().feed(begun + text + tag)
        return [Reasoning(text)] if text else []

    def _answer(self, text: str) -> list[MessagePart]:
        self._buffer, self._ended = "", True
        return self._after.feed(text)
