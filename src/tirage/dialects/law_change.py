"""How far two laws over the same tokens are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.params.updates import untokenized
from tirage.sampling import Pair, law

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class LawChange:
    """The laws [B, V], float64, of the same rows under the parameters before and after.

    Rows that cannot be drawn have NaN in both or one of them, and count as unchanged only where both have.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]

    @property
    def total_variation(self) -> NDArray[np.float64]:
        """Half of the sum of absolute differences of each row [B], in [0, 1]; 1 where only one of them can be drawn."""
        bad = np.isnan(self.before[:, 0]), np.isnan(self.after[:, 0])
        distance = np.abs(self.after - self.before).sum(axis=1) / 2
        return np.where(bad[0] & bad[1], 0.0, np.where(bad[0] | bad[1], 1.0, np.minimum(distance, 1.0)))

    def gained(self, row: int) -> list[int]:
        """The tokens that can be drawn after and could not before, the likeliest first."""
        return _only(self.after[row], self.before[row])

    def lost(self, row: int) -> list[int]:
        """The tokens that could be drawn before and cannot after, the likeliest first."""
        return _only(self.before[row], self.after[row])

    def to_dict(self) -> list[dict[str, Any]]:
        """A plain value for each row: its total variation, and the tokens gained and lost."""
        return [
            {"total_variation": float(distance), "gained": self.gained(row), "lost": self.lost(row)}
            for row, distance in enumerate(self.total_variation)
        ]

    def lines(self) -> list[str]:
        """The same for a person, a line for each row."""
        return [
            f"row {row}: total variation {distance:.6f}, {_listed('gained', self.gained(row), self.after[row])}, "
            f"{_listed('lost', self.lost(row), self.before[row])}"
            for row, distance in enumerate(self.total_variation)
        ]


def _only(first: NDArray[np.float64], second: NDArray[np.float64]) -> list[int]:
    tokens = np.flatnonzero((first > 0) & ~(second > 0))
    return tokens[np.argsort(-first[tokens], kind="stable")].tolist()


def _listed(word: str, tokens: list[int], chances: NDArray[np.float64]) -> str:
    if not tokens:
        return f"no token {word}"
    shown = ", ".join(f"{token} ({chances[token]:.4g})" for token in tokens[:_SHOWN])
    more = f", and {len(tokens) - _SHOWN} more" if len(tokens) > _SHOWN else ""
    return f"{len(tokens)} {word}: {shown}{more}"


def law_change(
    logits: Any, before: SamplingParams, after: SamplingParams, *, history: Sequence[Pair] | None = None
) -> LawChange:
    """The LawChange of rows of logits [B, V] or [V] from some parameters to others, each under its own semantics.

    `history` has the prompt and output ids of each row, by default none. Words and constraints, which need a tokenizer,
    are left out. Raises ParamsError for what `tirage.law` refuses.
    """
    shape = np.shape(logits)
    if len(shape) not in (1, 2):
        raise ParamsError(f"logits must have the shape [V] or [B, V], got {list(shape)}")
    rows = shape[0] if len(shape) == 2 else 1
    pairs = [((), ())] * rows if history is None else history
    first, second = (law(logits, without_words(params), history=pairs) for params in (before, after))
    return LawChange(first, second)


def without_words(params: SamplingParams) -> SamplingParams:
    """The parameters without a constraint and without words that a tokenizer would have to turn into ids."""
    return params.replace(guided_decoding=None, **dict.fromkeys(untokenized(params), ()))
