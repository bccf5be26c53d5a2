"""What the constraint of a request takes while it runs: processor time, counted for all its samples."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar

from tirage.errors import GrammarError
from tirage.workers.cancel import checkpoint

_LIMITS: ContextVar[tuple[float, float]] = ContextVar("limits", default=(math.inf, math.inf))
SLOW_S = 0.002
"""Processor time of one mask above which the masks of a request are computed beside the engine's thread."""
_FADING = 0.98
"""The part of `token_s` that is left after a further token, of any sample, that takes no time."""

_TOKEN_SHARE = 0.5
"""The limit of a token as a share of that of a mask: a grammar's library holds the interpreter's lock meanwhile."""
_GROWTH = 8
"""How many times as long as the last token the next one may take where texts have many derivations."""


@contextlib.contextmanager
def limited(*, total_s: float, mask_s: float) -> Iterator[None]:
    """A block in which requests are made whose budgets have these limits."""
    token = _LIMITS.set((total_s, mask_s))
    try:
        yield
    finally:
        _LIMITS.reset(token)


class ConstraintBudget:
    """The processor time that the samples of a request have taken for their constraint, and how much they may take.

    `max_total_s` is for all samples together, `max_mask_s` for one mask and `max_token_s` for one token; they are those
    of the surrounding `limited` block, and without limit where there is none.
    `is_slow`: its masks are computed beside the engine's thread. So are the first mask of any constraint, and all masks
    of an `ambiguous` one, which may take a thousand times as long from one token to the next. `token_s` is the longest
    time that a token has lately taken; before the first token it is infinite if the first mask was slow.
    """

    def __init__(self) -> None:
        self.max_total_s, self.max_mask_s = _LIMITS.get()
        self.max_token_s = _TOKEN_SHARE * self.max_mask_s
        self._slow_token_s = 0.0
        self.total_s = self.token_s = 0.0
        self.ambiguous, self.is_slow, self._is_first = False, True, True

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """A block whose processor time in this thread counts."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.total_s += time.thread_time() - began

    @property
    def next_token_s(self) -> float:
        """The processor time that one more token is expected to take."""
        return self.token_s * (_GROWTH if self.ambiguous else 1)

    def add_token(self, seconds: float) -> None:
        """Counts the time in which the constraint took a token."""
        self.total_s += seconds
        self._slow_token_s = max(self._slow_token_s, seconds if seconds > self.max_token_s else 0.0)
        expected = 0.0 if math.isinf(self.token_s) else self.token_s
        self.token_s = max(seconds, _FADING * expected)

    def add_mask(self, seconds: float) -> str:
        """Counts the time of a mask; says what it exceeds, empty while it exceeds nothing."""
        self.total_s += seconds
        if self._is_first and seconds > SLOW_S:
            # Tokens may take several times as long as masks: one sample tries it before others do.
            self.token_s = math.inf
        known = self.ambiguous or (self.is_slow and not self._is_first)
        self.is_slow, self._is_first = known or seconds > SLOW_S, False
        return self._too_slow("mask", self.max_mask_s) if seconds > self.max_mask_s else self.exceeded

    @property
    def exceeded(self) -> str:
        """Which limit a token or the samples together exceed; empty while they exceed none."""
        if self._slow_token_s:
            return self._too_slow("token", self.max_token_s)
        if self.total_s <= self.max_total_s:
            return ""
        return (
            f"the constraint took more than {self.max_total_s:g} s of processor time in all samples; make it simpler "
            "or ask for fewer tokens"
        )

    def check(self, name: str) -> None:
        """Raises GrammarError where what the texts begin with, the field `name`, exceeds a limit."""
        if self.exceeded:
            raise GrammarError(f"{name} cannot be read under the constraint: {self.exceeded}")

    @contextlib.contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """A block in which a text takes one token that is given, in the field `name`; the wait for it can be cancelled.

        A grammar's library holds the interpreter's lock meanwhile: afterwards others get as much time. Raises
        GrammarError where a limit is exceeded.
        """
        checkpoint()
        before = self.total_s
        yield
        self.check(name)
        if self.total_s - before > SLOW_S:
            time.sleep(self.total_s - before)

    def _too_slow(self, what: str, most_s: float) -> str:
        return f"one {what} of the constraint took more than {most_s:g} s of processor time; make it simpler"
