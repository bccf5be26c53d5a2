"""Where a text ends: at a token, at a string, or at a pattern.

The rules do not depend on how the text is cut into tokens:
* the match that is complete first wins; of several complete at the same character, the one that starts first;
* none of the first `min_tokens` tokens stops the text; a match that one of them completes is ordinary text;
* text is released as soon as no stop can claim it any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

StopKind = Literal[
    "eos",
    "token",
    "string",
    "regex",
    "max_tokens",
    "context",
    "non_finite_logits",
    "no_allowed_token",
]

# A pattern is looked for in this many last characters of the text.
LOOK_BACK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a text ended: the kind, what was asked for, and the text it matched.

    `matched` is the token id, stop string or pattern of the request; None for the limits and for errors.
    """

    kind: StopKind
    matched: int | str | None = None
    matched_text: str | None = None


class StopChecker:
    """The stop rules of one sample, fed with its tokens and its text.

    `include` keeps the matched text in the output; then nothing has to be held back.
    """

    def __init__(
        self,
        *,
        strings: Sequence[str] = (),
        pattern: str | None = None,
        token_ids: Sequence[int] = (),
        eos_ids: Sequence[int] = (),
        min_tokens: int = 0,
        include: bool = False,
    ) -> None:
        self._strings = tuple(strings)
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._source = pattern
        self._token_ids, self._eos_ids = frozenset(token_ids), frozenset(eos_ids)
        self._min_tokens, self._include = min_tokens, include
        self._longest = max(map(len, self._strings), default=0)
        # One more for a pattern: `^` must not take the cut for the start of the text.
        self._look_back = max(self._longest - 1, LOOK_BACK if pattern is not None else 0)
        self._hold_all = 0 if pattern is None else max(0, min(longest_match(pattern), LOOK_BACK) - 1)
        # The last characters seen, of which the final `_held` are not released yet.
        self._tail, self._held = "", 0

    def check_token(self, token_id: int, count: int) -> Stop | None:
        """The stop that the `count`-th output token is by itself; an EOS id counts as EOS first."""
        if count <= self._min_tokens:
            return None
        if token_id in self._eos_ids:
            return Stop(kind="eos", matched=token_id)
        if token_id in self._token_ids:
            return Stop(kind="token", matched=token_id)
        return None

    def feed(self, text: str, count: int) -> tuple[str, Stop | None]:
        """The characters released by new text, and the stop that it completes.

        `count` is the number of output tokens so far, the one that brought this text included. After a stop
        the characters are the last ones: what follows the match is dropped.
        """
        if not self._strings and self._pattern is None:
            return text, None
        window, new = self._tail + text, len(self._tail)
        found = self._find(window, new) if count > self._min_tokens else None
        unreleased = new - self._held
        if found is not None:
            start, end, stop = found
            self._tail, self._held = "", 0
            return window[unreleased : end if self._include else max(start, unreleased)], stop
        keep = 0 if self._include else self._claimed(window[unreleased:])
        self._tail = window[max(0, len(window) - self._look_back) :]
        self._held = keep
        return window[unreleased : len(window) - keep], None

    def finish(self) -> str:
        """The characters still held back, once nothing more will come."""
        text = self._tail[len(self._tail) - self._held :]
        self._tail, self._held = "", 0
        return text

    def _find(self, window: str, new: int) -> tuple[int, int, Stop] | None:
        """Start, end and stop of the match that is complete first in window[new:]."""
        strings = self._find_string(window, new)
        limit = len(window) if strings is None else strings[1]
        pattern = self._find_pattern(window, new, limit)
        if strings is None or pattern is None:
            return strings or pattern
        return min(strings, pattern, key=lambda match: (match[1], match[0]))

    def _find_string(self, window: str, new: int) -> tuple[int, int, Stop] | None:
        best: tuple[int, int, str] | None = None
        for string in self._strings:
            start = window.find(string, max(0, new - len(string) + 1))
            end = start + len(string)
            if start >= 0 and (best is None or (end, start) < (best[1], best[0])):
                best = (start, end, string)
        if best is None:
            return None
        start, end, string = best
        return start, end, Stop(kind="string", matched=string, matched_text=string)

    def _find_pattern(self, window: str, new: int, limit: int) -> tuple[int, int, Stop] | None:
        if self._pattern is None:
            return None
        # Character by character, so that the answer is the same however the text was cut into tokens.
        for end in range(new + 1, limit + 1):
            first = max(0, end - LOOK_BACK)
            for match in self._pattern.finditer(window, first, end):
                if match.end() == end and match[0]:
                    stop = Stop(kind="regex", matched=self._source, matched_text=match[0])
                    return match.start(), end, stop
        return None

    def _claimed(self, text: str) -> int:
        """Length of the longest ending of the text that a stop may still claim."""
        for length in range(min(len(text), self._longest - 1), self._hold_all, -1):
            if any(string.startswith(text[-length:]) for string in self._strings):
                return length
        return min(len(text), self._hold_all)


def longest_match(pattern: str) -> int:
    """Upper bound on the length of a pattern's matches; LOOK_BACK or more when there is none."""
    from re import _parser  # pyright: ignore[reportAttributeAccessIssue]  # the only place that knows

    return int(_parser.parse(pattern).getwidth()[1])
