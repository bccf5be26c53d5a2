"""One shard's part of some rows on their way through the filters, with what all shards know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.sharded.communicate import Communicator
from tirage.backends.sharded.places import NOWHERE, PLACE_BITS, Ladder, key_of, place_of
from tirage.backends.torch.rule import exponents, joined, keys, split_sum, values, weights
from tirage.exact import numbers
from tirage.exact.keys import LOWEST_KEY, NEG_INF_KEY

Operands = NDArray[np.int64]
"""[G, 5]: a..e of one step for each row."""

GREEDY_WEIGHT = 1 << 40


@dataclass(slots=True, kw_only=True)
class ShardState:
    """The tokens of one shard, [G, N], and numbers of the whole rows, [G]; names as in the plain path's Row.

    `place` ranks tokens of all shards (`places`). `kept` are the tokens still in, `base` those that the last
    temperature stage saw. `trimmed` is the place whose weight a truncated top-p cut to `left`, or NOWHERE.
    `first` is the largest key of the row when it entered.
    """

    comm: Communicator
    x: Tensor
    key: Tensor
    place: Tensor
    kept: Tensor
    base: Tensor
    m: Tensor
    c: Tensor
    inverse_t: Tensor
    trimmed: Tensor
    left: Tensor
    first: Tensor
    coin: bool
    protected: Tensor | None
    greedy: bool = False
    _top: Tensor | None = None
    _q: Tensor | None = None
    _ladder: Ladder | None = None

    @classmethod
    def of(
        cls, comm: Communicator, x: Tensor, start: int, first: Tensor, *, coin: bool, protected: Tensor | None
    ) -> ShardState:
        """The Part of finished logits of the tokens from id `start` on; `first` [G] is the largest key anywhere."""
        key = keys(x)
        kept = key > NEG_INF_KEY
        nowhere = torch.full_like(first, NOWHERE, dtype=torch.int64)
        return cls(
            comm=comm,
            x=x,
            key=key,
            place=place_of(key, start + torch.arange(x.shape[1], device=x.device)),
            kept=kept,
            base=kept,
            m=largest(first),
            c=torch.full(first.shape, float(numbers.temperature_constant(1.0)), device=x.device),
            inverse_t=torch.ones(first.shape, device=x.device),
            trimmed=nowhere,
            left=nowhere,
            first=first,
            coin=coin,
            protected=protected,
            _top=first,
        )

    def top(self) -> Tensor:
        """The largest key still in, of all shards, int32 [G]; a round when an earlier filter may have removed it."""
        if self._top is None:
            self._top = self.comm.max(self.own_top(self.kept).to(torch.int64)).to(torch.int32)
        return self._top

    def own_top(self, kept: Tensor) -> Tensor:
        """The largest key of this shard among `kept`, int32 [G]."""
        return torch.where(kept, self.key, LOWEST_KEY).amax(1)

    @property
    def q(self) -> Tensor:
        """Exponents of all tokens, int32 [G, N]."""
        if self._q is None:
            self._q = exponents(self.x, self.m, self.c)
        return self._q

    def w(self) -> Tensor:
        """Integer weights, int64 [G, N]; 0 for tokens that are out."""
        if self.greedy:
            return self.kept * GREEDY_WEIGHT
        return torch.where(self.place == self.trimmed[:, None], self.left[:, None], weights(self.q)) * self.kept

    def known(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Exponents and weights of any shard's tokens [G, n], from their places; weight 0 for NOWHERE."""
        real = place != NOWHERE
        q = exponents(values(torch.where(real, key_of(place), NEG_INF_KEY)), self.m, self.c)
        return q, torch.where(place == self.trimmed[:, None], self.left[:, None], weights(q)) * real

    def ladder(self) -> Ladder:
        """This shard's tokens by place; sorted once."""
        if self._ladder is None:
            self._ladder = Ladder.of(self.place, PLACE_BITS)
        return self._ladder

    def keep(self, kept: Tensor) -> None:
        """Drop the tokens that are not `kept`; the largest of the row is."""
        self.kept = self.kept & kept

    def keep_without_top(self, kept: Tensor) -> None:
        """Drop the tokens that are not `kept`, perhaps the largest too."""
        self.keep(kept)
        self._top = None

    def rebase(self, c: Tensor, inverse_t: Tensor) -> None:
        """Enter a temperature stage: weights count from the largest logit still in."""
        self.m, self.c, self.inverse_t = largest(self.top()), c, inverse_t
        self.base, self._q = self.kept, None

    def mass(self, w: Tensor, *others: Tensor) -> list[list[int]]:
        """Sums over all shards of weights [G, N], at least 1, and of other integers [G]: one round."""
        together = self.comm.sum(torch.stack([w.sum(1), *others])).tolist()
        return [[max(total, 1) for total in together[0]], *together[1:]]

    def mean(self, w: Tensor, *others: Tensor) -> tuple[list[int], list[list[int]]]:
        """floor(sum(w * q) / sum(w)) of each row, and what `mass` gives; one round."""
        total, high, low, *rest = self.mass(w, *split_sum(w * self.q), *others)
        products = joined(torch.tensor(high), torch.tensor(low))
        return [product // mass for product, mass in zip(products, total, strict=True)], [total, *rest]


def largest(top: Tensor) -> Tensor:
    """The logit of the largest key [G]; a row without candidates is reported, not drawn: any number will do."""
    return values(torch.where(top > NEG_INF_KEY, top, 0).to(torch.int32))


def column(a: Operands, at: int) -> Sequence[int]:
    """One operand of each row."""
    return a[:, at].tolist()
