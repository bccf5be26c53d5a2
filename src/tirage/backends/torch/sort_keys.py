"""Sort keys: one int64 per token whose order is the order of every cut, and how shards find a cut together.

sort key = (key + 2^31) * 2^20 + (2^20 - 1 - id), 52 bits: larger first means (key descending, id ascending), rule
S-W3. So a cut of the whole vocabulary is one integer per row, and ties need no rule of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tirage.backends.torch.communicator import Communicator

_IDS = 20
_LAST_ID = (1 << _IDS) - 1
_LIFT = 1 << 31
SORT_KEY_BITS = 52
ABSENT = -1
"""The sort key of no token, below all others."""
ABOVE_ALL = 1 << SORT_KEY_BITS
"""A sort key above all others."""
_DIGIT = 4
"""Bits of a cut that one round settles: 16 candidates per row and round."""
_FAN = 1 << _DIGIT


def sort_keys(key: Tensor, ids: Tensor) -> Tensor:
    """Sort keys int64 [G, n] of tokens, from int32 keys [G, n] and int64 ids [G, n] or [n]."""
    return key.to(torch.int64).add_(_LIFT).bitwise_left_shift_(_IDS).bitwise_or_(_LAST_ID - ids)


def key_of(sort_key: Tensor) -> Tensor:
    """int32 keys of sort keys, same shape; meaningless for ABSENT."""
    return ((sort_key >> _IDS) - _LIFT).to(torch.int32)


def id_of(sort_key: Tensor) -> Tensor:
    """Token ids of sort keys, int64, same shape; meaningless for ABSENT."""
    return _LAST_ID - (sort_key & _LAST_ID)


def with_ties(sort_key: Tensor) -> Tensor:
    """The least sort key with the same key, same shape: at or above it lie all tokens that tie."""
    return sort_key & ~_LAST_ID


@dataclass(frozen=True, slots=True)
class SortedTokens:
    """One shard's tokens of each row in descending order, int64 [G, N] in [0, 2^bits); `index` are their columns."""

    ordered: Tensor
    index: Tensor
    bits: int

    @classmethod
    def of(cls, order: Tensor, *, bits: int) -> SortedTokens:
        """The columns of `order` [G, N] sorted."""
        ordered, index = torch.sort(order, dim=1, descending=True)
        return cls(ordered, index, bits)

    def cut(self, comm: Communicator, w: Tensor, *, goal: Tensor) -> tuple[Tensor, Tensor]:
        """(cut, above), int64 [G]: the highest value at or above which all shards hold mass `goal`, and the mass above.

        `w` int64 [G, N] are weights by column, `goal` [G] is at least 1. Where all mass together is less than `goal`,
        cut is 0. Each of bits / 4 rounds sums 16 integers per row over the shards; a single shard needs none.
        """
        reached = w.gather(1, self.index).cumsum(1)
        if comm.size == 1:
            n = torch.searchsorted(reached, goal[:, None])
            return pad(self.ordered, (0, 1)).gather(1, n)[:, 0], pad(reached, (1, 0)).gather(1, n)[:, 0]
        return self._searched(comm, pad(reached, (1, 0)), goal)

    def _searched(self, comm: Communicator, reached: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """`cut`, found digit by digit; `reached` [G, N + 1] is this shard's mass above each of its tokens."""
        ascending = -self.ordered
        steps = torch.arange(_FAN, device=goal.device)
        cut, above = torch.zeros_like(goal), torch.zeros_like(goal)
        for shift in range(self.bits - _DIGIT, -1, -_DIGIT):
            tried = cut[:, None] + (steps << shift)
            mass = comm.sum(reached.gather(1, torch.searchsorted(ascending, -tried, right=True)))
            digit = ((mass >= goal[:, None]).sum(1) - 1).clamp(min=0)
            beyond = pad(mass[:, 1:], (0, 1))
            beyond[:, -1] = above
            above = beyond.gather(1, digit[:, None])[:, 0]
            cut = cut + (digit << shift)
        return cut, above


def highest(comm: Communicator, sort_key: Tensor, n: int) -> Tensor:
    """The n highest of all shards' sort keys [G, N], descending, int64 [G, n]; ABSENT past the last.

    One round gathers n integers per row and shard.
    """
    most = min(n, sort_key.shape[1])
    mine = pad(torch.topk(sort_key, most, dim=1).values, (0, n - most), value=ABSENT)
    everyone = comm.gather(mine).permute(1, 0, 2).reshape(sort_key.shape[0], -1)
    return torch.topk(everyone, n, dim=1).values
