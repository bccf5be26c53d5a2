"""The filters on tensors: every step of many rows at once, in int64, for any device.

Row scalars (masses, thresholds) pass through Python integers, B of them per step: exact without 128-bit arithmetic
on the device. What each step means is written in `backends/numpy/plain.py` and in SPEC.md, rules S-O.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.torch.rule import (
    clamped,
    cleaned,
    exponents,
    floats,
    host,
    joined,
    keys,
    per_row,
    split_sum,
    values,
    weights,
)
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX, LOWEST_KEY, NEG_INF_KEY
from tirage.exact.logs import OCTAVE, ilog2
from tirage.exact.weights import Q_LIMIT
from tirage.exact.weights import weights as host_weights
from tirage.operators.row import target_mass
from tirage.stages import FIRST_FILTER, Op

Operands = NDArray[np.int64]
"""[G, 5]: a..e of one step for each row."""

_GREEDY_WEIGHT = 1 << 40
_TOP_H_TOKENS = 100
_FAR = 1 << 62


@dataclass(slots=True, kw_only=True)
class FilterState:
    """G rows between two filters.

    `x`, `key`, `ids`, `kept` and `base` [G, V] stand in one order: token ids at first, (key descending, id ascending)
    once `rank` was called. `m`, `c`, `inverse_t` [G] are those of the last temperature stage, `base` the set it saw.
    `trimmed` and `left` [G] are the token that a truncated top-p cut and its weight, -1 where there is none.
    """

    x: Tensor
    key: Tensor
    ids: Tensor
    kept: Tensor
    base: Tensor
    m: Tensor
    c: Tensor
    inverse_t: Tensor
    coin: bool
    protected: Tensor | None
    ranked: bool = False
    greedy: bool = False
    trimmed: Tensor | None = None
    left: Tensor | None = None
    _q: Tensor | None = field(default=None)

    @classmethod
    def of(cls, x: Tensor, *, coin: bool = False, protected: Tensor | None = None) -> FilterState:
        """The FilterState of finished logits: candidates are the tokens above -inf (S-N4)."""
        key = keys(x)
        kept = key > NEG_INF_KEY
        g = x.shape[0]
        return cls(
            x=x,
            key=key,
            ids=torch.arange(x.shape[1], device=x.device).expand_as(x),
            kept=kept,
            base=kept,
            m=_largest(x, key, kept),
            c=torch.full((g,), float(numbers.temperature_constant(1.0)), device=x.device),
            inverse_t=torch.ones(g, device=x.device),
            coin=coin,
            protected=protected,
        )

    @property
    def q(self) -> Tensor:
        """Exponents of all tokens, int32 [G, V]."""
        if self._q is None:
            self._q = exponents(self.x, self.m, self.c)
        return self._q

    def w(self) -> Tensor:
        """Integer weights, int64 [G, V]; 0 for tokens that are out."""
        if self.greedy:
            return self.kept * _GREEDY_WEIGHT
        w = weights(self.q) * self.kept
        if self.trimmed is not None and self.left is not None:
            w = torch.where(self.ids == self.trimmed[:, None], self.left[:, None] * self.kept, w)
        return w

    def keep(self, kept: Tensor) -> None:
        """Drop the tokens that are not `kept`."""
        self.kept = self.kept & kept

    def rank(self) -> None:
        """Put the tokens into the order of every cut: key descending, then id ascending (S-W3)."""
        if not self.ranked:
            order = torch.sort(self.key, dim=1, descending=True, stable=True).indices
            for name in ("x", "key", "ids", "kept", "base"):
                setattr(self, name, getattr(self, name).gather(1, order))
            self.protected = None if self.protected is None else self.protected.gather(1, order)
            self._q, self.ranked = None, True

    def by_id(self, ordered: Tensor) -> Tensor:
        """What stands [G, V] in the order of this state, in token-id order."""
        return torch.empty_like(ordered).scatter_(1, self.ids, ordered) if self.ranked else ordered

    def top(self) -> Tensor:
        """The largest key among the tokens still in, int32 [G]."""
        return _top(self.key, self.kept)

    def rebase(self, c: Tensor, inverse_t: Tensor) -> None:
        """Enter a temperature stage: weights count from the largest logit still in."""
        self.m, self.c, self.inverse_t = _largest(self.x, self.key, self.kept), c, inverse_t
        self.base, self._q = self.kept, None

    def keep_prefix(self, n: Tensor, ties: Operands) -> None:
        """Keep the first `n` [G] tokens in order and, where `ties`, all that equal the last of them."""
        kept = self.kept & (self.kept.cumsum(1) <= n[:, None])
        if ties.any():
            last = torch.where(kept, self.key, -LOWEST_KEY).amin(1)
            last = torch.where(host(ties, last) > 0, last, -LOWEST_KEY)
            kept = kept | (self.key >= last[:, None])
        self.keep(kept)


def run(chain: FilterState, programs: Operands) -> FilterState:
    """`chain` after every filter of `programs` [G, S, 6], whose rows share one list of operations."""
    for s, op in enumerate(programs[0, :, 0].tolist()):
        if op >= FIRST_FILTER:
            STEPS[Op(op)](chain, programs[:, s, 1:])
    return chain


def _top(key: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, key, LOWEST_KEY).amax(1)


def _largest(x: Tensor, key: Tensor, kept: Tensor) -> Tensor:
    # A row without candidates is reported, not drawn; its m only has to be a number.
    top = _top(key, kept)
    return values(torch.where(kept.any(1), top, 0))


def sums(w: Tensor) -> list[int]:
    """Row sums of integer weights, as Python integers; a row without tokens counts 1, so that it can be divided by."""
    return [max(total, 1) for total in w.sum(1).tolist()]


def _column(a: Operands, at: int) -> list[int]:
    return a[:, at].tolist()


def _float(a: Operands, at: int, like: Tensor) -> Tensor:
    return floats(a[:, at].astype(np.int32).view(np.float32), like)


def share(e: int, s: int, total: int) -> int:
    """ceil(E * W / 2^s): the weight that is this share of the mass."""
    return min(-(-e * total >> s), _FAR)


def _mean(q: Tensor, w: Tensor) -> list[int]:
    """floor(sum(w * q) / sum(w)) of each row."""
    return per_row(lambda product, total: product // total, joined(*split_sum(w * q)), sums(w))


# --- the steps ----------------------------------------------------------------------------------------------------


def _greedy(chain: FilterState, a: Operands) -> None:
    best = chain.kept & (chain.key == chain.top()[:, None])
    token = torch.where(best, chain.ids, chain.x.shape[1]).amin(1)
    chain.keep(chain.ids == token[:, None])
    chain.greedy = True


def _temperature(chain: FilterState, a: Operands) -> None:
    chain.rebase(_float(a, 0, chain.x), _float(a, 1, chain.x))


def _dynamic_temperature(chain: FilterState, a: Operands) -> None:
    """T between T min and T max by the entropy of the set: rule S-O9."""
    unit = torch.full_like(chain.c, float(numbers.temperature_constant(1.0)))
    chain.rebase(unit, torch.ones_like(unit))
    w = chain.w()
    columns = _mean(chain.q, w), sums(w), chain.kept.sum(1).tolist(), _column(a, 3), _column(a, 4)
    c, inverse_t = dynamic_factors(a, per_row(entropy_fraction, *columns))
    chain.rebase(floats(c, chain.x), floats(inverse_t, chain.x))


def dynamic_factors(a: Operands, fractions: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """c and 1 / T [G] between the rows' T min and T max, at these fractions (units of 2^-32) of the way."""
    factors = []
    for low, fraction in zip(_column(a, 2), fractions, strict=True):
        t = low + (((1 << 32) - low) * fraction >> 32)
        factors.append(np.float32((1 << 62) // max(t, 1 << 9)) * np.float32(2.0**-30))
    r = np.array(factors, np.float32)
    bits = a[:, :2].astype(np.int32).view(np.float32)
    with np.errstate(over="ignore"):
        return np.minimum(bits[:, 0] * r, FLT_MAX), np.minimum(bits[:, 1] * r, FLT_MAX)


def entropy_fraction(mean: int, total: int, count: int, e: int, s: int) -> int:
    """(H / H max) ** exponent in units of 2^-32."""
    entropy, most = mean + ilog2(total) - 40 * OCTAVE, ilog2(max(count, 1))
    if entropy <= 0 or most <= 0:
        return 0
    octaves = max(ilog2(most) - ilog2(entropy), 0)
    power = np.array([min(octaves * e >> s, Q_LIMIT)], np.int32)
    return int(host_weights(power)[0]) >> 8


def _top_n_sigma(chain: FilterState, a: Operands) -> None:
    """Keep x >= max - n * standard deviation, in row-relative fixed point: rule S-O6."""
    top = values(chain.top())
    distance = cleaned((top[:, None] - chain.x).clamp(max=float(FLT_MAX))).nan_to_num()
    bits = distance.view(torch.int32) * chain.kept
    exponent = bits >> 23
    # v = floor(d * 2^(29 - e)) from the bits of d: the significand, moved by how far d is below the widest.
    significand = ((bits & 0x7FFFFF) | 0x800000).to(torch.int64) << 6
    v = torch.where(bits == 0, 0, significand >> (exponent.amax(1, keepdim=True) - exponent).clamp(0, 62))
    squares = joined(*split_sum(v * v))
    limits = per_row(sigma_limit, chain.kept.sum(1).tolist(), v.sum(1).tolist(), squares, *map(list, a[:, :2].T))
    chain.keep(v <= host(limits, v)[:, None])


def sigma_limit(n: int, s1: int, s2: int, e: int, s: int) -> int:
    """The largest v that top-n-sigma keeps, from the count, sum and sum of squares of v."""
    deviation = math.isqrt((n * s2 - s1 * s1) // max(n * n, 1) << 2)
    return min(int(e) * deviation >> int(s) + 1, _FAR)


def _top_k(chain: FilterState, a: Operands) -> None:
    chain.rank()
    chain.keep_prefix(host(a[:, 0], chain.ids), a[:, 1])


def _top_p(chain: FilterState, a: Operands) -> None:
    chain.rank()
    w = chain.w()
    reached = w.cumsum(1)
    total = reached[:, -1]
    if a[:, 3].any():
        whole = (weights(chain.q) * chain.base).sum(1)
        total = torch.where(host(a[:, 3], w) > 0, whole, total)
    target = host(top_p_goals(a, total.tolist()), w)
    n = (chain.kept & (reached < target[:, None])).sum(1) + 1
    if (a[:, 1] == 2).any():
        _trim(chain, a, w, reached, target, n)
    chain.keep_prefix(n, a[:, 2])


def top_p_goals(a: Operands, totals: list[int]) -> list[int]:
    """The mass that each row's prefix must reach."""
    # "le" keeps a token while the mass before it is <= floor(P * W): the prefix that reaches one more.
    return per_row(
        lambda p, rule, t: (p * t >> 32) + 1 if rule == 1 else target_mass(p, t), *a[:, :2].T.tolist(), totals
    )


def _trim(chain: FilterState, a: Operands, w: Tensor, reached: Tensor, target: Tensor, n: Tensor) -> None:
    """Cut the weight of the last token of each truncated prefix to what the target still lacks."""
    n = torch.minimum(n, chain.kept.sum(1))
    last = chain.kept & (chain.kept.cumsum(1) == n[:, None])
    token, mass, after = (torch.where(last, value, 0).sum(1) for value in (chain.ids, w, reached))
    left = torch.minimum(target, after) - (after - mass)
    chain.trimmed = torch.where(host(a[:, 1], w) == 2, token, -1)
    chain.left = left


def _min_p(chain: FilterState, a: Operands) -> None:
    least = torch.where(chain.kept, chain.q, Q_LIMIT).amin(1, keepdim=True)
    chain.keep(chain.q - least <= host(a[:, 0], chain.q)[:, None])


def _min_p_logit(chain: FilterState, a: Operands) -> None:
    top = chain.top()
    bound = keys(clamped(_float(a, 0, chain.x) * values(top)))
    chain.keep((chain.key >= bound[:, None]) | (chain.key == top[:, None]))


def _typical(chain: FilterState, a: Operands) -> None:
    w = chain.w()
    distance = (chain.q - host(_mean(chain.q, w), chain.q)[:, None]).abs()
    near = torch.sort(torch.where(chain.kept, distance, _FAR), dim=1)
    reached = w.gather(1, near.indices).cumsum(1)
    targets = typical_goals(a, sums(w))
    n = (reached < host(targets, w)[:, None]).sum(1)
    n = torch.minimum(n, chain.kept.sum(1) - 1).clamp(min=0)
    chain.keep(distance <= near.values.gather(1, n[:, None]))


def typical_goals(a: Operands, totals: list[int]) -> list[int]:
    """The mass that each row's nearest tokens must reach."""
    return per_row(lambda p, gt, t: (p * t >> 32) + 1 if gt else target_mass(p, t), *a[:, :2].T.tolist(), totals)


def _likely(chain: FilterState, a: Operands, w: Tensor) -> Tensor:
    """Tokens whose share of the mass is at least E / 2^s, and those equal to the largest."""
    shares = per_row(share, _column(a, 0), _column(a, 1), sums(w))
    return (w >= host(shares, w)[:, None]) | (chain.key == chain.top()[:, None])


def _epsilon(chain: FilterState, a: Operands) -> None:
    chain.keep(_likely(chain, a, chain.w()))


def _eta(chain: FilterState, a: Operands) -> None:
    w = chain.w()
    bound = host(_mean(chain.q, w), w) + host(a[:, 2], w)
    chain.keep(_likely(chain, a, w) | (chain.q <= bound[:, None]))


def _top_h(chain: FilterState, a: Operands) -> None:
    """Among the first 100 tokens, the prefix that holds the share H of their entropy: rule S-O7."""
    chain.rank()
    first = torch.sort((~chain.kept).to(torch.uint8), dim=1, stable=True).indices[:, :_TOP_H_TOKENS]
    q, w = chain.q.gather(1, first).tolist(), chain.w().gather(1, first).tolist()
    counts = chain.kept.sum(1).clamp(max=_TOP_H_TOKENS).tolist()
    n = per_row(entropy_prefix, q, w, counts, _column(a, 0))
    chain.keep_prefix(host(n, chain.ids), np.zeros(len(n), np.int64))


def entropy_prefix(q: list[int], w: list[int], count: int, share: int) -> int:
    """How many of the first `count` tokens top-h keeps."""
    log_mass = ilog2(max(sum(w[:count]), 1)) - 40 * OCTAVE
    parts = [wi * (qi + log_mass) for qi, wi in zip(q[:count], w[:count], strict=True)]
    total, reached = sum(parts), 0
    for n, part in enumerate(parts):
        reached += part
        if reached << 32 > share * total:
            return max(n, 1)
    return max(count, 1)


def _xtc(chain: FilterState, a: Operands) -> None:
    """Remove every token at or above the threshold but the least likely of them: rule S-O8."""
    if not chain.coin:
        return
    chain.rank()
    w = chain.w()
    shares = per_row(xtc_share, *a[:, 1:4].T.tolist(), sums(w))
    above = chain.kept & (w >= host(shares, w)[:, None])
    count = above.sum(1, keepdim=True)
    kept = ~above | (above.cumsum(1) >= count)
    if chain.protected is not None:
        kept = kept | chain.protected
    chain.keep(kept)


def xtc_share(e: int, s: int, strict: int, total: int) -> int:
    """The weight from which on XTC may remove a token."""
    return min((e * total >> s) + 1, _FAR) if strict else max(1, share(e, s, total))


STEPS: dict[Op, Callable[[FilterState, Operands], None]] = {
    Op.GREEDY: _greedy,
    Op.TEMPERATURE: _temperature,
    Op.DYNAMIC_TEMPERATURE: _dynamic_temperature,
    Op.TOP_N_SIGMA: _top_n_sigma,
    Op.TOP_K: _top_k,
    Op.TOP_P: _top_p,
    Op.MIN_P: _min_p,
    Op.MIN_P_LOGIT: _min_p_logit,
    Op.TYPICAL: _typical,
    Op.EPSILON: _epsilon,
    Op.ETA: _eta,
    Op.TOP_H: _top_h,
    Op.XTC: _xtc,
}
