"""Rows on their way through the filters: one shard's tokens, and what all shards know of the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tirage.backends.torch.communicator import VocabShard
from tirage.backends.torch.rule import exponents, joined, split_sum, values, weights
from tirage.backends.torch.sort_keys import ABSENT, SORT_KEY_BITS, SortedTokens, key_of, sort_keys
from tirage.exact import numbers
from tirage.exact.keys import LOWEST_KEY, NEG_INF_KEY

_GREEDY_WEIGHT = 1 << 40


@dataclass(slots=True, kw_only=True)
class FilterState:
    """G rows between two filters: this shard's N tokens [G, N] in token-id order, and numbers of the whole rows [G].

    `x` float32 are the edited logits, `key` int32 their keys; `kept` bool are the tokens still in, `base` those that
    the last temperature stage saw, and `m`, `c`, `inverse_t` float32 its numbers. `first` int32 is the largest key of
    each row at the start. `xtc` says whether XTC's coin is on, `protected` bool which tokens XTC spares. `trimmed`
    int64 is the sort key of the token that a truncated top-p cut, ABSENT where there is none, and `left` its weight.
    """

    shard: VocabShard
    x: Tensor
    key: Tensor
    kept: Tensor
    base: Tensor
    m: Tensor
    c: Tensor
    inverse_t: Tensor
    first: Tensor
    xtc: bool = False
    protected: Tensor | None = None
    greedy: bool = False
    trimmed: Tensor | None = None
    left: Tensor | None = None
    _top: Tensor | None = None
    _q: Tensor | None = None
    _weights: Tensor | None = None
    _sort_key: Tensor | None = None
    _sorted: SortedTokens | None = None

    @classmethod
    def of(
        cls, shard: VocabShard, x: Tensor, *, key: Tensor, first: Tensor, protected: Tensor | None = None
    ) -> FilterState:
        """The state of finished logits `x` float32 [G, N]: candidates are the tokens above -inf (S-N4).

        `key` int32 [G, N] are their keys, `first` int32 [G] is the largest of each row on any shard.
        """
        kept = key > NEG_INF_KEY
        return cls(
            shard=shard,
            x=x,
            key=key,
            kept=kept,
            base=kept,
            m=logit_of(first),
            c=torch.full(first.shape, float(numbers.temperature_constant(1.0)), device=x.device),
            inverse_t=torch.ones(first.shape, device=x.device),
            first=first,
            protected=protected,
            _top=first,
        )

    def with_xtc(self) -> FilterState:
        """The same rows with XTC's coin on."""
        return replace(self, xtc=True)

    @property
    def q(self) -> Tensor:
        """Exponents of all tokens, int32 [G, N]."""
        if self._q is None:
            self._q = exponents(self.x, self.m, self.c)
        return self._q

    @property
    def all_weights(self) -> Tensor:
        """Integer weights of all tokens, whether in or out, int64 [G, N]."""
        if self._weights is None:
            self._weights = weights(self.q)
        return self._weights

    @property
    def sort_key(self) -> Tensor:
        """Sort keys of all tokens, int64 [G, N]."""
        if self._sort_key is None:
            self._sort_key = sort_keys(self.key, self.shard.ids(self.x))
        return self._sort_key

    def sort_key_at(self, column: Tensor) -> Tensor:
        """Sort keys int64 of the tokens in `column` [G, n], without making all of them."""
        return sort_keys(self.key.gather(1, column), self.shard.start + column)

    def w(self) -> Tensor:
        """Integer weights, int64 [G, N]; 0 for tokens that are out."""
        if self.greedy:
            return self.kept * _GREEDY_WEIGHT
        if self.trimmed is None or self.left is None:
            return self.all_weights * self.kept
        cut = self.sort_key == self.trimmed[:, None]
        return torch.where(cut, self.left[:, None], self.all_weights) * self.kept

    def remaining(self) -> Tensor:
        """Sort keys of the tokens still in, int64 [G, N]; ABSENT for the others."""
        # ABSENT has all bits set; a CPU is several times faster at this than at torch.where.
        return self.sort_key | (self.kept.to(torch.int64) - 1)

    def in_order(self) -> SortedTokens:
        """This shard's tokens in the order of every cut (S-W3), sorted once."""
        if self._sorted is None:
            self._sorted = SortedTokens.of(self.sort_key, bits=SORT_KEY_BITS)
        return self._sorted

    def known(self, sort_key: Tensor) -> tuple[Tensor, Tensor]:
        """Exponents int32 and weights int64 of any shard's tokens, from their sort keys [G, n]; weight 0 for ABSENT."""
        real = sort_key != ABSENT
        q = exponents(values(torch.where(real, key_of(sort_key), NEG_INF_KEY)), self.m, self.c)
        w = weights(q)
        if self.trimmed is not None and self.left is not None:
            w = torch.where(sort_key == self.trimmed[:, None], self.left[:, None], w)
        return q, w * real

    def top(self) -> Tensor:
        """The largest key still in on any shard, int32 [G]; a round when an earlier filter may have removed it."""
        if self._top is None:
            own = torch.where(self.kept, self.key, LOWEST_KEY).amax(1)
            self._top = self.shard.comm.max(own.to(torch.int64)).to(torch.int32)
        return self._top

    def largest(self, w: Tensor) -> Tensor:
        """The largest weight still in on any shard, int64 [G], where `w` [G, N] are this shard's.

        No round unless a weight was cut: it belongs to the largest key, which all shards know.
        """
        if self.greedy or self.trimmed is not None:
            return self.shard.comm.max(w.amax(1))
        return weights(exponents(values(self.top())[:, None], self.m, self.c))[:, 0]

    def keep(self, kept: Tensor) -> None:
        """Drop the tokens that are not `kept`, bool [G, N]; every row's largest token must be."""
        self.kept = self.kept & kept

    def keep_without_top(self, kept: Tensor) -> None:
        """Drop the tokens that are not `kept`, bool [G, N], perhaps the largest too."""
        self.keep(kept)
        self._top = None

    def rebase(self, c: Tensor, inverse_t: Tensor) -> None:
        """Enter a temperature stage with float32 [G] factors: weights count from the largest logit still in."""
        self.m, self.c, self.inverse_t = logit_of(self.top()), c, inverse_t
        self.base, self._q, self._weights = self.kept, None, None

    def mass(self, w: Tensor, *others: Tensor) -> list[list[int]]:
        """Sums over all shards: of weights int64 [G, N], at least 1 each, then of other integers [G]. One round."""
        mass, *rest = self.shard.comm.sum(torch.stack([w.sum(1), *others])).tolist()
        return [[max(total, 1) for total in mass], *rest]

    def mean(self, w: Tensor, *others: Tensor) -> tuple[list[int], list[list[int]]]:
        """floor(sum(w * q) / sum(w)) of weights [G, N], by row, and what `mass` gives for the arguments. One round."""
        total, high, low, *rest = self.mass(w, *split_sum(w * self.q), *others)
        products = zip(joined(high, low), total, strict=True)
        return [product // mass for product, mass in products], [total, *rest]


def logit_of(top: Tensor) -> Tensor:
    """The logit float32 [G] of each row's largest key [G]; any number for a row without candidates, never drawn."""
    return values(top.masked_fill(top <= NEG_INF_KEY, 0).to(torch.int32))
