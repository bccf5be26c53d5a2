"""The draft of a sample: tokens that the model has read beyond its text, and how often drafts came true."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Proposal = tuple[Sequence[int], int]
"""The tokens of a draft, and the kind of its source, by which its rate of acceptance is kept."""

# What a token of a draft model adds to the time of a pass, its own included, as a share of that of a single token.
_COST = 0.12
# The tokens of a draft cost `_AT_LEAST` together, or more. A source that was mostly wrong is tried again after `_RETRY`
# times the cost of a token, in steps; each trial without a right token doubles that wait, up to `_LONGEST_WAIT` times.
# So a model whose drafts cost nearly nothing loses about as much as one whose drafts are expensive.
_AT_LEAST, _RETRY, _LONGEST_WAIT = 0.12, 140, 8
# The share of the latest token in a rate.
_WEIGHT = 0.25
# Rates before the first token, by source: those of longer n-grams are higher, 0 is a draft model, and negative ones are
# passages that the text repeats with changes (`prompt_lookup`).
_FIRST_RATES, _LONG_RATE = {-3: 0.3, -2: 0.3, -1: 0.3, 0: 0.7, 1: 0.2, 2: 0.25, 3: 0.4}, 0.7


@dataclass(slots=True)
class AcceptanceRate:
    """How likely the next token of a source is right, a moving average of those seen so far."""

    rate: float = _LONG_RATE
    _skipped: int = 0
    _wait: int = 1

    def length(self, most: int, *, cost: float = _COST) -> int:
        """How many tokens are worth reading, at most so many: those that are right with a chance of their `cost`."""
        if most < 1:
            return 0
        fewest = math.ceil(_AT_LEAST / cost)
        if self.rate >= cost:
            likely = most if self.rate > 0.99 else math.floor(math.log(cost) / math.log(self.rate))
            return min(most, max(fewest, likely))
        self._skipped += 1
        if self._skipped <= int(_RETRY * cost) * self._wait:
            return 0
        self._skipped, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        return min(most, fewest)

    def record(self, accepted: int, *, rejected: bool) -> None:
        """Counts tokens that were right, and one that was wrong after them."""
        if accepted:
            self._wait = 1
        for _ in range(accepted):
            self.rate += (1 - self.rate) * _WEIGHT
        if rejected:
            self.rate -= self.rate * _WEIGHT


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens that the model has read beyond a sample's text, each with the logits float32 [V] after it."""

    ahead: deque[tuple[int, Logits]]
    source: int
    accepted: int = 0
    rejected: bool = False


@dataclass(slots=True, eq=False)
class DraftState:
    """What an engine keeps of the drafts of one sample: the present one, and the rates of their sources."""

    draft: Draft | None = None
    rates: dict[int, AcceptanceRate] = field(default_factory=dict)

    @property
    def unsettled(self) -> int:
        """How many tokens the model has read that no draw has confirmed."""
        return 0 if self.draft is None else len(self.draft.ahead)

    def expects(self, token_id: int) -> bool:
        """Whether this token comes next in the draft."""
        return self.draft is not None and bool(self.draft.ahead) and self.draft.ahead[0][0] == token_id

    def rate(self, source: int) -> AcceptanceRate:
        """The rate of a source."""
        return self.rates.setdefault(source, AcceptanceRate(_FIRST_RATES.get(source, _LONG_RATE)))

    def begin(self, token_ids: Sequence[int], logits: Sequence[Logits], source: int) -> None:
        """Notes that the model has read these tokens, each with the logits float32 [V] after it."""
        self.draft = Draft(deque(zip(token_ids, logits, strict=True)), source)

    def take(self, unread: list[int]) -> Logits | None:
        """Takes from `unread` the tokens that were read as a draft; the logits float32 [V] after the last, if any.

        A token that is not the draft's ends it: what is left of the draft is to be taken back.
        """
        logits, draft = None, self.draft
        while draft is not None and draft.ahead and unread:
            token_id, after = draft.ahead[0]
            if token_id != unread[0]:
                draft.rejected = True
                break
            draft.ahead.popleft()
            draft.accepted += 1
            logits = after
            del unread[0]
        return logits

    def end(self) -> Draft | None:
        """Ends the draft, which counts for the rate of its source; gives it."""
        draft, self.draft = self.draft, None
        if draft is not None:
            self.rate(draft.source).record(draft.accepted, rejected=draft.rejected)
        return draft
