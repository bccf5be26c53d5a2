"""What a row reports beside its token: logprobs, ranks, top lists and asked ids of one view (S-L5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tirage.backends import SamplingMetadata, View
from tirage.backends.torch.chain import FilterState, sums
from tirage.backends.torch.edits import not_finite
from tirage.backends.torch.rule import FLT_MAX, exponents, floats, host, keys, scaled, values, weights
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.logs import OCTAVE, ilog2, ln_fixed, log_mass

_POINT = 63


@dataclass(frozen=True, slots=True)
class Report:
    """One view of G rows in token-id order: logprobs float32 [G, V] and the keys that it ranks by, int32 [G, V]."""

    logprobs: Tensor
    key: Tensor

    @classmethod
    def of(cls, view: View, logits: Tensor, x: Tensor, chain: FilterState) -> Report:
        """The report of `view`: `logits` as they came, `x` as edited, `chain` as it ended."""
        if view == View.SAMPLED:
            return cls._ranked(x, chain.by_id(sampled(chain)))
        unit = floats([numbers.temperature_constant(1.0)] * len(x), x), torch.ones(len(x), device=x.device)
        if view == View.RAW:
            x = torch.where(not_finite(logits), -torch.inf, logits)
        c, inverse_t = unit if view == View.RAW or chain.greedy else (chain.c, chain.inverse_t)
        top = keys(x).amax(1)
        m = values(torch.where(top > NEG_INF_KEY, top, 0))
        total = sums(weights(exponents(x, m, c)))
        return cls._ranked(x, logprobs(x, m, inverse_t, total))

    @classmethod
    def _ranked(cls, x: Tensor, lp: Tensor) -> Report:
        return cls(lp, torch.where(keys(lp) == NEG_INF_KEY, NEG_INF_KEY, keys(x)))

    def of_tokens(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """(logprob, rank) of one token per row, [G]; equal logits share a rank."""
        key = self.key.gather(1, token[:, None])
        return self.logprobs.gather(1, token[:, None])[:, 0], 1 + (self.key > key).sum(1)

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """(ids, logprobs) [G, min(n, V)] of the first candidates in order; -1 and -inf past the last."""
        ids = torch.sort(self.key, dim=1, descending=True, stable=True).indices[:, :n]
        inside = self.key.gather(1, ids) > NEG_INF_KEY
        return torch.where(inside, ids, -1), torch.where(inside, self.logprobs.gather(1, ids), -torch.inf)

    def asked(self, rows: SamplingMetadata) -> Tensor:
        """Logprobs of the asked ids of `rows`, float32 [A]."""
        row = np.repeat(np.arange(rows.count), np.diff(rows.asked_start))
        return self.logprobs[host(row, self.key), host(rows.asked_ids, self.key)]


def logprobs(x: Tensor, m: Tensor, inverse_t: Tensor, totals: Iterable[int]) -> Tensor:
    """ln p of each logit of rows [G, V]: -(min((m - x) / T, FLT_MAX) + ln Z); -inf for -inf. Rule S-L2."""
    distance = scaled(x, m, inverse_t, FLT_MAX)
    ln_z = floats([log_mass(total) for total in totals], x)
    return torch.where(keys(x) == NEG_INF_KEY, -torch.inf, 0.0 - (distance + ln_z[:, None]))


def sampled(chain: FilterState) -> Tensor:
    """Logprobs under the law of this branch, float32 [G, V] in the order of `chain`; -inf for tokens that are out."""
    if chain.greedy:
        return torch.where(chain.kept, 0.0, -torch.inf)
    totals = sums(chain.w())
    lp = logprobs(chain.x, chain.m, chain.inverse_t, totals)
    if chain.trimmed is not None and chain.left is not None:
        lp = torch.where(chain.ids == chain.trimmed[:, None], _shares(chain.left, totals)[:, None], lp)
    return torch.where(chain.kept, lp, -torch.inf)


def _shares(left: Tensor, totals: Sequence[int]) -> Tensor:
    """ln(w / W) of one weight per row (S-L3)."""
    pairs = zip(left.tolist(), totals, strict=True)
    return floats([ln_fixed(ilog2(max(w, 1)) - ilog2(total)) + np.float32(0) for w, total in pairs], left)


def mixed_logprob(weights_: tuple[int, int], totals: tuple[int, int], share: int) -> np.float32:
    """ln of a token's probability in XTC's mixture, from its weight and the mass of either branch (S-L4)."""
    off, on = ((w << _POINT) // total for w, total in zip(weights_, totals, strict=True))
    p = max(off * ((1 << 32) - share) + on * share >> 32, 1)
    return ln_fixed(ilog2(p) - _POINT * OCTAVE) + np.float32(0)
