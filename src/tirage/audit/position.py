"""Places in a text with the probabilities that the server lists there, and what parameters make of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine import LogprobEntry
from tirage.params import SamplingParams
from tirage.sampling import law
from tirage.semantics import Semantics

_MOST_TAIL = 256
_NOISE = 0.01
"""The least relative error of a probability, whatever the server says twice."""

_SPECIAL = re.compile(r"<.*>|\[.*\]")
"""Tokens that end a text may be missing in answers, so they are told by how they are written."""
_RARE = math.log(2e-3)

AuditPrompt = str | tuple[int, ...]
"""A text, or token ids where the server has told them."""
Key = int | str
"""What a token is told by: its id where the server lists ids, else its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The end of a prompt, and the K likeliest next tokens at temperature 1: `logprobs` [K], falling.

    `noise` bounds by how much two answers differ, as a factor's logarithm. `by_id` says what the `keys` are, `texts`
    what the tokens are called.
    """

    prompt: AuditPrompt
    keys: tuple[Key, ...]
    texts: tuple[str, ...]
    logprobs: NDArray[np.float64] = field(repr=False)
    noise: float = _NOISE
    by_id: bool = False

    @property
    def tail(self) -> float:
        """The probability of all tokens that are not listed."""
        return max(0.0, 1.0 - float(np.exp(self.logprobs).sum()))

    @property
    def entropy(self) -> float:
        """The entropy in nats, of the listed tokens alone."""
        return float(-(np.exp(self.logprobs) * self.logprobs).sum())

    def index(self, drawn: LogprobEntry) -> int:
        """The place of a drawn token among the listed ones; K for one that is none of them."""
        key = drawn.token_id if self.by_id else drawn.text
        return self.keys.index(key) if key in self.keys else len(self.keys)

    def tails(self) -> list[NDArray[np.float64]]:
        """Two ways in which the rest may be shared out: among as few tokens as possible, and among very many."""
        last = math.exp(self.logprobs[-1])
        few = max(1, math.ceil(self.tail / last)) if self.tail > 0 else 1
        many = min(few * 32, 4 * _MOST_TAIL)
        tail = max(self.tail, 1e-12)
        return [np.full(count, math.log(tail / count)) for count in (few, many)]

    @property
    def usable(self) -> bool:
        """Whether the rest is small enough, and the tokens can be told apart."""
        last = math.exp(self.logprobs[-1]) if len(self.keys) else 0.0
        plain = all(text and "\ufffd" not in text and not _SPECIAL.fullmatch(text) for text in self.texts)
        return len(set(self.keys)) == len(self.keys) > 2 and plain and self.tail / max(last, 1e-9) <= _MOST_TAIL


def position_of(prompt: AuditPrompt, answers: Sequence[LogprobEntry]) -> Position | None:
    """The position that answers to one request tell, each with its list; None where they list too little."""
    lists = [[each for each in answer.top if math.isfinite(each.logprob)] for answer in answers]
    if not lists or min(map(len, lists)) < 3:
        return None
    first = sorted((each for each in lists[0] if not _rare_special(each)), key=lambda each: -each.logprob)
    by_id = all(each.token_id >= 0 for each in first)
    keys = tuple(each.token_id if by_id else each.text for each in first)
    return Position(
        prompt=prompt,
        keys=keys,
        texts=tuple(each.text for each in first),
        logprobs=np.array([each.logprob for each in first]),
        noise=noise_of(lists),
        by_id=by_id,
    )


def _rare_special(entry: LogprobEntry) -> bool:
    return entry.logprob < _RARE and _SPECIAL.fullmatch(entry.text) is not None


def noise_of(lists: Sequence[Sequence[LogprobEntry]]) -> float:
    """Twice the largest difference of a log-probability between answers, 0.01 at least; of tokens above 1 %."""
    found = [{(each.token_id, each.text): each.logprob for each in one} for one in lists]
    likely = [key for key, value in found[0].items() if value > math.log(0.01)]
    spread = max((abs(found[0][key] - one.get(key, -9.0)) for one in found[1:] for key in likely), default=0.0)
    return max(_NOISE, 2 * spread)


def laws(
    position: Position,
    params: Sequence[SamplingParams],
    *,
    tails: int = 2,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the largest probability [N, K + 1] of each listed token, and of all others, for N parameters.

    With one of the `tails` the rest is only shared out among as few tokens as possible.
    """
    found = []
    count = len(position.keys)
    for tail in position.tails()[:tails]:
        row = np.concatenate([position.logprobs, tail]).astype(np.float32)
        whole = law(np.broadcast_to(row, (len(params), len(row))).copy(), list(params))
        found.append(np.concatenate([whole[:, :count], whole[:, count:].sum(1, keepdims=True)], axis=1))
    both = np.stack(found)
    return both.min(0), both.max(0)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probabilities [K] of logits [K]."""
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def params_of(values: Mapping[str, Any], semantics: str | Semantics = "canonical") -> SamplingParams:
    """Parameters of a law: temperature 1 and nothing else but these values."""
    return SamplingParams(**{"temperature": 1.0, "semantics": semantics, **values})
