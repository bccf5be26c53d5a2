"""Places: one int64 per token whose order is the order of every cut, and how shards find a place together.

place = (key + 2^31) * 2^20 + (2^20 - 1 - id), 52 bits: larger first means (key descending, id ascending), rule S-W3.
So a cut of the whole vocabulary is one integer per row, and ties need no rule of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tirage.backends.sharded.communicate import Communicator

_IDS = 20
_LAST_ID = (1 << _IDS) - 1
_LIFT = 1 << 31
PLACE_BITS = 52
DIGIT = 4
"""Bits of a threshold that one round settles: 16 candidates per row and round."""
_FAN = 1 << DIGIT
NOWHERE = -1
"""The place of no token, below all others."""
BEYOND = 1 << PLACE_BITS
"""A place above all others."""


def place_of(key: Tensor, ids: Tensor) -> Tensor:
    """Places of tokens, int64, from int32 keys and global ids that broadcast."""
    return ((key.to(torch.int64) + _LIFT) << _IDS) | (_LAST_ID - ids)


def key_of(place: Tensor) -> Tensor:
    """int32 keys of places."""
    return ((place >> _IDS) - _LIFT).to(torch.int32)


def id_of(place: Tensor) -> Tensor:
    """Token ids of places, int64."""
    return _LAST_ID - (place & _LAST_ID)


def level(place: Tensor) -> Tensor:
    """The last place with the same key: at or above it lie all tokens that tie."""
    return place & ~_LAST_ID


@dataclass(frozen=True, slots=True)
class Ladder:
    """One shard's tokens of each row by descending rank, int64 [G, N] in [0, 2^bits), `index` saying which they are."""

    ranks: Tensor
    index: Tensor
    bits: int

    @classmethod
    def of(cls, rank: Tensor, bits: int) -> Ladder:
        """The Ladder of unsorted ranks [G, N]."""
        ranks, index = torch.sort(rank, dim=1, descending=True)
        return cls(ranks, index, bits)

    def find(self, comm: Communicator, w: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """(cut, above), int64 [G]: the highest cut at or above which all shards hold mass `goal`, and what is above it.

        `w` int64 [G, N] are weights in the order before sorting, `goal` [G] at least 1. Where all mass together is
        less than `goal`, cut is 0. Each of bits / 4 rounds sums 16 integers per row over the shards.
        """
        reached = torch.nn.functional.pad(w.gather(1, self.index).cumsum(1), (1, 0))
        ascending = -self.ranks
        steps = torch.arange(_FAN, device=w.device)
        cut, above = torch.zeros_like(goal), torch.zeros_like(goal)
        for shift in range(self.bits - DIGIT, -1, -DIGIT):
            tried = cut[:, None] + (steps << shift)
            mass = comm.sum(reached.gather(1, torch.searchsorted(ascending, -tried, right=True)))
            digit = ((mass >= goal[:, None]).sum(1) - 1).clamp(min=0)
            beyond = torch.nn.functional.pad(mass[:, 1:], (0, 1))
            beyond[:, -1] = above
            above = beyond.gather(1, digit[:, None])[:, 0]
            cut = cut + (digit << shift)
        return cut, above


def best(comm: Communicator, place: Tensor, n: int) -> Tensor:
    """The n highest of all shards' places [G, N], descending, int64 [G, n]; NOWHERE past the last.

    One round gathers n integers per row and shard.
    """
    most = min(n, place.shape[1])
    mine = torch.topk(place, most, dim=1).values
    mine = torch.nn.functional.pad(mine, (0, n - most), value=NOWHERE)
    everyone = comm.gather(mine).permute(1, 0, 2).reshape(place.shape[0], -1)
    return torch.topk(everyone, n, dim=1).values
