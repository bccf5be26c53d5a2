"""Stop conditions: tokens, strings and patterns that end a text.

The rules do not depend on how the text is cut into tokens:
* the match that ends first wins; of several that end at the same character, the one that starts first;
* none of the first `min_tokens` tokens stops the text; a match that one of them completes is ordinary text;
* text is released as soon as it can no longer be part of a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal
from weakref import WeakValueDictionary

from tirage.patterns import compile_pattern
from tirage.text.aho_corasick import START, PhraseAutomaton
from tirage.text.copies import twin

StopKind = Literal[
    "eos",
    "token",
    "string",
    "regex",
    "grammar",
    "max_tokens",
    "context",
    "cache",
    "non_finite_logits",
    "no_allowed_token",
    "processor_failed",
    "kept_too_wide",
    "model_failed",
    "text_failed",
    "abort",
    "grammar_failed",
    "constraint_budget",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a text ended.

    `matched` is the token id, stop string or pattern of the request, `matched_text` the text that it matched; both are
    None for limits and errors. A completed constraint stops a text with kind `grammar`; `matched` is then
    `close_grammar` if tokens were forced to complete it in time. For the kinds `grammar_failed` and
    `constraint_budget`, `matched_text` says what went wrong.
    """

    kind: StopKind
    matched: int | str | None = None
    matched_text: str | None = None


_automata: WeakValueDictionary[tuple[str, ...], PhraseAutomaton[str]] = WeakValueDictionary()


def automaton_of(strings: Sequence[str]) -> PhraseAutomaton[str]:
    """The automaton of some strings, shared by all samples with the same strings while one of them runs."""
    key = tuple(strings)
    found = _automata.get(key)
    return _automata.setdefault(key, PhraseAutomaton(key)) if found is None else found


@lru_cache(maxsize=256)
def shared_ids(ids: tuple[int, ...]) -> frozenset[int]:
    """The ids as a set, one for all samples that have the same."""
    return frozenset(ids)


class StopChecker:
    """Checks the stop conditions of one sample, given its tokens and its text.

    `include` keeps the matched text in the output, so that nothing has to be held back. Samples with the same strings
    or pattern share their automata. Raises PatternError for a pattern that cannot be compiled.
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
        self._strings: PhraseAutomaton[str] | None = automaton_of(strings) if strings else None
        self._node = START
        self._source = pattern
        self._pattern = compile_pattern(pattern).matcher() if pattern is not None else None
        self._token_ids, self._eos_ids = shared_ids(tuple(token_ids)), shared_ids(tuple(eos_ids))
        self._min_tokens, self._include = min_tokens, include
        # The characters that may still be part of a match, and the number of characters before them.
        self._tail, self._before = "", 0

    def check_token(self, token_id: int, count: int) -> Stop | None:
        """The stop that the `count`-th output token is by itself; EOS takes precedence over `token_ids`."""
        if count <= self._min_tokens:
            return None
        if token_id in self._eos_ids:
            return Stop(kind="eos", matched=token_id)
        if token_id in self._token_ids:
            return Stop(kind="token", matched=token_id)
        return None

    def feed(self, text: str, count: int) -> tuple[str, Stop | None]:
        """The characters that new text releases, and the stop that it completes, if any.

        `count` is the number of output tokens so far, with the one that gave this text. At a stop the characters are
        the last ones: what follows the match is dropped.
        """
        if self._strings is None and self._pattern is None:
            return text, None
        window, new = self._tail + text, len(self._tail)
        for end, letter in enumerate(text, start=new + 1):
            found = self._match(letter, end)
            if found is not None and count > self._min_tokens:
                start, stop = found
                self._tail, self._before = "", self._before + end
                released = window[new:end] if self._include else window[:start]
                return released, replace(stop, matched_text=window[start:end])
        keep = self._claimed(len(window))
        self._tail, self._before = window[keep:], self._before + keep
        return window[new:] if self._include else window[:keep], None

    def finish(self) -> str:
        """The characters still held back, when no more text will come."""
        text, self._tail = self._tail, ""
        return "" if self._include else text

    def copy(self) -> StopChecker:
        """An independent checker after the same text."""
        other = twin(self)
        if self._pattern is not None:
            other._pattern = self._pattern.copy()
        return other

    def _match(self, letter: str, end: int) -> tuple[int, Stop] | None:
        """Start in the window, and stop, of the match that a letter completes; it is the `end`-th of the window."""
        best: tuple[int, Stop] | None = None
        if self._strings is not None:
            self._node = self._strings.step(self._node, ord(letter))
            index = self._strings.complete[self._node]
            if index >= 0:
                string = self._strings.phrases[index]
                best = end - len(string), Stop(kind="string", matched=string)
        start = self._pattern.feed(letter) if self._pattern is not None else None
        if start is not None and (best is None or start - self._before < best[0]):
            best = start - self._before, Stop(kind="regex", matched=self._source)
        return best

    def _claimed(self, length: int) -> int:
        """The start, in a window of that length, of the text that may still be part of a match."""
        strings = self._strings.claimed(self._node) if self._strings is not None else 0
        pattern = self._pattern.claimed_from - self._before if self._pattern is not None else length
        return min(length - strings, pattern)
