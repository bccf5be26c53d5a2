"""One branch of one row: the tokens that are still in, and what gives them their weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference.arithmetic import constant, exponent, settle, tiny, weight
from tirage.params import SamplingParams
from tirage.semantics import Semantics

OK, NON_FINITE, NO_TOKEN, PROCESSOR_FAILED = 0, 1, 2, 4
NOTHING = -math.inf


@dataclass(slots=True, kw_only=True)
class Branch:
    """The tokens still in, `ranked` by (key descending, id ascending), and what gives them their weight.

    `seen` is the set that entered the last temperature stage (or the first filter); `cut` the weight that a truncated
    top-p left to its crossing token. `listed` counts the tokens at -inf that no filter took from llama.cpp's list of
    candidates. `greedy` says that a law is one-hot by T = 0.
    """

    params: SamplingParams
    semantics: Semantics
    x: list[float]
    coin: bool
    status: int = OK
    ranked: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    m: float = 0.0
    c: float = constant(1.0)
    inverse_t: float = 1.0
    cut: dict[int, int] = field(default_factory=dict)
    listed: int = 0
    greedy: bool = False
    state: float = 0.0
    near: dict[int, int] = field(default_factory=dict)
    winner: int | None = None
    chance: dict[int, float] = field(default_factory=dict)

    def q(self, token: int) -> int:
        return exponent(self.x[token], self.m, self.c)

    def w(self, token: int) -> int:
        return self.cut.get(token, weight(self.q(token)))

    def weights(self) -> dict[int, int]:
        """Weight of each token still in; the total is the sum."""
        if self.near:
            return self.near
        return {t: 2**40 if self.greedy else self.w(t) for t in self.ranked}

    def mass(self, tokens: Sequence[int]) -> int:
        return sum(self.w(t) for t in tokens)

    def mean_q(self) -> int:
        """floor(sum(w q) / sum(w)) over the tokens still in."""
        return sum(self.w(t) * self.q(t) for t in self.ranked) // self.mass(self.ranked)

    def rebase(self) -> None:
        """Weights are relative to the largest logit among the tokens that enter here."""
        self.seen = list(self.ranked)
        self.m = self.x[self.ranked[0]] + 0.0


def change(row: Branch, token: int, formula: Callable[[float], float]) -> None:
    if row.x[token] != NOTHING:
        row.x[token] = settle(formula(tiny(row.x[token])))
