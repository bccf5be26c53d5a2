"""How many tokens of a growing text are reasoning, counted as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tirage.engine import EngineRequest, opened_by
from tirage.params import REASONING_PARSERS
from tirage.text import Tokenizer


class ReasoningCounter:
    """Counts the tokens of one text up to the end of its reasoning, the tags included; `count` is 0 without any.

    `opened` says that the prompt ends inside the reasoning.
    """

    def __init__(self, tags: tuple[str, str], spell: Callable[[int], bytes], *, opened: bool) -> None:
        self._begin, self._end = (tag.encode() for tag in tags)
        self._spell, self._inside, self._over = spell, opened, False
        self._read, self._unread = 0, b""

    @property
    def count(self) -> int:
        """The number of reasoning tokens so far."""
        return self._read if self._inside else 0

    def add(self, ids: Iterable[int]) -> int:
        """Reads the next tokens, and gives the `count` with them."""
        for token_id in ids:
            if self._over:
                break
            self._read += 1
            self._unread += self._spell(token_id)
            if not self._inside:
                self._look_for_begin()
            if self._inside:
                self._over = self._end in self._unread
                self._unread = self._unread[1 - len(self._end) :]
        return self.count

    def _look_for_begin(self) -> None:
        text = self._unread.lstrip()
        if text.startswith(self._begin):
            self._inside, self._unread = True, text.removeprefix(self._begin)
        else:
            self._over = not self._begin.startswith(text)


class ReasoningCounters:
    """Makes the counters of a request's samples.

    There is reasoning to count where `reasoning_parser` names its tags, or `thinking_budget` limits it.
    """

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer) -> None:
        params, self._tokenizer = request.params, tokenizer
        named = params.reasoning_parser or (None if params.thinking_budget is None else "think")
        self._tags = None if named is None else REASONING_PARSERS[named]
        self._opened = self._tags is not None and opened_by(request.prompt_ids, self._tags, tokenizer) is not None

    def new(self) -> ReasoningCounter | None:
        """A counter for one text; None where no reasoning is told apart."""
        if self._tags is None:
            return None
        return ReasoningCounter(self._tags, self._tokenizer.inner_bytes, opened=self._opened)

    def count(self, ids: Iterable[int]) -> int:
        """How many tokens of a whole text are reasoning."""
        counter = self.new()
        return 0 if counter is None else counter.add(ids)
